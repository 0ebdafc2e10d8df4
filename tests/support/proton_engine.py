"""Qpid Proton as the engine of a connection.

Proton neither opens sockets nor knows the time. It gets one frame at a time, so that
the message-format of a transfer is known when its event comes.
"""

import logging
from collections.abc import Callable, Mapping
from typing import Any
from uuid import uuid4

import proton
from proton import Event, EventType

from bridge.simulator.servicebus.endpoints import Endpoint
from bridge.simulator.wire.values import AmqpError
from tests.support.proton_frames import (
    MAX_FRAME_BYTES,
    FrameSplitter,
    message_format,
)
from tests.support.proton_links import (
    IncomingDelivery,
    OutgoingDelivery,
    ProtonLink,
    note_format,
    to_condition,
)

log = logging.getLogger(__name__)

# Proton advertises half of the time that it enforces: clients see 240 s, as in the
# cloud. They send empty frames at least every 30 s.
_IDLE_TIMEOUT_SECONDS = 480

Handlers = Mapping[EventType, Callable[[Any], None]]


class ProtonEngine:
    """The engine of one connection.

    Args:
        endpoint: handles the client's actions.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self._frames = FrameSplitter()
        self._collector = proton.Collector()
        self._connection = proton.Connection()
        self._connection.collect(self._collector)
        self._transport = _new_transport(self._connection)
        self._events = _Events(endpoint)
        self.is_finished = False

    @property
    def client(self) -> str:
        """The container id of the client; empty: it has not sent one yet."""
        return str(self._connection.remote_container or "")

    def receive(self, received: bytes) -> None:
        """Take bytes from the client."""
        for frame in self._frames.feed(received):
            self._push(frame)

    def take_output(self) -> bytes:
        """Return the bytes for the client since the last call."""
        found = bytearray()
        while (size := self._transport.pending()) > 0:
            found += bytes(self._transport.peek(size) or b"")
            self._transport.pop(size)
        self.is_finished = size < 0
        return bytes(found)

    def tick(self, now: float) -> float | None:
        """Handle the idle time-outs that are over; return when to be called again."""
        due = self._transport.tick(now)
        self._run_events()
        return due or None

    def close(self, error: AmqpError) -> None:
        """Close the connection, with the reason."""
        self._connection.condition = to_condition(error)
        self._connection.close()

    def free(self) -> None:
        """Release Proton's objects."""
        self._transport.unbind()
        self._connection.free()

    def _push(self, frame: bytes) -> None:
        self._events.format = message_format(frame)
        try:
            while frame and (room := self._transport.capacity()) > 0:
                self._transport.push(frame[:room])
                frame = frame[room:]
        except proton.TransportException:
            # Proton answers the client itself; an event with the error follows.
            log.debug("amqp input refused")
        self._run_events()

    def _run_events(self) -> None:
        while (event := self._collector.peek()) is not None:
            self._events.handle(event)
            self._collector.pop()


def _new_transport(connection: proton.Connection) -> proton.Transport:
    transport = proton.Transport(proton.Transport.SERVER)
    transport.max_frame_size = MAX_FRAME_BYTES
    transport.idle_timeout = _IDLE_TIMEOUT_SECONDS
    transport.sasl().allowed_mechs("ANONYMOUS")
    transport.bind(connection)
    return transport


class _Events:
    """Handles the events of one connection.

    Attributes:
        format: the message-format in the newest frame; None: it names none.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._links: dict[proton.Link, ProtonLink] = {}
        self.format: int | None = None
        # Each handler gets the object of its event: a connection, a session, a link ...
        self._handlers: Handlers = {
            Event.CONNECTION_REMOTE_OPEN: self._on_open,
            Event.CONNECTION_REMOTE_CLOSE: self._on_close,
            Event.SESSION_REMOTE_OPEN: self._on_session_open,
            Event.SESSION_REMOTE_CLOSE: self._on_session_close,
            Event.LINK_REMOTE_OPEN: self._on_attach,
            Event.LINK_REMOTE_CLOSE: self._on_detach,
            Event.LINK_REMOTE_DETACH: self._on_detach,
            Event.LINK_FLOW: self._on_flow,
            Event.DELIVERY: self._on_delivery,
            Event.TRANSPORT_ERROR: self._on_error,
        }

    def handle(self, event: Event) -> None:
        """Handle an event; most events have no handler, as the broker ignores them."""
        handler = self._handlers.get(event.type)
        if handler is not None:
            handler(event.context)

    def _on_open(self, connection: proton.Connection) -> None:
        connection.container = f"local-{uuid4()}"
        connection.open()

    def _on_close(self, connection: proton.Connection) -> None:
        self._endpoint.close_all(dropped=False)
        connection.close()

    def _on_session_open(self, session: proton.Session) -> None:
        session.open()

    def _on_session_close(self, session: proton.Session) -> None:
        self._endpoint.close_session(session)
        session.close()

    def _on_attach(self, link: proton.Link) -> None:
        found = self._links[link] = ProtonLink(link)
        self._endpoint.attach(found)

    def _on_detach(self, link: proton.Link) -> None:
        found = self._links.pop(link, None)
        if found is not None:
            self._endpoint.close(found)
        link.close()
        # A client may open and close links on one connection for days: free each one.
        link.free()

    def _on_flow(self, link: proton.Link) -> None:
        found = self._links.get(link)
        if found is not None:
            self._endpoint.on_flow(found)

    def _on_delivery(self, delivery: proton.Delivery) -> None:
        if delivery.aborted:
            delivery.settle()
            return
        is_incoming = isinstance(delivery.link, proton.Receiver)
        if is_incoming and self.format is not None:
            note_format(delivery, self.format)
        link = self._links.get(delivery.link)
        is_whole = not delivery.partial if is_incoming else delivery.updated
        if link is None or not is_whole:
            return
        kind = IncomingDelivery if is_incoming else OutgoingDelivery
        self._endpoint.on_delivery(link, kind(delivery))

    def _on_error(self, transport: proton.Transport) -> None:
        # Clients send frames after the end of their session: not worth a warning.
        log.debug("amqp error", extra={"condition": str(transport.condition)})
