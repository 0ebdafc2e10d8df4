"""Bytes in, bytes out: frames, values and messages."""

from typing import Any
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from bridge.simulator.servicebus.message import DeadLetter, Delivery, State
from bridge.simulator.servicebus.values import (
    RefusedError,
    decode_value,
    encode_section,
    value_end,
)
from bridge.simulator.servicebus.wire import (
    BATCH_FORMAT,
    encode_delivery,
    entity_path,
    parse_message,
    split_batch,
    split_sections,
)
from bridge.simulator.wire.encode import encode_value
from bridge.simulator.wire.values import (
    Described,
    Int32,
    Symbol,
    Timestamp,
    UInt,
    ULong,
)
from tests.support.oracle import ORACLE
from tests.support.proton_frames import (
    FrameSplitter,
    message_format,
)

proton = pytest.importorskip("proton", reason=ORACLE)


def frame(body: bytes) -> bytes:
    return (len(body) + 8).to_bytes(4) + b"\x02\x00\x00\x00" + body


def transfer(*fields: object) -> bytes:
    return frame(encode_section(0x14, list(fields)) + b"payload")


def delivery(encoded: bytes, dead_letter: DeadLetter | None = None) -> Delivery:
    return Delivery(
        message=parse_message(encoded),
        sequence_number=7,
        enqueued_sequence_number=5,
        enqueued_at=1000.5,
        delivery_count=2,
        lock_token=uuid4(),
        locked_until=2000.0,
        dead_letter=dead_letter,
    )


def decoded(encoded: bytes) -> Any:
    message = proton.Message()
    message.decode(encoded)
    return message


def proton_message(**fields: Any) -> bytes:
    return bytes(proton.Message(**{"id": "m1", "body": "text", **fields}).encode())


def described(value: Any) -> Described:
    return Described(ULong(1), value)


def annotations(message: Any) -> object:
    return message.annotations


@given(st.lists(st.binary(max_size=30), max_size=8), st.integers(1, 9))
def test_frames_are_cut_wherever_the_bytes_were(bodies: list[bytes], step: int) -> None:
    frames = [b"AMQP\x00\x01\x00\x00", *map(frame, bodies)]
    stream = b"".join(frames)
    splitter = FrameSplitter()

    found = [
        cut
        for start in range(0, len(stream), step)
        for cut in splitter.feed(stream[start : start + step])
    ]

    assert found == frames


def test_what_is_no_frame_is_passed_on() -> None:
    request = b"GET / HTTP/1.1\r\n\r\n"

    assert list(FrameSplitter().feed(request)) == [request]


def test_message_format_is_read_from_a_transfer() -> None:
    batch = transfer(UInt(0), UInt(1), b"tag", UInt(BATCH_FORMAT))

    assert message_format(batch) == BATCH_FORMAT


@pytest.mark.parametrize(
    "other",
    [
        b"AMQP\x00\x01\x00\x00",
        frame(b""),
        transfer(UInt(0)),
        transfer(UInt(0), None, None, None),
        frame(encode_section(0x13, [UInt(0), UInt(1), UInt(2), UInt(3)])),
    ],
)
def test_there_is_no_message_format_in_other_frames(other: bytes) -> None:
    assert message_format(other) is None


AMQP_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.text(max_size=300)
    | st.binary(max_size=300)
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False)
    | st.uuids()
    | st.integers(0, 2**31).map(UInt)
    | st.integers(-(2**31), 2**31 - 1).map(Int32)
    | st.integers(0, 2**62).map(Timestamp)
    | st.from_regex("[a-z-]{1,20}", fullmatch=True).map(Symbol),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(max_size=5), inner, max_size=4)
    ),
    max_leaves=8,
)
MAYBE_DESCRIBED = AMQP_VALUES | AMQP_VALUES.map(described)


@given(MAYBE_DESCRIBED)
def test_value_survives_and_its_end_is_found(value: object) -> None:
    encoded = encode_value(value)

    found, end = decode_value(b"before" + encoded + b"after", 6)

    assert found == value
    assert end == 6 + len(encoded)


@given(st.binary(max_size=40))
def test_any_bytes_are_a_message_or_refused(encoded: bytes) -> None:
    try:
        list(split_sections(encoded))
        parse_message(encoded)
    except RefusedError:
        return


@pytest.mark.parametrize("encoded", [b"", b"\x00", b"\xa1\x05ab", b"\x01", b"\xb0\x00"])
def test_value_that_is_cut_off_is_refused(encoded: bytes) -> None:
    with pytest.raises(RefusedError):
        value_end(encoded, 0)


@pytest.mark.parametrize(
    ("address", "path"),
    [
        ("amqps://localhost:5672/queue", "queue"),
        ("sb://host/t/Subscriptions/s", "t/Subscriptions/s"),
        ("queue", "queue"),
        ("/queue/", "queue"),
        ("amqps://localhost:5672", ""),
        ("$cbs", "$cbs"),
    ],
)
def test_entity_path_is_what_follows_the_host(address: str, path: str) -> None:
    assert entity_path(address) == path


def test_message_is_read_for_what_the_broker_needs() -> None:
    encoded = proton_message(
        id="m1",
        group_id="s1",
        subject="alarm",
        correlation_id="c1",
        ttl=5.0,
        annotations={
            proton.symbol("x-opt-scheduled-enqueue-time"): proton.timestamp(9500)
        },
        properties={"colour": "red"},
    )

    message = parse_message(encoded)

    assert message.message_id == "m1"
    assert message.session_id == "s1"
    assert message.time_to_live == 5.0
    assert message.scheduled_for == 9.5
    assert message.properties["Label"] == "alarm"
    assert message.properties["CorrelationId"] == "c1"
    assert message.application_properties == {"colour": "red"}


def test_message_without_an_id_gets_one() -> None:
    """The JavaScript client throws on a message without."""
    message = parse_message(proton_message(id=None, subject="kept"))

    sent = decoded(encode_delivery(delivery(proton_message(id=None))))

    assert message.message_id
    assert decoded(message.content).subject == "kept"
    assert sent.id


def test_what_a_sender_wrote_leaves_untouched() -> None:
    sections = [
        encode_section(0x73, ["m1", None, None, "subject"]),
        encode_section(0x74, {"colour": "red"}),
        encode_section(0x75, b"first"),
        encode_section(0x75, b"second"),
        encode_section(0x78, {}),
    ]
    bare = b"".join(sections)

    encoded = encode_delivery(delivery(bare))

    assert encoded.endswith(bare)


def test_delivery_tells_what_the_broker_knows() -> None:
    message = decoded(encode_delivery(delivery(proton_message(ttl=5.0))))

    assert message.delivery_count == 2
    assert message.ttl == 5.0
    assert message.annotations == {
        "x-opt-sequence-number": 7,
        "x-opt-enqueue-sequence-number": 5,
        "x-opt-enqueued-time": 1000500,
        "x-opt-locked-until": 2000000,
    }


def test_delivery_says_no_more_than_the_cloud_of_a_message_that_is_active() -> None:
    """Its first number only if it was forwarded, its state only if it is another."""
    fresh = replace(delivery(proton_message()), enqueued_sequence_number=7)

    found = decoded(encode_delivery(fresh)).annotations
    other = decoded(encode_delivery(replace(fresh, state=State.DEFERRED))).annotations

    assert set(found) == {
        "x-opt-sequence-number",
        "x-opt-enqueued-time",
        "x-opt-locked-until",
    }
    assert other == {**found, "x-opt-message-state": 1}


def test_annotations_of_the_sender_are_kept() -> None:
    sent = proton_message(annotations={proton.symbol("x-opt-partition-key"): "p"})

    message = decoded(encode_delivery(delivery(sent)))

    found = annotations(message)
    assert isinstance(found, dict)
    assert found["x-opt-partition-key"] == "p"


def test_dead_letter_tells_why_beside_its_own_properties() -> None:
    dead_letter = DeadLetter(source="q", reason="Unreadable", description="no JSON")
    sent = proton_message(properties={"colour": "red"})

    message = decoded(encode_delivery(delivery(sent, dead_letter)))

    assert message.properties == {
        "colour": "red",
        "DeadLetterReason": "Unreadable",
        "DeadLetterErrorDescription": "no JSON",
    }
    found = annotations(message)
    assert isinstance(found, dict)
    assert "x-opt-deadletter-source" not in found
    assert message.body == "text"


def test_source_of_a_dead_letter_is_reported_after_it_was_forwarded() -> None:
    dead_letter = DeadLetter(source="q", reason="Unreadable", is_forwarded=True)

    message = decoded(encode_delivery(delivery(proton_message(), dead_letter)))

    found = annotations(message)
    assert isinstance(found, dict)
    assert found["x-opt-deadletter-source"] == "q"


def test_batch_is_split_into_its_messages() -> None:
    parts = [proton_message(id=name) for name in ("a", "b")]
    batch = b"".join(encode_section(0x75, part) for part in parts)

    assert [parse_message(part).message_id for part in split_batch(batch)] == ["a", "b"]
