"""Convert settings of entities to values of descriptions, and back."""

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from bridge.simulator.servicebus.access import AccessRule
from bridge.simulator.servicebus.administration.atom import (
    AUTHORIZATION,
    COUNTS,
    attribute,
    description,
    element,
    moment,
    written_authorization,
)
from bridge.simulator.servicebus.administration.fields import (
    MAX_SIZE,
    PARTITIONS,
    QUEUE,
    SUBSCRIPTION,
    TOPIC,
    Shape,
    Values,
)
from bridge.simulator.servicebus.queues import Queue
from bridge.simulator.servicebus.rules.rule import CorrelationFilter
from bridge.simulator.servicebus.settings import (
    QueueSettings,
    SubscriptionSettings,
    TopicSettings,
)
from bridge.simulator.servicebus.topics import Topic
from bridge.simulator.servicebus.wire import entity_path

Q = TypeVar("Q", bound=QueueSettings)
S = TypeVar("S", bound=QueueSettings | TopicSettings)

_WINDOW = "DuplicateDetectionHistoryTimeWindow"
_DETECTS = "RequiresDuplicateDetection"
# Elements that are settings. The values of other elements are only stored and shown.
_COMMON_SETTINGS = {
    "LockDuration": "lock_duration",
    "RequiresSession": "requires_session",
    "DefaultMessageTimeToLive": "default_time_to_live",
    "AutoDeleteOnIdle": "auto_delete_on_idle",
    "DeadLetteringOnMessageExpiration": "dead_letter_expired",
    "MaxDeliveryCount": "max_delivery_count",
    "Status": "status",
}
_QUEUE_SETTINGS = {**_COMMON_SETTINGS, "EnablePartitioning": "is_partitioned"}
_SUBSCRIPTION_SETTINGS = {
    **_COMMON_SETTINGS,
    "DeadLetteringOnFilterEvaluationExceptions": "dead_letter_filter_errors",
}
_TOPIC_SETTINGS = {
    "EnablePartitioning": "is_partitioned",
    "DefaultMessageTimeToLive": "default_time_to_live",
    "AutoDeleteOnIdle": "auto_delete_on_idle",
    "Status": "status",
}
_FORWARDING = {
    "ForwardTo": "forward_to",
    "ForwardDeadLetteredMessagesTo": "forward_dead_letters_to",
}


def shape_of(entity: Queue | Topic) -> Shape:
    """Return the shape of an entity's description."""
    if isinstance(entity, Topic):
        return TOPIC
    is_subscription = isinstance(entity.settings, SubscriptionSettings)
    return SUBSCRIPTION if is_subscription else QUEUE


def values_of(entity: Queue | Topic) -> Values:
    """Return the values of an entity that was not created by this API."""
    shape, settings = shape_of(entity), entity.settings
    found = {field.name: field.default for field in shape.fields.values()}
    found[AUTHORIZATION] = settings.access
    known = _QUEUE_SETTINGS | _SUBSCRIPTION_SETTINGS | _FORWARDING
    for name, setting in known.items():
        if name in found and hasattr(settings, setting):
            found[name] = getattr(settings, setting)
    if _DETECTS in found and settings.duplicate_window is not None:
        found |= {_DETECTS: True, _WINDOW: settings.duplicate_window}
    return found


def queue_settings(values: Values, before: Q) -> Q:
    """Return the settings of a queue or subscription.

    Args:
        values: the values of its description.
        before: the settings before; they have the name, and all settings that are not
            part of a description.
    """
    names = _QUEUE_SETTINGS
    if isinstance(before, SubscriptionSettings):
        names = _SUBSCRIPTION_SETTINGS
    found = _changed(before, names, values)
    return replace(
        found,
        duplicate_window=_window(values),
        access=_rules(values, before),
        forward_to=_path(values["ForwardTo"]),
        forward_dead_letters_to=_path(values["ForwardDeadLetteredMessagesTo"]),
    )


def topic_settings(values: Values, before: TopicSettings) -> TopicSettings:
    """Return the settings of a topic; see ``queue_settings``."""
    found = _changed(before, _TOPIC_SETTINGS, values)
    return replace(
        found, duplicate_window=_window(values), access=_rules(values, before)
    )


def _changed(before: S, names: Mapping[str, str], values: Values) -> S:
    # The readers of the fields return the types of the settings.
    changes: dict[str, Any] = {setting: values[name] for name, setting in names.items()}
    return replace(before, **changes)


def _rules(
    values: Values, before: QueueSettings | TopicSettings
) -> tuple[AccessRule, ...]:
    rules = values[AUTHORIZATION]
    is_inner = isinstance(before, SubscriptionSettings)
    return rules if isinstance(rules, tuple) and not is_inner else ()


def _window(values: Values) -> timedelta | None:
    window = values.get(_WINDOW)
    wanted = values.get(_DETECTS) is True
    return window if wanted and isinstance(window, timedelta) else None


def _path(address: object) -> str | None:
    return entity_path(str(address)) if address else None


# -- Write the current description of an entity: values of the client, and counts ------


_NEVER = "0001-01-01T00:00:00Z"


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
        if (write := _COUNTED.get(name)) is not None:
            parts.append(write(entity, record))
        elif (field := shape.fields.get(name)) is not None:
            parts.append(field.written(record.values[name]))
    return description(shape.name, parts)


def _message_count(entity: Queue | Topic, _record: Record) -> str:
    counts = entity.counts()
    total = counts.active + counts.deferred + counts.scheduled + counts.dead
    return element("MessageCount", str(total))


def _size(entity: Queue | Topic, _record: Record) -> str:
    size = entity.intake.size_bytes if isinstance(entity, Topic) else 0
    queues = entity.subscriptions if isinstance(entity, Topic) else [entity]
    size += sum(queue.size_bytes() for queue in queues)
    return element("SizeInBytes", str(size))


def _max_size(_entity: Queue | Topic, record: Record) -> str:
    """Return the size of all partitions together: there are 16."""
    size = record.values[MAX_SIZE]
    assert isinstance(size, int), "its reader returns a number"  # noqa: S101 - for mypy  # nosec B101
    parts = PARTITIONS if record.values.get("EnablePartitioning") is True else 1
    return element(MAX_SIZE, str(size * parts))


def _accessed_at(entity: Queue | Topic, record: Record) -> str:
    at = entity.use.accessed_at
    if at is None and shape_of(entity) is SUBSCRIPTION:
        at = record.created_at  # as in the cloud
    return _NEVER if at is None else moment(at)


def _filter_count(name: str, entity: Queue | Topic) -> str:
    """Count the filters of all subscriptions; one that admits all is one of SQL."""
    queues = entity.subscriptions if isinstance(entity, Topic) else []
    filters = [rule.filter for queue in queues for rule in queue.rules]
    related = sum(isinstance(each, CorrelationFilter) for each in filters)
    is_related = name.startswith("Correlation")
    return element(name, str(related if is_related else len(filters) - related))


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
    MAX_SIZE: _max_size,
    "MessageCount": _message_count,
    "SizeInBytes": _size,
    "CountDetails": _count_details,
    "SubscriptionCount": _subscription_count,
    "CreatedAt": lambda _, record: element("CreatedAt", moment(record.created_at)),
    "UpdatedAt": lambda _, record: element("UpdatedAt", moment(record.updated_at)),
    "AccessedAt": lambda entity, record: element(
        "AccessedAt", _accessed_at(entity, record)
    ),
    "SqlFilterCount": lambda entity, _: _filter_count("SqlFilterCount", entity),
    "CorrelationFilterCount": lambda entity, _: _filter_count(
        "CorrelationFilterCount", entity
    ),
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
