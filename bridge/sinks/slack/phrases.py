"""Values of an event as Slack shows them: escaped, cut, and readable."""

import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from itertools import accumulate

from bridge.events import vocabulary
from bridge.events.build import rfc3339
from bridge.events.document import ScheduledEvent
from bridge.events.routing import resources_of
from bridge.events.wording import table
from bridge.sinks.slack.card import moment

SHORT, NAME, LINE, PARAGRAPH = 60, 100, 300, 1500
_MOST_NAMES = 10
_MOST_CHANGES = 5
_PERSON = re.compile(r"\bslack:([UW][A-Z0-9]{2,20})\b")
# Control characters, marks that change the writing direction, and lone surrogates.
_NOT_SHOWN = re.compile(
    r"[\x00-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2060-\u2069\ud800-\udfff]"
)
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


def impact_of(raw: Mapping[str, object]) -> str:
    """Return the impact on the VM, and its duration."""
    seconds = _whole(raw.get("DurationInSeconds"))
    impact = vocabulary.impact_of(raw.get("EventType"), seconds) or "not known"
    return f"{impact}; about {_span(seconds)}" if seconds and seconds > 0 else impact


def machines(raw: Mapping[str, object], most: int = _MOST_NAMES) -> str:
    """Return the first names of Resources, and how many more there are."""
    names = resources_of(raw)
    shown = names_of(names[:most])
    rest = len(names) - most
    return (shown + (f" and {rest} more" if rest > 0 else "")) or "unknown machines"


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
    seconds = _whole(notice)
    if seconds is None:
        return ""
    return f" (in {_span(seconds)})" if seconds > 0 else " (any moment)"


def _span(seconds: int) -> str:
    if seconds < 120:
        return f"{seconds} s"
    return f"{seconds // 60} min" if seconds < 7200 else f"{seconds // 3600} h"


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


def _whole(value: object) -> int | None:
    """Return an integer of sane size, else None; JSON's true is not an integer."""
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if abs(value) < 2**53 else None


def text_of(value: object, limit: int) -> str:
    """Return a string or number as text; "" if it is absent, empty or neither."""
    if isinstance(value, str):
        return safe(value, limit) if value[:limit].strip() else ""
    number = _whole(value)
    return "" if number is None else str(number)


def safe(text: str, limit: int) -> str:
    """Return ``text`` on one line, without markup, not empty, and not too long.

    Args:
        text: any text from outside.
        limit: maximum characters of the result; an escape is never cut in two.
    """
    line = _NOT_SHOWN.sub("\ufffd", " ".join(text[: limit + 1].split())) or "-"
    pieces = [_ESCAPES.get(char, char) for char in line]
    if sum(map(len, pieces)) <= limit:
        return "".join(pieces)
    room = limit - 1
    ends = accumulate(map(len, pieces))
    return "".join(p for p, end in zip(pieces, ends, strict=True) if end <= room) + "…"
