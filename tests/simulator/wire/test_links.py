"""Links: credit, messages in pieces, outcomes, windows."""

from collections.abc import Callable
from uuid import UUID, uuid4

import pytest

from bridge.simulator.wire.events import (
    ConnectionClosed,
    Event,
    LinkAttached,
    LinkDetached,
    LinkFlowed,
    MessageReceived,
    OutcomeReceived,
)
from bridge.simulator.wire.framing import AMQP_HEADER
from bridge.simulator.wire.links import MOST_BYTES, Link
from bridge.simulator.wire.outcomes import (
    Accepted,
    Declared,
    IncomingDelivery,
    Modified,
    Outcome,
    OutgoingDelivery,
    Received,
    Rejected,
    Released,
    State,
    Transactional,
    Unknown,
    read_state,
    write_state,
)
from bridge.simulator.wire.performatives import (
    Attach,
    Begin,
    Detach,
    Disposition,
    End,
    Flow,
    Open,
    Transfer,
)
from bridge.simulator.wire.session import INCOMING_WINDOW
from bridge.simulator.wire.values import AmqpError, Array, Described, Symbol, ULong
from tests.simulator.wire.amqp_client import Client, frames, message, receives, sends

FILTER = Symbol("com.microsoft:session-filter")


def attached(client: Client, attach: Attach) -> Link:
    (event,) = client.say(attach)
    assert isinstance(event, LinkAttached)
    return event.link


def incoming(credit: int = 10) -> tuple[Client, Link]:
    """Return a client that may send, and the link at the server."""
    client = Client()
    client.open()
    link = attached(client, sends())
    link.accept()
    link.grant(credit)
    client.answers()
    return client, link


def outgoing(credit: int = 10, window: int = 100) -> tuple[Client, Link]:
    """Return a client that gave credit, and the link at the server."""
    client = Client()
    client.open()
    link = attached(client, receives())
    link.accept()
    client.say(flow(credit, window=window))
    client.answers()
    return client, link


def flow(credit: int | None, *, window: int = 100, **fields: object) -> Flow:
    handle = None if credit is None else 0
    given: dict[str, object] = {"handle": handle, "link_credit": credit, **fields}
    return Flow(
        incoming_window=window,
        next_outgoing_id=0,
        outgoing_window=100,
        **given,  # type: ignore[arg-type]  # a test names its fields
    )


def received(events: list[Event]) -> list[IncomingDelivery]:
    assert all(isinstance(event, MessageReceived) for event in events)
    return [event.delivery for event in events if isinstance(event, MessageReceived)]


def outcomes(events: list[Event]) -> list[OutgoingDelivery]:
    assert all(isinstance(event, OutcomeReceived) for event in events)
    return [event.delivery for event in events if isinstance(event, OutcomeReceived)]


# -- attach and detach ---------------------------------------------------------------


def test_link_is_accepted_with_its_own_terms() -> None:
    client = Client()
    client.open()
    source = Described(ULong(0x28), ["amqps://h:1/queue", *[None] * 6, {FILTER: None}])
    link = attached(client, receives(3, source=source, properties={Symbol("a"): 1}))
    assert not link.is_open

    link.accept(filters={FILTER: "s"}, properties={Symbol("b"): 2})

    assert (link.is_sender, link.is_open, link.is_presettled) == (True, True, False)
    assert (link.source, link.target) == ("amqps://h:1/queue", "me")
    assert (link.filters, link.properties) == ({FILTER: None}, {"a": 1})
    answer = client.answer(Attach)
    assert (answer.name, answer.handle, answer.is_receiver) == ("link-3", 3, False)
    assert isinstance(answer.source, Described)
    assert answer.source.value == [*source.value[:7], {FILTER: "s"}]  # type: ignore[index]  # a list
    assert answer.target == Described(ULong(0x29), ["me"])
    assert answer.properties == {"b": 2}
    assert answer.initial_delivery_count == 0


def test_limit_of_a_message_is_reported() -> None:
    client = Client()
    client.open()
    link = attached(client, sends(snd_settle_mode=1))

    link.accept(max_message_bytes=1000)
    link.accept()

    assert client.answer(Attach).max_message_size == 1000
    assert link.is_presettled
    assert not link.is_sender


def test_refused_link_is_attached_to_nothing_and_detached() -> None:
    client = Client()
    client.open()
    link = attached(client, receives())

    link.refuse(AmqpError("amqp:not-found", "no queue"))

    attach, detach = client.answers()
    assert isinstance(attach, Attach)
    assert (attach.source, attach.target) == (None, None)
    assert isinstance(detach, Detach)
    assert detach.closed
    assert detach.error is not None
    assert detach.error.condition == "amqp:not-found"
    assert detach.error.info
    assert not link.is_open
    assert client.say(Detach(handle=0, closed=True)) == []
    assert client.answers() == []


@pytest.mark.parametrize("closed", [True, False])
def test_detach_is_answered_in_kind(closed: bool) -> None:  # noqa: FBT001 - a case
    client, link = outgoing()

    (event,) = client.say(Detach(handle=0, closed=closed))

    assert event == LinkDetached(link, None)
    assert client.answer(Detach).closed is closed
    assert not link.is_open


def test_link_that_waits_for_its_answer_may_be_detached() -> None:
    """As a client does that waits for a session no longer."""
    client = Client()
    client.open()
    link = attached(client, receives())

    (event,) = client.say(Detach(handle=0, closed=True))

    assert isinstance(event, LinkDetached)
    assert [type(said) for said in client.answers()] == [Attach, Detach]
    link.accept()
    link.refuse(AmqpError("amqp:not-found"))
    assert client.answers() == []


def test_what_crosses_a_detach_is_let_pass() -> None:
    client, link = incoming()
    link.close(AmqpError("amqp:link:detach-forced", "idle"))
    link.grant(5)
    assert isinstance(client.answer(Detach), Detach)

    assert client.say(message(0), flow(5)) == []
    assert client.answers() == []
    client.say(Detach(handle=0, closed=True))
    assert attached(client, sends()).handle == 0


@pytest.mark.parametrize("begin", [outgoing, incoming])
def test_link_that_the_server_closed_sends_no_flow(
    begin: Callable[[], tuple[Client, Link]],
) -> None:
    """After the server's Detach its handle is free: a strict client would object."""
    client, link = begin()
    link.close(AmqpError("amqp:link:detach-forced", "idle"))
    client.answers()

    assert client.say(flow(10, echo=True, delivery_count=0)) == []

    assert client.answers() == []


@pytest.mark.parametrize("attach", [receives(), sends()])
def test_refused_link_sends_no_flow(attach: Attach) -> None:
    client = Client()
    client.open()
    attached(client, attach).refuse(AmqpError("amqp:not-found", "no queue"))
    client.answers()

    assert client.say(flow(10, echo=True, delivery_count=0)) == []

    assert client.answers() == []


def test_coordinator_of_transactions_is_known_as_one() -> None:
    client = Client()
    client.open()

    link = attached(client, sends(target=Described(ULong(0x30), [])))

    assert link.is_coordinator
    assert link.target == ""


def test_node_that_is_to_be_made_is_known_as_one() -> None:
    client = Client()
    client.open()
    wanted = [None, None, None, None, True]

    ours = attached(client, sends(1, target=Described(ULong(0x29), wanted)))
    theirs = attached(client, receives(2, source=Described(ULong(0x28), wanted)))

    assert (ours.is_dynamic, theirs.is_dynamic) == (True, True)
    assert not attached(client, sends(3)).is_dynamic


@pytest.mark.parametrize("source", [None, 5, Described(ULong(0x28), 5)])
def test_source_that_is_none_has_no_address(source: object) -> None:
    client = Client()
    client.open()
    link = attached(client, receives(source=source))

    link.accept(filters={FILTER: "s"})

    assert (link.source, link.filters) == ("", {})
    assert client.answer(Attach).source == source


# -- messages of the client ----------------------------------------------------------


def test_message_comes_with_its_format_and_is_settled() -> None:
    client, link = incoming()

    (delivery,) = received(
        client.say(message(0, message_format=0x80013700), payload=b"bytes")
    )
    delivery.settle(Accepted())
    delivery.settle(Released())

    assert delivery.encoded == b"bytes"
    assert delivery.message_format == 0x80013700
    assert (delivery.token, delivery.state) == (None, None)
    assert client.answer(Disposition) == Disposition(
        is_receiver=True, first=0, settled=True, state=Accepted()
    )
    assert link.credit == 9


def test_message_comes_in_pieces() -> None:
    client, link = incoming()

    assert client.say(message(4, more=True), payload=b"on") == []
    assert client.say(message(None, more=True), payload=b"e ") == []
    (delivery,) = received(client.say(message(4), payload=b"whole"))

    assert delivery.encoded == b"one whole"
    assert link.credit == 9


def test_settled_message_needs_no_outcome() -> None:
    client, _ = incoming()

    (delivery,) = received(client.say(message(0, settled=True), payload=b"x"))
    delivery.settle(Accepted())

    assert delivery.is_settled
    assert client.answers() == []


def test_aborted_message_never_comes() -> None:
    client, _ = incoming()

    assert client.say(message(0, more=True), payload=b"half") == []
    assert client.say(message(None, aborted=True)) == []
    (delivery,) = received(client.say(message(1), payload=b"next"))

    assert delivery.encoded == b"next"


def test_delivery_id_that_comes_again_is_answered_each_time() -> None:
    """Two tasks that ask $management at once send one id; the cloud takes it."""
    client, _ = incoming()

    first, second = received(
        client.send(frames(message(7), payload=b"a") + frames(message(7), payload=b"b"))
    )
    first.settle(Accepted())
    second.settle(Accepted())

    assert (first.encoded, second.encoded) == (b"a", b"b")
    accepted = Disposition(is_receiver=True, first=7, settled=True, state=Accepted())
    assert client.answers() == [accepted, accepted]


def test_outcomes_of_one_kind_go_in_one_frame() -> None:
    client, _ = incoming()
    said = [message(number) for number in range(5)]
    deliveries = received(client.say(*said))

    for delivery in deliveries[:3]:
        delivery.settle(Accepted())
    for delivery in deliveries[3:]:
        delivery.settle(Rejected(AmqpError("amqp:not-allowed", "no")))

    accepted, rejected = client.answers()
    assert isinstance(accepted, Disposition)
    assert isinstance(rejected, Disposition)
    assert (accepted.first, accepted.last) == (0, 2)
    assert (rejected.first, rejected.last) == (3, 4)


def test_message_without_credit_detaches_its_link() -> None:
    client, link = incoming(credit=1)

    (only,) = received(client.say(message(0), message(1)))

    assert only.delivery_id == 0
    error = client.answer(Detach).error
    assert error is not None
    assert error.condition == "amqp:link:transfer-limit-exceeded"
    assert "link-0" in str(error.description)
    assert not link.is_open


def test_message_that_never_ends_detaches_its_link() -> None:
    client, link = incoming()
    piece = bytes(1024 * 1024 - 100)

    for number in range(MOST_BYTES // len(piece) + 1):
        client.say(message(0 if number == 0 else None, more=True), payload=piece)

    detach = [said for said in client.answers() if isinstance(said, Detach)][0]  # noqa: RUF015 - all answers are read
    assert detach.error is not None
    assert detach.error.condition == "amqp:link:message-size-exceeded"
    assert not link.is_open


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ([message(None)], "a message on link link-0 has no delivery-id"),
        (
            [message(0, more=True), message(1)],
            "delivery 1 came on link link-0 before 0",
        ),
    ],
)
def test_piece_of_no_message_closes_the_connection(
    said: list[Transfer], words: str
) -> None:
    client, _ = incoming()

    (closed,) = client.say(*said)

    assert isinstance(closed, ConnectionClosed)
    assert words in str(closed.error)


def test_message_on_a_link_that_receives_closes_the_connection() -> None:
    client, _ = outgoing()

    (closed,) = client.say(message(0))

    assert isinstance(closed, ConnectionClosed)
    assert "a message came on link link-0, on which it receives" in str(closed.error)


def test_credit_is_reported_and_adds_up() -> None:
    client, link = incoming(credit=3)
    client.say(message(0))

    link.grant(5)

    answer = client.answer(Flow)
    assert (answer.handle, answer.link_credit, answer.delivery_count) == (0, 7, 1)
    assert answer.next_incoming_id == 1


def test_client_may_ask_for_its_credit_and_give_it_back() -> None:
    client, link = incoming(credit=10)

    client.say(flow(0, delivery_count=4, echo=True))

    answer = client.answer(Flow)
    assert (answer.link_credit, answer.delivery_count) == (6, 4)
    assert link.credit == 6
    client.say(flow(0, delivery_count=2))  # it went back: not believed
    assert link.credit == 6


def test_window_is_renewed_before_it_is_used_up() -> None:
    client, link = incoming(credit=INCOMING_WINDOW * 3)

    client.say(*(message(n, settled=True) for n in range(INCOMING_WINDOW * 2)))

    windows = [said for said in client.answers() if isinstance(said, Flow)]
    assert [said.next_incoming_id for said in windows] == [1025, 2050, 3075]
    assert {said.incoming_window for said in windows} == {INCOMING_WINDOW}
    assert link.is_open


# -- messages to the client ----------------------------------------------------------


def test_message_is_sent_and_its_outcome_comes_back() -> None:
    client, link = outgoing()
    token = uuid4()

    link.send(b"tag", b"bytes", token)
    sent = client.answer(Transfer)
    (delivery,) = outcomes(
        client.say(Disposition(is_receiver=True, first=0, state=Accepted()))
    )
    delivery.settle(Accepted())

    assert (sent.delivery_id, sent.delivery_tag, sent.settled) == (0, b"tag", False)
    assert client.payloads == [b"bytes"]
    assert (delivery.token, delivery.state) == (token, Accepted())
    assert (delivery.is_settled, delivery.encoded) == (True, b"")
    assert client.answer(Disposition) == Disposition(
        is_receiver=False, first=0, settled=True, state=Accepted()
    )
    assert link.credit == 9
    again = client.say(Disposition(is_receiver=True, first=0, state=Released()))
    assert again == []


def test_settled_message_is_forgotten() -> None:
    client, link = outgoing()

    link.send(b"tag", b"bytes", None)

    assert client.answer(Transfer).settled
    assert client.say(Disposition(is_receiver=True, first=0, state=Accepted())) == []


def test_outcome_that_is_settled_needs_no_answer() -> None:
    client, link = outgoing()
    link.send(b"tag", b"bytes", uuid4())
    client.answers()

    (delivery,) = outcomes(
        client.say(
            Disposition(is_receiver=True, first=0, settled=True, state=Released())
        )
    )
    delivery.settle(Released())

    assert delivery.is_settled
    assert client.answers() == []


@pytest.mark.parametrize(("first", "last"), [(1, 2), (0, 2**32 - 1), (2**32 - 5, 2)])
def test_outcome_may_be_of_many_messages(first: int, last: int) -> None:
    client, link = outgoing()
    tokens = [UUID(int=number) for number in range(4)]
    for token in tokens:
        link.send(b"tag", b"", token)

    found = outcomes(
        client.say(
            Disposition(is_receiver=True, first=first, last=last, state=Accepted())
        )
    )

    known = [n for n in range(4) if (n - first) % 2**32 <= (last - first) % 2**32]
    assert [delivery.token for delivery in found] == [tokens[n] for n in known]


def test_what_a_client_says_of_its_own_messages_is_let_pass() -> None:
    client, _ = outgoing()

    assert client.say(Disposition(is_receiver=False, first=0, settled=True)) == []


@pytest.mark.parametrize(
    "state",
    [
        Accepted(),
        Released(),
        Received(),
        Rejected(),
        Rejected(AmqpError("com.microsoft:dead-letter", "why", {Symbol("a"): "b"})),
        Modified(failed=True),
        Modified(undeliverable=True, annotations={Symbol("x"): 1}),
        Unknown(ULong(0x35)),
        Declared(b"id"),
        Transactional(b"id"),
        Transactional(b"id", Modified(failed=True)),
    ],
)
def test_states_are_read_as_they_are_written(state: State) -> None:
    assert read_state(write_state(state)) == state


def test_state_that_is_none_is_none() -> None:
    assert read_state(None) is None


def test_states_may_be_named_by_symbols() -> None:
    assert read_state(Described(Symbol("amqp:accepted:list"), [])) == Accepted()


def test_message_goes_in_frames_that_the_client_takes() -> None:
    client = Client()
    small = Open(container_id="c", max_frame_size=512)
    begin = Begin(next_outgoing_id=0, incoming_window=100, outgoing_window=100)
    client.send(AMQP_HEADER + frames(small, begin))
    link = attached(client, receives())
    link.accept()
    client.say(flow(10))
    client.answers()
    encoded = bytes(range(256)) * 8

    link.send(b"tag", encoded, uuid4())
    link.send(b"tag", b"next", uuid4())

    sent = [said for said in client.answers() if isinstance(said, Transfer)]
    assert b"".join(client.payloads) == encoded + b"next"
    assert [said.more for said in sent] == [True] * (len(sent) - 2) + [False, False]
    assert [said.delivery_id for said in sent if said.delivery_id is not None] == [0, 1]
    assert max(map(len, client.payloads)) <= 512 - 8


def test_what_the_window_does_not_let_pass_waits_in_order() -> None:
    client, link = outgoing(window=2)
    for _ in range(4):
        link.send(b"tag", b"x", uuid4())
    link.close()

    before = client.answers()
    client.say(flow(None, next_incoming_id=2, window=1))
    then = client.answers()
    client.say(flow(None, next_incoming_id=3, window=50))
    after = client.answers()

    assert [type(said) for said in before] == [Transfer, Transfer]
    assert [type(said) for said in then] == [Transfer]
    assert [type(said) for said in after] == [Transfer, Detach]


def test_flow_without_a_credit_changes_none() -> None:
    client, link = outgoing(credit=5)

    client.say(flow(None, handle=0))

    assert link.credit == 5


def test_messages_of_a_detached_link_have_no_outcome() -> None:
    client, link = outgoing()
    link.send(b"tag", b"x", uuid4())
    client.say(Detach(handle=0, closed=True))

    assert client.say(Disposition(is_receiver=True, first=0, state=Accepted())) == []


def test_nothing_is_settled_after_the_end_of_a_session() -> None:
    client, _ = incoming()
    (delivery,) = received(client.say(message(0)))
    client.say(End())
    client.answers()

    delivery.settle(Accepted())

    assert client.answers() == []


def test_credit_counts_what_was_sent_meanwhile() -> None:
    client, link = outgoing(credit=5)
    for _ in range(3):
        link.send(b"tag", b"x", None)

    (event,) = client.say(flow(5, delivery_count=1))  # it has seen one of the three

    assert event == LinkFlowed(link)
    assert link.credit == 3
    client.say(flow(1, delivery_count=1))
    assert link.credit == 0


def test_drained_link_gives_its_credit_back() -> None:
    client, link = outgoing(credit=5)
    link.drained()
    assert client.answers() == []

    client.say(flow(5, drain=True))
    link.send(b"tag", b"x", None)
    link.drained()
    link.drained()

    transfer, answer = client.answers()
    assert isinstance(transfer, Transfer)
    assert isinstance(answer, Flow)
    assert (answer.link_credit, answer.delivery_count, answer.drain) == (0, 5, True)
    assert link.credit == 0


def test_client_may_ask_what_is_known_of_a_link_or_a_session() -> None:
    client, _ = outgoing(credit=5)

    client.say(flow(5, echo=True))
    of_link = client.answer(Flow)
    client.say(flow(None, echo=True))
    of_session = client.answer(Flow)

    assert (of_link.handle, of_link.link_credit) == (0, 5)
    assert of_session.handle is None


def test_directions_do_not_mix() -> None:
    client, link = outgoing()
    other, sending = incoming()

    link.grant(5)
    sending.send(b"tag", b"x", None)
    sending.drained()

    assert client.answers() == other.answers() == []


def test_symbols_may_be_one_or_many() -> None:
    client = Client()

    (opened,) = client.send(
        AMQP_HEADER + frames(Open(container_id="c", desired_capabilities=("a", "b")))
    )

    assert "('a', 'b')" in str(opened).replace("Symbol", "")
    assert Array(0xB3, ("a",)) == Array(0xB3, (Symbol("a"),))


def test_outcomes_are_states() -> None:
    found: list[Outcome] = [Accepted(), Released(), Rejected(), Modified()]

    assert len({type(one) for one in found}) == 4
