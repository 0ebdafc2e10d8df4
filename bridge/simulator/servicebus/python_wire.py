"""The simulator's own AMQP library as the engine of a connection."""

import logging
from uuid import uuid4

from bridge.simulator.servicebus.endpoints import Endpoint
from bridge.simulator.wire.connection import Connection, Terms
from bridge.simulator.wire.events import (
    ConnectionClosed,
    Event,
    LinkAttached,
    LinkDetached,
    LinkFlowed,
    MessageReceived,
    Opened,
    OutcomeReceived,
    SessionEnded,
)
from bridge.simulator.wire.framing import (
    ANONYMOUS,
    EXTERNAL,
    MSSBCBS,
    PLAIN,
    Credentials,
)
from bridge.simulator.wire.values import AmqpError

log = logging.getLogger(__name__)

# As in the cloud. Clients send empty frames at least every 30 s.
_IDLE_SECONDS = 240.0

# As in the cloud. Only PLAIN has a password: others send a token later, to $cbs.
_MECHANISMS = (MSSBCBS, PLAIN, ANONYMOUS, EXTERNAL)


class PythonEngine:
    """The engine of one connection.

    Args:
        endpoint: handles the client's actions.

    Attributes:
        client: the container id of the client; empty: it has not sent one yet.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        terms = Terms(
            container_id=f"local-{uuid4()}",
            idle_seconds=_IDLE_SECONDS,
            mechanisms=_MECHANISMS,
            is_known=self._is_known,
        )
        self._connection = Connection(terms)
        self.client = ""

    @property
    def is_finished(self) -> bool:
        """Whether to close the connection after the output is written."""
        return self._connection.is_finished

    def receive(self, received: bytes) -> None:
        """Take bytes from the client."""
        self._connection.receive(received)
        while (event := self._connection.next_event()) is not None:
            self._handle(event)

    def take_output(self) -> bytes:
        """Return the bytes for the client since the last call."""
        return self._connection.take_output()

    def tick(self, now: float) -> float | None:
        """Handle the idle time-outs that are over; return when to be called again."""
        due = self._connection.tick(now)
        while (event := self._connection.next_event()) is not None:
            self._handle(event)
        return due

    def close(self, error: AmqpError) -> None:
        """Close the connection, with the reason."""
        self._connection.close(error)

    def free(self) -> None:
        """Do nothing: there are only Python objects."""

    def _is_known(self, credentials: Credentials) -> bool:
        if credentials.mechanism != PLAIN:
            return True
        return self._endpoint.sign_in(credentials.name, credentials.password)

    def _handle(self, event: Event) -> None:
        match event:
            case MessageReceived(link, delivery):
                self._endpoint.on_delivery(link, delivery)
            case OutcomeReceived(link, outcome):
                self._endpoint.on_delivery(link, outcome)
            case Opened(opened):
                self.client = opened.container_id
            case LinkFlowed(link):
                self._endpoint.on_flow(link)
            case LinkAttached(link):
                self._endpoint.attach(link)
            case LinkDetached(link):
                self._endpoint.close(link)
            case SessionEnded(session):
                self._endpoint.close_session(session)
            case ConnectionClosed(error, is_violation):
                if is_violation:
                    log.debug("amqp error", extra={"condition": str(error)})
                self._endpoint.close_all(dropped=False)
            case _:
                pass
