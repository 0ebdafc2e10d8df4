"""The protocols between the broker and an AMQP engine.

An engine gets the bytes of one connection, keeps the states of AMQP, and reports the
client's actions to an ``Endpoint``.
"""

from collections.abc import Callable, Hashable, Mapping
from typing import Protocol
from uuid import UUID

from bridge.simulator.wire.outcomes import State
from bridge.simulator.wire.values import AmqpError


class Link(Protocol):
    """A link that a client attached."""

    @property
    def is_sender(self) -> bool:
        """Whether the broker sends on the link."""

    @property
    def is_presettled(self) -> bool:
        """Whether the client sends, or requests, messages that are already settled."""

    @property
    def is_coordinator(self) -> bool:
        """Whether the link is for transactions."""

    @property
    def can_transact(self) -> bool:
        """Whether the engine reports the transactions of messages and outcomes."""

    @property
    def is_dynamic(self) -> bool:
        """Whether the client requests a new entity for the link."""

    @property
    def name(self) -> str:
        """The name that the client gave the link."""

    @property
    def is_browser(self) -> bool:
        """Whether the client wants copies of messages, which stay where they are."""

    @property
    def session(self) -> Hashable:
        """The AMQP session; it is equal for all links of one session."""

    @property
    def source(self) -> str:
        """The address of the link's source; empty: none."""

    @property
    def target(self) -> str:
        """The address of the link's target; empty: none."""

    @property
    def filters(self) -> Mapping[object, object]:
        """The filters of the link's source, by their names."""

    @property
    def properties(self) -> Mapping[object, object]:
        """The properties of the client's attach."""

    @property
    def is_open(self) -> bool:
        """Whether both sides have the link open."""

    @property
    def credit(self) -> int:
        """How many messages may still be sent on the link, in its direction."""

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
            properties: the properties of the broker's attach.
            max_message_bytes: the limit for messages that the client sends.
        """

    def refuse(self, error: AmqpError) -> None:
        """Refuse the attach: attach without source and target, then close."""

    def close(self, error: AmqpError | None = None) -> None:
        """Close the link, with a reason if one is given."""

    def grant(self, credit: int) -> None:
        """Let the client send this number of further messages."""

    def send(self, tag: bytes, encoded: bytes, token: UUID | None) -> None:
        """Send a message.

        Args:
            tag: the delivery tag.
            encoded: the bytes of the message.
            token: returned with the outcome; None: the message is sent settled.
        """

    def drained(self) -> None:
        """Give unused credit back, if the client has requested it (drain)."""


class Delivery(Protocol):
    """A complete message from a client, or the client's outcome for a message."""

    @property
    def encoded(self) -> bytes:
        """The bytes of the client's message."""

    @property
    def message_format(self) -> int:
        """The message-format of the client's message."""

    @property
    def token(self) -> UUID | None:
        """The token that the message was sent with."""

    @property
    def state(self) -> State | None:
        """The client's state of the delivery; None: there is none."""

    @property
    def is_settled(self) -> bool:
        """Whether the delivery is settled."""

    def settle(self, outcome: State | None) -> None:
        """Settle the delivery with an outcome, or with none."""


class Endpoint(Protocol):
    """Handles the actions of a client; see ``bridge.simulator.servicebus.links``."""

    def sign_in(self, name: str, password: str) -> bool:
        """Return whether a name and password are those of a rule and its key."""

    def attach(self, link: Link) -> None:
        """Accept a link, or refuse it."""

    def close(self, link: Link) -> None:
        """Remove a link that its client has closed."""

    def close_session(self, session: Hashable) -> None:
        """Remove the links of a session that the client has ended."""

    def close_all(self, *, dropped: bool) -> None:
        """Remove all links."""

    def on_flow(self, link: Link) -> None:
        """Handle new credit of a link."""

    def on_delivery(self, link: Link, delivery: Delivery) -> None:
        """Handle a message, or an outcome."""


class Engine(Protocol):
    """AMQP for one connection, without sockets and clock."""

    @property
    def client(self) -> str:
        """The container id of the client; empty: it has not sent one yet."""

    @property
    def is_finished(self) -> bool:
        """Whether to close the connection after the output is written."""

    def receive(self, received: bytes) -> None:
        """Take bytes from the client, and report its actions to the endpoint."""

    def take_output(self) -> bytes:
        """Return the bytes for the client since the last call."""

    def tick(self, now: float) -> float | None:
        """Handle the idle time-outs that are over.

        Args:
            now: seconds of a clock that never goes back.

        Returns:
            When to be called again, by the same clock; None: never.
        """

    def close(self, error: AmqpError) -> None:
        """Close the connection, with the reason."""

    def free(self) -> None:
        """Release all resources, after the connection is lost."""


Wire = Callable[[Endpoint], Engine]
"""Makes the engine of a new connection."""
