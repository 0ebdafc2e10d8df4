"""The elements of descriptions: their order, their values, and what may change.

Source: Azure Service Bus, REST: QueueDescription, TopicDescription,
        SubscriptionDescription, and its quotas for the limits; azure-servicebus 7.15
        (_model_workaround) for the order.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from xml.etree.ElementTree import Element  # the type alone  # nosec B405

from msgspec import Struct

from bridge.simulator.servicebus.administration.atom import (
    AUTHORIZATION,
    bad,
    child,
    element,
    local,
    read_authorization,
)
from bridge.simulator.servicebus.settings import Status

# -- Convert values of descriptions to texts, and back ---------------------------------
#
# Each reader raises ValueError. Its text says what is allowed, and continues a sentence
# that begins with the name of the field.
#
# Source: the REST pages of Service Bus; isodate and @azure/service-bus, which read
# these.


_DURATION = re.compile(
    r"P(?=.)(?:(?P<days>\d+)D)?"
    r"(?:T(?=.)(?:(?P<hours>\d+)H)?(?:(?P<minutes>\d+)M)?(?:(?P<seconds>\d+(?:\.\d+)?)S)?)?"
)
# The longest duration of .NET means "for ever". Clients round its last digits, so only
# its days are compared.
FOR_EVER = "P10675199DT2H48M5.4775807S"
_FOR_EVER_DAYS = 10_675_199


def read_flag(text: str) -> bool:
    """Return a boolean."""
    found = {"true": True, "false": False, "1": True, "0": False}.get(text.lower())
    if found is None:
        raise ValueError("is true or false")
    return found


def write_flag(value: object) -> str:
    """Return a boolean as a text."""
    return "true" if value else "false"


def number_within(least: int, most: int) -> Callable[[str], int]:
    """Return a reader of whole numbers."""

    def read(text: str) -> int:
        if not re.fullmatch(r"\d{1,18}", text) or not least <= int(text) <= most:
            raise ValueError(f"is a whole number from {least} to {most}")
        return int(text)

    return read


def duration_within(least: timedelta, most: timedelta) -> Callable[[str], timedelta]:
    """Return a reader of durations."""

    def read(text: str) -> timedelta:
        found = _parse(text)
        if found is None or not least <= found <= most:
            raise ValueError(
                f"is a duration from {write_duration(least)} to {write_duration(most)}"
            )
        return found

    return read


def duration_from(least: timedelta) -> Callable[[str], timedelta | None]:
    """Return a reader of durations that may last for ever, which is read as None."""

    def read(text: str) -> timedelta | None:
        found = _parse(text)
        if found is None or found < least:
            raise ValueError(
                f"is a duration from {write_duration(least)}, such as PT1H, or "
                f"{FOR_EVER}, which is for ever"
            )
        return None if found.days >= _FOR_EVER_DAYS else found

    return read


def write_duration(value: object) -> str:
    """Return a duration as ISO 8601; None is for ever."""
    if not isinstance(value, timedelta):
        return FOR_EVER
    days, rest = divmod(value, timedelta(days=1))
    hours, rest = divmod(rest, timedelta(hours=1))
    minutes, rest = divmod(rest, timedelta(minutes=1))
    seconds = f"{rest / _SECOND:.6f}".rstrip("0").rstrip(".")
    parts = [(hours, "H"), (minutes, "M"), (seconds if rest else 0, "S")]
    time = "".join(f"{number}{unit}" for number, unit in parts if number)
    found = (f"{days}D" if days else "") + (f"T{time}" if time else "")
    return f"P{found or 'T0S'}"


def text_within(most: int) -> Callable[[str], str]:
    """Return a reader of texts."""

    def read(text: str) -> str:
        if len(text) > most:
            raise ValueError(f"is a text of {most} characters at most")
        return text

    return read


def write_text(value: object) -> str:
    """Return a value as a text."""
    return str(value)


def _parse(text: str) -> timedelta | None:
    match = _DURATION.fullmatch(text)
    if match is None:
        return None
    parts = {unit: float(number) for unit, number in match.groupdict("0").items()}
    try:
        return timedelta(**parts)
    except OverflowError:
        return None


# -- The elements of descriptions: their order, their values, and what may change ------


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
