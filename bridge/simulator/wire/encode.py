"""Encode values as bytes, each in the shortest form that AMQP has for it.

Source: AMQP 1.0, part 1: 1.2 type encodings.
"""

import struct
from collections.abc import Callable, Iterable, Mapping
from uuid import UUID

from bridge.simulator.wire.values import (
    WIDE,
    Array,
    Byte,
    Char,
    Decimal32,
    Decimal64,
    Decimal128,
    Described,
    EncodeError,
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

Writer = Callable[[bytearray, object], None]

LONG, STRING, TIMESTAMP, UUIDS, SYMBOL = 0x81, 0xB1, 0x83, 0x98, 0xB3
"""The format codes of elements, for the arrays that a server sends."""

_SMALL = 256  # lower numbers fit into one byte
_pack_size = struct.Struct(">II").pack


def encode_value(value: object) -> bytes:
    """Encode a value.

    Raises:
        EncodeError: AMQP cannot represent the value; the error names its type or size.
    """
    out = bytearray()
    _write(out, value)
    return bytes(out)


def _write(out: bytearray, value: object) -> None:
    writer = _WRITERS.get(type(value)) or _inherited(value)
    try:
        writer(out, value)
    except (struct.error, UnicodeEncodeError, OverflowError):
        name = type(value).__name__
        raise EncodeError(
            f"this value is out of the range of its type {name}"
        ) from None
    except RecursionError:
        raise EncodeError("the value lies deeper than can be encoded") from None


def _inherited(value: object) -> Writer:
    """Return the writer of the base class, for a value of a derived class."""
    for kind, writer in _WRITERS.items():
        if isinstance(value, kind):
            return writer
    raise EncodeError(f"AMQP has no form for a {type(value).__name__}")


def _null(out: bytearray, _value: object) -> None:
    out.append(0x40)


def _boolean(out: bytearray, value: object) -> None:
    out.append(0x41 if value else 0x42)


def _number(code: int, pattern: str) -> Writer:
    pack = struct.Struct(">B" + pattern).pack

    def write(out: bytearray, value: object) -> None:
        out += pack(code, value)

    return write


def _unsigned(zero: int, small: int, large: int, pattern: str) -> Writer:
    pack = struct.Struct(">B" + pattern).pack

    def write(out: bytearray, value: object) -> None:
        if value == 0:
            out.append(zero)
        elif 0 < value < _SMALL:  # type: ignore[operator]  # a number
            out.append(small)
            out.append(value)  # type: ignore[arg-type]  # a number
        else:
            out += pack(large, value)

    return write


def _signed(small: int, large: int, pattern: str) -> Writer:
    pack_small = struct.Struct(">Bb").pack
    pack = struct.Struct(">B" + pattern).pack

    def write(out: bytearray, value: object) -> None:
        if -128 <= value < 128:  # type: ignore[operator]  # a number
            out += pack_small(small, value)
        else:
            out += pack(large, value)

    return write


def _octets(code: int, width: int) -> Writer:
    def write(out: bytearray, value: object) -> None:
        octets = bytes(value)  # type: ignore[call-overload]  # of a decimal
        if len(octets) != width:
            raise EncodeError(f"a decimal has {width} bytes, and not {len(octets)}")
        out.append(code)
        out += octets

    return write


def _char(out: bytearray, value: object) -> None:
    encoded = str(value).encode("utf-32-be")
    if len(encoded) != 4:
        raise EncodeError("a char is one character")
    out.append(0x73)
    out += encoded


def _uuid(out: bytearray, value: object) -> None:
    out.append(0x98)
    out += value.bytes  # type: ignore[attr-defined]  # a UUID


def _sized(small: int, octets: bytes, out: bytearray) -> None:
    """Write a binary, string or symbol: the code of its long form is 0x10 higher."""
    size = len(octets)
    if size < _SMALL:
        out.append(small)
        out.append(size)
    else:
        out += struct.pack(">BI", small + 0x10, size)
    out += octets


def _binary(out: bytearray, value: object) -> None:
    _sized(0xA0, bytes(value), out)  # type: ignore[call-overload]  # of bytes


def _text(out: bytearray, value: object) -> None:
    _sized(0xA1, value.encode(), out)  # type: ignore[attr-defined]  # a str


def _symbol(out: bytearray, value: object) -> None:
    _sized(0xA3, value.encode("ascii"), out)  # type: ignore[attr-defined]  # a str


def _compound(small: int, values: Iterable[object], count: int, out: bytearray) -> None:
    """Write a list or map: the code of its long form is 0x10 higher."""
    inner = bytearray()
    for value in values:
        _write(inner, value)
    if len(inner) < _SMALL - 1 and count < _SMALL:
        out += bytes((small, len(inner) + 1, count))
    else:
        out.append(small + 0x10)
        out += _pack_size(len(inner) + 4, count)
    out += inner


def _list(out: bytearray, value: object) -> None:
    values = list(value)  # type: ignore[call-overload]  # a sequence
    if values:
        _compound(0xC0, values, len(values), out)
    else:
        out.append(0x45)


def _map(out: bytearray, value: object) -> None:
    pairs = [one for pair in value.items() for one in pair]  # type: ignore[attr-defined]  # a mapping
    _compound(0xC1, pairs, len(pairs), out)


def _described(out: bytearray, value: object) -> None:
    out.append(0)
    _write(out, value.descriptor)  # type: ignore[attr-defined]  # a Described
    _write(out, value.value)  # type: ignore[attr-defined]  # a Described


def _array(out: bytearray, value: object) -> None:
    inner = bytearray()
    for descriptor in value.descriptors:  # type: ignore[attr-defined]  # an Array
        inner.append(0)
        _write(inner, descriptor)
    given: int = value.code  # type: ignore[attr-defined]  # an Array
    code = WIDE.get(given, given)
    inner.append(code)
    element = _ELEMENTS.get(code)
    if element is None:
        raise EncodeError(f"no array has elements of the code {code:#04x}")
    count = 0
    for item in value:  # type: ignore[attr-defined]  # an Array
        element(inner, item)
        count += 1
    out.append(0xF0)
    out += _pack_size(len(inner) + 4, count)
    out += inner


def _fixed_element(pattern: str) -> Writer:
    pack = struct.Struct(">" + pattern).pack

    def write(out: bytearray, value: object) -> None:
        out += pack(value)

    return write


def _sized_element(pattern: str, encoding: str) -> Writer:
    pack = struct.Struct(">" + pattern).pack

    def write(out: bytearray, value: object) -> None:
        octets = value.encode(encoding) if isinstance(value, str) else bytes(value)  # type: ignore[call-overload]  # bytes
        out += pack(len(octets))
        out += octets

    return write


def _after_code(writer: Writer) -> Writer:
    """Return a writer that leaves the code out: an array has it once for all items."""

    def write(out: bytearray, value: object) -> None:
        own = bytearray()
        writer(own, value)
        out += own[1:]

    return write


def _wide_element(out: bytearray, value: object) -> None:
    """Write a list or map in an array, always in the long form."""
    is_map = isinstance(value, Mapping)
    values = [one for pair in value.items() for one in pair] if is_map else list(value)  # type: ignore[attr-defined, call-overload]  # else a list
    inner = bytearray()
    for one in values:
        _write(inner, one)
    out += _pack_size(len(inner) + 4, len(values))
    out += inner


def _nothing(*wanted: object) -> Writer:
    def write(_out: bytearray, value: object) -> None:
        if value not in wanted:
            raise EncodeError(f"an element of this array has to be {wanted[0]}")

    return write


_WRITERS: Mapping[type, Writer] = {
    type(None): _null,
    bool: _boolean,
    Symbol: _symbol,
    Char: _char,
    str: _text,
    Decimal32: _octets(0x74, 4),
    Decimal64: _octets(0x84, 8),
    Decimal128: _octets(0x94, 16),
    bytes: _binary,
    bytearray: _binary,
    memoryview: _binary,
    UInt: _unsigned(0x43, 0x52, 0x70, "I"),
    ULong: _unsigned(0x44, 0x53, 0x80, "Q"),
    UByte: _number(0x50, "B"),
    UShort: _number(0x60, "H"),
    Byte: _number(0x51, "b"),
    Short: _number(0x61, "h"),
    Int32: _signed(0x54, 0x71, "i"),
    Timestamp: _number(0x83, "q"),
    int: _signed(0x55, 0x81, "q"),
    Float32: _number(0x72, "f"),
    float: _number(0x82, "d"),
    UUID: _uuid,
    Array: _array,
    Described: _described,
    list: _list,
    tuple: _list,
    Mapping: _map,  # other mappings than dict
}
_WRITERS = {dict: _map, **_WRITERS}
_ELEMENTS: Mapping[int, Writer] = {
    0x40: _nothing(None),
    0x41: _nothing(True),  # noqa: FBT003 - the value of this code
    0x42: _nothing(False),  # noqa: FBT003 - the value of this code
    0x43: _nothing(0),
    0x44: _nothing(0),
    0x45: _nothing([]),
    **{code: _fixed_element("B") for code in (0x50, 0x52, 0x53)},
    **{code: _fixed_element("b") for code in (0x51, 0x54, 0x55)},
    0x56: _fixed_element("?"),
    0x60: _fixed_element("H"),
    0x61: _fixed_element("h"),
    0x70: _fixed_element("I"),
    0x71: _fixed_element("i"),
    0x72: _fixed_element("f"),
    0x73: _after_code(_char),
    0x74: _after_code(_octets(0x74, 4)),
    0x80: _fixed_element("Q"),
    **{code: _fixed_element("q") for code in (0x81, 0x83)},
    0x82: _fixed_element("d"),
    0x84: _after_code(_octets(0x84, 8)),
    0x94: _after_code(_octets(0x94, 16)),
    0x98: _after_code(_uuid),
    **{code: _sized_element("I", "utf-8") for code in (0xB0, 0xB1)},
    0xB3: _sized_element("I", "ascii"),
    0xD0: _wide_element,
    0xD1: _wide_element,
    0xF0: _after_code(_array),
}
