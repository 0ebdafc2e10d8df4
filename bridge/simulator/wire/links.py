"""A link, from the server's side: its states and its credit.

    attached by the client → accepted → closed by either side
                           → refused: attached without source and target, then closed

Source: AMQP 1.0, part 2: 2.6 links; part 3: 3.5 sources and targets.
"""

from collections.abc import Hashable, Mapping
from typing import Protocol, cast
from uuid import UUID

from bridge.simulator.wire.deliveries import OutgoingDelivery
from bridge.simulator.wire.errors import AmqpError
from bridge.simulator.wire.outcomes import State
from bridge.simulator.wire.performatives import (
    SETTLED,
    Attach,
    Detach,
)
from bridge.simulator.wire.values import Described

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
