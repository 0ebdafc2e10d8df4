"""What the broker needs from an AMQP engine, whichever it is.

An engine gets the bytes of one connection, keeps AMQP's states, and passes what the
client did to an ``Endpoint``.
"""

from collections.abc import Callable, Hashable, Mapping
from typing import Protocol
from uuid import UUID

from bridge.simulator.wire.errors import AmqpError
from bridge.simulator.wire.outcomes import Outcome, State


class Link(Protocol):
    """A link that a client attached.

    It is wide because a broker reads the whole attach here, and says the whole answer.
    """

    @property
    def is_sender(self) -> bool:
        """Whether the broker sends on it."""

    @property
    def is_presettled(self) -> bool:
        """Whether the client wants messages that are settled already."""

    @property
    def is_coordinator(self) -> bool:
        """Whether it is for transactions."""

    @property
    def is_dynamic(self) -> bool:
        """Whether the broker is to make an entity for it."""

    @property
    def session(self) -> Hashable:
        """What it shares with the links of the same AMQP session."""

    @property
    def source(self) -> str:
        """The address of its source; empty: none."""

    @property
    def target(self) -> str:
        """The address of its target; empty: none."""

    @property
    def filters(self) -> Mapping[object, object]:
        """The filters of its source, by their names."""

    @property
    def properties(self) -> Mapping[object, object]:
        """The properties of the client's attach."""

    @property
    def is_open(self) -> bool:
        """Whether both sides have the link open."""

    @property
    def credit(self) -> int:
        """How many messages may still be sent on it, by the client or to it."""

    def accept(
        self,
        *,
        filters: Mapping[object, object] | None = None,
        properties: Mapping[object, object] | None = None,
        max_message_bytes: int | None = None,
    ) -> None:
        """Accept the attach with its own terms, source and target.

        Args:
            filters: replace those of the source; None: they stay.
            properties: those of the broker's attach.
            max_message_bytes: of the messages that the client sends.
        """

    def refuse(self, error: AmqpError) -> None:
        """Refuse the attach: attach without source and target, then close."""

    def close(self, error: AmqpError | None = None) -> None:
        """Close the link, with the reason if there is one."""

    def grant(self, credit: int) -> None:
        """Let the client send so many more messages."""

    def send(self, tag: bytes, encoded: bytes, token: UUID | None) -> None:
        """Send a message.

        Args:
            tag: of the delivery.
            encoded: its bytes.
            token: comes back with the outcome; None: the message is sent settled.
        """

    def drained(self) -> None:
        """Give unused credit back, if the client wants it."""


class Delivery(Protocol):
    """A whole message from a client, or the client's outcome for a sent one."""

    @property
    def encoded(self) -> bytes:
        """The bytes of the client's message."""

    @property
    def message_format(self) -> int:
        """The message-format of the client's message."""

    @property
    def token(self) -> UUID | None:
        """What the message was sent with."""

    @property
    def state(self) -> State | None:
        """What the client did with the message."""

    @property
    def is_settled(self) -> bool:
        """Whether the client has forgotten it."""

    def settle(self, outcome: Outcome | None) -> None:
        """Settle the delivery with an outcome, or with none."""


class Endpoint(Protocol):
    """Gets what a client does; see ``bridge.simulator.servicebus.links``."""

    def attach(self, link: Link) -> None:
        """Accept a link, or refuse it."""

    def close(self, link: Link) -> None:
        """Forget a link that its client has closed."""

    def close_session(self, session: Hashable) -> None:
        """Forget the links of a session that the client has ended."""

    def close_all(self, *, dropped: bool) -> None:
        """Forget all links."""

    def on_flow(self, link: Link) -> None:
        """Use the credit of a link."""

    def on_delivery(self, link: Link, delivery: Delivery) -> None:
        """Take a message, or an outcome."""


class Engine(Protocol):
    """AMQP for one connection, without sockets and clock."""

    @property
    def client(self) -> str:
        """The name that the client has given itself; empty: none yet."""

    @property
    def is_finished(self) -> bool:
        """Whether the connection has to be closed, after the output is written."""

    def receive(self, received: bytes) -> None:
        """Take bytes from the client, and tell the endpoint what they mean."""

    def take_output(self) -> bytes:
        """Return the bytes for the client since the last call."""

    def tick(self, now: float) -> float | None:
        """Do what is due.

        Args:
            now: seconds of a clock that never goes back.

        Returns:
            When to be called again, by the same clock; None: never.
        """

    def close(self, error: AmqpError) -> None:
        """Close the connection, with the reason."""

    def free(self) -> None:
        """Release what it holds: the connection is gone."""


Wire = Callable[[Endpoint], Engine]
"""Makes the engine of a new connection."""
