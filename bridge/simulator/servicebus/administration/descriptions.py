"""Convert settings of entities to values of descriptions, and back."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, TypeVar

from msgspec.structs import replace

from bridge.simulator.servicebus.access import AccessRule
from bridge.simulator.servicebus.administration.authorization import AUTHORIZATION
from bridge.simulator.servicebus.administration.fields import (
    QUEUE,
    SUBSCRIPTION,
    TOPIC,
    Shape,
    Values,
)
from bridge.simulator.servicebus.queues import Queue
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
