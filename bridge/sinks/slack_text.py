"""What Slack is told of an event, in words. Pure.

Nothing from outside is markup: ``&``, ``<`` and ``>`` are escaped, which is all
that Slack's mrkdwn asks for, and every text is cut to a length that fits anywhere.

Source: https://api.slack.com/reference/surfaces/formatting
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import accumulate

from bridge.cloudevent import CloudEvent
from bridge.routing import resources_of

_MOST_NAMES = 10
_NAME, _LINE, _PARAGRAPH = 100, 300, 1500
# Controls, what turns the direction of writing, and halves of characters.
_NOT_SHOWN = re.compile(
    r"[\x00-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2060-\u2069\ud800-\udfff]"
)
_ESCAPES = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}

_IMPACTS = {
    "freeze": "paused for some seconds; memory and connections are kept",
    "reboot": "restarted; what is only in memory is lost",
    "redeploy": "moved to another host; temporary disks are lost",
    "preempt": "a Spot machine that is evicted; temporary disks are lost",
    "terminate": "going to be deleted",
}
_STEPS = {
    "scheduled": "is scheduled",
    "started": "has started",
    "updated": "was changed",
    "completed": "is over",
    "cancelled": "was cancelled",
    "ended": "is gone, whether done or called off is not known",
}
_OUTCOMES = {
    "relayed": "passed on to Azure",
    "already-started": "not needed: it has started already",
    "event-ended": "too late: the event is gone",
    "unknown-event": "refused: no such event here",
    "denied": "denied",
    "expired": "expired",
    "invalid": "not readable",
    "rejected": "rejected by Azure",
    "failed": "not passed on: Azure could not be reached",
}
_OWN_LIFE = {
    "started": "The bridge has started",
    "stopped": "The bridge has stopped",
    "heartbeat": "The bridge is alive",
    "imds-unreachable": "The bridge hears nothing of scheduled events: no answer",
    "imds-recovered": "The bridge hears of scheduled events again",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Telling:
    """An event in words, escaped and cut; no text is empty.

    Attributes:
        headline: one line, which must be enough for who reads no more.
        facts: names and values.
        paragraphs: longer texts.
        footer: what it can be found again by.
    """

    headline: str
    facts: tuple[tuple[str, str], ...]
    paragraphs: tuple[str, ...]
    footer: str


def tell(event: CloudEvent) -> Telling:
    """Put an event into words; whatever its data holds, this does not raise."""
    family, what = _family(event.type)
    if family == "scheduledevent":
        return _tell_transition(event, what)
    if family == "startrequest":
        return _tell_outcome(event, what)
    if family == "bridge" and what in _OWN_LIFE:
        return _tell_other(event, _OWN_LIFE[what])
    if family == "document":
        return _tell_other(event, "The document of scheduled events has changed")
    return _tell_other(event, safe(event.type, _LINE))


def _tell_transition(event: CloudEvent, what: str) -> Telling:
    raw = _table(event.data.get("event"))
    step = _STEPS.get(what, safe(what, _NAME))
    facts = [
        ("When", _when(event.data)),
        ("Machines", _machines(raw)),
        ("Impact", _impact(raw)),
        ("Announced by", _text(raw.get("EventSource"), _NAME)),
        ("Changed", _listed(event.data.get("changes"))),
    ]
    return Telling(
        headline=f"{_type(raw)} {step}: {_machines(raw, most=3)}",
        facts=_known(facts),
        paragraphs=_paragraphs(raw),
        footer=_footer(event),
    )


def _tell_outcome(event: CloudEvent, what: str) -> Telling:
    raw = _table(event.data.get("event"))
    request = _table(event.data.get("request"))
    outcome = _OUTCOMES.get(what, safe(what, _NAME))
    facts = [
        ("Approved by", _text(request.get("approvedBy"), _LINE)),
        ("Reason", _text(request.get("reason"), _PARAGRAPH)),
        ("Because", _text(event.data.get("reason"), _PARAGRAPH)),
        ("Machines", _machines(raw) if raw else ""),
        ("Event", _text(event.data.get("eventId"), _NAME)),
    ]
    return Telling(
        headline=f"Approval {outcome}" + (f" ({_type(raw)})" if raw else ""),
        facts=_known(facts),
        paragraphs=(),
        footer=_footer(event),
    )


def _tell_other(event: CloudEvent, headline: str) -> Telling:
    facts = [
        ("Reason", _text(event.data.get("reason"), _PARAGRAPH)),
        ("Incarnation", _text(event.data.get("documentIncarnation"), _NAME)),
        ("Waiting", _text(event.data.get("pending"), _NAME)),
        ("Dead letters", _text(event.data.get("dead"), _NAME)),
    ]
    return Telling(
        headline=headline, facts=_known(facts), paragraphs=(), footer=_footer(event)
    )


def _family(kind: str) -> tuple[str, str]:
    """Return ``scheduledevent`` and ``started`` of ``x.scheduledevent.started.v1``."""
    parts = kind.split(".")
    return (parts[-3], parts[-2]) if len(parts) >= 3 else ("", kind)


def _type(raw: Mapping[str, object]) -> str:
    return _text(raw.get("EventType"), _NAME) or "Event of unknown type"


def _impact(raw: Mapping[str, object]) -> str:
    kind = raw.get("EventType")
    impact = _IMPACTS.get(kind.casefold() if isinstance(kind, str) else "", "not known")
    seconds = _whole(raw.get("DurationInSeconds"))
    if seconds == 0:
        return "none"
    return f"{impact}; about {_span(seconds)}" if seconds and seconds > 0 else impact


def _machines(raw: Mapping[str, object], most: int = _MOST_NAMES) -> str:
    names = resources_of(raw)
    shown = ", ".join(safe(name, _NAME) for name in names[:most])
    rest = len(names) - most
    return (shown + (f" and {rest} more" if rest > 0 else "")) or "unknown machines"


def _when(data: Mapping[str, object]) -> str:
    """Return NotBefore in the reader's own time zone, and how soon that is."""
    at = data.get("notBefore")
    if not isinstance(at, str):
        return ""
    try:
        seconds = int(datetime.fromisoformat(at).timestamp())
    except (ValueError, OverflowError, OSError):
        return ""
    date = f"<!date^{seconds}^{{date_short_pretty}} at {{time}}|{safe(at, _NAME)}>"
    return f"{date}{_soon(data.get('noticeSeconds'))}"


def _soon(notice: object) -> str:
    seconds = _whole(notice)
    if seconds is None:
        return ""
    return f" (in {_span(seconds)})" if seconds > 0 else " (any moment)"


def _span(seconds: int) -> str:
    if seconds < 120:
        return f"{seconds} s"
    return f"{seconds // 60} min" if seconds < 7200 else f"{seconds // 3600} h"


def _paragraphs(raw: Mapping[str, object]) -> tuple[str, ...]:
    description = _text(raw.get("Description"), _PARAGRAPH)
    return (description,) if description else ()


def _listed(value: object) -> str:
    names = value[:_MOST_NAMES] if isinstance(value, list) else []
    return ", ".join(safe(name, _NAME) for name in names if isinstance(name, str))


def _footer(event: CloudEvent) -> str:
    reporter = _table(event.data.get("reporter"))
    told_by = _text(reporter.get("vmName"), _NAME)
    by = f" told by {told_by}" if told_by else ""
    return f"{safe(event.subject or event.id, _LINE)}{by}"


def _table(value: object) -> Mapping[str, object]:
    return value if isinstance(value, Mapping) else {}


def _known(facts: list[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    return tuple((name, value) for name, value in facts if value)


def _whole(value: object) -> int | None:
    """Return a whole number of sane size, else None; JSON's true is no number."""
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if abs(value) < 2**53 else None


def _text(value: object, limit: int) -> str:
    """Return a string or number as text; "" for what is absent, empty or neither."""
    if isinstance(value, str):
        return safe(value, limit) if value[:limit].strip() else ""
    number = _whole(value)
    return "" if number is None else str(number)


def safe(text: str, limit: int) -> str:
    """Return ``text`` on one line, as no markup, not empty, and short enough.

    Args:
        text: whatever came from outside.
        limit: characters of the result; an escape is never cut in two.
    """
    line = _NOT_SHOWN.sub("\ufffd", " ".join(text[: limit + 1].split())) or "-"
    pieces = [_ESCAPES.get(char, char) for char in line]
    if sum(map(len, pieces)) <= limit:
        return "".join(pieces)
    room = limit - 1
    ends = accumulate(map(len, pieces))
    return "".join(p for p, end in zip(pieces, ends, strict=True) if end <= room) + "…"
