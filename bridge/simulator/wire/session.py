"""A session: its links, its windows, and the numbers of its deliveries.

    begun by the client → ended by the client

The window of a session is the number of transfer frames that a side may still send; the
clients of .NET announce 2**32 - 1. The server renews its incoming window before the
client has used it up. While the client's window is used up, the frames to the client
wait here, in order.

Service Bus accepts two messages with the same delivery-id. Its SDK for Python sends
such messages when two tasks send requests to ``$management`` at once. The outcome of
a client's message has the client's id; the server's messages have numbers of its own.

Source: AMQP 1.0, part 2: 2.5 sessions.
"""

from collections import deque
from collections.abc import Iterator
from typing import Protocol
from uuid import UUID

from bridge.simulator.wire.events import (
    Event,
    LinkAttached,
    LinkDetached,
    LinkFlowed,
    MessageReceived,
    OutcomeReceived,
)
from bridge.simulator.wire.framing import HEADER_BYTES
from bridge.simulator.wire.links import SERIAL, Link, ReceivingLink, SendingLink, ahead
from bridge.simulator.wire.outcomes import OutgoingDelivery, State
from bridge.simulator.wire.performatives import (
    Attach,
    Begin,
    Detach,
    Disposition,
    Flow,
    Transfer,
    write,
)
from bridge.simulator.wire.values import (
    HANDLE_IN_USE,
    NOT_ALLOWED,
    UNATTACHED_HANDLE,
    WireError,
)

INCOMING_WINDOW = 2048
"""How many transfer frames a client may send before the window has to be renewed."""

HANDLE_MAX = 4095


class Output(Protocol):
    """What a session needs from its connection."""

    @property
    def max_frame_bytes(self) -> int:
        """The longest frame that the client takes."""

    def send_frame(self, channel: int, body: bytes) -> None:
        """Send a frame."""

    def flush_later(self, session: "Session") -> None:
        """Flush a session before the output is taken."""


class Session:
    """A session that a client has begun.

    Args:
        output: the connection.
        channel: the number of the session, the same in both directions.
        begin: the client's Begin.
    """

    def __init__(self, output: Output, channel: int, begin: Begin) -> None:
        self._output = output
        self.channel = channel
        self._links: dict[int, SendingLink | ReceivingLink] = {}
        self._sent: dict[int, tuple[Link, OutgoingDelivery]] = {}
        self._waiting: deque[tuple[bytes, bool]] = deque()  # (body, is_transfer)
        self._disposition: Disposition | None = None  # not sent yet: it may still grow
        self._next_incoming_id = begin.next_outgoing_id
        self._incoming_window = INCOMING_WINDOW
        self._next_outgoing_id = 0
        self._next_delivery_id = 0
        self._remote_window = begin.incoming_window
        self.is_ended = False

    # -- performatives from the client -------------------------------------------

    def on_performative(
        self, performative: Attach | Flow | Disposition | Detach
    ) -> Iterator[Event]:
        """Handle a performative without a payload."""
        match performative:
            case Disposition():
                return self._on_disposition(performative)
            case Flow():
                return self._on_flow(performative)
            case Attach():
                return self._on_attach(performative)
            case Detach():
                return self._on_detach(performative)

    def _on_attach(self, attach: Attach) -> Iterator[Event]:
        """Add a link, which waits for the server's answer."""
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
        """Take the client's new window, and the credit of a link."""
        in_flight = ahead(self._next_outgoing_id, flow.next_incoming_id or 0)
        self._remote_window = max(0, flow.incoming_window - in_flight)
        self._send_waiting()
        if flow.handle is None and flow.echo:
            self._send_session_flow()
        if flow.handle is None:
            return
        link = self._link(flow.handle)
        if link.is_closed:
            return  # the client sent it before it read the server's Detach
        link.on_flow(flow)
        yield LinkFlowed(link)

    def on_transfer(self, transfer: Transfer, payload: bytes) -> Iterator[Event]:
        """Take a message, or a part of one."""
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
        """Take the outcome of messages that the server sent."""
        if not disposition.is_receiver:
            return  # about the client's messages: the server settles each on arrival
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
        """Remove a link."""
        link = self._link(detach.handle)
        was_closed = link.is_closed
        link.on_detach(detach)
        del self._links[detach.handle]
        self._forget(link)
        if not was_closed:
            yield LinkDetached(link, detach.error)

    def end(self) -> None:
        """Close all links: the session or the connection is over."""
        self.is_ended = True
        for link in self._links.values():
            link.is_closed = True
        self._links.clear()
        self._sent.clear()
        self._waiting.clear()
        self._disposition = None

    # -- performatives to the client (see links.Channel) --------------------------

    def send(self, performative: Attach | Detach) -> None:
        """Send a performative, after the frames that wait."""
        self._put(write(performative))

    def send_flow(
        self, handle: int, delivery_count: int, credit: int, *, drain: bool
    ) -> None:
        """Send the flow of a link."""
        flow = self._flow()
        flow.handle, flow.delivery_count = handle, delivery_count
        flow.link_credit, flow.drain = credit, drain
        self._put(write(flow))

    def new_delivery(self, link: Link, token: UUID) -> OutgoingDelivery:
        """Return the delivery for the next message."""
        delivery = OutgoingDelivery(self._next_delivery_id, token, self._settle)
        self._sent[delivery.delivery_id] = link, delivery
        return delivery

    def send_message(
        self, handle: int, tag: bytes, encoded: bytes, delivery: OutgoingDelivery | None
    ) -> None:
        """Send a message, in several frames if it is long."""
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

    def dispose(self, delivery_id: int, outcome: State | None) -> None:
        """Send the outcome of a message from the client."""
        self._add_disposition(delivery_id, outcome, is_receiver=True)

    def flush(self) -> None:
        """Send the disposition that waits for more outcomes."""
        if self._disposition is not None and not self.is_ended:
            disposition, self._disposition = self._disposition, None
            self._output.send_frame(self.channel, write(disposition))

    # -- inside --------------------------------------------------------------------

    def _settle(self, delivery: OutgoingDelivery, outcome: State | None) -> None:
        self._sent.pop(delivery.delivery_id, None)
        if not delivery.is_settled:
            delivery.is_settled = True
            self._add_disposition(delivery.delivery_id, outcome, is_receiver=False)

    def _add_disposition(
        self, number: int, outcome: State | None, *, is_receiver: bool
    ) -> None:
        """Send an outcome, if possible in one frame with the outcomes before it."""
        if self.is_ended:
            return
        waiting = self._disposition
        if waiting is not None and (
            _last(waiting) + 1 == number
            and waiting.state == outcome
            and waiting.is_receiver == is_receiver
        ):
            waiting.last = number
            return
        self.flush()
        self._disposition = Disposition(
            is_receiver=is_receiver, first=number, settled=True, state=outcome
        )
        self._output.flush_later(self)

    def _link(self, handle: int) -> SendingLink | ReceivingLink:
        found = self._links.get(handle)
        if found is None:
            raise WireError(UNATTACHED_HANDLE, f"no link has the handle {handle}")
        return found

    def _numbers(self, first: int, last: int) -> list[int]:
        """Return the numbers in a range that belong to unsettled messages, in order."""
        count = (last - first) % SERIAL + 1
        if count <= len(self._sent):
            numbers = ((first + step) % SERIAL for step in range(count))
            return [number for number in numbers if number in self._sent]
        return [n for n in self._sent if (n - first) % SERIAL < count]

    def _forget(self, link: Link) -> None:
        """Forget the messages of a detached link: no outcome can come for them."""
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
