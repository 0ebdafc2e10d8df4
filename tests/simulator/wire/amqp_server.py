"""A server that accepts every link, takes every message, and settles every outcome."""

from collections.abc import Iterable
from uuid import UUID

from bridge.simulator.wire.connection import Connection, Terms
from bridge.simulator.wire.events import (
    ConnectionClosed,
    Event,
    LinkAttached,
    LinkDetached,
    LinkFlowed,
    MessageReceived,
    OutcomeReceived,
)
from bridge.simulator.wire.outcomes import Accepted
from bridge.simulator.wire.values import AmqpError

TERMS = Terms(container_id="server", mechanisms=("ANONYMOUS", "PLAIN"))
CREDIT = 20
MOST_SENT = 5  # for one flow


class Server:
    """Answers the events of a connection.

    Attributes:
        connection: what it answers for.
        events: what has happened, in words.
    """

    def __init__(self, terms: Terms = TERMS) -> None:
        self.connection = Connection(terms)
        self.events: list[str] = []

    def receive(self, pieces: Iterable[bytes]) -> None:
        """Take the bytes of a client, piece by piece."""
        for piece in pieces:
            self.connection.receive(piece)
            while (event := self.connection.next_event()) is not None:
                self.events.append(self._answer(event))

    def _answer(self, event: Event) -> str:
        name = type(event).__name__
        match event:
            case LinkAttached(link) if link.source == "refused":
                link.refuse(AmqpError("amqp:not-found", "as it was asked for"))
            case LinkAttached(link):
                link.accept(max_message_bytes=1000)
                link.grant(CREDIT)
            case LinkFlowed(link):
                for number in range(min(link.credit, MOST_SENT)):
                    token = None if link.is_presettled else UUID(int=number)
                    link.send(b"tag", b"x" * 700, token)
                link.drained()
                return f"{name} {link.name} {link.credit}"
            case MessageReceived(link, message):
                message.settle(Accepted())
                return f"{name} {link.name} {message.delivery_id} {message.encoded!r}"
            case OutcomeReceived(link, outcome):
                outcome.settle(Accepted())
                return f"{name} {link.name} {outcome.token} {outcome.state}"
            case LinkDetached(link, error):
                return f"{name} {link.name} {error}"
            case ConnectionClosed(error, is_violation):
                return f"{name} {error} {is_violation}"
        return name
