"""Cuts an event down to what every receiver takes, and says what was dropped. Pure.

In this order, until it fits: ``previous``, Resources past a hundred, Description past
1 KiB, then all that is not known to be small, and a document as a whole.

Source: DESIGN section 4; CloudEvents asks intermediaries to pass on 64 KiB.
"""

from dataclasses import replace

import orjson

from bridge.events.cloudevent import CloudEvent

MAX_BYTES = 60 * 1024
_MANY_RESOURCES = 100
_LONG_DESCRIPTION = 1024
_LONG_TEXT = 1024
_LONG_NAME = 64


def fitted(event: CloudEvent) -> CloudEvent:
    """Return the event cut down to 60 KiB, with what was dropped named in it."""
    steps = (_without_previous, _fewer_resources, _shorter_description, _known_only)
    dropped: list[str] = []
    data = dict(event.data)
    for step in (*steps, _without_document):
        if len(event.to_json()) <= MAX_BYTES:
            break
        if name := step(data):
            dropped.append(name)
            event = replace(event, data={**data, "truncated": list(dropped)})
    return event


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
    """Drop what makes an event too large although nothing we know of does."""
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
    """Return a value cut to a size that ten of them can have."""
    if isinstance(value, str):
        return value if name == "EventId" else _cut(value, _LONG_TEXT)
    if isinstance(value, list) and name == "Resources":
        names = [item for item in value[:_MANY_RESOURCES] if isinstance(item, str)]
        return [_cut(item, _LONG_NAME) for item in names]
    return None if isinstance(value, (dict, list)) else value


def _cut(text: str, limit: int) -> str:
    """Return as much of a text as takes ``limit`` bytes, written as JSON.

    Control characters take six each there, so that counting characters, or bytes
    of UTF-8, is not enough.
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
