"""CloudEvents in ArcSight's Common Event Format. Pure.

Source: "ArcSight Common Event Format", Micro Focus, version 0.1 (CEF:0); names as
Microsoft Sentinel maps them to CommonSecurityLog.
"""

import re
from collections.abc import Iterator, Mapping
from datetime import datetime

from bridge.events.cloudevent import CloudEvent

VENDOR = "scheduled-events-bridge"
PRODUCT = "sebridge"

_SEVERITIES = {"INFO": 3, "WARN": 6, "ERROR": 8}  # low 0-3, medium 4-6, high 7-8
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
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


def kind(event: CloudEvent) -> tuple[str, str]:
    """Return family and step of a type: ``("scheduledevent", "started")``."""
    family, what = event.type.split(".")[-3:-1]
    return family, what


def render(event: CloudEvent, *, version: str) -> str:
    """Return the event as one line of CEF.

    Args:
        event: the stored event.
        version: the version of this program, for the header.
    """
    family, what = kind(event)
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
    raw, reporter = _table(data.get("event")), _table(data.get("reporter"))
    request, (family, what) = _table(data.get("request")), kind(event)
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


def _table(value: object) -> Mapping[str, object]:
    return value if isinstance(value, dict) else {}


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
