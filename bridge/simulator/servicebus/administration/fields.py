"""The elements of descriptions: their order, their values, and what may change.

Source: Azure Service Bus, REST: QueueDescription, TopicDescription,
        SubscriptionDescription, and its quotas for the limits; azure-servicebus 7.15
        (_model_workaround) for the order.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from xml.etree.ElementTree import Element  # the type alone  # nosec B405

from msgspec import Struct

from bridge.simulator.servicebus.administration.atom import child, element, local
from bridge.simulator.servicebus.administration.authorization import (
    AUTHORIZATION,
    read_authorization,
)
from bridge.simulator.servicebus.administration.errors import bad
from bridge.simulator.servicebus.administration.scalars import (
    duration_from,
    duration_within,
    number_within,
    read_flag,
    text_within,
    write_duration,
    write_flag,
    write_text,
)
from bridge.simulator.servicebus.settings import Status

Values = Mapping[str, object]

MAX_SIZE = "MaxSizeInMegabytes"
PARTITIONS, MOST_SIZE = 16, 5120
"""The partitions of a partitioned entity, and the most megabytes of each."""

_SIZES = range(1024, MOST_SIZE + 1, 1024)
_MAX_MESSAGE_KILOBYTES = 256
_SECOND, _MINUTE = timedelta(seconds=1), timedelta(minutes=1)


class Field(Struct, frozen=True, kw_only=True):
    """An element whose value a client sets.

    Attributes:
        name: the name of the element.
        read: converts the text to the value; its ValueError says what is allowed.
        write: converts the value to the text.
        default: the value if an entity is created without one.
        is_fixed: whether the value cannot be changed after the entity is created.
        is_optional: whether the element is left out when its value is None.
    """

    name: str
    read: Callable[[str], object]
    write: Callable[[object], str] = write_text
    default: object = None
    is_fixed: bool = False
    is_optional: bool = False

    def written(self, value: object) -> str:
        """Return the element as XML; empty: it is left out."""
        if value is None and self.is_optional:
            return ""
        return element(self.name, self.write(value))


class Shape(Struct, frozen=True, kw_only=True):
    """The shape of one kind of description.

    Attributes:
        name: the name of its XML element.
        kind: the kind of entity, for errors.
        most_name: the maximum length of the entity's name.
        order: the names of all inner elements, in the order of writing. Only the
            service sets the elements that have no field.
        fields: the elements that a client may set, by their names.
        ignored: elements that a client may send, and that are not read as fields.
    """

    name: str
    kind: str
    most_name: int
    order: Sequence[str]
    fields: Mapping[str, Field]
    ignored: frozenset[str]


def _flag(name: str, *, default: bool = False, is_fixed: bool = False) -> Field:
    return Field(
        name=name, read=read_flag, write=write_flag, default=default, is_fixed=is_fixed
    )


def _duration(
    name: str, default: timedelta, least: timedelta, most: timedelta
) -> Field:
    read = duration_within(least, most)
    return Field(name=name, read=read, write=write_duration, default=default)


def _lasting(name: str, least: timedelta) -> Field:
    return Field(name=name, read=duration_from(least), write=write_duration)


def _read_status(text: str) -> Status:
    try:
        return Status(text)
    except ValueError:
        raise ValueError(f"is one of {', '.join(Status)}") from None


def _read_max_size(text: str) -> int:
    found = number_within(1, MOST_SIZE * PARTITIONS)(text)
    # A client that changes a partitioned entity sends back the size that it has read.
    size = found if found <= MOST_SIZE else found // PARTITIONS
    if size not in _SIZES or found not in {size, size * PARTITIONS}:
        raise ValueError(f"is one of {', '.join(map(str, _SIZES))}")
    return size


def _read_max_message_size(text: str) -> int:
    if text != str(_MAX_MESSAGE_KILOBYTES):
        raise ValueError(
            f"is {_MAX_MESSAGE_KILOBYTES} in a namespace of the tier Standard; only "
            "Premium has other sizes"
        )
    return _MAX_MESSAGE_KILOBYTES


def _target(name: str) -> Field:
    return Field(name=name, read=text_within(2048), is_optional=True)


_ALL = (
    _duration("LockDuration", _MINUTE, _SECOND, 5 * _MINUTE),
    Field(name=MAX_SIZE, read=_read_max_size, default=1024),
    _flag("RequiresDuplicateDetection", is_fixed=True),
    _flag("RequiresSession", is_fixed=True),
    _lasting("DefaultMessageTimeToLive", _SECOND),
    _flag("DeadLetteringOnMessageExpiration"),
    _flag("DeadLetteringOnFilterEvaluationExceptions", default=True),
    _duration(
        "DuplicateDetectionHistoryTimeWindow",
        10 * _MINUTE,
        20 * _SECOND,
        timedelta(days=7),
    ),
    Field(name="MaxDeliveryCount", read=number_within(1, 2000), default=10),
    _flag("EnableBatchedOperations", default=True),
    _flag("FilteringMessagesBeforePublishing"),
    Field(
        name="Status",
        read=_read_status,
        default=Status.ACTIVE,
    ),
    _target("ForwardTo"),
    _target("ForwardDeadLetteredMessagesTo"),
    _flag("SupportOrdering", default=True),
    _lasting("AutoDeleteOnIdle", 5 * _MINUTE),
    _flag("EnablePartitioning", is_fixed=True),
    _flag("EnableExpress"),
    Field(name="UserMetadata", read=text_within(1024), is_optional=True),
    Field(
        name="MaxMessageSizeInKilobytes",
        read=_read_max_message_size,
        default=_MAX_MESSAGE_KILOBYTES,
    ),
)
_BY_NAME = {field.name: field for field in _ALL}

_QUEUE = [
    "LockDuration",
    "MaxSizeInMegabytes",
    "RequiresDuplicateDetection",
    "RequiresSession",
    "DefaultMessageTimeToLive",
    "DeadLetteringOnMessageExpiration",
    "DuplicateDetectionHistoryTimeWindow",
    "MaxDeliveryCount",
    "EnableBatchedOperations",
    "SizeInBytes",
    "MessageCount",
    "IsAnonymousAccessible",
    "AuthorizationRules",
    "Status",
    "ForwardTo",
    "UserMetadata",
    "CreatedAt",
    "UpdatedAt",
    "AccessedAt",
    "SupportOrdering",
    "CountDetails",
    "AutoDeleteOnIdle",
    "EnablePartitioning",
    "EntityAvailabilityStatus",
    "ForwardDeadLetteredMessagesTo",
    "EnableExpress",
    "MaxMessageSizeInKilobytes",
]
_TOPIC = [
    "DefaultMessageTimeToLive",
    "MaxSizeInMegabytes",
    "RequiresDuplicateDetection",
    "DuplicateDetectionHistoryTimeWindow",
    "EnableBatchedOperations",
    "SizeInBytes",
    "FilteringMessagesBeforePublishing",
    "IsAnonymousAccessible",
    "AuthorizationRules",
    "Status",
    "UserMetadata",
    "CreatedAt",
    "UpdatedAt",
    "AccessedAt",
    "SupportOrdering",
    "CountDetails",
    "SubscriptionCount",
    "AutoDeleteOnIdle",
    "EnablePartitioning",
    "EntityAvailabilityStatus",
    "EnableSubscriptionPartitioning",
    "EnableExpress",
    "MaxMessageSizeInKilobytes",
    "SqlFilterCount",
    "CorrelationFilterCount",
]
_SUBSCRIPTION = [
    "LockDuration",
    "RequiresSession",
    "DefaultMessageTimeToLive",
    "DeadLetteringOnMessageExpiration",
    "DeadLetteringOnFilterEvaluationExceptions",
    "MessageCount",
    "MaxDeliveryCount",
    "EnableBatchedOperations",
    "Status",
    "ForwardTo",
    "CreatedAt",
    "UpdatedAt",
    "AccessedAt",
    "CountDetails",
    "UserMetadata",
    "ForwardDeadLetteredMessagesTo",
    "AutoDeleteOnIdle",
    "EntityAvailabilityStatus",
]
_RULES_OF_ITS_OWN = frozenset({AUTHORIZATION, "DefaultRuleDescription"})


def _shape(name: str, kind: str, most_name: int, order: Sequence[str]) -> Shape:
    return Shape(
        name=name,
        kind=kind,
        most_name=most_name,
        order=order,
        fields={each: _BY_NAME[each] for each in order if each in _BY_NAME},
        ignored=frozenset(order) - _BY_NAME.keys() | _RULES_OF_ITS_OWN,
    )


QUEUE = _shape("QueueDescription", "queue", 260, _QUEUE)
TOPIC = _shape("TopicDescription", "topic", 260, _TOPIC)
SUBSCRIPTION = _shape("SubscriptionDescription", "subscription", 50, _SUBSCRIPTION)


def read_values(shape: Shape, given: Element, before: Values | None) -> Values:
    """Return the values of a description.

    Args:
        shape: the shape of the description.
        given: the description.
        before: the values before the change; None: the entity is created.

    Raises:
        AdministrationError: a value is not allowed, or an element is unknown.
    """
    for inner in given:
        name = local(inner)
        if name not in shape.fields and name not in shape.ignored:
            allowed = ", ".join(shape.fields)
            raise bad(f"A {shape.kind} has no {name!r}; allowed: {allowed}.")
    is_kept = before is not None and child(given, AUTHORIZATION) is None
    rules = before[AUTHORIZATION] if before and is_kept else read_authorization(given)
    found: dict[str, object] = {AUTHORIZATION: rules}
    for field in shape.fields.values():
        was = None if before is None else before[field.name]
        is_kept = field.is_fixed and before is not None
        found[field.name] = _value(field, given, was if is_kept else field.default)
        if is_kept and found[field.name] != was:
            raise bad(_fixed(shape, field))
    return found


def _fixed(shape: Shape, field: Field) -> str:
    """Return the words of the cloud, which tests of clients look for."""
    kind = shape.kind.title()
    if field.name == "EnablePartitioning":
        return f"Partitioning cannot be changed for {kind}. "
    return (
        f"The value for the {field.name} property of an existing {kind} cannot be "
        "changed."
    )


def _value(field: Field, given: Element, absent: object) -> object:
    inner = child(given, field.name)
    text = None if inner is None else (inner.text or "").strip()
    if not text:
        return absent
    try:
        return field.read(text)
    except ValueError as error:
        raise bad(f"{field.name} {error}, not {text[:100]!r}.") from error
