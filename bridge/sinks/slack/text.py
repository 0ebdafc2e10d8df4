"""The text of a Slack message about an event. Pure.

No text from outside is markup: ``&``, ``<`` and ``>`` are escaped, which is all that
Slack's mrkdwn requires. Every text is cut to a length that fits everywhere.

Source: https://api.slack.com/reference/surfaces/formatting
"""

import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from itertools import accumulate

from msgspec import Struct
from msgspec.structs import replace

from bridge.events import alarm
from bridge.events.cloudevent import CloudEvent, link_of, rfc3339, shown_link
from bridge.events.document import ScheduledEvent, resources_of
from bridge.events.vocabulary import APPROVED
from bridge.events.wording import (
    DOCUMENT_CHANGED,
    LIFE_WORDS,
    OUTCOME_WORDS,
    STEP_WORDS,
    family_of,
    impact_of,
    machines_of,
    one_line,
    span,
    table,
    whole,
)
from bridge.events.wording import headline as headline_of
from bridge.sinks.slack.card import Card, Ruling, command_of, moment

_ASKERS = {"withheld": "Held by"}
_UNKNOWN, _DONE, _NOT_DONE = ":large_blue_circle:", ":white_check_mark:", ":no_entry:"
_SIGNS = {
    "scheduled": ":large_yellow_circle:",
    "started": ":red_circle:",
    "completed": ":large_green_circle:",
    "cancelled": ":white_circle:",
    "ended": ":black_circle:",
}
_COMMAND_SIGNS = {"succeeded": _DONE, "failed": _NOT_DONE}


class Wording(Struct, frozen=True, kw_only=True):
    """The text of a message, escaped and cut; no part is empty.

    Attributes:
        sign: an emoji whose colour shows the status.
        headline: one line, enough for readers who read no further.
        facts: names and values.
        paragraphs: longer texts.
        footer: an id for searching.
        link: the URL of a page about the event; "" = none.
    """

    sign: str
    headline: str
    facts: tuple[tuple[str, str], ...]
    paragraphs: tuple[str, ...]
    footer: str
    link: str = ""


def describe(event: CloudEvent, now: datetime | None = None) -> Wording:
    """Describe an event as text; never raises, whatever the data holds.

    Args:
        event: the event.
        now: when it is read, for "in 14 min"; None = when it was observed.
    """
    return replace(_describe(event, now), link=link_of(event))


def _describe(event: CloudEvent, now: datetime | None) -> Wording:
    family, what = family_of(event)
    if family == "scheduledevent":
        return _describe_transition(event, what, now)
    if family == "startrequest":
        return _describe_outcome(event, what)
    if family == "command":
        return _describe_command(event, what)
    if family == "bridge" and what in LIFE_WORDS:
        return _describe_other(event, LIFE_WORDS[what])
    if family == "document":
        return _describe_other(event, DOCUMENT_CHANGED)
    return _describe_other(event, safe(alarm.headline_of(event) or event.type, LINE))


def _name(text: str) -> str:
    return safe(text, NAME)


def describe_card(card: Card, now: datetime) -> Wording:
    """Describe the state of an event, and the results of approvals."""
    raw, status = card.event, card.status
    when = date_of(card.not_before)
    step = STEP_WORDS.get(status, safe(status, NAME))
    facts = [
        (
            "When",
            f"{when}{soon_note(left_of(card.not_before, now))}" if when else "",
        ),
        ("Last step", _last_step(card)),
        ("Machines", machines(raw)),
        ("Impact", impact_of(raw) or "not known"),
        ("Announced by", text_of(raw.get("EventSource"), NAME)),
    ]
    return Wording(
        sign=_SIGNS.get(status, _UNKNOWN),
        headline=f"{type_of(raw)} {step}: {machines(raw, most=3)}",
        facts=known_facts(facts),
        paragraphs=(*paragraphs_of(raw), *map(_ruling, card.rulings)),
        footer=_signed(text_of(raw.get("EventId"), LINE) or "-", card.reported_by),
        link=shown_link(card.link),
    )


def describe_step(event: CloudEvent, now: datetime) -> Wording:
    """Describe only what is new, for the thread below the message."""
    full, raw = describe(event, now), table(event.data.get("event"))
    new = ("When", "Changed", "Approved by", "Held by", "Reason", "Because")
    is_step = family_of(event)[0] == "scheduledevent"
    at = date_of(event.time)
    return Wording(
        sign=full.sign,
        headline=full.headline.removesuffix(f": {machines(raw, most=3)}")
        if is_step
        else full.headline,
        facts=tuple(fact for fact in full.facts if fact[0] in new),
        paragraphs=full.paragraphs if command_of(event) else (),
        footer=_signed(at or "-", _reporter(event)),
    )


def _describe_transition(event: CloudEvent, what: str, now: datetime | None) -> Wording:
    raw = table(event.data.get("event"))
    facts = [
        ("When", when_of(event.data, now)),
        ("Machines", machines(raw)),
        ("Impact", impact_of(raw) or "not known"),
        ("Announced by", text_of(raw.get("EventSource"), NAME)),
        ("Changed", changes_of(event.data) if what == "updated" else ""),
    ]
    return Wording(
        sign=_SIGNS.get(what, _UNKNOWN),
        headline=headline_of(event, _name),
        facts=known_facts(facts),
        paragraphs=paragraphs_of(raw),
        footer=_footer(event),
    )


def _describe_outcome(event: CloudEvent, what: str) -> Wording:
    raw = table(event.data.get("event"))
    request = table(event.data.get("request"))
    facts = [
        (
            _ASKERS.get(what, "Approved by"),
            people_of(text_of(request.get("approvedBy"), LINE)),
        ),
        ("Because", text_of(request.get("reason"), PARAGRAPH)),
        ("Reason", text_of(event.data.get("reason"), PARAGRAPH)),
        ("Machines", machines(raw) if raw else ""),
        ("Event", text_of(event.data.get("eventId"), NAME)),
    ]
    return Wording(
        sign=_sign_of(what),
        headline=headline_of(event, _name),
        facts=known_facts(facts),
        paragraphs=(),
        footer=_footer(event),
    )


def _describe_command(event: CloudEvent, what: str) -> Wording:
    raw, command = table(event.data.get("event")), safe(command_of(event), LINE)
    facts = [
        ("Reason", text_of(event.data.get("reason"), PARAGRAPH)),
        (
            "Event",
            f"{type_of(raw)} {text_of(raw.get('EventId'), NAME)}" if raw else "",
        ),
        ("Machines", machines(raw) if raw else ""),
    ]
    output = text_of(event.data.get("output"), PARAGRAPH)
    return Wording(
        sign=_COMMAND_SIGNS.get(what, _UNKNOWN),
        headline=f"Command {command} {safe(what, NAME)}",
        facts=known_facts(facts),
        paragraphs=(output,) if output else (),
        footer=_footer(event),
    )


def _describe_other(event: CloudEvent, headline: str) -> Wording:
    facts = [
        ("Reason", text_of(event.data.get("reason"), PARAGRAPH)),
        ("Event", text_of(event.data.get("eventId"), NAME)),
        ("Incarnation", text_of(event.data.get("documentIncarnation"), NAME)),
        ("Waiting", text_of(event.data.get("pending"), NAME)),
        ("Dead letters", text_of(event.data.get("dead"), NAME)),
    ]
    return Wording(
        sign=_UNKNOWN,
        headline=headline,
        facts=known_facts(facts),
        paragraphs=(),
        footer=_footer(event),
    )


def _last_step(card: Card) -> str:
    """Return the last step and its time, if the headline does not say it."""
    word = {"updated": "changed", "ended": "gone"}.get(card.step, card.step)
    at = date_of(card.time)
    return f"{safe(word, NAME)} {at}" if word and at else ""


def _ruling(ruling: Ruling) -> str:
    if ruling.command:
        return _ruling_of_command(ruling)
    outcome = OUTCOME_WORDS.get(ruling.outcome, safe(ruling.outcome, NAME))
    by = people_of(text_of(ruling.by, LINE))
    reason, because = text_of(ruling.reason, LINE), text_of(ruling.because, LINE)
    at = date_of(ruling.time)
    return (
        f"{_sign_of(ruling.outcome)} *Approval {outcome}*"
        + (f", requested by {by}" if by else "")
        + (f": {reason}" if reason else "")
        + (f" ({because})" if because else "")
        + (f", {at}" if at else "")
    )


def _ruling_of_command(ruling: Ruling) -> str:
    sign = _COMMAND_SIGNS.get(ruling.outcome, _UNKNOWN)
    command, because = safe(ruling.command, LINE), text_of(ruling.because, LINE)
    at = date_of(ruling.time)
    return (
        f"{sign} *Command {command} {safe(ruling.outcome, NAME)}*"
        + (f" ({because})" if because else "")
        + (f", {at}" if at else "")
    )


def _sign_of(outcome: str) -> str:
    return _DONE if outcome in APPROVED else _NOT_DONE


def _footer(event: CloudEvent) -> str:
    return _signed(safe(event.subject or event.id, LINE), _reporter(event))


def _reporter(event: CloudEvent) -> object:
    return table(event.data.get("reporter")).get("vmName")


def _signed(what: str, reporter: object) -> str:
    reported_by = text_of(reporter, NAME)
    return f"{what} reported by {reported_by}" if reported_by else what


# -- Values of an event as Slack shows them: escaped, cut, and readable ----------------


SHORT, NAME, LINE, PARAGRAPH = 60, 100, 300, 1500
_MOST_NAMES = 10
_MOST_CHANGES = 5
_PERSON = re.compile(r"\bslack:([UW][A-Z0-9]{2,20})\b")
_ESCAPES = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}


def people_of(text: str) -> str:
    """Return who approved, as claimed; Slack shows its own users by name."""
    return _PERSON.sub(r"<@\1>", text)


def changes_of(data: Mapping[str, object]) -> str:
    """Return the changed fields, with old and new value if both are known."""
    names = data.get("changes")
    before, raw = table(data.get("previous")), table(data.get("event"))
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
    shown = safe(name, SHORT)
    return f"{shown}: {old or 'nothing'} → {new or 'nothing'}" if old or new else shown


def _value(name: str, value: object) -> str:
    if name == "NotBefore":
        found = ScheduledEvent(event_id="", raw={name: value}).not_before
        if found is not None:
            return date_of(rfc3339(found))
    return text_of(value, SHORT)


def _few(names: Iterable[str]) -> str:
    found = sorted(names)
    shown = ", ".join(safe(name, SHORT) for name in found[:_MOST_CHANGES])
    rest = len(found) - _MOST_CHANGES
    return shown + (f" and {rest} more" if rest > 0 else "")


def type_of(raw: Mapping[str, object]) -> str:
    """Return the EventType, or a text if there is none."""
    return text_of(raw.get("EventType"), NAME) or "Event of unknown type"


def machines(raw: Mapping[str, object], most: int = _MOST_NAMES) -> str:
    """Return the first names of Resources, and how many more there are."""
    return machines_of(raw, _name, most)


def names_of(names: Iterable[str]) -> str:
    """Return all names, each escaped and cut to a maximum length."""
    return ", ".join(safe(name, NAME) for name in names)


def when_of(data: Mapping[str, object], now: datetime | None) -> str:
    """Return NotBefore in the reader's time zone, and how soon that is."""
    at = data.get("notBefore")
    left = left_of(at, now) if now else data.get("noticeSeconds")
    date = date_of(at)
    return f"{date}{soon_note(left)}" if date else ""


def date_of(at: object) -> str:
    """Return a time in the reader's time zone; "" if it is not a time."""
    found = moment(at)
    if found is None:
        return ""
    shown = f"{{date_short_pretty}} at {{time}}|{safe(str(at), NAME)}"
    return f"<!date^{int(found.timestamp())}^{shown}>"


def left_of(at: object, now: datetime) -> int | None:
    """Return the seconds until a time; None if it is not a time."""
    found = moment(at)
    return None if found is None else int((found - now).total_seconds() // 1)


def soon_note(notice: object) -> str:
    """Return how soon something is, as text; empty if that is not known."""
    seconds = whole(notice)
    if seconds is None:
        return ""
    return f" (in {span(seconds)})" if seconds > 0 else " (any moment)"


def paragraphs_of(raw: Mapping[str, object]) -> tuple[str, ...]:
    """Return the description as a paragraph; none if it is empty."""
    description = text_of(raw.get("Description"), PARAGRAPH)
    return (description,) if description else ()


def _listed(value: object) -> str:
    names = value[:_MOST_NAMES] if isinstance(value, list) else []
    return ", ".join(safe(name, NAME) for name in names if isinstance(name, str))


def known_facts(facts: list[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    """Return the facts whose value is not empty."""
    return tuple((name, value) for name, value in facts if value)


def text_of(value: object, limit: int) -> str:
    """Return a string or number as text; "" if it is absent, empty or neither."""
    if isinstance(value, str):
        return safe(value, limit) if value[:limit].strip() else ""
    number = whole(value)
    return "" if number is None else str(number)


def safe(text: str, limit: int) -> str:
    """Return ``text`` on one line, without markup, not empty, and not too long.

    Args:
        text: any text from outside.
        limit: maximum characters of the result; an escape is never cut in two.
    """
    line = one_line(text, limit + 1) or "-"
    pieces = [_ESCAPES.get(char, char) for char in line]
    if sum(map(len, pieces)) <= limit:
        return "".join(pieces)
    room = limit - 1
    ends = accumulate(map(len, pieces))
    return "".join(p for p, end in zip(pieces, ends, strict=True) if end <= room) + "…"
