"""Describe an event in texts for a mail. Pure.

Texts from outside are cut, and characters that cannot be shown are replaced. HTML is
escaped in ``message``.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from bridge.events.alarm import headline_of
from bridge.events.cloudevent import CloudEvent
from bridge.events.link import link_of
from bridge.events.routing import resources_of

_NAME, _LINE, _PARAGRAPH = 100, 300, 2000
_MOST_IN_SUBJECT, _MOST_NAMES = 3, 50
# Control characters, marks that change the writing direction, and lone surrogates.
_NOT_SHOWN = re.compile(
    r"[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ud800-\udfff]"
)
_STEPS = {
    "scheduled": "is scheduled",
    "started": "has started",
    "updated": "was changed",
    "completed": "is over",
    "cancelled": "was cancelled",
    "ended": "has ended; its outcome is not known",
}
_OUTCOMES = {
    "relayed": "passed on to Azure",
    "already-started": "not needed: the event has started already",
    "event-ended": "too late: the event is gone",
    "unknown-event": "refused: no such event is known here",
    "failed": "not passed on: Azure could not be reached",
    "withheld": "not given yet",
}
_IMPACTS = {
    "Freeze": "the VM is paused for some seconds; memory and connections are kept",
    "Reboot": "the VM is restarted; what is only in memory is lost",
    "Redeploy": "the VM moves to another host; temporary disks are lost",
    "Preempt": "a Spot VM is evicted; temporary disks are lost",
    "Terminate": "the VM is deleted",
}
_OWN_LIFE = {
    "started": "The bridge has started",
    "stopped": "The bridge has stopped",
    "heartbeat": "The bridge is alive",
    "imds-unreachable": "The bridge gets no answer from IMDS",
    "imds-recovered": "IMDS answers the bridge again",
    "traffic-out": "The VM is out of rotation",
    "traffic-in": "The VM is in rotation again",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Words:
    """The texts about an event; none is empty or has a line break.

    Attributes:
        subject: the same for all events of an EventId, so that mail programs keep
            them in one thread.
        headline: what happened.
        facts: names and values.
        paragraphs: longer texts.
        footer: the EventId, the machine that reports, and the time.
        link: the URL of a page about the event; "" = none.
    """

    subject: str
    headline: str
    facts: tuple[tuple[str, str], ...]
    paragraphs: tuple[str, ...]
    footer: str
    link: str = ""


def describe(event: CloudEvent) -> Words:
    """Describe an event as texts; never raises, whatever its data holds."""
    raw = _table(event.data.get("event"))
    headline = _headline(event, raw)
    facts = ((name, _plain(value, limit)) for name, value, limit in _facts(event, raw))
    texts = (raw.get("Description"), event.data.get("output"))
    paragraphs = (_plain(text, _PARAGRAPH) for text in texts)
    key = event.text("correlationid")
    return Words(
        subject=_subject(key, raw) if key else headline,
        headline=headline,
        facts=tuple((name, value) for name, value in facts if value),
        paragraphs=tuple(text for text in paragraphs if text),
        footer=_footer(event),
        link=link_of(event),
    )


def _subject(key: str, raw: Mapping[str, object]) -> str:
    return f"{_kind(raw)}: {_machines(raw, _MOST_IN_SUBJECT)} [{_plain(key[:8], 8)}]"


def _headline(event: CloudEvent, raw: Mapping[str, object]) -> str:
    family, step = _family(event)
    machines = _machines(raw, _MOST_IN_SUBJECT)
    if family == "scheduledevent":
        return f"{_kind(raw)} {_STEPS.get(step, step)}: {machines}"
    if family == "startrequest":
        said = f"Approval {_OUTCOMES.get(step, step)}"
        return f"{said} ({_kind(raw)})" if raw else said
    if family == "command":
        name = _plain(event.data.get("sink"), _NAME) or "command"
        return f"Command {name} {step}: {_reporter(event)}"
    if family == "bridge" and step in _OWN_LIFE:
        return f"{_OWN_LIFE[step]}: {_reporter(event)}"
    if headline := headline_of(event):
        return _plain(headline, _LINE)
    return f"{_plain(event.type, _LINE)}: {_reporter(event)}"


def _facts(
    event: CloudEvent, raw: Mapping[str, object]
) -> Iterator[tuple[str, object, int]]:
    """Yield names, raw values, and the maximum length of each value."""
    data, request = event.data, _table(event.data.get("request"))
    yield "Not before", data.get("notBefore"), _NAME
    yield "Machines", _machines(raw, _MOST_NAMES) if raw else None, 5000
    yield "Impact", _impact(raw), _LINE
    yield "Announced by", raw.get("EventSource"), _NAME
    yield "Changed", _listed(data.get("changes")), _LINE
    yield "Approved by", request.get("approvedBy"), _LINE
    yield "Because", request.get("reason"), _PARAGRAPH
    yield "Reason", data.get("reason"), _PARAGRAPH


def _family(event: CloudEvent) -> tuple[str, str]:
    *_, family, step, _ = ("", "", *event.type.split("."))
    return family, _plain(step, _NAME)


def _kind(raw: Mapping[str, object]) -> str:
    return _plain(raw.get("EventType"), _NAME) or "Event of unknown type"


def _impact(raw: Mapping[str, object]) -> str | None:
    if raw.get("DurationInSeconds") == 0:
        return "none"
    return _IMPACTS.get(_kind(raw))


def _machines(raw: Mapping[str, object], most: int) -> str:
    names = resources_of(raw)
    shown = ", ".join(_plain(name, _NAME) or "-" for name in names[:most])
    rest = len(names) - most
    return (shown + (f" and {rest} more" if rest > 0 else "")) or "unknown machines"


def _listed(value: object) -> str | None:
    return ", ".join(map(str, value)) if isinstance(value, list) else None


def _footer(event: CloudEvent) -> str:
    source = f"Reported by {_reporter(event)} at {event.time}"
    key = _plain(event.text("correlationid"), _LINE)
    return f"EventId {key}. {source}" if key else source


def _reporter(event: CloudEvent) -> str:
    reporter = _table(event.data.get("reporter"))
    return _plain(reporter.get("vmName"), _NAME) or "unknown machine"


def _table(value: object) -> Mapping[str, object]:
    return value if isinstance(value, Mapping) else {}


def _plain(value: object, limit: int) -> str:
    """Return a text on one line of at most ``limit`` characters; "" for no text."""
    if not isinstance(value, str):
        return ""
    line = _NOT_SHOWN.sub("\ufffd", " ".join(value[: limit + 1].split()))
    return line if len(line) <= limit else line[: limit - 1] + "…"
