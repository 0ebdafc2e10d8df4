"""A link, from the server's side: its states and its credit.

    attached by the client → accepted → closed by either side
                           → refused: attached without source and target, then closed

Source: AMQP 1.0, part 2: 2.6 links; part 3: 3.5 sources and targets.
"""

from collections.abc import Hashable, Mapping
from typing import Protocol, cast
from uuid import UUID

from bridge.simulator.wire.outcomes import IncomingDelivery, OutgoingDelivery, State
from bridge.simulator.wire.performatives import (
    SETTLED,
    Attach,
    Detach,
    Flow,
    Transfer,
)
from bridge.simulator.wire.values import (
    INVALID_FIELD,
    MESSAGE_SIZE_EXCEEDED,
    TRANSFER_LIMIT_EXCEEDED,
    AmqpError,
    Described,
    WireError,
)

_COORDINATOR = 0x30
_COPY = "copy"
# Places in a source; a target has no mode and no filter.
_ADDRESS, _DYNAMIC, _DISTRIBUTION_MODE, _FILTER = 0, 4, 6, 7
SERIAL = 2**32
"""Counters of AMQP have 32 bits: after 2**32 - 1 comes 0."""


def ahead(own: int, told: int) -> int:
    """Return how far a counter of the server is ahead of what the client has told.

    A client that tells more than the server has sent counts as level with the server.
    """
    found = (own - told) % SERIAL
    return found if found < SERIAL // 2 else 0


class Channel(Protocol):
    """What a link needs from its session."""

    def send(self, performative: Attach | Detach) -> None:
        """Send a performative, after the frames that wait."""

    def send_flow(
        self, handle: int, delivery_count: int, credit: int, *, drain: bool
    ) -> None:
        """Send the flow of a link."""

    def send_message(
        self, handle: int, tag: bytes, encoded: bytes, delivery: OutgoingDelivery | None
    ) -> None:
        """Send a message; if it has no delivery, it is sent settled."""

    def new_delivery(self, link: "Link", token: UUID) -> OutgoingDelivery:
        """Return the delivery for the next message."""

    def dispose(self, delivery_id: int, outcome: State | None) -> None:
        """Send the outcome of a message from the client."""


class Link:
    """The base class of links in both directions.

    Args:
        channel: the session.
        attach: the client's Attach.

    Attributes:
        handle: the number of the link in the session, the same on both sides.
        is_closed: whether one side has closed the link.
        credit: how many messages may still be sent on the link.
        delivery_count: how many messages its sender has sent, modulo 2**32.
    """

    is_sender = False
    can_transact = True

    def __init__(self, channel: Channel, attach: Attach) -> None:
        self._channel = channel
        self._attach = attach
        self._is_accepted = False
        self.handle = attach.handle
        self.is_closed = False
        self.credit = 0
        self.delivery_count = 0

    @property
    def name(self) -> str:
        """The name that the client gave the link."""
        return str(self._attach.name)

    @property
    def session(self) -> Hashable:
        """The session; it is equal for all links of one session."""
        return cast("Hashable", self._channel)

    @property
    def is_open(self) -> bool:
        """Whether both sides have the link open."""
        return self._is_accepted and not self.is_closed

    @property
    def is_presettled(self) -> bool:
        """Whether the client sends, or requests, messages that are already settled."""
        return self._attach.snd_settle_mode == SETTLED

    @property
    def is_coordinator(self) -> bool:
        """Whether the client wants to control transactions with this link."""
        target = self._attach.target
        return isinstance(target, Described) and target.descriptor == _COORDINATOR

    @property
    def is_dynamic(self) -> bool:
        """Whether the client requests a new node for this link."""
        own = self._attach.source if self.is_sender else self._attach.target
        return _field(own, _DYNAMIC) is True

    @property
    def source(self) -> str:
        """The address of the link's source; empty: none."""
        return _address(self._attach.source)

    @property
    def target(self) -> str:
        """The address of the link's target; empty: none."""
        return _address(self._attach.target)

    @property
    def is_browser(self) -> bool:
        """Whether the client wants copies of messages, which stay where they are."""
        return _field(self._attach.source, _DISTRIBUTION_MODE) == _COPY

    @property
    def filters(self) -> Mapping[object, object]:
        """The filters of the link's source, by their names."""
        found = _field(self._attach.source, _FILTER)
        return found if isinstance(found, dict) else {}

    @property
    def properties(self) -> Mapping[object, object]:
        """The properties of the client's attach."""
        return self._attach.properties or {}

    def accept(
        self,
        *,
        filters: Mapping[object, object] | None = None,
        properties: Mapping[object, object] | None = None,
        max_message_bytes: int | None = None,
    ) -> None:
        """Accept the attach with the client's settle modes, source and target.

        Args:
            filters: the filters in force, each a described value; None: there are none.
            properties: the properties of the server's attach.
            max_message_bytes: the limit for messages that the client sends.
        """
        if self.is_closed or self._is_accepted:
            return
        source = _with_filters(self._attach.source, filters)
        self._is_accepted = True
        self._send_attach(source, self._attach.target, properties, max_message_bytes)

    def refuse(self, error: AmqpError) -> None:
        """Refuse the attach."""
        if not self.is_closed and not self._is_accepted:
            self._send_attach(None, None, None, None)
            self._is_accepted = True
            self.close(error)

    def close(self, error: AmqpError | None = None) -> None:
        """Close the link, with a reason if one is given."""
        if self.is_open:
            self.is_closed = True
            self._channel.send(Detach(handle=self.handle, closed=True, error=error))

    def on_detach(self, detach: Detach) -> None:
        """Answer the client's detach, unless it answers the server's."""
        was_closed, self.is_closed = self.is_closed, True
        if was_closed:
            return
        if not self._is_accepted:  # AMQP: only an attached link can be detached
            self._send_attach(None, None, None, None)
        self._channel.send(Detach(handle=self.handle, closed=detach.closed))

    def grant(self, credit: int) -> None:
        """Let the client send more messages. Does nothing if the client receives."""

    def send(self, tag: bytes, encoded: bytes, token: UUID | None) -> None:
        """Send a message. Does nothing if the client is the sender.

        Args:
            tag: the delivery tag.
            encoded: the bytes of the message.
            token: returned with the outcome; None: the message is sent settled.
        """

    def drained(self) -> None:
        """Give unused credit back, if the client has requested it (drain).

        Does nothing if the client is the sender.
        """

    def _send_attach(
        self,
        source: object,
        target: object,
        properties: Mapping[object, object] | None,
        max_message_bytes: int | None,
    ) -> None:
        self._channel.send(
            Attach(
                name=self._attach.name,
                handle=self.handle,
                is_receiver=not self._attach.is_receiver,
                snd_settle_mode=self._attach.snd_settle_mode,
                rcv_settle_mode=self._attach.rcv_settle_mode,
                source=source,
                target=target,
                initial_delivery_count=0 if self.is_sender else None,
                max_message_size=max_message_bytes,
                properties=properties,
            )
        )


def _field(terminus: object, place: int) -> object:
    if not isinstance(terminus, Described) or not isinstance(terminus.value, list):
        return None
    return terminus.value[place] if place < len(terminus.value) else None


def _address(terminus: object) -> str:
    found = _field(terminus, _ADDRESS)
    return found if isinstance(found, str) else ""


def _with_filters(source: object, filters: Mapping[object, object] | None) -> object:
    if not isinstance(source, Described) or not isinstance(source.value, list):
        return source
    fields = [*source.value, *[None] * (_FILTER + 1 - len(source.value))]
    fields[_FILTER] = dict(filters) if filters else None
    return Described(source.descriptor, fields)


# -- A link on which the client sends: takes its messages, and counts its credit -------
#
# Source: AMQP 1.0, part 2: 2.6.7 flow control, 2.6.14 large messages.


MOST_BYTES = 16 * 1024 * 1024
"""The limit of one message: a longer one closes its link, to protect the memory."""


class ReceivingLink(Link):
    """A link on which the client sends."""

    def __init__(self, channel: Channel, attach: Attach) -> None:
        super().__init__(channel, attach)
        self.delivery_count = attach.initial_delivery_count or 0
        self._partial: IncomingDelivery | None = None
        self._pieces: list[bytes] = []
        self._size = 0

    def grant(self, credit: int) -> None:
        """Let the client send this number of further messages."""
        if self.is_open:
            self.credit += credit
            self._send_flow()

    def on_flow(self, flow: Flow) -> None:
        """Take back the credit that the client returns, and answer if it asks."""
        if flow.delivery_count is not None:
            skipped = (flow.delivery_count - self.delivery_count) % SERIAL
            if skipped <= self.credit:
                self.credit -= skipped
                self.delivery_count = flow.delivery_count
        if flow.echo and self._is_accepted:
            self._send_flow()

    def on_transfer(
        self, transfer: Transfer, payload: bytes
    ) -> IncomingDelivery | None:
        """Take a part of a message; return the message when it is complete.

        Raises:
            WireError: the part belongs to no message, or to another one.
        """
        if self._partial is None and not self._begin(transfer):
            return None
        delivery = self._partial
        if delivery is None or transfer.aborted:
            self._forget()
            return None
        if transfer.delivery_id not in {None, delivery.delivery_id}:
            raise WireError(
                INVALID_FIELD,
                f"delivery {transfer.delivery_id} came on link {self.name} before "
                f"{delivery.delivery_id} was whole",
            )
        self._pieces.append(payload)
        self._size += len(payload)
        if self._size > MOST_BYTES:
            self._forget()
            self._fail(MESSAGE_SIZE_EXCEEDED, f"a message above {MOST_BYTES} bytes")
            return None
        delivery.is_settled = delivery.is_settled or transfer.settled is True
        return None if transfer.more else self._complete(delivery)

    def _begin(self, transfer: Transfer) -> bool:
        """Begin a message; return False if the client has no credit for it."""
        if self.credit <= 0:
            self._fail(TRANSFER_LIMIT_EXCEEDED, "a message came without credit")
            return False
        if transfer.delivery_id is None:
            raise WireError(
                INVALID_FIELD, f"a message on link {self.name} has no delivery-id"
            )
        self.credit -= 1
        self.delivery_count = (self.delivery_count + 1) % SERIAL
        self._partial = IncomingDelivery(
            transfer.delivery_id,
            transfer.message_format or 0,
            is_settled=transfer.settled is True,
            state=transfer.state,
            dispose=self._channel.dispose,
        )
        return True

    def _complete(self, delivery: IncomingDelivery) -> IncomingDelivery:
        pieces = self._pieces
        delivery.encoded = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        self._forget()
        return delivery

    def _forget(self) -> None:
        self._partial, self._pieces, self._size = None, [], 0

    def _fail(self, condition: str, description: str) -> None:
        self.close(AmqpError(condition, f"{description}, on link {self.name}"))

    def _send_flow(self) -> None:
        self._channel.send_flow(
            self.handle, self.delivery_count, self.credit, drain=False
        )


# -- A link on which the server sends, within the credit that the client gives ---------
#
# Credit is the number of messages that the receiver of a link still accepts. The sender
# counts the messages that it has sent: the delivery count. A flow names this count, so
# that credit is right even if a message and a flow pass each other on the way.
#
# Source: AMQP 1.0, part 2: 2.6.7 flow control.


class SendingLink(Link):
    """A link on which the server sends."""

    is_sender = True

    def __init__(self, channel: Channel, attach: Attach) -> None:
        super().__init__(channel, attach)
        self._drains = False

    def send(self, tag: bytes, encoded: bytes, token: UUID | None) -> None:
        """Send a message."""
        if not self.is_open:
            return
        delivery = None if token is None else self._channel.new_delivery(self, token)
        self.credit -= 1
        self.delivery_count = (self.delivery_count + 1) % SERIAL
        self._channel.send_message(self.handle, tag, encoded, delivery)

    def drained(self) -> None:
        """Give unused credit back, if the client has requested it (drain)."""
        if not self._drains or not self.is_open:
            return
        self._drains = False
        self.delivery_count = (self.delivery_count + self.credit) % SERIAL
        self.credit = 0
        self._channel.send_flow(self.handle, self.delivery_count, 0, drain=True)

    def on_flow(self, flow: Flow) -> None:
        """Take the credit that the client gives."""
        if flow.link_credit is not None:
            in_flight = ahead(self.delivery_count, flow.delivery_count or 0)
            # The server may have sent more meanwhile than the client now allows.
            self.credit = max(0, flow.link_credit - in_flight)
        self._drains = flow.drain
        if flow.echo and not flow.drain and self._is_accepted:
            self._channel.send_flow(
                self.handle, self.delivery_count, self.credit, drain=False
            )
