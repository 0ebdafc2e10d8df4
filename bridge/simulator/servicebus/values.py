"""The AMQP that this broker sends: its error conditions, and the values of clients.

Shapes:  Condition names one; RefusedError carries it to the link or reply that answers
         the client.
Source:  the conditions that azure-servicebus 7.15 maps to its exceptions; AMQP 1.0,
         part 1: 1.2 type encodings.
"""

from collections.abc import Iterable
from enum import StrEnum
from uuid import UUID

from bridge.simulator.wire import decode
from bridge.simulator.wire.encode import LONG, STRING, TIMESTAMP, encode_value
from bridge.simulator.wire.values import (
    AmqpError,
    Array,
    DecodeError,
    Described,
    Timestamp,
    ULong,
)

# -- errors ----------------------------------------------------------------------------


class Condition(StrEnum):
    """An AMQP error condition, spelled as on the wire."""

    ARGUMENT_ERROR = "com.microsoft:argument-error"
    CONNECTION_FORCED = "amqp:connection:forced"
    DECODE_ERROR = "amqp:decode-error"
    DETACH_FORCED = "amqp:link:detach-forced"
    ENTITY_ALREADY_EXISTS = "com.microsoft:entity-already-exists"
    ENTITY_DISABLED = "com.microsoft:entity-disabled"
    MESSAGE_LOCK_LOST = "com.microsoft:message-lock-lost"
    MESSAGE_NOT_FOUND = "com.microsoft:message-not-found"
    MESSAGE_SIZE_EXCEEDED = "amqp:link:message-size-exceeded"
    NOT_ALLOWED = "amqp:not-allowed"
    NOT_FOUND = "amqp:not-found"
    NOT_IMPLEMENTED = "amqp:not-implemented"
    RESOURCE_LIMIT_EXCEEDED = "amqp:resource-limit-exceeded"
    ROLLED_BACK = "amqp:transaction:rollback"
    SERVER_BUSY = "com.microsoft:server-busy"
    SESSION_CANNOT_BE_LOCKED = "com.microsoft:session-cannot-be-locked"
    SESSION_LOCK_LOST = "com.microsoft:session-lock-lost"
    SESSION_NOT_FOUND = "com.microsoft:session-not-found"
    TIMEOUT = "com.microsoft:timeout"
    UNKNOWN_TRANSACTION = "amqp:transaction:unknown-id"
    UNAUTHORIZED = "amqp:unauthorized-access"


class RefusedError(Exception):
    """A request that the broker refuses.

    Attributes:
        condition: the AMQP error condition, sent to the client.
        description: one sentence for people.
    """

    def __init__(self, condition: Condition, description: str) -> None:
        super().__init__(f"{condition}: {description}")
        self.condition = condition
        self.description = description


def amqp_error(error: RefusedError) -> AmqpError:
    """Return a refusal as the error that AMQP sends."""
    return AmqpError(str(error.condition), error.description)


# -- values ----------------------------------------------------------------------------


def decode_value(buffer: bytes, offset: int) -> tuple[object, int]:
    """Decode the value at an offset.

    Returns:
        The value, and the offset after it.

    Raises:
        RefusedError: there is no complete and valid value.
    """
    try:
        return decode.decode_value(buffer, offset)
    except DecodeError as error:
        raise _malformed(error) from error


def value_end(buffer: bytes, offset: int) -> int:
    """Return the offset after the value at an offset, without decoding it.

    Raises:
        RefusedError: there is no complete value.
    """
    try:
        return decode.value_end(buffer, offset)
    except DecodeError as error:
        raise _malformed(error) from error


def encode_section(code: int, value: object) -> bytes:
    """Encode one section of a message, or another described type."""
    return encode_value(described(code, value))


def described(code: int, value: object) -> Described:
    """Return a value of a described type."""
    return Described(ULong(code), value)


def to_timestamp(seconds: float) -> Timestamp:
    """Return seconds since the epoch as an AMQP timestamp."""
    return Timestamp(round(seconds * 1000))


def long_array(values: Iterable[int]) -> Array:
    """Return numbers as an AMQP array of longs."""
    return Array(LONG, tuple(values))


def string_array(values: Iterable[str]) -> Array:
    """Return texts as an AMQP array of strings."""
    return Array(STRING, tuple(values))


def timestamp_array(values: Iterable[float]) -> Array:
    """Return seconds since the epoch as an AMQP array of timestamps."""
    return Array(TIMESTAMP, tuple(map(to_timestamp, values)))


def elements(value: object) -> list[object]:
    """Return the elements of an array or list, or the value itself as the only one.

    Raises:
        RefusedError: the value is null.
    """
    if value is None:
        raise RefusedError(Condition.ARGUMENT_ERROR, "a list is missing")
    return list(value) if isinstance(value, Array | list) else [value]


def uuids(value: object) -> list[UUID]:
    """Return the UUIDs in an array or list.

    Raises:
        RefusedError: an element is not a UUID, or the value is null.
    """
    found = elements(value)
    if not all(isinstance(element, UUID) for element in found):
        raise RefusedError(Condition.ARGUMENT_ERROR, "lock tokens are UUIDs")
    return [element for element in found if isinstance(element, UUID)]


def integers(value: object) -> list[int]:
    """Return the numbers in an array or list.

    Raises:
        RefusedError: an element is not an integer, or the value is null.
    """
    found = elements(value)
    if not all(isinstance(element, int) for element in found):
        raise RefusedError(Condition.ARGUMENT_ERROR, "sequence numbers are integers")
    return [element for element in found if isinstance(element, int)]


def _malformed(error: DecodeError) -> RefusedError:
    return RefusedError(
        Condition.DECODE_ERROR, f"this is not an AMQP value: {error.description}"
    )
