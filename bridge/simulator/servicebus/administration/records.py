"""Write the current description of an entity: values of the client, and counts."""

from collections.abc import Callable, Mapping

from msgspec import Struct
from msgspec.structs import replace

from bridge.simulator.servicebus.administration.atom import (
    COUNTS,
    attribute,
    description,
    element,
    moment,
)
from bridge.simulator.servicebus.administration.authorization import (
    AUTHORIZATION,
    written_authorization,
)
from bridge.simulator.servicebus.administration.descriptions import shape_of
from bridge.simulator.servicebus.administration.fields import Values
from bridge.simulator.servicebus.queues import Queue
from bridge.simulator.servicebus.topics import Topic


class Record(Struct, frozen=True, kw_only=True):
    """The facts about an entity that are stored in addition to its settings.

    Attributes:
        values: the values of its description.
        created_at: seconds since the epoch.
        updated_at: seconds since the epoch.
    """

    values: Values
    created_at: float
    updated_at: float

    def changed(self, values: Values, now: float) -> "Record":
        """Return the record after a change."""
        return replace(self, values=values, updated_at=now)


def written_description(entity: Queue | Topic, record: Record) -> str:
    """Return the description of an entity in XML."""
    shape = shape_of(entity)
    parts = []
    for name in shape.order:
        if (field := shape.fields.get(name)) is not None:
            parts.append(field.written(record.values[name]))
        elif (write := _COUNTED.get(name)) is not None:
            parts.append(write(entity, record))
    return description(shape.name, parts)


def _message_count(entity: Queue | Topic, _record: Record) -> str:
    counts = entity.counts()
    total = counts.active + counts.deferred + counts.scheduled + counts.dead
    return element("MessageCount", str(total))


def _size(entity: Queue | Topic, _record: Record) -> str:
    queues = entity.subscriptions if isinstance(entity, Topic) else [entity]
    return element("SizeInBytes", str(sum(queue.size_bytes() for queue in queues)))


def _count_details(entity: Queue | Topic, _record: Record) -> str:
    counts = entity.counts()
    details = {
        "ActiveMessageCount": counts.active,
        "DeadLetterMessageCount": counts.dead,
        "ScheduledMessageCount": counts.scheduled,
        "TransferMessageCount": 0,
        "TransferDeadLetterMessageCount": 0,
    }
    inner = "".join(
        element(f"d2p1:{name}", str(count)) for name, count in details.items()
    )
    return f"<CountDetails{attribute('xmlns:d2p1', COUNTS)}>{inner}</CountDetails>"


def _subscription_count(entity: Queue | Topic, _record: Record) -> str:
    count = len(entity.subscriptions) if isinstance(entity, Topic) else 0
    return element("SubscriptionCount", str(count))


_COUNTED: Mapping[str, Callable[[Queue | Topic, Record], str]] = {
    AUTHORIZATION: lambda _entity, record: written_authorization(
        record.values.get(AUTHORIZATION)
    ),
    "MessageCount": _message_count,
    "SizeInBytes": _size,
    "CountDetails": _count_details,
    "SubscriptionCount": _subscription_count,
    "CreatedAt": lambda _, record: element("CreatedAt", moment(record.created_at)),
    "UpdatedAt": lambda _, record: element("UpdatedAt", moment(record.updated_at)),
    "AccessedAt": lambda _, record: element("AccessedAt", moment(record.updated_at)),
    "IsAnonymousAccessible": lambda _entity, _record: element(
        "IsAnonymousAccessible", "false"
    ),
    "EntityAvailabilityStatus": lambda _entity, _record: element(
        "EntityAvailabilityStatus", "Available"
    ),
    "EnableSubscriptionPartitioning": lambda _entity, _record: element(
        "EnableSubscriptionPartitioning", "false"
    ),
}
