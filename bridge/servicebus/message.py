"""A message as it was received from the approval entity. Pure: no SDK in it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivedMessage:
    """What the listener sees of a message, and settles it by.

    Attributes:
        lock_token: names this one delivery of it, as long as its lock holds.
        message_id: None only from senders that set none and brokers that add none.
        sequence_number: given by the broker, the same over all deliveries.
        enqueued_at: when the broker took it, by the broker's clock.
        delivery_count: how often it had been delivered before this time. How often
            it may be is a setting of the entity that a receiver is not told.
        body: the AMQP data sections joined, or the value body: text in UTF-8,
            anything else as JSON. Of a message with a fault, its bytes as they came.
        application_properties: keys, and values that are text, decoded as UTF-8.
        locked_until: by the broker's clock; it is renewed until settled.
        fault: why the message could not be decoded; None = it could be. What else is
            told of it is what could be read all the same.
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
