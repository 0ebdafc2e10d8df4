"""The entities of a broker, and their behaviour.

Pure values: config.py reads them from the emulator's file, tests write them directly.
The names are those of Service Bus, in Python's spelling.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta

from bridge.simulator.servicebus.access import ROOT, AccessRule
from bridge.simulator.servicebus.message import Message

DEAD_LETTER_SUFFIX = "/$DeadLetterQueue"
MAX_QUEUE_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class CorrelationFilter:
    """Admits a message to a subscription if every named property is equal.

    Attributes:
        properties: system properties by their names in the entity file, such as
            Label or CorrelationId.
        application_properties: the sender's own properties.
    """

    properties: Mapping[str, str] = field(default_factory=dict)
    application_properties: Mapping[str, object] = field(default_factory=dict)

    def matches(self, message: Message) -> bool:
        """Return whether the message has all of the properties."""
        return all(
            message.properties.get(name) == value
            for name, value in self.properties.items()
        ) and all(
            _same(message.application_properties.get(name), value)
            for name, value in self.application_properties.items()
        )


def _same(sent: object, wanted: object) -> bool:
    # True == 1 in Python, but not in a filter.
    return sent == wanted and isinstance(sent, bool) == isinstance(wanted, bool)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSettings:
    """A queue.

    Attributes:
        name: its path; case does not matter.
        lock_duration: the duration of a message lock or of a session lock.
        max_delivery_count: failed deliveries until a message is dead-lettered.
        requires_session: every message has a session id, every receiver a session.
        duplicate_window: how long message ids are stored; None: not at all.
        default_time_to_live: for messages without one, and the limit for the others.
        dead_letter_expired: dead-letter expired messages instead of dropping them.
        forward_to: the queue or topic that gets every message instead.
        forward_dead_letters_to: the queue or topic that gets the dead letters.
        max_bytes: sends are refused above this amount of content.
        access: the rules of shared access that it has of its own.
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
    access: tuple[AccessRule, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionSettings(QueueSettings):
    """A subscription: a queue that a topic fills.

    Attributes:
        filters: a message needs to match one of them; if empty, all are admitted.
    """

    filters: tuple[CorrelationFilter, ...] = ()

    def admits(self, message: Message) -> bool:
        """Return whether the subscription accepts the message."""
        return not self.filters or any(rule.matches(message) for rule in self.filters)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSettings:
    """A topic; its fields have the same meaning as those of a queue."""

    name: str
    subscriptions: tuple[SubscriptionSettings, ...] = ()
    duplicate_window: timedelta | None = None
    default_time_to_live: timedelta | None = None
    access: tuple[AccessRule, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Entities:
    """All queues and topics of a broker.

    Attributes:
        access: the rules of shared access for the whole namespace.
        remarks: what their file asks for and does not get, each with its place.
    """

    queues: tuple[QueueSettings, ...] = ()
    topics: tuple[TopicSettings, ...] = ()
    access: tuple[AccessRule, ...] = ()
    remarks: tuple[str, ...] = ()

    def access_rules(self) -> Mapping[str, tuple[AccessRule, ...]]:
        """Return all rules of shared access by path; none: everybody may do everything.

        The namespace (path "") has ``ROOT`` beside those that it was given.
        """
        own = {queue.name: queue.access for queue in self.queues}
        own |= {topic.name: topic.access for topic in self.topics}
        if not self.access and not any(own.values()):
            return {}
        has_root = any(rule.name == ROOT.name for rule in self.access)
        return {**own, "": self.access if has_root else (ROOT, *self.access)}
