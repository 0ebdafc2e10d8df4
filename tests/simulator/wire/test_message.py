"""Requests and replies: Proton reads what we write, and we what it writes."""

from uuid import uuid4

import pytest

from bridge.simulator.wire.encode import encode_value
from bridge.simulator.wire.message import Message
from bridge.simulator.wire.values import DecodeError, Described, Int32, Symbol, ULong


def section(code: int, value: object) -> bytes:
    return encode_value(Described(ULong(code), value))


def test_request_is_read_as_it_was_written() -> None:
    sent = Message({"a": [1]}, {"operation": "peek", "count": Int32(3)})
    sent.id, sent.reply_to, sent.correlation_id = uuid4(), "replies", ULong(5)

    found = Message.decode(sent.encode())

    assert vars(found) == vars(sent)
    assert type(found.properties["count"]) is Int32


@pytest.mark.parametrize(
    ("encoded", "body"),
    [
        (b"", None),
        (section(0x75, b"data"), b"data"),
        (section(0x73, 5) + section(0x77, "x"), "x"),
        (section(0x73, []) + section(0x74, 5) + section(0x77, "x"), "x"),
    ],
)
def test_message_may_lack_anything(encoded: bytes, body: object) -> None:
    found = Message.decode(encoded)

    assert found.body == body
    assert (found.id, found.reply_to, found.properties) == (None, None, {})


def test_address_that_is_no_text_is_none() -> None:
    assert Message.decode(section(0x73, [None] * 4 + [5])).reply_to is None


@pytest.mark.parametrize(
    "encoded", [b"\x40", b"\x00", section(0x77, "x") + b"more", b"\x00\xa3\x01x\x45"]
)
def test_what_is_no_message_is_refused(encoded: bytes) -> None:
    with pytest.raises(DecodeError):
        Message.decode(encoded)


def test_proton_reads_a_reply() -> None:
    proton = pytest.importorskip("proton")
    sent = Message({"skip": Int32(1)}, {"condition": Symbol("amqp:not-found")})
    sent.correlation_id = uuid4()

    found = proton.Message()
    found.decode(sent.encode())

    assert found.correlation_id == sent.correlation_id
    assert found.body == {"skip": 1}
    assert isinstance(found.properties["condition"], proton.symbol)
