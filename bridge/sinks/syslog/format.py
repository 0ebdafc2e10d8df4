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
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from bridge.events.cloudevent import CloudEvent
from bridge.foundation.errors import PermanentDeliveryError, Reason
from bridge.sinks.syslog import cef

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Style:
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
    text = cef.render(event, version=style.version)
    return text if text.isascii() or not style.with_bom else _BOM + text


def severity(event: CloudEvent) -> int:
    """Return the severity of table 2: 3 error, 4 warning or 6 informational."""
    number = event.extensions.get("severitynumber")
    if not isinstance(number, int) or number < 13:
        return 6
    return 4 if number < 17 else 3


def message_id(event: CloudEvent) -> str:
    """Return MSGID: ``started`` for an event, ``bridge.started`` for the bridge."""
    family, what = cef.kind(event)
    return printable(what if family == "scheduledevent" else f"{family}.{what}", 32)


def printable(text: str, longest: int) -> str:
    """Return a text as PRINTUSASCII (no blanks), of at most ``longest`` characters."""
    return _UNPRINTABLE.sub("?", text)[:longest]


def _structured_data(event: CloudEvent, style: Style) -> str:
    version = style.version[:32]
    origin = _element("origin", {"software": APP_NAME, "swVersion": version})
    if not style.structured_data:
        return origin
    attributes = {name: str(value) for name, value in event.attributes().items()}
    return origin + _element(style.structured_data, attributes)


def _element(name: str, params: dict[str, str]) -> str:
    pairs = (f'{key}="{_param(value)}"' for key, value in params.items())
    return f"[{' '.join((name, *pairs))}]"


def _param(text: str) -> str:
    escaped = _SPECIAL.sub(lambda found: f"\\{found[0]}", text)
    return _CONTROL.sub(lambda found: f"\\\\u{ord(found[0]):04x}", escaped)


def smaller(event: CloudEvent) -> Iterator[CloudEvent]:
    """Yield the event, then versions with fewer and fewer of its optional parts.

    ``data.truncated`` names the dropped parts, as in ``bridge.events.truncate``.
    """
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
