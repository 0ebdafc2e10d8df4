"""Messages as their sender sent them, and as a receiver gets them.

Pure values. The AMQP sections stay encoded here, so that they leave the broker
unchanged; wire.py splits and joins them.
"""

from collections.abc import Mapping
from enum import IntEnum
from uuid import UUID

from msgspec import Struct, field


class State(IntEnum):
    """The state of a message, as in x-opt-message-state."""

    ACTIVE = 0
    DEFERRED = 1
    SCHEDULED = 2


class Message(Struct, frozen=True, kw_only=True):
    """A message as sent.

    Attributes:
        message_id: used for duplicate detection.
        content: the AMQP sections from the properties on, unchanged.
        header: the fields of the AMQP header; its delivery count is not used.
        annotations: the sender's message annotations.
        delivery_annotations: the sender's delivery annotations.
        session_id: the session of the message, if any.
        time_to_live: seconds after it is enqueued until it expires; None: never.
        scheduled_for: when to enqueue the message, in seconds since the epoch.
        properties: the system properties that a correlation filter can name.
        application_properties: the sender's own properties.
    """

    message_id: str
    content: bytes = b""
    header: tuple[object, ...] = ()
    annotations: Mapping[object, object] = field(default_factory=dict)
    delivery_annotations: Mapping[object, object] = field(default_factory=dict)
    session_id: str | None = None
    time_to_live: float | None = None
    scheduled_for: float | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    application_properties: Mapping[str, object] = field(default_factory=dict)


class DeadLetter(Struct, frozen=True, kw_only=True):
    """Why and from where a message was dead-lettered.

    Attributes:
        source: the entity that dead-lettered the message.
        reason: why.
        description: why, in more words.
        is_forwarded: whether the message has left the dead-letter queue by forwarding;
            only then do receivers see the source.
    """

    source: str
    reason: str | None = None
    description: str | None = None
    is_forwarded: bool = False


class Origin(Struct, frozen=True, kw_only=True):
    """The facts that a message keeps from the entity that forwarded it.

    Attributes:
        sequence_number: the number where it was first enqueued; None: it comes from a
            sender.
        dead_letter: set if the message was dead-lettered before.
        hops: how many times the message was forwarded.
        delivery_count: how many deliveries failed before it was dead-lettered.
    """

    sequence_number: int | None = None
    dead_letter: DeadLetter | None = None
    hops: int = 0
    delivery_count: int = 0


SENT = Origin()
"""The origin of a message that comes directly from its sender."""


class Delivery(Struct, frozen=True, kw_only=True):
    """A message as a receiver gets it, by receiving or peeking.

    Attributes:
        message: the message as sent.
        sequence_number: the number of the message in this entity.
        enqueued_sequence_number: the number of the message where it was first enqueued.
        enqueued_at: seconds since the epoch.
        delivery_count: how many earlier deliveries failed.
        state: active, deferred or scheduled.
        lock_token: None if the delivery is not locked.
        locked_until: seconds since the epoch.
        dead_letter: set in a dead-letter queue.
    """

    message: Message
    sequence_number: int
    enqueued_sequence_number: int
    enqueued_at: float
    delivery_count: int = 0
    state: State = State.ACTIVE
    lock_token: UUID | None = None
    locked_until: float | None = None
    dead_letter: DeadLetter | None = None
