"""The events of a connection: what the client did.

``Event`` is the union of all classes here. The connection has already sent every answer
that AMQP requires. A link waits for ``accept`` or ``refuse``, and a delivery for
``settle``. The session of an event is the value that ``Link.session`` returns.
"""

from msgspec import Struct

from bridge.simulator.wire.links import Link
from bridge.simulator.wire.outcomes import IncomingDelivery, OutgoingDelivery
from bridge.simulator.wire.performatives import Open
from bridge.simulator.wire.values import AmqpError


class Opened(Struct, frozen=True):
    """The connection is open."""

    open: Open


class SessionBegun(Struct, frozen=True):
    """A session has begun."""

    session: object


class LinkAttached(Struct, frozen=True):
    """The client requests a link."""

    link: Link


class LinkFlowed(Struct, frozen=True):
    """The client has given credit, or requests unused credit back."""

    link: Link


class MessageReceived(Struct, frozen=True):
    """A message from the client is complete."""

    link: Link
    delivery: IncomingDelivery


class OutcomeReceived(Struct, frozen=True):
    """The client has sent the outcome of a message."""

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
    """The connection is closed, by the client or by the server.

    Attributes:
        error: the reason; None: the client gave none.
        is_violation: whether the server closed the connection, because the client broke
            the protocol or sent nothing for too long.
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
