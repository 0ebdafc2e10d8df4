"""CloudEvents as syslog messages of RFC 5424. Pure.

    <PRI>1 TIMESTAMP HOSTNAME sebridge - MSGID [origin …] MSG

* A JSON body is written in ASCII. So it needs no byte order mark: section 6.4 requires
  one before UTF-8, but JSON parsers fail at it.
* The element ``origin`` is registered with IANA. Another element needs a private
  enterprise number: if ``structured_data`` names one, it gets the event's attributes.
  The number 32473 is for documentation only (RFC 5612).
* PROCID is nil: a restart of the bridge has no meaning for the receiver.

Source: https://www.rfc-editor.org/rfc/rfc5424 (sections 6 and 7)
"""

import json
import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from bridge.events.cloudevent import CloudEvent
from bridge.events.wording import family_of, table
from bridge.foundation.errors import PermanentDeliveryError, Reason

# -- CloudEvents in ArcSight's Common Event Format. Pure -------------------------------
#
# Source: "ArcSight Common Event Format", Micro Focus, version 0.1 (CEF:0); names as
# Microsoft Sentinel maps them to CommonSecurityLog.


VENDOR = "scheduled-events-bridge"
PRODUCT = "sebridge"

_SEVERITIES = {"INFO": 3, "WARN": 6, "ERROR": 8}  # low 0-3, medium 4-6, high 7-8

_LONGEST = {
    "act": 63,
    "dhost": 255,
    "dvchost": 100,
    "deviceExternalId": 255,
    "outcome": 63,
}
_LONGEST_TEXT = 1023
_LONGEST_CUSTOM = 4000  # cs1 to cs6
_FAMILIES = {
    "startrequest": "StartRequest",
    "command": "Command",
    "bridge": "Bridge",
    "document": "Document",
}


def as_cef(event: CloudEvent, *, version: str) -> str:
    """Return the event as one line of CEF.

    Args:
        event: the stored event.
        version: the version of this program, for the header.
    """
    family, what = family_of(event)
    subject = _FAMILIES.get(family) or event.text("eventtype") or "Event"
    severity = _SEVERITIES.get(event.text("severitytext") or "", 3)
    name = f"{subject} {what.replace('-', ' ')}"
    header = (VENDOR, PRODUCT, version, f"{family}.{what}", name, str(severity))
    extension = " ".join(
        f"{key}={_value(_cut(key, text))}" for key, text in _fields(event) if text
    )
    return "|".join(("CEF:0", *map(_header, header), extension))


def _fields(event: CloudEvent) -> Iterator[tuple[str, str]]:
    """Yield keys of the extension and their values; "" = no value."""
    data = event.data
    raw, reporter = table(data.get("event")), table(data.get("reporter"))
    request, (family, what) = table(data.get("request")), family_of(event)
    is_command = family == "command"
    yield "rt", _milliseconds(event.time)
    yield "externalId", event.id
    yield "cat", event.type
    yield "act", what
    is_step = family == "scheduledevent"
    yield "start", _milliseconds(event.time) if is_step and what == "started" else ""
    yield "end", _milliseconds(event.time) if is_step and what == "completed" else ""
    yield "dhost", _machine(raw, reporter) if raw else ""
    yield "dvchost", _text(reporter.get("vmName"))
    yield "deviceExternalId", _text(reporter.get("vmId"))
    yield "outcome", _text(data.get("outcome")) or (what if is_command else "")
    yield "sproc", _text(data.get("sink")) if is_command else ""
    yield "reason", _text(data.get("reason"))
    yield "suser", _text(request.get("approvedBy"))
    yield "msg", _text(raw.get("Description"))
    names = raw.get("Resources")
    named = {
        "cs1": ("EventId", event.text("correlationid") or ""),
        "cs2": ("EventType", _text(raw.get("EventType"))),
        "cs3": ("EventStatus", _text(raw.get("EventStatus"))),
        "cs4": ("Resources", _list(names)),
        "cs5": ("EventSource", _text(raw.get("EventSource"))),
        "cs6": ("Source", event.source),
        "cn1": ("DurationInSeconds", _whole(raw.get("DurationInSeconds"))),
        "cn2": ("NoticeSeconds", _whole(data.get("noticeSeconds"))),
        "deviceCustomDate1": ("NotBefore", _milliseconds(data.get("notBefore"))),
    }
    for key, (label, text) in named.items():
        if text:
            yield key, text
            yield f"{key}Label", label


def _machine(raw: Mapping[str, object], reporter: Mapping[str, object]) -> str:
    """Return the affected machine: this VM if it is named, else the first machine."""
    names, own = _list(raw.get("Resources")).split(","), _text(reporter.get("vmName"))
    is_named = own.casefold() in (name.casefold() for name in names)
    return own if is_named else names[0]


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _list(value: object) -> str:
    names = value if isinstance(value, list) else []
    return ",".join(name for name in names if isinstance(name, str))


def _whole(value: object) -> str:
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    return str(value) if is_whole else ""


def _milliseconds(value: object) -> str:
    """Return an RFC 3339 time as milliseconds since 1970; "" if it is not one."""
    try:
        moment = datetime.fromisoformat(_text(value))
    except ValueError:
        return ""
    return str(int(moment.timestamp() * 1000))


def _cut(key: str, text: str) -> str:
    is_custom = re.fullmatch(r"cs\d", key)
    limit = _LONGEST_CUSTOM if is_custom else _LONGEST.get(key, _LONGEST_TEXT)
    return text[:limit]


def _header(text: str) -> str:
    r"""Escape ``\`` and ``|``; a header cannot contain a line break."""
    return _plain(text).replace("\\", "\\\\").replace("|", "\\|")


def _value(text: str) -> str:
    r"""Escape ``\`` and ``=``; line breaks become ``\n`` and ``\r``."""
    lines = text.replace("\\", "\\\\").replace("=", "\\=")
    lines = lines.replace("\n", "\\n").replace("\r", "\\r")
    # Other control characters are written as \\uXXXX, with an escaped backslash.
    return _CONTROL.sub(lambda found: f"\\\\u{ord(found[0]):04x}", lines)


def _plain(text: str) -> str:
    return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


# -- CloudEvents as syslog messages of RFC 5424. Pure ----------------------------------


Body = Literal["json", "cef"]
Facility = Literal[
    "kern",
    "user",
    "mail",
    "daemon",
    "auth",
    "syslog",
    "lpr",
    "news",
    "uucp",
    "cron",
    "authpriv",
    "ftp",
    "ntp",
    "audit",
    "alert",
    "clock",
    "local0",
    "local1",
    "local2",
    "local3",
    "local4",
    "local5",
    "local6",
    "local7",
]
FACILITIES: tuple[str, ...] = Facility.__args__  # type: ignore[attr-defined]  # a Literal's values, numbered as in table 1

APP_NAME = "sebridge"
_BOM = "\ufeff"
_LONGEST_NAME = 255
_UNPRINTABLE = re.compile(r"[^\x21-\x7e]")
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_SPECIAL = re.compile(r'["\\\]]')
SD_ID = re.compile(r'(?=.{1,32}$)[^\x00-\x20\x7f-\U0010ffff="\]@]+@[0-9]+(\.[0-9]+)*')
_FEW_RESOURCES = 10
_SHORT_DESCRIPTION = 200


class Style(Struct, frozen=True, kw_only=True):
    """How messages are written.

    Attributes:
        facility: 0 to 23.
        hostname: as configured; characters that are not printable ASCII are replaced.
        version: the version of this program.
        structured_data: the SD-ID of an element for the attributes; "" = none.
        with_bom: whether a body that is not ASCII begins with a byte order mark.
        max_size: the longest message, in bytes.
    """

    facility: int
    hostname: str
    version: str
    body: Body = "json"
    structured_data: str = ""
    with_bom: bool = False
    max_size: int


def render(event: CloudEvent, style: Style) -> bytes:
    """Return the message for an event; if it is too long, drop parts of the event.

    Raises:
        PermanentDeliveryError: even the smallest version is too long.
    """
    size = 0
    for version in smaller(event):
        message = _message(version, style)
        if (size := len(message)) <= style.max_size:
            return message
    raise PermanentDeliveryError(
        f"the message needs {size} bytes; max_size is {style.max_size}",
        Reason.TOO_LARGE,
    )


def _message(event: CloudEvent, style: Style) -> bytes:
    header = (
        f"<{style.facility * 8 + severity(event)}>1",
        event.time,
        printable(style.hostname, _LONGEST_NAME) or "-",
        APP_NAME,
        "-",
        message_id(event),
        _structured_data(event, style),
    )
    return f"{' '.join(header)} {_body(event, style)}".encode()


def _body(event: CloudEvent, style: Style) -> str:
    if style.body == "json":
        members = {**event.attributes(), "data": event.data}
        return json.dumps(members, separators=(",", ":"))
    text = as_cef(event, version=style.version)
    return text if text.isascii() or not style.with_bom else _BOM + text


def severity(event: CloudEvent) -> int:
    """Return the severity of table 2: 3 error, 4 warning or 6 informational."""
    number = event.extensions.get("severitynumber")
    if not isinstance(number, int) or number < 13:
        return 6
    return 4 if number < 17 else 3


def message_id(event: CloudEvent) -> str:
    """Return MSGID: ``started`` for an event, ``bridge.started`` for the bridge."""
    family, what = family_of(event)
    return printable(what if family == "scheduledevent" else f"{family}.{what}", 32)


def printable(text: str, longest: int) -> str:
    """Return a text as PRINTUSASCII (no blanks), of at most ``longest`` characters."""
    return _UNPRINTABLE.sub("?", text)[:longest]


def _structured_data(event: CloudEvent, style: Style) -> str:
    version = style.version[:32]
    origin = _element("origin", {"software": APP_NAME, "swVersion": version})
    if not style.structured_data:
        return origin
    whole = event.unsigned().attributes()
    attributes = {name: str(value) for name, value in whole.items()}
    return origin + _element(style.structured_data, attributes)


def _element(name: str, params: dict[str, str]) -> str:
    pairs = (f'{key}="{_param(value)}"' for key, value in params.items())
    return f"[{' '.join((name, *pairs))}]"


def _param(text: str) -> str:
    escaped = _SPECIAL.sub(lambda found: f"\\{found[0]}", text)
    return _CONTROL.sub(lambda found: f"\\\\u{ord(found[0]):04x}", escaped)


def smaller(event: CloudEvent) -> Iterator[CloudEvent]:
    """Yield the event, then versions with fewer and fewer of its optional parts.

    The signature goes first: it would not hold for the others.

    ``data.truncated`` names the dropped parts, as in ``bridge.events.cloudevent``.
    """
    yield event
    event = event.unsigned()
    yield event
    data, dropped = dict(event.data), _names(event.data.get("truncated"))
    for name, value in _droppable(data):
        data[name] = value
        dropped = dropped if name in dropped else [*dropped, name]
        yield replace(event, data={**data, "truncated": dropped})


def _droppable(data: dict[str, object]) -> Iterator[tuple[str, object]]:
    if data.get("previous") is not None:
        yield "previous", None
    if data.get("document") is not None:
        yield "document", None
    raw = data.get("event")
    if isinstance(raw, dict):
        yield "event", {k: v if k == "EventId" else _short(v) for k, v in raw.items()}


def _short(value: object) -> object:
    if isinstance(value, str):
        return value[:_SHORT_DESCRIPTION]
    if isinstance(value, list):
        return [_short(item) for item in value[:_FEW_RESOURCES]]
    return None if isinstance(value, dict) else value


def _names(value: object) -> list[object]:
    return list(value) if isinstance(value, list) else []
