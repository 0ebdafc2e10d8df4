"""Converts a message of the SDK: joins bytes and decodes text. Pure."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import orjson

from bridge.servicebus.message import UNDECODABLE, ReceivedMessage
from bridge.servicebus.salvage import LOST, MARK, WORDS

if TYPE_CHECKING:
    from azure.servicebus import ServiceBusReceivedMessage


def read(message: "ServiceBusReceivedMessage") -> ReceivedMessage:
    """Convert a message for the listener; never raises."""
    return ReceivedMessage(
        lock_token=str(message.lock_token),
        message_id=_name(message.message_id),
        sequence_number=message.sequence_number,
        enqueued_at=message.enqueued_time_utc,
        body=body_of(message.body),
        delivery_count=message.delivery_count or 0,
        application_properties={
            **_properties(message.application_properties),
            **_lost(message.raw_amqp_message.delivery_annotations),
        },
        content_type=message.content_type,
        reply_to=_name(message.reply_to),
        reply_to_session_id=_name(message.reply_to_session_id),
        session_id=_name(message.session_id),
        locked_until=message.locked_until_utc,
        fault=_fault(message.raw_amqp_message.delivery_annotations),
    )


def _fault(annotations: object) -> str | None:
    """Return why a message could not be decoded; None if it was decoded."""
    is_replaced = isinstance(annotations, Mapping) and MARK in annotations
    return WORDS if is_replaced else None


def _lost(annotations: object) -> dict[str, object]:
    """Return the application properties that cannot be decoded."""
    names = annotations.get(LOST) if isinstance(annotations, Mapping) else None
    if not isinstance(names, (list, tuple)):
        return {}
    return {str(text_of(name)): UNDECODABLE for name in names}


def _name(value: object) -> str | None:
    """Return a name as text; in AMQP it may also be a UUID, a number or bytes."""
    return None if value is None else str(text_of(value))


def body_of(body: object) -> bytes:
    """Return a body (data sections, a value, or a sequence) as bytes."""
    if isinstance(body, bytes):
        return body
    if isinstance(body, str):
        return body.encode()
    if isinstance(body, Mapping):
        return _json(body)
    if isinstance(body, Iterable):
        parts = list(body)
        if all(isinstance(part, bytes) for part in parts):
            return b"".join(parts)
        return _json(parts)
    return _json(body)


def _json(value: object) -> bytes:
    try:
        return orjson.dumps(text_of(value), default=str)
    except TypeError:  # JSON cannot express it; the parser will call it invalid
        return b""


def _properties(properties: object) -> dict[str, object]:
    """Return the properties; empty if the sender sent something else there."""
    if not isinstance(properties, Mapping):
        return {}
    return {str(text_of(key)): text_of(value) for key, value in properties.items()}


def text_of(value: object) -> object:
    """Decode all text in a value, also nested, since the SDK leaves it as bytes."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, Mapping):
        return {str(text_of(key)): text_of(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [text_of(inner) for inner in value]
    return value
