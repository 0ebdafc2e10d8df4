"""A message that was received from the approval entity. Pure: without the SDK."""

from collections.abc import Mapping
from datetime import datetime
from typing import Final

from msgspec import Struct, field

# The value of an application property of a type that the SDK cannot decode.
UNDECODABLE: Final = object()


class ReceivedMessage(Struct, frozen=True, kw_only=True):
    """A message, as the listener sees it.

    Attributes:
        lock_token: identifies this delivery of the message while its lock is held.
        message_id: None if neither the sender nor the broker has set one.
        sequence_number: set by the broker; the same for all deliveries.
        enqueued_at: when the broker accepted the message, by the broker's clock.
        body: the AMQP data sections joined, or the value body: text in UTF-8, anything
            else as JSON. If the message has a fault: its bytes, unchanged.
        delivery_count: how often the message was delivered before. The limit is a
            setting of the entity that a receiver cannot read.
        application_properties: keys and text values are decoded as UTF-8. A value may
            be ``UNDECODABLE``.
        locked_until: by the broker's clock; the lock is renewed until the message is
            settled.
        fault: why the message could not be decoded; None = it was decoded. With a
            fault, the other fields have what could be read nevertheless.
    """

    lock_token: str
    message_id: str | None
    sequence_number: int | None
    enqueued_at: datetime | None
    body: bytes
    delivery_count: int = 0
    application_properties: Mapping[str, object] = field(default_factory=dict)
    content_type: str | None = None
    reply_to: str | None = None
    reply_to_session_id: str | None = None
    session_id: str | None = None
    locked_until: datetime | None = None
    fault: str | None = None
