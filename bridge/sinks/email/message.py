"""Render an event as a mail: text, HTML and a calendar entry. Pure.

The same event always makes the same bytes, so both copies of a mail that was sent twice
have one Message-ID. All mails of an EventId refer to one common id, which no mail has
itself. So mail programs show them as one thread, whichever mail comes first and
whichever VM sends it.

Source: RFC 5322 (message), 2046 (alternatives), 3834 (Auto-Submitted), 6047 (iMIP)
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from email.headerregistry import Address
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import format_datetime
from html import escape
from urllib.parse import quote

from msgspec import Struct

from bridge.events.cloudevent import CloudEvent, hash32, link_of
from bridge.events.cloudevent_rules import as_time
from bridge.events.wording import facts_of, family_of, machines_of, one_line, table
from bridge.events.wording import headline as headline_of

# -- Describe an event in texts for a mail. Pure ---------------------------------------
#
# Texts from outside are cut, and characters that cannot be shown are replaced. HTML is
# escaped in ``message``.


_NAME, _LINE, _PARAGRAPH, _LONGEST = 100, 300, 2000, 5000
_MOST_NAMES = 50


class Words(Struct, frozen=True, kw_only=True):
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
    raw = table(event.data.get("event"))
    headline = _plain(headline_of(event, _name), _LINE)
    known = dict(facts_of(event, machines_of(raw, _name, _MOST_NAMES) if raw else ""))
    texts = [known.pop("Description"), known.pop("Output")]
    lines = event.data.get("lines")
    texts += lines[:_MOST_NAMES] if isinstance(lines, list) else []
    facts = ((name, _plain(value, _LONGEST)) for name, value in known.items())
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
    return f"{_kind(raw)}: {machines_of(raw, _name)} [{_plain(key[:8], 8)}]"


def _kind(raw: Mapping[str, object]) -> str:
    return _plain(raw.get("EventType"), _NAME) or "Event of unknown type"


def _footer(event: CloudEvent) -> str:
    source = f"Reported by {_reporter(event)} at {event.time}"
    key = _plain(event.text("correlationid"), _LINE)
    return f"EventId {key}. {source}" if key else source


def _reporter(event: CloudEvent) -> str:
    reporter = table(event.data.get("reporter"))
    return _plain(reporter.get("vmName"), _NAME) or "unknown machine"


def _name(value: object) -> str:
    return _plain(value, _NAME)


def _plain(value: object, limit: int) -> str:
    """Return a text on one line of at most ``limit`` characters; "" for no text."""
    return one_line(value, limit) if isinstance(value, str) else ""


# -- Render an event as a mail: text, HTML and a calendar entry. Pure ------------------


_COLORS = {"ERROR": "#b3261e", "WARN": "#a15c00"}
_CALM = "#3b5b7a"
_ID = re.compile(r"[A-Za-z0-9.-]{1,64}")
_IMPORTANCE = {"ERROR": "high"}


def message(
    event: CloudEvent, *, sender: str, recipients: Sequence[str], prefix: str = ""
) -> bytes:
    """Return a mail as it goes over the wire, with CRLF and in ASCII.

    Args:
        event: the event.
        sender: an address.
        recipients: addresses.
        prefix: the beginning of the subject.
    """
    words, mail = describe(event), EmailMessage(policy=SMTP)
    domain = sender.rpartition("@")[2]
    mail["From"] = Address("sebridge", addr_spec=sender)
    mail["To"] = [Address(addr_spec=recipient) for recipient in recipients]
    mail["Subject"] = f"{prefix} {words.subject}".strip()
    mail["Date"] = _date(event)
    mail["Message-ID"] = f"<{_local(event.id)}@{domain}>"
    if key := event.text("correlationid"):
        thread = f"<{hash32(key.upper())}.thread@{domain}>"
        mail["In-Reply-To"] = mail["References"] = thread
    mail["Auto-Submitted"] = "auto-generated"
    if importance := _IMPORTANCE.get(event.text("severitytext") or ""):
        mail["Importance"] = importance
    _fill(mail, event, words, sender)
    return mail.as_bytes()


def _fill(mail: EmailMessage, event: CloudEvent, words: Words, sender: str) -> None:
    mail.set_content(plain(words), cte="quoted-printable")
    mail.add_alternative(html(event, words), subtype="html", cte="quoted-printable")
    if (entry := invite(event, words, sender)) is not None:
        method, body = entry
        mail.add_attachment(
            body,
            maintype="text",
            subtype="calendar",
            cte="base64",
            filename="event.ics",
            params={"charset": "utf-8", "method": method},
        )
    # Fixed boundaries: the library would make random ones at each attempt.
    for number, part in enumerate(mail.walk()):
        if part.is_multipart():
            part.set_boundary(f"=_{hash32(event.id)}.{number}")


def _date(event: CloudEvent) -> str:
    """Return the time of an event for the header Date.

    "" if the time is not valid: the mail server then adds the header.
    """
    moment = as_time(event.time)
    return format_datetime(moment) if moment is not None else ""


def _local(event_id: str) -> str:
    """Return the part of a Message-ID before the @: the id, or a hash of it."""
    return event_id if _ID.fullmatch(event_id) else hash32(event_id)


def plain(words: Words) -> str:
    """Return a mail as text."""
    facts = (f"{name}: {value}" for name, value in words.facts)
    paragraphs = [f"\n{text}" for text in (*words.paragraphs, words.link) if text]
    return "\n".join((words.headline, "", *facts, *paragraphs, "", "-- ", words.footer))


def html(event: CloudEvent, words: Words) -> str:
    """Return a mail as HTML that loads nothing; all texts are escaped."""
    color = _COLORS.get(event.text("severitytext") or "", _CALM)
    rows = "".join(
        f'<tr><td style="padding:2px 16px 2px 0;color:#5f6368;vertical-align:top;'
        f'white-space:nowrap">{escape(name)}</td><td>{escape(value)}</td></tr>'
        for name, value in words.facts
    )
    paragraphs = "".join(f"<p>{escape(text)}</p>" for text in words.paragraphs)
    if words.link:
        paragraphs += f'<p><a href="{escape(words.link)}">Open</a></p>'
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        '<body style="font:15px/1.5 sans-serif;color:#202124;margin:16px">'
        f'<div style="border-left:6px solid {color};padding-left:14px">'
        f'<h2 style="margin:0 0 8px;font-size:19px">{escape(words.headline)}</h2>'
        f'<table style="border-collapse:collapse">{rows}</table>{paragraphs}</div>'
        f'<p style="color:#5f6368;font-size:12px">{escape(words.footer)}</p>'
        "</body></html>\n"
    )


# -- Render NotBefore as a calendar entry (iCalendar). Pure ----------------------------
#
# Source: RFC 5545 (format), RFC 5546 section 3.2 (PUBLISH, CANCEL)


_LINE_BYTES = 75
_UNKNOWN_LENGTH = timedelta(minutes=15)
_LONGEST_SECONDS = 86400
_METHODS = {"scheduled": "PUBLISH", "updated": "PUBLISH", "cancelled": "CANCEL"}
_EPOCH = datetime(2020, 1, 1, tzinfo=UTC)
_MOST = 2**31 - 1


def invite(event: CloudEvent, words: Words, sender: str) -> tuple[str, bytes] | None:
    """Return the method and the file; None if the event needs no calendar entry.

    Args:
        event: the event.
        words: the texts of its mail.
        sender: the address of the organizer; its domain is the end of the entry's id.
    """
    family, step = family_of(event)
    key, start = event.text("correlationid"), _not_before(event)
    method = _METHODS.get(step) if family == "scheduledevent" else None
    if method is None or start is None or not key:
        return None
    lines = _lines(event, words, method, start, sender)
    return method, b"".join(_folded(line) for line in lines)


def _lines(
    event: CloudEvent, words: Words, method: str, start: datetime, sender: str
) -> Iterator[str]:
    key, domain = event.text("correlationid") or "", sender.rpartition("@")[2]
    published = as_time(event.time) or _EPOCH
    text = "\n".join(f"{name}: {value}" for name, value in words.facts)
    yield "BEGIN:VCALENDAR"
    yield "VERSION:2.0"
    yield "PRODID:-//scheduled-events-bridge//sebridge//EN"
    yield f"METHOD:{method}"
    yield "BEGIN:VEVENT"
    yield f"UID:{hash32(key.upper())}@{domain}"
    yield f"ORGANIZER:mailto:{quote(sender, safe='@')}"
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
    seconds = table(event.data.get("event")).get("DurationInSeconds")
    if not isinstance(seconds, int) or seconds <= 0:
        return _UNKNOWN_LENGTH
    return timedelta(seconds=min(seconds, _LONGEST_SECONDS))


def _written(moment: datetime) -> str:
    return moment.strftime("%Y%m%dT%H%M%SZ")


def _escaped(text: str) -> str:
    for char, escaped in (("\\", "\\\\"), (";", "\\;"), (",", "\\,"), ("\n", "\\n")):
        text = text.replace(char, escaped)
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
