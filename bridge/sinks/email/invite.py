"""Render NotBefore as a calendar entry (iCalendar). Pure.

Source: RFC 5545 (format), RFC 5546 section 3.2 (PUBLISH, CANCEL)
"""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from bridge.events.cloudevent import CloudEvent
from bridge.events.cloudevent_rules import as_time
from bridge.foundation.hashing import hash32
from bridge.sinks.email.words import Words

_LINE_BYTES = 75
_UNKNOWN_LENGTH = timedelta(minutes=15)
_LONGEST_SECONDS = 86400
_METHODS = {"scheduled": "PUBLISH", "updated": "PUBLISH", "cancelled": "CANCEL"}
_EPOCH = datetime(2020, 1, 1, tzinfo=UTC)
_MOST = 2**31 - 1


def invite(event: CloudEvent, words: Words, domain: str) -> tuple[str, bytes] | None:
    """Return the method and the file; None if the event needs no calendar entry.

    Args:
        event: the event.
        words: the texts of its mail.
        domain: the end of the entry's id.
    """
    *_, family, step, _ = ("", "", *event.type.split("."))
    key, start = event.text("correlationid"), _not_before(event)
    method = _METHODS.get(step) if family == "scheduledevent" else None
    if method is None or start is None or not key:
        return None
    lines = _lines(event, words, method, start, f"{hash32(key.upper())}@{domain}")
    return method, b"".join(_folded(line) for line in lines)


def _lines(
    event: CloudEvent, words: Words, method: str, start: datetime, uid: str
) -> Iterator[str]:
    published = as_time(event.time) or _EPOCH
    text = "\n".join(f"{name}: {value}" for name, value in words.facts)
    yield "BEGIN:VCALENDAR"
    yield "VERSION:2.0"
    yield "PRODID:-//scheduled-events-bridge//sebridge//EN"
    yield f"METHOD:{method}"
    yield "BEGIN:VEVENT"
    yield f"UID:{uid}"
    yield f"SEQUENCE:{_sequence(published)}"
    yield f"DTSTAMP:{_written(published)}"
    yield f"DTSTART:{_written(start)}"
    yield f"DTEND:{_written(start + _length(event))}"
    yield f"SUMMARY:{_escaped(words.subject)}"
    yield f"DESCRIPTION:{_escaped(text)}"
    yield f"STATUS:{'CANCELLED' if method == 'CANCEL' else 'CONFIRMED'}"
    yield "TRANSP:TRANSPARENT"
    yield "END:VEVENT"
    yield "END:VCALENDAR"


def _sequence(published: datetime) -> int:
    """Return a number that grows with each event of the same entry."""
    return min(max(int((published - _EPOCH).total_seconds()), 0), _MOST)


def _not_before(event: CloudEvent) -> datetime | None:
    given = event.data.get("notBefore")
    found = as_time(given) if isinstance(given, str) else None
    # Other years are mistakes of the source, and of no use in a calendar.
    return found if found is not None and 1970 <= found.year < 9999 else None


def _length(event: CloudEvent) -> timedelta:
    raw = event.data.get("event")
    seconds = raw.get("DurationInSeconds") if isinstance(raw, dict) else None
    if not isinstance(seconds, int) or seconds <= 0:
        return _UNKNOWN_LENGTH
    return timedelta(seconds=min(seconds, _LONGEST_SECONDS))


def _written(moment: datetime) -> str:
    return moment.strftime("%Y%m%dT%H%M%SZ")


def _escaped(text: str) -> str:
    for char, escape in (("\\", "\\\\"), (";", "\\;"), (",", "\\,"), ("\n", "\\n")):
        text = text.replace(char, escape)
    return text


def _folded(line: str) -> bytes:
    """Return a line with its line break; fold it if it is longer than 75 bytes."""
    pieces, piece = [], ""
    for char in line:
        if len((piece + char).encode()) >= _LINE_BYTES:
            pieces.append(piece)
            piece = " "
        piece += char
    return "".join(f"{part}\r\n" for part in (*pieces, piece)).encode()
