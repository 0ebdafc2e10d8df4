"""A message as a row for SQL, and a draft: a row whose properties may be changed.

Names are compared without regard to case.

Source: Azure Service Bus, messages, payloads and serialization: message properties;
        subscription rule SQL action syntax.
"""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from uuid import UUID

from msgspec import Struct
from msgspec.structs import replace

from bridge.simulator.servicebus.message import Message
from bridge.simulator.servicebus.wire import rewrite_message, with_time_to_live
from bridge.simulator.sql.operators import (
    LEAST_INT,
    MOST_INT,
    EvaluationError,
    Value,
    kind_of,
)
from bridge.simulator.sql.parser import SystemProperties
from bridge.simulator.wire.values import (
    Byte,
    Decimal32,
    Decimal64,
    Decimal128,
    Described,
    EncodeError,
    Int32,
    Short,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
)


class Arrival(Struct, frozen=True, kw_only=True):
    """The facts about the arrival of a message at a topic.

    Attributes:
        number: the sequence number of the message in the topic.
        at: seconds since the epoch.
        dead_letter_source: the entity that dead-lettered the message, if any.
    """

    number: int
    at: float
    dead_letter_source: str | None = None


SYSTEM_TEXTS = (
    "ContentType",
    "CorrelationId",
    "Label",
    "MessageId",
    "ReplyTo",
    "ReplyToSessionId",
    "SessionId",
    "To",
)
"""The system properties that a correlation filter may also name."""

# Subject is the newer name of Label.
_TEXTS = {name.lower(): name for name in SYSTEM_TEXTS} | {"subject": "Label"}
_ANNOTATIONS = {
    "partitionkey": Symbol("x-opt-partition-key"),
    "viapartitionkey": Symbol("x-opt-via-partition-key"),
}
_SCHEDULED_TIME = Symbol("x-opt-scheduled-enqueue-time")
_TIME_TO_LIVE = "timetolive"
# The limits of .NET: later times and longer durations are cut to them.
_LATEST = datetime.max.replace(tzinfo=UTC)
_LONGEST_SECONDS = timedelta(days=10_675_199).total_seconds()
_WRITABLE = (
    *SYSTEM_TEXTS,
    "Subject",
    "PartitionKey",
    "ViaPartitionKey",
    "TimeToLive",
    "ScheduledEnqueueTimeUtc",
)
_READ_ONLY = (
    "DeadLetterSource",
    "DeliveryCount",
    "EnqueuedSequenceNumber",
    "EnqueuedTimeUtc",
    "ExpiresAtUtc",
    "SequenceNumber",
    "Size",
)

SYSTEM = SystemProperties(readable=(*_WRITABLE, *_READ_ONLY), writable=_WRITABLE)
"""The system properties that filters and actions may name."""


class Row:
    """The properties of one message.

    Args:
        message: the message as it was sent.
        arrival: the facts about its arrival.

    Attributes:
        sent: the message as it was sent.
        arrival: the facts about its arrival.
        time_to_live: in seconds; None: for ever.
    """

    def __init__(self, message: Message, arrival: Arrival) -> None:
        self.sent = message
        self.arrival = arrival
        self.time_to_live = message.time_to_live
        self._texts: Mapping[str, str | None] = message.properties
        self._application = message.application_properties
        self._annotations = message.annotations

    def read(self, scope: str, name: str) -> Value:
        """Return a property; None: it is absent or null.

        Raises:
            EvaluationError: there is no such system property.
        """
        if scope == "user":
            return to_value(self._application.get(self._user_name(name)))
        lowered = name.lower()
        if lowered in _TEXTS:
            return self._texts.get(_TEXTS[lowered])
        if lowered in _ANNOTATIONS:
            return to_value(self._annotations.get(_ANNOTATIONS[lowered]))
        if (reader := _READERS.get(lowered)) is None:
            raise EvaluationError(f"there is no system property {name!r}")
        return reader(self)

    def has(self, scope: str, name: str) -> bool:
        """Return whether a property exists, even if its value is null."""
        if scope == "user":
            return self._user_name(name) in self._application
        return self.read(scope, name) is not None

    def scheduled_for(self) -> Value:
        """Return the time for which the sender scheduled the message."""
        return to_value(self._annotations.get(_SCHEDULED_TIME))

    def _user_name(self, name: str) -> str:
        """Return the property's name in the sender's spelling."""
        if name in self._application:
            return name
        lowered = name.lower()
        return next((n for n in self._application if n.lower() == lowered), name)


class Draft(Row):
    """A message with changes, which ``message`` returns."""

    def __init__(self, message: Message, arrival: Arrival) -> None:
        super().__init__(message, arrival)
        self._texts = self._new_texts = dict(self._texts)
        self._application = self._new_application = dict(self._application)
        self._annotations = self._new_annotations = dict(self._annotations)

    def write(self, scope: str, name: str, value: Value) -> None:
        """Set a property.

        Raises:
            EvaluationError: the property cannot have this value.
        """
        lowered = name.lower()
        if scope == "user":
            known = self._user_name(name)
            before = self._application.get(known)
            self._new_application[known] = from_value(value, before)
        elif lowered in _TEXTS:
            self._new_texts[_TEXTS[lowered]] = _text(name, value)
        elif lowered in _ANNOTATIONS:
            self._annotate(_ANNOTATIONS[lowered], _text(name, value))
        elif lowered == _TIME_TO_LIVE:
            self.time_to_live = _seconds(name, value)
        else:
            self._annotate(_SCHEDULED_TIME, _moment(name, value))

    def remove(self, scope: str, name: str) -> None:
        """Remove a property, if it exists."""
        if scope == "user":
            self._new_application.pop(self._user_name(name), None)
        else:
            self.write(scope, name, None)

    def message(self) -> Message:
        """Return the message with all changes. It is not scheduled any more.

        Raises:
            EvaluationError: AMQP cannot represent a new value.
        """
        header, time_to_live = self.sent.header, self.time_to_live
        if time_to_live != self.sent.time_to_live:
            header = with_time_to_live(header, time_to_live)
        changed = replace(
            self.sent,
            header=header,
            time_to_live=time_to_live,
            annotations=self._new_annotations,
            scheduled_for=None,
        )
        try:
            return rewrite_message(changed, self._new_texts, self._new_application)
        except EncodeError as error:
            raise EvaluationError(f"AMQP cannot encode the message: {error}") from error

    def _annotate(self, name: object, value: Value) -> None:
        if value is None:
            self._new_annotations.pop(name, None)
        else:
            self._new_annotations[name] = from_value(value, None)


def _enqueued_at(row: Row) -> datetime:
    return datetime.fromtimestamp(row.arrival.at, UTC)


def _expires_at(row: Row) -> Value:
    duration = _time_to_live(row)
    if duration is None:
        return None
    return _enqueued_at(row) + min(duration, _LATEST - _enqueued_at(row))


def _time_to_live(row: Row) -> timedelta | None:
    seconds = row.time_to_live
    if seconds is None:
        return None
    return timedelta(seconds=min(max(seconds, 0.0), _LONGEST_SECONDS))


_READERS: Mapping[str, Callable[[Row], Value]] = {
    "deadlettersource": lambda row: row.arrival.dead_letter_source,
    "deliverycount": lambda _row: 0,
    "enqueuedsequencenumber": lambda row: row.arrival.number,
    "enqueuedtimeutc": _enqueued_at,
    "expiresatutc": _expires_at,
    "scheduledenqueuetimeutc": Row.scheduled_for,
    "sequencenumber": lambda row: row.arrival.number,
    "size": lambda row: len(row.sent.content),
    _TIME_TO_LIVE: _time_to_live,
}


def _text(name: str, value: Value) -> str | None:
    if isinstance(value, UUID):
        return str(value)
    if not isinstance(value, str | None):
        raise EvaluationError(f"sys.{name} takes a text, not {kind_of(value)}")
    return value


def _seconds(name: str, value: Value) -> float | None:
    if not isinstance(value, timedelta | None):
        raise EvaluationError(f"sys.{name} takes a duration, not {kind_of(value)}")
    return None if value is None else value.total_seconds()


def _moment(name: str, value: Value) -> datetime | None:
    if not isinstance(value, datetime | None):
        raise EvaluationError(f"sys.{name} takes a time, not {kind_of(value)}")
    return value


# -- Convert AMQP values to SQL values, and back ---------------------------------------
#
# Source: AMQP 1.0, part 1: 1.6 type definitions. The .NET client sends three of its
#         types as described types: com.microsoft:timespan, datetime-offset, uri.


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TICKS_AT_EPOCH = 621_355_968_000_000_000
_TIMESPAN = "com.microsoft:timespan"
_URI = "com.microsoft:uri"
_UNSIGNED: Mapping[type, int] = {UByte: 8, UShort: 16, UInt: 32, ULong: 64}
_BITS: Mapping[type, int] = {**_UNSIGNED, Byte: 8, Short: 16, Int32: 32}
_DECIMALS = (Decimal32, Decimal64, Decimal128)


def to_value(sent: object) -> Value:
    """Return an AMQP value as a SQL value.

    A value that SQL cannot represent, e.g. a decimal, becomes bytes. So it exists, but
    equals no SQL literal.
    """
    if isinstance(sent, Timestamp):
        return _since_epoch(timedelta(milliseconds=int(sent)))
    if isinstance(sent, _DECIMALS):
        return repr(sent).encode()
    if isinstance(sent, Described):
        return _described(str(sent.descriptor), sent.value)
    for kind in (bool, int, float, str):
        if isinstance(sent, kind):
            found: Value = kind(sent)
            return found
    if isinstance(sent, UUID | datetime | timedelta | bytes | None):
        return sent
    return repr(sent).encode()


def from_value(value: Value, before: object) -> object:
    """Return a SQL value as an AMQP value.

    Args:
        value: the SQL value.
        before: the AMQP value that it replaces. The result has the same type if the new
            value fits into it.

    Raises:
        EvaluationError: AMQP cannot represent the value.
    """
    if isinstance(value, datetime):
        return Timestamp((value - _EPOCH) // timedelta(milliseconds=1))
    if isinstance(value, timedelta):
        ticks = value // timedelta(microseconds=1) * 10
        if not LEAST_INT <= ticks <= MOST_INT:
            raise EvaluationError("a duration beyond 64 bits")
        return Described(Symbol(_TIMESPAN), ticks)
    if isinstance(value, bool | None):
        return value
    if isinstance(value, int) and isinstance(before, int | float):
        return _as_before(value, before)
    return value


def _as_before(value: int, before: float) -> object:
    if isinstance(before, float):
        return type(before)(value)
    bits = _BITS.get(type(before), 0)
    least = 0 if type(before) in _UNSIGNED else -(2 ** (bits - 1))
    most = 2**bits - 1 if type(before) in _UNSIGNED else 2 ** (bits - 1) - 1
    return type(before)(value) if bits and least <= value <= most else value


def _since_epoch(since: timedelta) -> Value:
    try:
        return _EPOCH + since
    except OverflowError as error:
        raise EvaluationError("a time beyond the year 9999") from error


def _described(name: str, value: object) -> Value:
    if isinstance(value, str) and name == _URI:
        return str(value)
    if isinstance(value, int) and name in _OF_TICKS:
        return _OF_TICKS[name](value)
    return repr(value).encode()


def _timespan(ticks: int) -> Value:
    return timedelta(microseconds=ticks // 10)


def _offset_time(ticks: int) -> Value:
    return _since_epoch(timedelta(microseconds=(ticks - _TICKS_AT_EPOCH) // 10))


_OF_TICKS: Mapping[str, Callable[[int], Value]] = {
    _TIMESPAN: _timespan,
    "com.microsoft:datetime-offset": _offset_time,
}
