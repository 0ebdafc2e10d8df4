"""Decode AMQP values from bytes.

``decode_value`` decodes one value at an offset. Each format code has a reader, which
gets the buffer, the offset after the code, and how many levels may still be nested.

Source: AMQP 1.0, part 1: 1.2 type encodings.
"""

import struct
from collections.abc import Callable
from uuid import UUID

from bridge.simulator.wire.values import (
    WIDE,
    Array,
    Byte,
    Char,
    Decimal32,
    Decimal64,
    Decimal128,
    DecodeError,
    Described,
    Float32,
    Int32,
    Short,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
)

MOST_LEVELS = 64
"""How deeply lists, maps, arrays and described values may be nested."""

_MOST_ELEMENTS_WITHOUT_BYTES = 1000

Reader = Callable[[bytes, int, int], tuple[object, int]]

# The first half of a format code gives the width of the value, or the width of the size
# in front of the value.
_FIXED_WIDTHS = {0x4: 0, 0x5: 1, 0x6: 2, 0x7: 4, 0x8: 8, 0x9: 16}
_SIZE_WIDTHS = {0xA: 1, 0xB: 4, 0xC: 1, 0xD: 4, 0xE: 1, 0xF: 4}


def decode_value(buffer: bytes, offset: int = 0) -> tuple[object, int]:
    """Decode the value at an offset.

    Returns:
        The value, and the offset after it.

    Raises:
        DecodeError: there is no complete and valid value; it says where and why.
    """
    return _read(buffer, offset, MOST_LEVELS)


def value_end(buffer: bytes, offset: int = 0) -> int:
    """Return the offset after the value at an offset, without decoding it.

    Raises:
        DecodeError: there is no complete value.
    """
    levels = MOST_LEVELS
    while offset < len(buffer) and buffer[offset] == 0:
        offset = value_end_of_descriptor(buffer, offset + 1)
        levels -= 1
        if not levels:
            raise _too_deep(offset)
    if offset >= len(buffer):
        raise _cut_off(offset)
    code, start = buffer[offset], offset + 1
    if (width := _FIXED_WIDTHS.get(code >> 4)) is not None:
        end = start + width
    elif (width := _SIZE_WIDTHS.get(code >> 4)) is not None:
        end = start + width + int.from_bytes(buffer[start : start + width])
    else:
        raise _unknown(code, offset)
    if end > len(buffer):
        raise _cut_off(offset)
    return end


def value_end_of_descriptor(buffer: bytes, offset: int) -> int:
    """Return the offset after a descriptor; decodes it, as descriptors are short."""
    return _read(buffer, offset, MOST_LEVELS)[1]


def _read(buffer: bytes, offset: int, levels: int) -> tuple[object, int]:
    try:
        code = buffer[offset]
        reader = _READERS.get(code)
        if reader is not None:
            return reader(buffer, offset + 1, levels)
    except (IndexError, struct.error):
        raise _cut_off(offset) from None
    raise _unknown(code, offset)


def _constant(value: object) -> Reader:
    def read(_buffer: bytes, offset: int, _levels: int) -> tuple[object, int]:
        return value, offset

    return read


def _number(pattern: str, kind: Callable[..., object] | None = None) -> Reader:
    packed = struct.Struct(pattern)
    unpack, width = packed.unpack_from, packed.size

    def read_plain(buffer: bytes, offset: int, _levels: int) -> tuple[object, int]:
        return unpack(buffer, offset)[0], offset + width

    def read(buffer: bytes, offset: int, _levels: int) -> tuple[object, int]:
        return kind(unpack(buffer, offset)[0]), offset + width  # type: ignore[misc]  # not None here

    return read_plain if kind is None else read


def _octets(width: int, kind: Callable[[bytes], object]) -> Reader:
    def read(buffer: bytes, offset: int, _levels: int) -> tuple[object, int]:
        end = offset + width
        if end > len(buffer):
            raise _cut_off(offset - 1)
        return kind(buffer[offset:end]), end

    return read


def _boolean(buffer: bytes, offset: int, _levels: int) -> tuple[object, int]:
    value = buffer[offset]
    if value > 1:
        raise DecodeError(f"the boolean at byte {offset} is {value}, neither 0 nor 1")
    return value == 1, offset + 1


def _char(buffer: bytes, offset: int, _levels: int) -> tuple[object, int]:
    end = offset + 4
    if end > len(buffer):
        raise _cut_off(offset - 1)
    try:
        return Char(buffer[offset:end].decode("utf-32-be")), end
    except UnicodeDecodeError:
        raise DecodeError(f"the char at byte {offset} is no character") from None


def _sized(size_width: int, kind: Callable[[bytes], object]) -> Reader:
    def read(buffer: bytes, offset: int, _levels: int) -> tuple[object, int]:
        start = offset + size_width
        if start > len(buffer):
            raise _cut_off(offset - 1)
        if size_width == 1:
            end = start + buffer[offset]
        else:
            end = start + int.from_bytes(buffer[offset:start])
        if end > len(buffer):
            raise _cut_off(offset - 1)
        try:
            return kind(buffer[start:end]), end
        except UnicodeDecodeError:
            raise DecodeError(
                f"the text at byte {offset} is not encoded as it must be"
            ) from None

    return read


def _text(octets: bytes) -> str:
    return octets.decode()


def _symbol(octets: bytes) -> Symbol:
    return Symbol(octets.decode("ascii"))


def _bounds(
    buffer: bytes, offset: int, width: int, levels: int
) -> tuple[int, int, int]:
    """Return the count of a list, map or array, its first byte and its end."""
    if levels <= 0:
        raise _too_deep(offset)
    counted = offset + width
    start = counted + width
    if start > len(buffer):
        raise _cut_off(offset - 1)
    end = counted + int.from_bytes(buffer[offset:counted])
    if end > len(buffer) or end < start:
        raise _cut_off(offset - 1)
    return int.from_bytes(buffer[counted:start]), start, end


def _elements(
    buffer: bytes, offset: int, width: int, levels: int
) -> tuple[list[object], int]:
    count, at, end = _bounds(buffer, offset, width, levels)
    if count > end - at:  # each element has at least one byte
        raise DecodeError(f"{count} elements at byte {offset} have {end - at} bytes")
    found: list[object] = []
    readers, add, inner = _READERS, found.append, levels - 1
    for _ in range(count):
        reader = readers.get(buffer[at])
        if reader is None:
            raise _unknown(buffer[at], at)
        value, at = reader(buffer, at + 1, inner)
        add(value)
    if at != end:
        raise DecodeError(f"the size at byte {offset} is wrong by {at - end} bytes")
    return found, end


def _list(width: int) -> Reader:
    def read(buffer: bytes, offset: int, levels: int) -> tuple[object, int]:
        return _elements(buffer, offset, width, levels)

    return read


def _empty_list(_buffer: bytes, offset: int, _levels: int) -> tuple[object, int]:
    return [], offset


def _map(width: int) -> Reader:
    def read(buffer: bytes, offset: int, levels: int) -> tuple[object, int]:
        found, end = _elements(buffer, offset, width, levels)
        if len(found) % 2:
            raise DecodeError(f"the map at byte {offset} has a key without a value")
        try:
            return dict(zip(found[::2], found[1::2], strict=True)), end
        except TypeError:
            raise DecodeError(
                f"the map at byte {offset} has a list or a map as a key"
            ) from None

    return read


def _array(width: int) -> Reader:
    def read(buffer: bytes, offset: int, levels: int) -> tuple[object, int]:
        count, at, end = _bounds(buffer, offset, width, levels)
        descriptors: list[object] = []
        while buffer[at] == 0:
            descriptor, at = _read(buffer, at + 1, levels - 1 - len(descriptors))
            descriptors.append(descriptor)
        code = buffer[at]
        reader = _READERS.get(code)
        if reader is None:
            raise _unknown(code, at)
        at += 1
        if count > max(end - at, _MOST_ELEMENTS_WITHOUT_BYTES):
            raise DecodeError(f"{count} elements at byte {offset} have no bytes")
        items = []
        for _ in range(count):
            value, at = reader(buffer, at, levels - 1)
            items.append(value)
        if at != end:
            raise DecodeError(f"the size at byte {offset} is wrong by {at - end} bytes")
        return Array(WIDE.get(code, code), tuple(items), tuple(descriptors)), end

    return read


def _described(buffer: bytes, offset: int, levels: int) -> tuple[object, int]:
    if levels <= 0:
        raise _too_deep(offset)
    descriptor, at = _read(buffer, offset, levels - 1)
    value, end = _read(buffer, at, levels - 1)
    return Described(descriptor, value), end


def _cut_off(offset: int) -> DecodeError:
    return DecodeError(f"the value at byte {offset} is cut off")


def _unknown(code: int, offset: int) -> DecodeError:
    return DecodeError(f"no type has the code {code:#04x}, which is at byte {offset}")


def _too_deep(offset: int) -> DecodeError:
    return DecodeError(
        f"the value at byte {offset} lies deeper than {MOST_LEVELS} levels"
    )


_READERS: dict[int, Reader] = {
    0x00: _described,
    0x40: _constant(None),
    0x41: _constant(True),  # noqa: FBT003 - the value of this code
    0x42: _constant(False),  # noqa: FBT003 - the value of this code
    0x43: _constant(UInt(0)),
    0x44: _constant(ULong(0)),
    0x45: _empty_list,
    0x50: _number(">B", UByte),
    0x51: _number(">b", Byte),
    0x52: _number(">B", UInt),
    0x53: _number(">B", ULong),
    0x54: _number(">b", Int32),
    0x55: _number(">b"),
    0x56: _boolean,
    0x60: _number(">H", UShort),
    0x61: _number(">h", Short),
    0x70: _number(">I", UInt),
    0x71: _number(">i", Int32),
    0x72: _number(">f", Float32),
    0x73: _char,
    0x74: _octets(4, Decimal32),
    0x80: _number(">Q", ULong),
    0x81: _number(">q"),
    0x82: _number(">d"),
    0x83: _number(">q", Timestamp),
    0x84: _octets(8, Decimal64),
    0x94: _octets(16, Decimal128),
    0x98: _octets(16, lambda octets: UUID(bytes=octets)),
    0xA0: _sized(1, bytes),
    0xA1: _sized(1, _text),
    0xA3: _sized(1, _symbol),
    0xB0: _sized(4, bytes),
    0xB1: _sized(4, _text),
    0xB3: _sized(4, _symbol),
    0xC0: _list(1),
    0xC1: _map(1),
    0xD0: _list(4),
    0xD1: _map(4),
    0xE0: _array(1),
    0xF0: _array(4),
}
