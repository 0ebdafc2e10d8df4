"""Convert AMQP values to Python objects and back, with Proton's codec.

Only here do Proton's untyped values become `object`. Its own number types (uint,
timestamp, symbol ...) are kept, so that a value is encoded as it was decoded.

Source: AMQP 1.0, part 1: 1.2 type encodings.
"""

from collections.abc import Iterable
from typing import Any
from uuid import UUID

from proton import (
    UNDESCRIBED,
    Array,
    Data,
    DataException,
    Described,
    timestamp,
    ulong,
)

from bridge.simulator.servicebus.errors import Condition, RefusedError

# Proton's type hints do not allow its own marker for plain arrays.
_PLAIN: Any = UNDESCRIBED

# What Proton's codec raises on bytes that are not AMQP.
_CODEC_ERRORS = (DataException, OverflowError, TypeError, ValueError)

# The first half of a format code gives the width of the value, or the width of the size
# in front of the value.
_FIXED_WIDTHS = {0x4: 0, 0x5: 1, 0x6: 2, 0x7: 4, 0x8: 8, 0x9: 16}
_SIZE_WIDTHS = {0xA: 1, 0xB: 4, 0xC: 1, 0xD: 4, 0xE: 1, 0xF: 4}


def decode_value(buffer: bytes, offset: int) -> tuple[object, int]:
    """Decode the value at an offset.

    Returns:
        The value, and the offset after it.

    Raises:
        RefusedError: there is no complete value.
    """
    end = value_end(buffer, offset)
    data = Data()
    try:
        data.decode(buffer[offset:end])
        data.rewind()
        data.next()
        return owned(data.get_object()), end
    except _CODEC_ERRORS as error:
        raise _malformed() from error


def owned(value: object) -> object:
    """Return a decoded value with its binaries copied.

    Proton returns views of memory that it frees together with its own object. Later
    they would show whatever is written there next.
    """
    match value:
        case memoryview():
            return bytes(value)
        case list():
            return [owned(element) for element in value]
        case dict():
            return {owned(key): owned(element) for key, element in value.items()}
        case Described():
            return Described(value.descriptor, _any(owned(value.value)))
        case _:
            return value


def encode_value(value: object) -> bytes:
    """Encode a value."""
    data = Data()
    data.put_object(value)
    return bytes(data.encode())


def encode_section(code: int, value: object) -> bytes:
    """Encode one section of a message, or another described type."""
    return encode_value(Described(ulong(code), _any(value)))


def value_end(buffer: bytes, offset: int) -> int:
    """Return the offset after the value at an offset, without decoding it.

    Raises:
        RefusedError: there is no complete value.
    """
    if offset >= len(buffer):
        raise _malformed()
    code = buffer[offset]
    if code == 0:
        return value_end(buffer, value_end(buffer, offset + 1))
    start = offset + 1
    if (width := _FIXED_WIDTHS.get(code >> 4)) is not None:
        end = start + width
    elif (width := _SIZE_WIDTHS.get(code >> 4)) is not None:
        end = start + width + int.from_bytes(buffer[start : start + width])
    else:
        raise _malformed()
    if end > len(buffer):
        raise _malformed()
    return end


def to_timestamp(seconds: float) -> timestamp:
    """Return seconds since the epoch as an AMQP timestamp."""
    return timestamp(round(seconds * 1000))


def long_array(values: Iterable[int]) -> Array:
    """Return numbers as an AMQP array of longs."""
    return Array(_PLAIN, Data.LONG, *values)


def string_array(values: Iterable[str]) -> Array:
    """Return texts as an AMQP array of strings."""
    return Array(_PLAIN, Data.STRING, *values)


def timestamp_array(values: Iterable[float]) -> Array:
    """Return seconds since the epoch as an AMQP array of timestamps."""
    return Array(_PLAIN, Data.TIMESTAMP, *map(to_timestamp, values))


def elements(value: object) -> list[object]:
    """Return the elements of an array or list, or the value itself as the only one.

    Raises:
        RefusedError: there is no value.
    """
    if value is None:
        raise RefusedError(Condition.ARGUMENT_ERROR, "a list is missing")
    return list(value) if isinstance(value, Array | list) else [value]


def uuids(value: object) -> list[UUID]:
    """Return the UUIDs in an array or list.

    Raises:
        RefusedError: it holds other values.
    """
    found = elements(value)
    if not all(isinstance(element, UUID) for element in found):
        raise RefusedError(Condition.ARGUMENT_ERROR, "lock tokens are UUIDs")
    return [element for element in found if isinstance(element, UUID)]


def integers(value: object) -> list[int]:
    """Return the numbers in an array or list.

    Raises:
        RefusedError: it holds other values.
    """
    found = elements(value)
    if not all(isinstance(element, int) for element in found):
        raise RefusedError(Condition.ARGUMENT_ERROR, "sequence numbers are integers")
    return [element for element in found if isinstance(element, int)]


def _any(value: object) -> Any:
    # Proton's own union of types is narrower than what it can encode.
    return value


def _malformed() -> RefusedError:
    return RefusedError(Condition.DECODE_ERROR, "this is not an AMQP value")
