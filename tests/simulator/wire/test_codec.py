"""Values to bytes and back; Proton, written by others, agrees both ways."""

from decimal import Decimal
from enum import IntEnum
from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.simulator.wire.decode import MOST_LEVELS, decode_value, value_end
from bridge.simulator.wire.encode import encode_value
from bridge.simulator.wire.values import (
    Array,
    Byte,
    Char,
    Decimal64,
    DecodeError,
    Described,
    EncodeError,
    Symbol,
    UByte,
    UInt,
    ULong,
)
from tests.simulator.wire.amqp_values import ALL, PLAIN, from_proton, typed
from tests.support.oracle import ORACLE

proton = pytest.importorskip("proton", reason=ORACLE)


class Colour(IntEnum):
    RED = 7


@given(ALL)
def test_value_comes_back_with_its_types(value: object) -> None:
    encoded = encode_value(value)

    found, end = decode_value(b"before" + encoded + b"after", 6)

    assert typed(found) == typed(value)
    assert end == 6 + len(encoded) == value_end(b"before" + encoded + b"after", 6)


@given(PLAIN)
def test_proton_decodes_what_we_encode(value: object) -> None:
    data = proton.Data()
    data.decode(encode_value(value))
    data.rewind()
    data.next()

    assert typed(from_proton(data.get_object())) == typed(value)


@given(PLAIN)
def test_we_decode_what_proton_encodes(value: object) -> None:
    data = proton.Data()
    data.decode(encode_value(value))
    data.rewind()
    data.next()
    again = proton.Data()
    again.put_object(data.get_object())

    found, _ = decode_value(bytes(again.encode()))

    assert typed(found) == typed(value)


@given(st.binary(max_size=60), st.integers(0, 60))
def test_any_bytes_are_a_value_or_refused(octets: bytes, offset: int) -> None:
    try:
        _, end = decode_value(octets, offset)
    except DecodeError:
        return
    assert offset < end <= len(octets)


@given(ALL, st.data())
def test_value_that_is_cut_off_is_refused(value: object, data: st.DataObject) -> None:
    encoded = encode_value(value)
    cut = data.draw(st.integers(0, len(encoded) - 1))

    with pytest.raises(DecodeError):
        decode_value(encoded[:cut])


@pytest.mark.parametrize(
    ("octets", "words"),
    [
        (b"", "at byte 0 is cut off"),
        (b"\xa1", "at byte 0 is cut off"),
        (b"\xb1\x00\x00", "at byte 0 is cut off"),
        (b"\xd0\x00\x00\x00\x04", "at byte 0 is cut off"),
        (b"\xd0\x00\x00\x00\x05\x00\x00\x00\x00", "at byte 0 is cut off"),
        (b"\x73\x00", "at byte 0 is cut off"),
        (b"\x98\x00", "at byte 0 is cut off"),
        (b"\x01", "no type has the code 0x01"),
        (b"\xc0\x03\x01\xff\x00", "no type has the code 0xff, which is at byte 3"),
        (b"\x56\x02", "neither 0 nor 1"),
        (b"\xa1\x01\xff", "text at byte 1 is not encoded"),
        (b"\xa3\x02\xc3\xa9", "text at byte 1 is not encoded"),
        (b"\x73\x00\x00\xd8\x00", "is no character"),
        (b"\xc1\x02\x01\x40", "a key without a value"),
        (b"\xc1\x03\x02\x45\x40", "a list or a map as a key"),
        (b"\xc0\x05\x01\x40\x40\x40\x40", "size at byte 1 is wrong"),
        (b"\xd0\x00\x00\x00\x05\xff\xff\xff\xff\x40", "4294967295 elements"),
        (b"\xf0\x00\x00\x00\x05\xff\xff\xff\xff\x40", "4294967295 elements"),
        (b"\xe0\x02\x01\x99", "no type has the code 0x99"),
        (b"\xe0\x04\x01\x50\x00\x00", "size at byte 1 is wrong"),
        (b"\xe0\x01\x01", "is cut off"),
    ],
)
def test_malformed_value_is_refused_with_its_place(octets: bytes, words: str) -> None:
    with pytest.raises(DecodeError, match=words):
        decode_value(octets)


def test_values_may_lie_as_deep_as_is_said_and_no_deeper() -> None:
    def nested(levels: int) -> bytes:
        value: object = []
        for _ in range(levels):
            value = [value]
        return encode_value(value)

    assert decode_value(nested(MOST_LEVELS))
    for octets in (
        nested(MOST_LEVELS + 2),
        b"\x00" * 100_000,
        b"\xe0\x02\x01" * 99,
    ):
        with pytest.raises(DecodeError):
            decode_value(octets)


@pytest.mark.parametrize(
    "octets", [b"", b"\xa1\x05ab", b"\x00\x40" * 70 + b"\x40", b"\x99", b"\x00\x99"]
)
def test_end_is_of_a_value_only(octets: bytes) -> None:
    with pytest.raises(DecodeError):
        value_end(octets)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (2**63, "out of the range of its type int"),
        (UByte(256), "out of the range of its type UByte"),
        (UInt(-1), "out of the range of its type UInt"),
        (Symbol("é"), "out of the range of its type Symbol"),
        (Char("ab"), "one character"),
        (Decimal64(b"123"), "has 8 bytes, and not 3"),
        (Decimal(1), "no form for a Decimal"),
        ({"a": [{1, 2}]}, "no form for a set"),
        (Array(0x12, ()), "code 0x12"),
        (Array(0x40, (1,)), "has to be None"),
        (Array(0x50, (300,)), "out of the range"),
    ],
)
def test_what_amqp_has_no_form_for_is_refused(value: object, words: str) -> None:
    with pytest.raises(EncodeError, match=words):
        encode_value(value)


def test_value_too_deep_to_encode_is_refused() -> None:
    value: object = []
    for _ in range(100_000):
        value = [value]

    with pytest.raises(EncodeError, match="deeper"):
        encode_value(value)


@pytest.mark.parametrize(
    ("value", "octets"),
    [
        (UInt(0), b"\x43"),
        (UInt(255), b"\x52\xff"),
        (UInt(256), b"\x70\x00\x00\x01\x00"),
        (ULong(0x14), b"\x53\x14"),
        (127, b"\x55\x7f"),
        (128, b"\x81\x00\x00\x00\x00\x00\x00\x00\x80"),
        (Byte(-1), b"\x51\xff"),
        ([], b"\x45"),
        ({}, b"\xc1\x01\x00"),
        ((True, None), b"\xc0\x03\x02\x41\x40"),
        (bytearray(b"a"), b"\xa0\x01a"),
        ("x" * 255, b"\xa1\xff" + b"x" * 255),
        ("x" * 256, b"\xb1\x00\x00\x01\x00" + b"x" * 256),
        (Colour.RED, b"\x55\x07"),
        (MappingProxyType({}), b"\xc1\x01\x00"),
        (Described(ULong(0x24), []), b"\x00\x53\x24\x45"),
        (
            Array(0xC0, ([],)),
            b"\xf0\x00\x00\x00\x0d\x00\x00\x00\x01\xd0\x00\x00\x00\x04\x00\x00\x00\x00",
        ),
    ],
)
def test_shortest_form_is_written(value: object, octets: bytes) -> None:
    assert encode_value(value) == octets


@pytest.mark.parametrize(
    ("elements", "items"),
    [
        (b"\x03\x41", (True, True, True)),
        (b"\x02\x40", (None, None)),
        (b"\x02\x56\x00\x01", (False, True)),
        (b"\x02\xa1\x01a\x01b", ("a", "b")),
        (b"\x01\x73\x00\x00\x00a", ("a",)),
    ],
)
def test_arrays_of_others_are_read_and_written_again(
    elements: bytes, items: tuple[object, ...]
) -> None:
    found, _ = decode_value(b"\xe0" + bytes([len(elements)]) + elements)

    assert isinstance(found, Array)
    assert (tuple(found), len(found)) == (items, len(items))
    assert decode_value(encode_value(found))[0] == found
