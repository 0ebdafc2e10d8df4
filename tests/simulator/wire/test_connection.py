"""A connection from its greeting to its end."""

import pytest

from bridge.simulator.wire.connection import (
    CHANNEL_MAX,
    MAX_FRAME_BYTES,
    Connection,
    Terms,
)
from bridge.simulator.wire.encode import encode_value
from bridge.simulator.wire.events import (
    ConnectionClosed,
    LinkAttached,
    Opened,
    SessionBegun,
    SessionEnded,
)
from bridge.simulator.wire.framing import (
    AMQP_HEADER,
    SASL_FRAME,
    SASL_HEADER,
    Credentials,
    frame,
)
from bridge.simulator.wire.performatives import (
    Begin,
    Close,
    Detach,
    End,
    Flow,
    Open,
    Performative,
    SaslChallenge,
    SaslInit,
    SaslMechanisms,
    SaslOutcome,
    SaslResponse,
    Transfer,
    read,
    write,
)
from bridge.simulator.wire.values import AmqpError, Described, Symbol, ULong
from tests.simulator.wire.amqp_client import (
    BEGIN,
    OPEN,
    Client,
    frames,
    receives,
    sends,
    signing_in,
)

ALL_MECHANISMS = Terms(
    container_id="server", mechanisms=("ANONYMOUS", "MSSBCBS", "EXTERNAL", "PLAIN")
)


# -- signing in ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mechanism", "response", "known"),
    [
        ("ANONYMOUS", None, Credentials("ANONYMOUS")),
        ("MSSBCBS", b"", Credentials("MSSBCBS")),
        ("EXTERNAL", b"", Credentials("EXTERNAL")),
        ("PLAIN", b"\0name\0word", Credentials("PLAIN", "name", "word")),
        ("PLAIN", b"other\0name\0word", Credentials("PLAIN", "name", "word")),
    ],
)
def test_client_signs_in(
    mechanism: str, response: bytes | None, known: Credentials
) -> None:
    client = Client(ALL_MECHANISMS)

    client.send(signing_in(mechanism, response) + AMQP_HEADER + frames(OPEN))

    offered, outcome, opened = client.answers()
    assert isinstance(offered, SaslMechanisms)
    assert offered.mechanisms == ALL_MECHANISMS.mechanisms
    assert outcome == SaslOutcome(code=0)
    assert isinstance(opened, Open)
    assert client.headers == [SASL_HEADER, AMQP_HEADER]
    assert client.connection.credentials == known


@pytest.mark.parametrize(
    ("mechanism", "response"),
    [
        ("DIGEST-MD5", b""),
        ("PLAIN", None),
        ("PLAIN", b"name"),
        ("PLAIN", b"\0\0word"),
        ("PLAIN", b"\0\xff\0word"),
        ("PLAIN", b"\0name\0wrong"),
    ],
)
def test_client_that_nobody_knows_is_refused(
    mechanism: str, response: bytes | None
) -> None:
    terms = Terms(
        container_id="server",
        mechanisms=("PLAIN",),
        is_known=lambda who: who.password == "word",
    )
    client = Client(terms)

    (closed,) = client.send(signing_in(mechanism, response))

    assert client.answers()[1:] == [SaslOutcome(code=1)]
    assert isinstance(closed, ConnectionClosed)
    assert client.connection.is_finished
    assert client.connection.credentials is None


def test_password_is_in_no_text() -> None:
    assert "word" not in repr(Credentials("PLAIN", "name", "word"))


@pytest.mark.parametrize(
    "other",
    [
        frames(OPEN),
        frame(0, write(SaslResponse(response=b"")), SASL_FRAME),
        frame(0, write(SaslInit(mechanism="ANONYMOUS")) + b"more", SASL_FRAME),
    ],
)
def test_what_is_no_sign_in_ends_the_connection(other: bytes) -> None:
    client = Client()

    (closed,) = client.send(SASL_HEADER + other)

    assert isinstance(closed, ConnectionClosed)
    assert closed.is_violation
    assert client.connection.is_finished


def test_nobody_signs_in_twice() -> None:
    client = Client()

    events = client.send(signing_in() + SASL_HEADER)

    assert isinstance(events[-1], ConnectionClosed)
    assert client.answers()
    assert client.headers == [SASL_HEADER, AMQP_HEADER]


@pytest.mark.parametrize(
    "greeting", [b"GET / HTTP/1.1\r\n\r\n", b"AMQP\x02\x01\x00\x00", b"AMQPxxxx", b"x"]
)
def test_other_protocol_is_answered_with_ours(greeting: bytes) -> None:
    client = Client()

    (closed,) = client.send(greeting)

    assert isinstance(closed, ConnectionClosed)
    assert closed.is_violation
    assert client.connection.take_output() == SASL_HEADER
    assert client.connection.is_finished


# -- opening and closing -------------------------------------------------------------


def test_connection_opens_and_says_who_it_is() -> None:
    client = Client(Terms(container_id="server", idle_seconds=240))

    (opened,) = client.send(AMQP_HEADER + frames(OPEN))

    assert isinstance(opened, Opened)
    assert opened.open.container_id == "client"
    answer = client.answer(Open)
    assert answer.container_id == "server"
    assert answer.idle_time_out == 240_000
    assert answer.max_frame_size == MAX_FRAME_BYTES
    assert answer.channel_max == CHANNEL_MAX


def test_closing_is_answered_and_ends_it() -> None:
    client = Client()
    client.open(receives())
    reason = AmqpError("amqp:internal-error", "tired", {Symbol("a"): 1})

    (closed,) = client.say(Close(error=reason))

    assert closed == ConnectionClosed(reason)
    assert client.answer(Close).error is None
    assert client.connection.is_finished
    assert (
        client.say(Begin(next_outgoing_id=0, incoming_window=1, outgoing_window=1))
        == []
    )


def test_server_closes_with_a_reason_that_has_all_fields() -> None:
    """Clients read the third field of an error without looking for it."""
    client = Client()
    client.open()

    client.connection.close(AmqpError("amqp:connection:forced", "stopped"))
    client.connection.close()

    error = client.answer(Close).error
    assert error is not None
    assert (error.condition, error.description) == ("amqp:connection:forced", "stopped")
    assert error.info
    assert client.connection.is_finished


@pytest.mark.parametrize(
    ("begun", "said"),
    [(b"", []), (SASL_HEADER, [SaslMechanisms]), (AMQP_HEADER, [Open, Close])],
)
def test_connection_may_be_closed_before_it_is_open(
    begun: bytes, said: list[type[Performative]]
) -> None:
    client = Client()
    client.send(begun)

    client.connection.close(AmqpError("amqp:connection:forced"))

    assert [type(one) for one in client.answers()] == said
    assert client.connection.is_finished


# -- what breaks the protocol --------------------------------------------------------


def described(code: int, *fields: object) -> bytes:
    return frame(0, encode_value(Described(ULong(code), list(fields))))


@pytest.mark.parametrize(
    ("octets", "condition", "words"),
    [
        (b"\x00\x00\x00\x07\x02\x00\x00\x00", "framing", "7 bytes; 8 to 1048576"),
        (b"\x00\x20\x00\x00\x02\x00\x00\x00", "framing", "2097152 bytes"),
        (b"\x00\x00\x00\x08\x03\x00\x00\x00", "framing", "body at byte 12"),
        (b"\x00\x00\x00\x08\x01\x00\x00\x00", "framing", "body at byte 4"),
        (frame(0, b"", 7), "framing", "unknown type 7"),
        (frame(0, b"\x40"), "invalid-field", "described list"),
        (frame(0, b"\x00\x53\x11"), "decode", "cut off"),
        (described(0x99), "invalid-field", "no performative 153"),
        (frame(0, b"\x00\xa3\x01x\x45"), "invalid-field", "no performative 'x'"),
        (frame(0, b"\x00\x40\x45"), "invalid-field", "no performative None"),
        (described(0x11), "invalid-field", "next_outgoing_id of Begin is missing"),
        (described(0x11, "1"), "invalid-field", "remote_channel of Begin has to be a"),
        (frame(0, b"\x00\x53\x11\xc0\x02\x01\x41"), "invalid-field", "remote_channel"),
        (described(0x11, 65536), "invalid-field", "number of 16 bits"),
        (described(0x18, 1, 2), "invalid-field", "Close has 1 fields, and not 2"),
        (described(0x10, "c", 5), "invalid-field", "hostname of Open has to be a str"),
        (described(0x10, *"ch", *[None] * 3, 5), "invalid-field", "has to be symbols"),
        (described(0x18, 1), "invalid-field", "an error is a described list"),
        (described(0x18, Described(ULong(0x1D), [])), "invalid-field", "a condition"),
        (frames(BEGIN, payload=b"more"), "framing", "4 bytes too many after Begin"),
        (frames(OPEN), "illegal-state", "Open came on an open connection"),
        (frames(SaslChallenge(challenge=b"")), "illegal-state", "SaslChallenge"),
        (frames(BEGIN), "not-allowed", "channel 0 has a session already"),
        (frames(End(), channel=5), "not-allowed", "channel 5 has no session"),
        (frames(receives(4096)), "not-allowed", "4096; 4095 is the highest"),
        (frames(sends(7), sends(7)), "handle-in-use", "handle 7 has a link already"),
        (frames(Detach(handle=3)), "unattached-handle", "no link has the handle 3"),
        (frames(Transfer(handle=3)), "unattached-handle", "no link has the handle 3"),
    ],
)  # fmt: skip
def test_violation_closes_with_what_is_wrong(
    octets: bytes, condition: str, words: str
) -> None:
    client = Client()
    client.open()

    closed = client.send(octets)[-1]

    assert isinstance(closed, ConnectionClosed)
    assert closed.is_violation
    assert closed.error is not None
    assert condition in closed.error.condition
    assert words in str(closed.error.description)
    said = client.answers()[-1]
    assert isinstance(said, Close)
    assert said.error is not None
    assert said.error.description == closed.error.description
    assert client.connection.is_finished


def test_connection_begins_with_open() -> None:
    client = Client()

    (closed,) = client.send(AMQP_HEADER + frames(BEGIN))

    assert isinstance(closed, ConnectionClosed)
    assert "begins with Open, not Begin" in str(closed.error)
    assert [type(said) for said in client.answers()] == [Open, Close]


def test_frames_below_what_amqp_needs_are_refused() -> None:
    client = Client()

    (closed,) = client.send(
        AMQP_HEADER + frames(Open(container_id="c", max_frame_size=511))
    )

    assert isinstance(closed, ConnectionClosed)
    assert "max-frame-size is 511; 512 is least" in str(closed.error)


def test_performatives_may_be_named_by_symbols() -> None:
    client = Client()
    body = encode_value(Described(Symbol("amqp:open:list"), ["client"]))

    (opened,) = client.send(AMQP_HEADER + frame(0, body))

    assert isinstance(opened, Opened)


# -- sessions ------------------------------------------------------------------------


def test_session_begins_on_the_channel_of_the_client() -> None:
    client = Client()
    client.open()

    (begun,) = client.say(BEGIN, channel=6)

    assert isinstance(begun, SessionBegun)
    assert client.answer(Begin).remote_channel == 6


def test_session_ends_with_its_links() -> None:
    client = Client()
    (attached,) = client.open(receives())
    assert isinstance(attached, LinkAttached)
    attached.link.accept()

    (ended,) = client.say(End())

    assert ended == SessionEnded(attached.link.session, None)
    assert isinstance(client.answers()[-1], End)
    attached.link.close()
    attached.link.send(b"t", b"late", None)
    assert client.answers() == []


def test_frames_after_the_end_of_a_session_are_let_pass() -> None:
    """The SDK for Python detaches links after it has ended their session."""
    client = Client()
    client.open(receives())
    client.say(End())
    client.answers()

    assert (
        client.say(
            Detach(handle=0),
            Flow(incoming_window=1, next_outgoing_id=0, outgoing_window=1),
        )
        == []
    )
    assert client.answers() == []
    (begun,) = client.say(BEGIN)
    assert isinstance(begun, SessionBegun)


# -- silence -------------------------------------------------------------------------


def idle(ours: float | None, theirs: int | None) -> Client:
    client = Client(Terms(container_id="server", idle_seconds=ours))
    client.send(AMQP_HEADER + frames(Open(container_id="c", idle_time_out=theirs)))
    client.connection.tick(1000.0)
    client.answers()
    return client


@pytest.mark.parametrize("theirs", [None, 0, 3_600_000])
def test_silent_server_sends_an_empty_frame_every_30_seconds(
    theirs: int | None,
) -> None:
    """Whatever the client asks: two silent minutes end the keep-alive of some."""
    client = idle(None, theirs)

    assert client.connection.tick(1029.0) == 1030.0
    assert client.connection.take_output() == b""
    assert client.connection.tick(1030.0) == 1060.0
    assert client.connection.take_output() == frame(0, b"")
    client.connection.tick(10.0**9)
    assert not client.connection.is_finished


def test_empty_frames_keep_a_client_from_giving_up() -> None:
    """At half of the time that it asks for."""
    client = idle(None, 20_000)

    assert client.connection.tick(1009.0) == 1010.0
    assert client.connection.take_output() == b""
    assert client.connection.tick(1010.0) == 1020.0
    assert client.connection.take_output() == frame(0, b"")


def test_whatever_is_sent_is_a_sign_of_life() -> None:
    client = idle(None, 60_000)
    client.say(BEGIN)

    assert client.connection.tick(1020.0) == 1050.0
    client.answers()
    assert client.connection.tick(1049.0) == 1050.0
    assert client.connection.take_output() == b""


def test_silent_client_is_closed_after_twice_what_was_asked() -> None:
    client = idle(240.0, None)

    assert client.connection.tick(1479.0) == 1480.0
    assert client.connection.tick(1480.0) is None

    (event,) = client.send(b"")
    assert isinstance(event, ConnectionClosed)
    error = client.answer(Close).error
    assert error is not None
    assert error.condition == "amqp:resource-limit-exceeded"
    assert "no frame for 480 seconds" in str(error.description)


def test_any_frame_of_the_client_is_a_sign_of_life() -> None:
    client = idle(240.0, None)
    client.send(frame(0, b""))

    assert client.connection.tick(1400.0) == 1430.0
    client.connection.tick(1879.0)
    assert not client.connection.is_finished
    assert client.connection.tick(1880.0) is None


def test_closed_connection_waits_for_nothing() -> None:
    client = idle(240.0, 60_000)
    client.connection.close()

    assert client.connection.tick(5000.0) is None


@pytest.mark.parametrize("wanted", [0, 5, 5000, 65_535])
def test_client_has_as_many_channels_as_it_asks_for(wanted: int) -> None:
    client = Client()
    client.send(AMQP_HEADER + frames(Open(container_id="c", channel_max=wanted)))
    assert client.answer(Open).channel_max == wanted

    client.say(BEGIN, channel=wanted)
    assert client.answer(Begin).remote_channel == wanted

    if wanted < CHANNEL_MAX:
        client.say(BEGIN, channel=wanted + 1)
        error = client.answer(Close).error
        assert error is not None
        assert str(error.description).endswith(f"{wanted} is the highest")


def test_performative_of_the_server_is_what_a_client_reads() -> None:
    """``write`` leaves out what is the default, and ``read`` puts it back."""
    for said in (OPEN, BEGIN, receives(3), Close(), SaslOutcome(code=0)):
        found, end = read(write(said))

        assert found == said
        assert end == len(write(said))


def test_connection_is_made_of_terms_alone() -> None:
    assert Connection(Terms(container_id="server")).take_output() == b""
