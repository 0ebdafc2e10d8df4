"""What a client did, as a connection tells it.

``Event`` is one of these. The connection has already answered whatever AMQP itself
demands; a link waits for ``accept`` or ``refuse``, and a delivery for ``settle``. A
session is known by what ``Link.session`` returns.
"""

from dataclasses import dataclass

from bridge.simulator.wire.deliveries import IncomingDelivery, OutgoingDelivery
from bridge.simulator.wire.errors import AmqpError
from bridge.simulator.wire.links import Link
from bridge.simulator.wire.performatives import Open


@dataclass(frozen=True, slots=True)
class Opened:
    """The connection is open."""

    open: Open


@dataclass(frozen=True, slots=True)
class SessionBegun:
    """A session has begun."""

    session: object


@dataclass(frozen=True, slots=True)
class LinkAttached:
    """The client wants a link."""

    link: Link


@dataclass(frozen=True, slots=True)
class LinkFlowed:
    """The client gave credit, or wants it back."""

    link: Link


@dataclass(frozen=True, slots=True)
class MessageReceived:
    """A message is whole."""

    link: Link
    delivery: IncomingDelivery


@dataclass(frozen=True, slots=True)
class OutcomeReceived:
    """The client says what became of a message."""

    link: Link
    delivery: OutgoingDelivery


@dataclass(frozen=True, slots=True)
class LinkDetached:
    """The client has detached a link."""

    link: Link
    error: AmqpError | None


@dataclass(frozen=True, slots=True)
class SessionEnded:
    """The client has ended a session."""

    session: object
    error: AmqpError | None


@dataclass(frozen=True, slots=True)
class ConnectionClosed:
    """The connection is over: the client closed it, or it broke the protocol.

    Attributes:
        error: why; None: for no reason.
        is_violation: whether the client broke the protocol, and was told so.
    """

    error: AmqpError | None
    is_violation: bool = False


Event = (
    Opened
    | SessionBegun
    | LinkAttached
    | LinkFlowed
    | MessageReceived
    | OutcomeReceived
    | LinkDetached
    | SessionEnded
    | ConnectionClosed
)
