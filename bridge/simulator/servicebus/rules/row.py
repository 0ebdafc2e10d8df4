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
from bridge.simulator.servicebus.rules.amqp_values import from_value, to_value
from bridge.simulator.servicebus.wire import rewrite_message, with_time_to_live
from bridge.simulator.sql.errors import EvaluationError
from bridge.simulator.sql.operators import Value, kind_of
from bridge.simulator.sql.parser import SystemProperties
from bridge.simulator.wire.errors import EncodeError
from bridge.simulator.wire.values import Symbol


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
