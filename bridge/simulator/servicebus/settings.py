"""The settings of a broker's entities.

Pure values: config.py reads them from the emulator's file, and tests create them
directly. They have the names of Service Bus, in Python's spelling.
"""

from datetime import timedelta
from enum import StrEnum

from msgspec import Struct

from bridge.simulator.servicebus.access import AccessRule
from bridge.simulator.servicebus.rules.rule import Rule
from bridge.simulator.servicebus.values import Condition, RefusedError

DEAD_LETTER_SUFFIX = "/$DeadLetterQueue"
TRANSFER_SUFFIX = "/$Transfer/$DeadLetterQueue"
MAX_QUEUE_BYTES = 64 * 1024 * 1024


class Status(StrEnum):
    """What clients may do with an entity, spelled as in Azure."""

    ACTIVE = "Active"
    DISABLED = "Disabled"
    SEND_DISABLED = "SendDisabled"
    RECEIVE_DISABLED = "ReceiveDisabled"

    @property
    def can_send(self) -> bool:
        """Whether clients may send to the entity."""
        return self in {Status.ACTIVE, Status.RECEIVE_DISABLED}

    @property
    def can_receive(self) -> bool:
        """Whether clients may receive from the entity."""
        return self in {Status.ACTIVE, Status.SEND_DISABLED}


class QueueSettings(Struct, frozen=True, kw_only=True):
    """A queue.

    Attributes:
        name: the path of the queue; case does not matter.
        lock_duration: the duration of a message lock or of a session lock.
        max_delivery_count: failed deliveries until a message is dead-lettered.
        requires_session: whether messages need a session id, and receivers a session.
        duplicate_window: how long message ids are stored; None: duplicates are not
            detected.
        default_time_to_live: the time to live of messages without one, and the limit
            for all others.
        dead_letter_expired: dead-letter expired messages instead of dropping them.
        forward_to: the queue or topic that gets every message instead.
        forward_dead_letters_to: the queue or topic that gets the dead letters.
        max_bytes: sends that would exceed this size of all messages are refused.
        auto_delete_on_idle: how long the queue may be unused before it is deleted;
            None: for ever.
        is_partitioned: whether messages of one batch need the same partition key.
        access: the rules of shared access of this queue.
        status: what clients may do with the queue.
    """

    name: str
    lock_duration: timedelta = timedelta(minutes=1)
    max_delivery_count: int = 10
    requires_session: bool = False
    duplicate_window: timedelta | None = None
    default_time_to_live: timedelta | None = None
    dead_letter_expired: bool = False
    forward_to: str | None = None
    forward_dead_letters_to: str | None = None
    max_bytes: int = MAX_QUEUE_BYTES
    auto_delete_on_idle: timedelta | None = None
    is_partitioned: bool = False
    access: tuple[AccessRule, ...] = ()
    status: Status = Status.ACTIVE


class SubscriptionSettings(QueueSettings, frozen=True, kw_only=True):
    """A subscription: a queue that a topic fills.

    Attributes:
        rules: the rules at the start; a message is admitted if at least one matches.
        dead_letter_filter_errors: dead-letter a message that a rule cannot be applied
            to, instead of dropping it.
    """

    rules: tuple[Rule, ...] = (Rule(),)
    dead_letter_filter_errors: bool = False


class TopicSettings(Struct, frozen=True, kw_only=True):
    """A topic; its fields have the same meaning as those of a queue."""

    name: str
    subscriptions: tuple[SubscriptionSettings, ...] = ()
    duplicate_window: timedelta | None = None
    default_time_to_live: timedelta | None = None
    auto_delete_on_idle: timedelta | None = None
    is_partitioned: bool = False
    access: tuple[AccessRule, ...] = ()
    status: Status = Status.ACTIVE


class Entities(Struct, frozen=True, kw_only=True):
    """All queues and topics of a broker.

    Attributes:
        access: the rules of shared access for the whole namespace.
    """

    queues: tuple[QueueSettings, ...] = ()
    topics: tuple[TopicSettings, ...] = ()
    access: tuple[AccessRule, ...] = ()


def check_sends(path: str, status: Status) -> None:
    """Check that clients may send to an entity.

    Raises:
        RefusedError: clients may not send to the entity.
    """
    if not status.can_send:
        raise RefusedError(Condition.ENTITY_DISABLED, f"{path!r} is {status}")


def check_receives(path: str, status: Status) -> None:
    """Check that clients may receive from an entity.

    Raises:
        RefusedError: clients may not receive from the entity.
    """
    if not status.can_receive:
        raise RefusedError(Condition.ENTITY_DISABLED, f"{path!r} is {status}")
