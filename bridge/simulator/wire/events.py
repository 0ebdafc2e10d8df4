"""What a client did, as a connection tells it.

``Event`` is one of these. The connection has already answered whatever AMQP itself
demands; a link waits for ``accept`` or ``refuse``, and a delivery for ``settle``. A
session is known by what ``Link.session`` returns.
"""

from msgspec import Struct

from bridge.simulator.wire.deliveries import IncomingDelivery, OutgoingDelivery
from bridge.simulator.wire.errors import AmqpError
from bridge.simulator.wire.links import Link
from bridge.simulator.wire.performatives import Open


class Opened(Struct, frozen=True):
    """The connection is open."""

    open: Open


class SessionBegun(Struct, frozen=True):
    """A session has begun."""

    session: object


class LinkAttached(Struct, frozen=True):
    """The client wants a link."""

    link: Link


class LinkFlowed(Struct, frozen=True):
    """The client gave credit, or wants it back."""

    link: Link


class MessageReceived(Struct, frozen=True):
    """A message is whole."""

    link: Link
    delivery: IncomingDelivery


class OutcomeReceived(Struct, frozen=True):
    """The client says what became of a message."""

    link: Link
    delivery: OutgoingDelivery


class LinkDetached(Struct, frozen=True):
    """The client has detached a link."""

    link: Link
    error: AmqpError | None


class SessionEnded(Struct, frozen=True):
    """The client has ended a session."""

    session: object
    error: AmqpError | None


class ConnectionClosed(Struct, frozen=True):
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
