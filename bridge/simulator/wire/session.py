"""A session: its links, its windows, and the numbers of its deliveries.

    begun by the client → ended by the client

How many transfer frames may be on their way is the window of a session. Ours is renewed
before it is used up; while the client's is used up, what we send waits here, in order.

Service Bus takes it when a client gives two messages the same delivery-id, as its SDK
for Python does when two tasks ask ``$management`` at once: an outcome goes out with the
id that came in. What we send is numbered by ourselves.

Source: AMQP 1.0, part 2: 2.5 sessions.
"""

from collections import deque
from collections.abc import Iterator
from typing import Protocol
from uuid import UUID

from bridge.simulator.wire.deliveries import OutgoingDelivery
from bridge.simulator.wire.errors import (
    HANDLE_IN_USE,
    NOT_ALLOWED,
    UNATTACHED_HANDLE,
    WireError,
)
from bridge.simulator.wire.events import (
    Event,
    LinkAttached,
    LinkDetached,
    LinkFlowed,
    MessageReceived,
    OutcomeReceived,
)
from bridge.simulator.wire.framing import HEADER_BYTES
from bridge.simulator.wire.links import SERIAL, Link
from bridge.simulator.wire.outcomes import Outcome
from bridge.simulator.wire.performatives import (
    Attach,
    Begin,
    Detach,
    Disposition,
    Flow,
    Transfer,
    write,
)
from bridge.simulator.wire.receiving import ReceivingLink
from bridge.simulator.wire.sending import SendingLink

INCOMING_WINDOW = 2048
"""How many frames a client may send before it hears of a renewed window."""

HANDLE_MAX = 4095


class Output(Protocol):
    """What a session needs from its connection."""

    @property
    def max_frame_bytes(self) -> int:
        """The longest frame that the client takes."""

    def send_frame(self, channel: int, body: bytes) -> None:
        """Send a frame."""


class Session:
    """A session that a client has begun.

    It is wide because it is what AMQP says a session has: two windows, the numbers of
    both directions, its links and its deliveries.

    Args:
        output: the connection.
        channel: its number, the same in both directions.
        begin: as the client sent it.
    """

    def __init__(self, output: Output, channel: int, begin: Begin) -> None:
        self._output = output
        self.channel = channel
        self._links: dict[int, SendingLink | ReceivingLink] = {}
        self._sent: dict[int, tuple[Link, OutgoingDelivery]] = {}
        self._waiting: deque[tuple[bytes, bool]] = deque()  # a body; is it a transfer?
        self._disposition: Disposition | None = None  # may still grow
        self._next_incoming_id = begin.next_outgoing_id
        self._incoming_window = INCOMING_WINDOW
        self._next_outgoing_id = 0
        self._next_delivery_id = 0
        self._remote_window = begin.incoming_window
        self.is_ended = False

    # -- what the client says ----------------------------------------------------

    def on_said(self, said: Attach | Flow | Disposition | Detach) -> Iterator[Event]:
        """Take whatever has no payload."""
        match said:
            case Disposition():
                return self._on_disposition(said)
            case Flow():
                return self._on_flow(said)
            case Attach():
                return self._on_attach(said)
            case Detach():
                return self._on_detach(said)

    def _on_attach(self, attach: Attach) -> Iterator[Event]:
        """Begin a link; it waits for the server's answer."""
        if attach.handle in self._links:
            raise WireError(HANDLE_IN_USE, f"handle {attach.handle} has a link already")
        if attach.handle > HANDLE_MAX:
            raise WireError(
                NOT_ALLOWED, f"handle {attach.handle}; {HANDLE_MAX} is the highest"
            )
        kind = SendingLink if attach.is_receiver else ReceivingLink
        link = self._links[attach.handle] = kind(self, attach)
        yield LinkAttached(link)

    def _on_flow(self, flow: Flow) -> Iterator[Event]:
        """Take a new window, and what a link may send."""
        begin = flow.next_incoming_id or 0
        window = (begin + flow.incoming_window - self._next_outgoing_id) % SERIAL
        self._remote_window = window if window < SERIAL // 2 else 0
        self._send_waiting()
        if flow.handle is None and flow.echo:
            self._send_session_flow()
        if flow.handle is None:
            return
        link = self._link(flow.handle)
        link.on_flow(flow)
        if not link.is_closed:
            yield LinkFlowed(link)

    def on_transfer(self, transfer: Transfer, payload: bytes) -> Iterator[Event]:
        """Take a piece of a message."""
        self._next_incoming_id = (self._next_incoming_id + 1) % SERIAL
        self._incoming_window -= 1
        if self._incoming_window < INCOMING_WINDOW // 2:
            self._incoming_window = INCOMING_WINDOW
            self._send_session_flow()
        link = self._link(transfer.handle)
        if link.is_closed:
            return
        if not isinstance(link, ReceivingLink):
            raise WireError(
                NOT_ALLOWED, f"a message came on link {link.name}, on which it receives"
            )
        delivery = link.on_transfer(transfer, payload)
        if delivery is not None:
            yield MessageReceived(link, delivery)

    def _on_disposition(self, disposition: Disposition) -> Iterator[Event]:
        """Take the outcome of messages that were sent."""
        if not disposition.is_receiver:
            return  # of messages that came: they were settled when they were whole
        first = disposition.first
        last = first if disposition.last is None else disposition.last
        for number in self._numbers(first, last):
            link, delivery = self._sent[number]
            delivery.state = disposition.state
            if disposition.settled:
                delivery.is_settled = True
                del self._sent[number]
            yield OutcomeReceived(link, delivery)

    def _on_detach(self, detach: Detach) -> Iterator[Event]:
        """End a link."""
        link = self._link(detach.handle)
        was_closed = link.is_closed
        link.on_detach(detach)
        del self._links[detach.handle]
        self._forget(link)
        if not was_closed:
            yield LinkDetached(link, detach.error)

    def end(self) -> None:
        """End all links: the session, or the connection, is over."""
        self.is_ended = True
        for link in self._links.values():
            link.is_closed = True
        self._links.clear()
        self._sent.clear()
        self._waiting.clear()
        self._disposition = None

    # -- what the server says (see links.Channel) ---------------------------------

    def send(self, performative: Attach | Detach) -> None:
        """Send a performative, after all that waits."""
        self._put(write(performative))

    def send_flow(
        self, handle: int, delivery_count: int, credit: int, *, drain: bool
    ) -> None:
        """Send a flow of a link."""
        flow = self._flow()
        flow.handle, flow.delivery_count = handle, delivery_count
        flow.link_credit, flow.drain = credit, drain
        self._put(write(flow))

    def new_delivery(self, link: Link, token: UUID) -> OutgoingDelivery:
        """Return the delivery of the next message."""
        delivery = OutgoingDelivery(self._next_delivery_id, token, self._settle)
        self._sent[delivery.delivery_id] = link, delivery
        return delivery

    def send_message(
        self, handle: int, tag: bytes, encoded: bytes, delivery: OutgoingDelivery | None
    ) -> None:
        """Send a message in as many frames as it takes."""
        transfer = Transfer(
            handle=handle,
            delivery_id=self._next_delivery_id,
            delivery_tag=tag,
            message_format=0,
            settled=delivery is None,
        )
        self._next_delivery_id = (self._next_delivery_id + 1) % SERIAL
        most = self._output.max_frame_bytes - HEADER_BYTES
        head, at = write(transfer), 0
        while len(head) + len(encoded) - at > most:
            transfer.more = True
            head = write(transfer)
            room = most - len(head)
            self._put(head + encoded[at : at + room], is_transfer=True)
            at += room
            transfer = Transfer(handle=handle)
            head = write(transfer)
        self._put(head + encoded[at:] if at else head + encoded, is_transfer=True)

    def dispose(self, delivery_id: int, outcome: Outcome | None) -> None:
        """Say what became of a message of the client."""
        self._add_disposition(delivery_id, outcome, is_receiver=True)

    def flush(self) -> None:
        """Send a disposition that might have grown."""
        if self._disposition is not None and not self.is_ended:
            disposition, self._disposition = self._disposition, None
            self._output.send_frame(self.channel, write(disposition))

    # -- inside --------------------------------------------------------------------

    def _settle(self, delivery: OutgoingDelivery, outcome: Outcome | None) -> None:
        self._sent.pop(delivery.delivery_id, None)
        if not delivery.is_settled:
            delivery.is_settled = True
            self._add_disposition(delivery.delivery_id, outcome, is_receiver=False)

    def _add_disposition(
        self, number: int, outcome: Outcome | None, *, is_receiver: bool
    ) -> None:
        """Send an outcome, in one frame with those of the numbers before it."""
        if self.is_ended:
            return
        open_one = self._disposition
        if open_one is not None and (
            _last(open_one) + 1 == number
            and open_one.state == outcome
            and open_one.is_receiver == is_receiver
        ):
            open_one.last = number
            return
        self.flush()
        self._disposition = Disposition(
            is_receiver=is_receiver, first=number, settled=True, state=outcome
        )

    def _link(self, handle: int) -> SendingLink | ReceivingLink:
        found = self._links.get(handle)
        if found is None:
            raise WireError(UNATTACHED_HANDLE, f"no link has the handle {handle}")
        return found

    def _numbers(self, first: int, last: int) -> list[int]:
        """Return which of the numbers in a range belong to messages, in order."""
        count = (last - first) % SERIAL + 1
        if count <= len(self._sent):
            numbers = ((first + step) % SERIAL for step in range(count))
            return [number for number in numbers if number in self._sent]
        return [n for n in self._sent if (n - first) % SERIAL < count]

    def _forget(self, link: Link) -> None:
        """Forget the messages of a link: nobody can say anything of them now."""
        gone = [number for number, (owner, _) in self._sent.items() if owner is link]
        for number in gone:
            del self._sent[number]

    def _flow(self) -> Flow:
        return Flow(
            next_incoming_id=self._next_incoming_id,
            incoming_window=self._incoming_window,
            next_outgoing_id=self._next_outgoing_id,
            outgoing_window=INCOMING_WINDOW,
        )

    def _send_session_flow(self) -> None:
        self._put(write(self._flow()))

    def _put(self, body: bytes, *, is_transfer: bool = False) -> None:
        if self.is_ended:
            return
        self.flush()
        if self._waiting or (is_transfer and self._remote_window <= 0):
            self._waiting.append((body, is_transfer))
        else:
            self._send(body, is_transfer=is_transfer)

    def _send(self, body: bytes, *, is_transfer: bool) -> None:
        if is_transfer:
            self._next_outgoing_id = (self._next_outgoing_id + 1) % SERIAL
            self._remote_window -= 1
        self._output.send_frame(self.channel, body)

    def _send_waiting(self) -> None:
        while self._waiting and (self._remote_window > 0 or not self._waiting[0][1]):
            body, is_transfer = self._waiting.popleft()
            self._send(body, is_transfer=is_transfer)


def _last(disposition: Disposition) -> int:
    return disposition.first if disposition.last is None else disposition.last
