"""What Slack is told of an event, in words. Pure.

Nothing from outside is markup: ``&``, ``<`` and ``>`` are escaped, which is all
that Slack's mrkdwn asks for, and every text is cut to a length that fits anywhere.

Source: https://api.slack.com/reference/surfaces/formatting
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import accumulate

from bridge.events.build import rfc3339
from bridge.events.cloudevent import CloudEvent
from bridge.events.document import ScheduledEvent
from bridge.events.routing import resources_of
from bridge.sinks.slack.card import Card, Ruling, command_of, family_of, moment

_MOST_NAMES = 10
_MOST_CHANGES = 5
_SHORT, _NAME, _LINE, _PARAGRAPH = 60, 100, 300, 1500
_PERSON = re.compile(r"\bslack:([UW][A-Z0-9]{2,20})\b")
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
_ASKERS = {"withheld": "Held by"}
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
    "withheld": "not given yet",
}
_UNKNOWN, _DONE, _NOT_DONE = ":large_blue_circle:", ":white_check_mark:", ":no_entry:"
_SIGNS = {
    "scheduled": ":large_yellow_circle:",
    "started": ":red_circle:",
    "completed": ":large_green_circle:",
    "cancelled": ":white_circle:",
    "ended": ":black_circle:",
}
_COMMAND_SIGNS = {"succeeded": _DONE, "failed": _NOT_DONE}
_OWN_LIFE = {
    "started": "The bridge has started",
    "stopped": "The bridge has stopped",
    "heartbeat": "The bridge is alive",
    "imds-unreachable": "The bridge hears nothing of scheduled events: no answer",
    "imds-recovered": "The bridge hears of scheduled events again",
    "traffic-out": "This VM is out of rotation: balancers are told to send it nothing",
    "traffic-in": "This VM is in rotation again",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Telling:
    """Something in words, escaped and cut; no text is empty.

    Attributes:
        sign: an emoji that tells the status by its colour.
        headline: one line, which must be enough for who reads no more.
        facts: names and values.
        paragraphs: longer texts.
        footer: what it can be found again by.
    """

    sign: str
    headline: str
    facts: tuple[tuple[str, str], ...]
    paragraphs: tuple[str, ...]
    footer: str


def tell(event: CloudEvent, now: datetime | None = None) -> Telling:
    """Put an event into words; whatever its data holds, this does not raise.

    Args:
        event: what is told.
        now: when it is read, for "in 14 min"; None = when it was observed.
    """
    family, what = family_of(event.type)
    if family == "scheduledevent":
        return _tell_transition(event, what, now)
    if family == "startrequest":
        return _tell_outcome(event, what)
    if family == "command":
        return _tell_command(event, what)
    if family == "bridge" and what in _OWN_LIFE:
        return _tell_other(event, _OWN_LIFE[what])
    if family == "document":
        return _tell_other(event, "The document of scheduled events has changed")
    return _tell_other(event, safe(event.type, _LINE))


def tell_card(card: Card, now: datetime) -> Telling:
    """Put into words how an event stands, and what became of approvals."""
    raw, status = card.event, card.status
    when = _date(card.not_before)
    step = _STEPS.get(status, safe(status, _NAME))
    facts = [
        ("When", f"{when}{_soon(_left(card.not_before, now))}" if when else ""),
        ("Last step", _last_step(card)),
        ("Machines", machines(raw)),
        ("Impact", _impact(raw)),
        ("Announced by", _text(raw.get("EventSource"), _NAME)),
    ]
    return Telling(
        sign=_SIGNS.get(status, _UNKNOWN),
        headline=f"{_type(raw)} {step}: {machines(raw, most=3)}",
        facts=_known(facts),
        paragraphs=(*_paragraphs(raw), *map(_ruling, card.rulings)),
        footer=_signed(_text(raw.get("EventId"), _LINE) or "-", card.event_context),
    )


def tell_step(event: CloudEvent, now: datetime) -> Telling:
    """Put into words what is new, for who has the message before him."""
    told, raw = tell(event, now), _table(event.data.get("event"))
    new = ("When", "Changed", "Approved by", "Held by", "Reason", "Because")
    is_step = family_of(event.type)[0] == "scheduledevent"
    at = _date(event.time)
    return Telling(
        sign=told.sign,
        headline=told.headline.removesuffix(f": {machines(raw, most=3)}")
        if is_step
        else told.headline,
        facts=tuple(fact for fact in told.facts if fact[0] in new),
        paragraphs=told.paragraphs if command_of(event) else (),
        footer=_signed(at or "-", _reporter(event)),
    )


def _tell_transition(event: CloudEvent, what: str, now: datetime | None) -> Telling:
    raw = _table(event.data.get("event"))
    step = _STEPS.get(what, safe(what, _NAME))
    facts = [
        ("When", _when(event.data, now)),
        ("Machines", machines(raw)),
        ("Impact", _impact(raw)),
        ("Announced by", _text(raw.get("EventSource"), _NAME)),
        ("Changed", _changed(event.data) if what == "updated" else ""),
    ]
    return Telling(
        sign=_SIGNS.get(what, _UNKNOWN),
        headline=f"{_type(raw)} {step}: {machines(raw, most=3)}",
        facts=_known(facts),
        paragraphs=_paragraphs(raw),
        footer=_footer(event),
    )


def _tell_outcome(event: CloudEvent, what: str) -> Telling:
    raw = _table(event.data.get("event"))
    request = _table(event.data.get("request"))
    outcome = _OUTCOMES.get(what, safe(what, _NAME))
    facts = [
        (
            _ASKERS.get(what, "Approved by"),
            _people(_text(request.get("approvedBy"), _LINE)),
        ),
        ("Reason", _text(request.get("reason"), _PARAGRAPH)),
        ("Because", _text(event.data.get("reason"), _PARAGRAPH)),
        ("Machines", machines(raw) if raw else ""),
        ("Event", _text(event.data.get("eventId"), _NAME)),
    ]
    return Telling(
        sign=_sign_of(what),
        headline=f"Approval {outcome}" + (f" ({_type(raw)})" if raw else ""),
        facts=_known(facts),
        paragraphs=(),
        footer=_footer(event),
    )


def _tell_command(event: CloudEvent, what: str) -> Telling:
    raw, command = _table(event.data.get("event")), safe(command_of(event), _LINE)
    facts = [
        ("Because", _text(event.data.get("reason"), _PARAGRAPH)),
        ("Event", f"{_type(raw)} {_text(raw.get('EventId'), _NAME)}" if raw else ""),
        ("Machines", machines(raw) if raw else ""),
    ]
    output = _text(event.data.get("output"), _PARAGRAPH)
    return Telling(
        sign=_COMMAND_SIGNS.get(what, _UNKNOWN),
        headline=f"Command {command} {safe(what, _NAME)}",
        facts=_known(facts),
        paragraphs=(output,) if output else (),
        footer=_footer(event),
    )


def _tell_other(event: CloudEvent, headline: str) -> Telling:
    facts = [
        ("Reason", _text(event.data.get("reason"), _PARAGRAPH)),
        ("Event", _text(event.data.get("eventId"), _NAME)),
        ("Incarnation", _text(event.data.get("documentIncarnation"), _NAME)),
        ("Waiting", _text(event.data.get("pending"), _NAME)),
        ("Dead letters", _text(event.data.get("dead"), _NAME)),
    ]
    return Telling(
        sign=_UNKNOWN,
        headline=headline,
        facts=_known(facts),
        paragraphs=(),
        footer=_footer(event),
    )


def _last_step(card: Card) -> str:
    """Return what happened last, where the headline does not say it, and when."""
    word = {"updated": "changed", "ended": "gone"}.get(card.step, card.step)
    at = _date(card.time)
    return f"{safe(word, _NAME)} {at}" if word and at else ""


def _ruling(ruling: Ruling) -> str:
    if ruling.command:
        return _ruling_of_command(ruling)
    outcome = _OUTCOMES.get(ruling.outcome, safe(ruling.outcome, _NAME))
    by = _people(_text(ruling.by, _LINE))
    reason, because = _text(ruling.reason, _LINE), _text(ruling.because, _LINE)
    at = _date(ruling.time)
    return (
        f"{_sign_of(ruling.outcome)} *Approval {outcome}*"
        + (f", asked for by {by}" if by else "")
        + (f": {reason}" if reason else "")
        + (f" ({because})" if because else "")
        + (f", {at}" if at else "")
    )


def _ruling_of_command(ruling: Ruling) -> str:
    sign = _COMMAND_SIGNS.get(ruling.outcome, _UNKNOWN)
    command, because = safe(ruling.command, _LINE), _text(ruling.because, _LINE)
    at = _date(ruling.time)
    return (
        f"{sign} *Command {command} {safe(ruling.outcome, _NAME)}*"
        + (f" ({because})" if because else "")
        + (f", {at}" if at else "")
    )


def _people(text: str) -> str:
    """Return claims of who approved, with people of Slack as Slack shows them."""
    return _PERSON.sub(r"<@\1>", text)


def _sign_of(outcome: str) -> str:
    return _DONE if outcome in {"relayed", "already-started"} else _NOT_DONE


def _changed(data: Mapping[str, object]) -> str:
    """Return what changed, from what to what where that is known."""
    names = data.get("changes")
    before, raw = _table(data.get("previous")), _table(data.get("event"))
    if not isinstance(names, list):
        return ""
    if not before:
        return _listed(names)
    known = [name for name in names if isinstance(name, str)][:_MOST_CHANGES]
    return "\n".join(_change(name, before.get(name), raw.get(name)) for name in known)


def _change(name: str, before: object, after: object) -> str:
    if name == "Resources":
        olds, news = ({*resources_of({name: part})} for part in (before, after))
        parts = [("added", news - olds), ("removed", olds - news)]
        said = [f"{word} {_few(names)}" for word, names in parts if names]
        return f"Resources: {'; '.join(said) or 'another order'}"
    old, new = (_value(name, part) for part in (before, after))
    shown = safe(name, _SHORT)
    return f"{shown}: {old or 'nothing'} → {new or 'nothing'}" if old or new else shown


def _value(name: str, value: object) -> str:
    if name == "NotBefore":
        found = ScheduledEvent(event_id="", raw={name: value}).not_before
        if found is not None:
            return _date(rfc3339(found))
    return _text(value, _SHORT)


def _few(names: Iterable[str]) -> str:
    found = sorted(names)
    shown = ", ".join(safe(name, _SHORT) for name in found[:_MOST_CHANGES])
    rest = len(found) - _MOST_CHANGES
    return shown + (f" and {rest} more" if rest > 0 else "")


def _type(raw: Mapping[str, object]) -> str:
    return _text(raw.get("EventType"), _NAME) or "Event of unknown type"


def _impact(raw: Mapping[str, object]) -> str:
    kind = raw.get("EventType")
    impact = _IMPACTS.get(kind.casefold() if isinstance(kind, str) else "", "not known")
    seconds = _whole(raw.get("DurationInSeconds"))
    if seconds == 0:
        return "none"
    return f"{impact}; about {_span(seconds)}" if seconds and seconds > 0 else impact


def machines(raw: Mapping[str, object], most: int = _MOST_NAMES) -> str:
    """Return the first names of Resources, and how many more there are."""
    names = resources_of(raw)
    shown = names_of(names[:most])
    rest = len(names) - most
    return (shown + (f" and {rest} more" if rest > 0 else "")) or "unknown machines"


def names_of(names: Iterable[str]) -> str:
    """Return all names, each escaped and cut."""
    return ", ".join(safe(name, _NAME) for name in names)


def _when(data: Mapping[str, object], now: datetime | None) -> str:
    """Return NotBefore in the reader's own time zone, and how soon that is."""
    at = data.get("notBefore")
    left = _left(at, now) if now else data.get("noticeSeconds")
    date = _date(at)
    return f"{date}{_soon(left)}" if date else ""


def _date(at: object) -> str:
    """Return a moment in the reader's own time zone; "" where it is none."""
    found = moment(at)
    if found is None:
        return ""
    shown = f"{{date_short_pretty}} at {{time}}|{safe(str(at), _NAME)}"
    return f"<!date^{int(found.timestamp())}^{shown}>"


def _left(at: object, now: datetime) -> int | None:
    found = moment(at)
    return None if found is None else int((found - now).total_seconds() // 1)


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
    return _signed(safe(event.subject or event.id, _LINE), _reporter(event))


def _reporter(event: CloudEvent) -> object:
    return _table(event.data.get("reporter")).get("vmName")


def _signed(what: str, event_context: object) -> str:
    told_by = _text(event_context, _NAME)
    return f"{what} told by {told_by}" if told_by else what


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
