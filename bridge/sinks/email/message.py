"""Render an event as a mail: text, HTML and a calendar entry. Pure.

The same event always makes the same bytes, so both copies of a mail that was sent twice
have one Message-ID. All mails of an EventId refer to one common id, which no mail has
itself. So mail programs show them as one thread, whichever mail comes first and
whichever VM sends it.

Source: RFC 5322 (message), 2046 (alternatives), 3834 (Auto-Submitted), 6047 (iMIP)
"""

import re
from collections.abc import Sequence
from email.headerregistry import Address
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import format_datetime
from html import escape

from bridge.events.cloudevent import CloudEvent
from bridge.events.cloudevent_rules import as_time
from bridge.foundation.hashing import hash32
from bridge.sinks.email.invite import invite
from bridge.sinks.email.words import Words, describe

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
    _fill(mail, event, words, domain)
    return mail.as_bytes()


def _fill(mail: EmailMessage, event: CloudEvent, words: Words, domain: str) -> None:
    mail.set_content(plain(words), cte="quoted-printable")
    mail.add_alternative(html(event, words), subtype="html", cte="quoted-printable")
    if (entry := invite(event, words, domain)) is not None:
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
