"""Qpid Proton as the client: it was written by others, and it is strict."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.simulator.wire.amqp_server import CREDIT, MOST_SENT, Server
from tests.support.oracle import ORACLE

proton = pytest.importorskip("proton", reason=ORACLE)

MESSAGES = st.lists(st.binary(max_size=3000), min_size=1, max_size=CREDIT)
FRAME_BYTES = st.sampled_from([512, 600, 4096, 2**20])


class ProtonClient:
    """Proton, connected to a server without a network.

    Attributes:
        session: begun.
        server: what it talks to.
    """

    def __init__(self, frame_bytes: int = 2**20) -> None:
        self.server = Server()
        self.connection: Any = proton.Connection()
        self.connection.container = "client"
        self.transport: Any = proton.Transport()
        self.transport.max_frame_size = frame_bytes
        self.transport.bind(self.connection)
        self.connection.open()
        self.session: Any = self.connection.session()
        self.session.open()

    def sender(self) -> Any:
        """Return a link to the server, attached."""
        link = self.session.sender("sender")
        link.target.address = "queue"
        return self._opened(link)

    def receiver(self, *, settled: bool) -> Any:
        """Return a link from the server, attached."""
        link = self.session.receiver("receiver")
        link.source.address = "queue"
        mode = proton.Link.SND_SETTLED if settled else proton.Link.SND_UNSETTLED
        link.snd_settle_mode = mode
        return self._opened(link)

    def exchange(self) -> None:
        """Pass bytes to and fro until both are silent."""
        while True:
            sent = self._sent()
            self.server.receive([sent])
            answer = self.server.connection.take_output()
            if not sent and not answer:
                return
            while answer:
                room = self.transport.capacity()
                assert room > 0, self.transport.condition
                self.transport.push(answer[:room])
                answer = answer[room:]

    def _opened(self, link: Any) -> Any:
        link.open()
        self.exchange()
        assert (
            link.state == proton.Endpoint.LOCAL_ACTIVE | proton.Endpoint.REMOTE_ACTIVE
        )
        return link

    def _sent(self) -> bytes:
        found = b""
        while (size := self.transport.pending()) > 0:
            found += bytes(self.transport.peek(size))
            self.transport.pop(size)
        return found


@given(MESSAGES, FRAME_BYTES)
def test_messages_of_proton_arrive_whole_and_are_accepted(
    messages: list[bytes], frame_bytes: int
) -> None:
    client = ProtonClient(frame_bytes)
    link = client.sender()
    deliveries = []
    for number, encoded in enumerate(messages):
        deliveries.append(link.delivery(f"tag-{number}"))
        link.stream(encoded)
        link.advance()

    client.exchange()

    found = [one for one in client.server.events if one.startswith("MessageReceived")]
    assert found == [
        f"MessageReceived sender {number} {encoded!r}"
        for number, encoded in enumerate(messages)
    ]
    assert all(one.remote_state == proton.Delivery.ACCEPTED for one in deliveries)
    assert all(one.settled for one in deliveries)
    assert link.credit == CREDIT - len(messages)


@given(st.integers(1, 12), FRAME_BYTES, st.booleans())
def test_messages_reach_proton_and_its_outcomes_come_back(
    credit: int,
    frame_bytes: int,
    settled: bool,  # noqa: FBT001 - a case
) -> None:
    client = ProtonClient(frame_bytes)
    link = client.receiver(settled=settled)

    link.flow(credit)
    client.exchange()
    found = []
    while (delivery := link.current) is not None:
        found.append(bytes(link.recv(delivery.pending)))
        link.advance()
        assert delivery.settled is settled
        delivery.update(proton.Delivery.RELEASED)
        delivery.settle()
    client.exchange()

    sent = min(credit, MOST_SENT)
    assert found == [b"x" * 700] * sent
    outcomes = [
        one for one in client.server.events if one.startswith("OutcomeReceived")
    ]
    assert len(outcomes) == (0 if settled else sent)
    assert all(one.endswith("Released()") for one in outcomes)


def test_proton_gets_its_credit_back() -> None:
    client = ProtonClient()
    link = client.receiver(settled=True)

    link.drain(12)
    client.exchange()

    assert link.queued == MOST_SENT
    assert not link.draining()


def test_proton_is_told_why_a_link_is_refused() -> None:
    client = ProtonClient()
    link = client.session.receiver("receiver")
    link.source.address = "refused"
    link.open()

    client.exchange()

    assert link.state == proton.Endpoint.LOCAL_ACTIVE | proton.Endpoint.REMOTE_CLOSED
    assert link.remote_source.address is None
    assert link.remote_condition.name == "amqp:not-found"
    assert link.remote_condition.description == "as it was asked for"


def test_proton_closes_in_order() -> None:
    client = ProtonClient()
    link = client.sender()

    link.close()
    client.session.close()
    client.connection.close()
    client.exchange()

    assert client.server.events[-3:] == [
        "LinkDetached sender None",
        "SessionEnded",
        "ConnectionClosed None False",
    ]
    assert client.server.connection.is_finished
    closed = proton.Endpoint.LOCAL_CLOSED | proton.Endpoint.REMOTE_CLOSED
    assert client.connection.state == closed
