"""Whatever a client says, and however the network cuts it."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from bridge.simulator.wire.framing import AMQP_HEADER, frame
from bridge.simulator.wire.outcomes import (
    Accepted,
    Modified,
    Rejected,
    Released,
)
from bridge.simulator.wire.performatives import (
    Begin,
    Close,
    Detach,
    Disposition,
    End,
    Flow,
    Performative,
    Transfer,
)
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

HANDLE = st.integers(0, 3)
NUMBER = st.integers(0, 6) | st.just(2**32 - 1)
COUNT = st.integers(0, 30)
STATES = st.sampled_from([None, Accepted(), Released(), Rejected(), Modified()])


def maybe(given: st.SearchStrategy[int]) -> st.SearchStrategy[int | None]:
    return st.none() | given


FLOWS = st.builds(
    Flow,
    next_incoming_id=maybe(NUMBER),
    incoming_window=COUNT,
    next_outgoing_id=NUMBER,
    outgoing_window=COUNT,
    handle=maybe(HANDLE),
    delivery_count=maybe(NUMBER),
    link_credit=maybe(COUNT),
    drain=st.booleans(),
    echo=st.booleans(),
)
TRANSFERS = st.builds(
    lambda number, handle, fields: message(number, handle=handle, **fields),
    maybe(NUMBER),
    HANDLE,
    st.fixed_dictionaries(
        {
            "settled": st.none() | st.booleans(),
            "more": st.booleans(),
            "aborted": st.booleans(),
        }
    ),
)
DISPOSITIONS = st.builds(
    Disposition,
    is_receiver=st.booleans(),
    first=NUMBER,
    last=maybe(NUMBER),
    settled=st.booleans(),
    state=STATES,
)
SAID: st.SearchStrategy[Performative] = st.one_of(
    HANDLE.map(sends),
    HANDLE.map(receives),
    HANDLE.map(lambda handle: receives(handle, source=None)),
    FLOWS,
    FLOWS,
    TRANSFERS,
    TRANSFERS,
    DISPOSITIONS,
    st.builds(Detach, handle=HANDLE, closed=st.booleans()),
    st.just(BEGIN),
    st.just(Begin(next_outgoing_id=0, incoming_window=1, outgoing_window=1)),
    st.just(End()),
    st.just(Close()),
)
FRAMES = st.builds(
    lambda said, payload: frames(
        said, payload=payload if isinstance(said, Transfer) else b""
    ),
    SAID,
    st.binary(max_size=9),
) | st.just(frame(0, b""))
BEGUN = AMQP_HEADER + frames(OPEN, BEGIN, sends(0), receives(1))
OPENINGS = st.sampled_from(
    [BEGUN, signing_in() + BEGUN, signing_in("PLAIN", b"\0n\0w") + BEGUN]
)
CONVERSATIONS = st.builds(
    lambda opening, said, rest: opening + b"".join(said) + rest,
    OPENINGS,
    st.lists(FRAMES, max_size=25),
    st.binary(max_size=20),
)


@given(CONVERSATIONS, st.data())
def test_any_cut_of_the_bytes_gives_the_same_events_and_answers(
    octets: bytes, data: st.DataObject
) -> None:
    places = st.lists(st.integers(0, len(octets)), max_size=30)
    cuts = sorted({0, len(octets), *data.draw(places)})
    pieces = [octets[a:b] for a, b in pairwise(cuts)]
    whole, cut, single = Server(), Server(), Server()

    whole.receive([octets])
    cut.receive(pieces)
    single.receive(octets[at : at + 1] for at in range(len(octets)))

    assert cut.events == single.events == whole.events
    answers = whole.connection.take_output()
    assert cut.connection.take_output() == answers
    assert single.connection.take_output() == answers


@given(OPENINGS, st.lists(FRAMES | st.binary(max_size=60), max_size=10))
def test_any_bytes_are_understood_or_end_in_a_close_that_says_why(
    opening: bytes, said: list[bytes]
) -> None:
    server = Server()

    server.receive([opening, *said])

    closes = [found for found in server.events if found.startswith("ConnectionClosed")]
    assert len(closes) == int(server.connection.is_finished)
    assert all("None False" in found or "amqp:" in found for found in closes)


@given(st.binary(max_size=100))
def test_any_first_bytes_are_a_greeting_or_end_the_connection(octets: bytes) -> None:
    server = Server()

    server.receive([octets])

    began = b"AMQP".startswith(octets[:4]) and len(octets) < 8
    assert server.connection.is_finished or began or octets.startswith(b"AMQP")


@given(CONVERSATIONS, st.integers(0, 10**6), st.integers(0, 255))
def test_one_changed_byte_harms_nobody(octets: bytes, place: int, byte: int) -> None:
    changed = bytearray(octets)
    changed[place % len(changed)] = byte
    server = Server()

    server.receive([bytes(changed)])

    finished = server.connection.is_finished
    assert finished is any(
        found.startswith("ConnectionClosed") for found in server.events
    )
