"""What the local broker is sent over AMQP, by whoever reaches its port."""

from contextlib import suppress

from bridge.simulator.wire.decode import decode_value
from bridge.simulator.wire.encode import encode_value
from bridge.simulator.wire.framing import AMQP_HEADER
from bridge.simulator.wire.message import Message
from bridge.simulator.wire.outcomes import Accepted
from bridge.simulator.wire.performatives import Close, Detach, Disposition, End, Flow
from bridge.simulator.wire.values import (
    Array,
    DecodeError,
    Described,
    Symbol,
    Timestamp,
    ULong,
)
from tests.fuzz.target import brief
from tests.simulator.wire.amqp_client import (
    BEGIN,
    OPEN,
    frames,
    message,
    receives,
    sends,
    signing_in,
)
from tests.simulator.wire.amqp_server import Server

_FLOW = Flow(
    next_incoming_id=0,
    incoming_window=50,
    next_outgoing_id=0,
    outgoing_window=50,
    handle=1,
    delivery_count=0,
    link_credit=9,
    drain=True,
)
_BEGUN = AMQP_HEADER + frames(OPEN, BEGIN, sends(0), receives(1), _FLOW)
CONVERSATIONS = (
    signing_in() + _BEGUN,
    signing_in("PLAIN", b"\0name\0word") + AMQP_HEADER + frames(OPEN, Close()),
    _BEGUN + frames(message(0, more=True), message(None), payload=b"bytes"),
    _BEGUN
    + frames(
        Disposition(is_receiver=True, first=0, last=5, settled=True, state=Accepted()),
        Detach(handle=1, closed=True),
        End(),
    ),
)
VALUES = (
    encode_value([1, "a", b"b", None, {Symbol("c"): Timestamp(5)}]),
    encode_value(Described(ULong(0x24), [Array(0x81, (1, 2)), Array(0xB1, ("a",))])),
    Message("body", {"operation": "x"}).encode(),
)


def conversation(octets: bytes) -> None:
    """A client's bytes are understood, or end the connection with a reason."""
    server = Server()
    server.receive([octets])
    closed = [found for found in server.events if found.startswith("ConnectionClosed")]
    assert len(closed) == int(server.connection.is_finished)
    server.connection.take_output()


def value(octets: bytes) -> None:
    """A value is refused, or written so that it is read again."""
    with suppress(DecodeError):
        Message.decode(octets)
    try:
        found, end = decode_value(octets)
    except DecodeError as error:
        brief(error)
        return
    assert 0 < end <= len(octets)
    again = encode_value(found)
    assert repr(decode_value(again)[0]) == repr(found)  # NaN is not equal to itself
