"""What is left of an AMQP message that nobody can decode: cut apart by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.servicebus.salvage import MARK, is_plain, replacement

LIST, MAP, VALUE = 0xC0, 0xC1, b"\x00\x53\x77"
MARKED = b"\x00\x53\x71\xd1\0\0\0\x21\0\0\0\2\xa3\x1a" + MARK + b"\x41"
ODD = b"\x73\0\0\0a"  # a char


def part(code: int, kind: int, *elements: bytes) -> bytes:
    """Return a section that is a list or a map."""
    body = bytes([len(elements)]) + b"".join(elements)
    return b"\x00\x53" + bytes([code, kind, len(body)]) + body


def text(value: str) -> bytes:
    return b"\xa1" + bytes([len(value)]) + value.encode()


def knows_no_char(payload: bytes) -> bool:
    return ODD not in payload.partition(b"\x00\x53\x75")[0]


def data(content: bytes) -> bytes:
    return b"\x00\x53\x75\xb0" + len(content).to_bytes(4) + content


def large(code: int, kind: int, *elements: bytes) -> bytes:
    """Return a section as ``replacement`` writes it."""
    body = len(elements).to_bytes(4) + b"".join(elements)
    return b"\x00\x53" + bytes([code, kind]) + len(body).to_bytes(4) + body


def test_what_can_be_decoded_is_kept_and_the_rest_is_the_body() -> None:
    annotations = part(0x72, MAP, text("a"), ODD, text("b"), text("c"), text("odd"))
    properties = part(0x73, LIST, text("id"), ODD, text("to"))
    body = properties + part(0x74, MAP, text("k"), ODD) + VALUE + b"\x40"
    taken = replacement(part(0x70, LIST, b"\x41") + annotations + body, knows_no_char)

    assert taken == b"".join(
        [
            MARKED,
            large(0x70, 0xD0, b"\x41"),
            large(0x72, 0xD1, text("b"), text("c")),
            large(0x73, 0xD0, text("id"), b"\x40", text("to")),
            data(body),
        ]
    )


def test_more_fields_than_there_are_names_for_are_left_out() -> None:
    taken = replacement(part(0x70, LIST, *[b"\x41"] * 9), knows_no_char)

    assert taken == MARKED + large(0x70, 0xD0, *[b"\x41"] * 5) + data(b"")


@pytest.mark.parametrize(
    "payload",
    [
        b"no AMQP",
        b"\x00\x53",
        b"\x00\x53\x73\xa1\x09cut",
        b"\x00\x53\x73\xb0",
        VALUE + b"\x13",  # no such format code
        VALUE + b"\0" * 9,
    ],
)
def test_what_cannot_be_cut_apart_is_the_body_as_it_came(payload: bytes) -> None:
    assert replacement(payload, knows_no_char) == MARKED + data(payload)


@pytest.mark.parametrize(
    "section",
    [b"\x00\x53\x73\xa1\2id", b"\x00\x53\x73\x45", b"\x00\x53\x73\xc0\2\1\xa1"],
    ids=["no list", "empty list", "cut short"],
)
def test_properties_without_fields_are_empty(section: bytes) -> None:
    taken = replacement(section, knows_no_char)

    assert taken == MARKED + large(0x73, 0xD0) + data(section)


def test_nothing_is_kept_where_that_cannot_be_read_either() -> None:
    def whole_only(payload: bytes) -> bool:
        return payload.count(b"\x00\x53") == 1

    taken = replacement(part(0x73, LIST, text("id")), whole_only)

    assert taken == MARKED + data(part(0x73, LIST, text("id")))


@pytest.mark.parametrize(
    "value",
    [
        b"\x40",
        b"\x53\x07",
        b"\x98" + bytes(16),
        b"\xb0\0\0\0\2ab",
        b"\xc0\6\2\x40\xa1\2ab",
        b"\xd1\0\0\0\6\0\0\0\2\x40\x40",
        b"\xe0\4\2\x50\1\2",
        b"\xf0\0\0\0\x09\0\0\0\2\xa1\1a\1b",
        b"\xe0\1\0",
        b"\x00\xa3\1x\x40",
        b"\xe0\2\xff\x40",
    ],
)
def test_ordinary_value_is_plain(value: bytes) -> None:
    assert is_plain(VALUE + value)
    assert is_plain(part(0x73, LIST, value))


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"\x54",
        b"\x13",
        b"\xa1\5ab",
        b"\xc0\3\1\x40\x40",  # its size says more than its count
        b"\xc0\1\2\x40",
        b"\xe0\4\1\xe0\1\0",  # an array of arrays
        b"\xe0\4\1\x00\x53\1",  # of described values
        b"\xf0\0\0\0\5\0\0\1\0\x40",  # of 256 nulls
        b"\0" * 200,
        b"\0\x40" * 70 + b"\x40",  # described values of described values
        b"\x40\x40",
    ],
)
def test_value_that_is_not_what_it_says_is_not_plain(value: bytes) -> None:
    assert not is_plain(VALUE + value)


@pytest.mark.parametrize(("depth", "expected"), [(63, True), (64, False)])
def test_value_is_as_deep_as_the_decoder_goes(depth: int, *, expected: bool) -> None:
    value = b"\x40"
    for _ in range(depth + 1):
        size = len(value) + 4
        value = b"\xd0" + size.to_bytes(4) + (1).to_bytes(4) + value

    assert is_plain(VALUE + value) is expected


def test_much_to_decode_is_not_plain_but_data_is() -> None:
    """Each value takes the decoder a moment, in which nothing else is done."""
    size = 300 * 1024
    many = b"\xd0" + (size + 4).to_bytes(4) + size.to_bytes(4) + b"\x40" * size

    assert not is_plain(VALUE + many)
    assert is_plain(data(bytes(100 * size)))


@given(st.binary(max_size=60) | st.binary(max_size=60).map(VALUE.__add__))
def test_any_bytes_can_be_taken_apart(payload: bytes) -> None:
    is_plain(payload)
    assert replacement(payload, knows_no_char).startswith(MARKED)
