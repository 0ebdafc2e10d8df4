"""Cuts an event down to a size that every receiver accepts. Pure.

These parts are dropped, in this order, until the event is small enough: the rules of a
bridge's approvals (their digest stays), ``previous``, Resources after the first
hundred, Description after 1 KiB, all fields that Azure does not document, and the whole
document. ``data.truncated`` names what was dropped.

Source: config/events.md; CloudEvents asks intermediaries to pass on 64 KiB.
"""

import orjson
from msgspec.structs import replace

from bridge.events.cloudevent import CloudEvent

MAX_BYTES = 60 * 1024
_MANY_RESOURCES = 100
_LONG_DESCRIPTION = 1024
_LONG_TEXT = 1024
_LONG_NAME = 64


def fitted(event: CloudEvent, room: int = 0) -> CloudEvent:
    """Return the event in at most 60 KiB; ``data.truncated`` names what was dropped.

    Args:
        event: the event.
        room: how many bytes of the 60 KiB are left free.
    """
    steps = (
        _without_rules,
        _without_previous,
        _fewer_resources,
        _shorter_description,
        _known_only,
    )
    earlier = event.data.get("truncated")
    dropped = list[object](earlier if isinstance(earlier, list) else ())
    data = dict(event.data)
    for step in (*steps, _without_document):
        if len(event.to_json()) <= MAX_BYTES - room:
            break
        if name := step(data):
            dropped += [] if name in dropped else [name]
            event = replace(event, data={**data, "truncated": list(dropped)})
    return event


def _without_rules(data: dict[str, object]) -> str | None:
    """Drop the rules of approvals; their digest stays."""
    approvals = data.get("approvals")
    if not isinstance(approvals, dict) or "rules" not in approvals:
        return None
    data["approvals"] = {k: v for k, v in approvals.items() if k != "rules"}
    return "rules"


def _without_previous(data: dict[str, object]) -> str | None:
    if data.get("previous") is None:
        return None
    data["previous"] = None
    return "previous"


def _fewer_resources(data: dict[str, object]) -> str | None:
    event = data.get("event")
    names = event.get("Resources") if isinstance(event, dict) else None
    if not isinstance(event, dict) or not isinstance(names, list):
        return None
    if len(names) <= _MANY_RESOURCES:
        return None
    data["event"] = {**event, "Resources": names[:_MANY_RESOURCES]}
    return "Resources"


def _shorter_description(data: dict[str, object]) -> str | None:
    event = data.get("event")
    text = event.get("Description") if isinstance(event, dict) else None
    if not isinstance(event, dict) or not isinstance(text, str):
        return None
    short = text.encode()[:_LONG_DESCRIPTION].decode(errors="ignore")
    if short == text:
        return None
    data["event"] = {**event, "Description": short}
    return "Description"


_SMALL_FIELDS = (
    "EventId",
    "EventStatus",
    "EventType",
    "ResourceType",
    "Resources",
    "NotBefore",
    "Description",
    "EventSource",
    "DurationInSeconds",
)


def _known_only(data: dict[str, object]) -> str | None:
    """Drop the fields that Azure does not document, and shorten the others."""
    event = data.get("event")
    if not isinstance(event, dict):
        return None
    data["event"] = {
        name: _small(name, event[name]) for name in _SMALL_FIELDS if name in event
    }
    changes = data.get("changes")
    if isinstance(changes, list):
        data["changes"] = [name for name in changes if name in _SMALL_FIELDS]
    return "event"


def _small(name: str, value: object) -> object:
    """Shorten a value, so that all ten fields together stay within the limit."""
    if isinstance(value, str):
        return value if name == "EventId" else _cut(value, _LONG_TEXT)
    if isinstance(value, list) and name == "Resources":
        names = [item for item in value[:_MANY_RESOURCES] if isinstance(item, str)]
        return [_cut(item, _LONG_NAME) for item in names]
    return None if isinstance(value, (dict, list)) else value


def _cut(text: str, limit: int) -> str:
    """Return the start of a text that takes at most ``limit`` bytes as JSON.

    The size is counted in JSON, because a control character takes six bytes there.
    """
    size = 0
    for index, character in enumerate(text):
        size += len(orjson.dumps(character)) - len(b'""')
        if size > limit:
            return text[:index]
    return text


def _without_document(data: dict[str, object]) -> str | None:
    if "document" not in data:
        return None
    data["document"] = None
    return "document"
