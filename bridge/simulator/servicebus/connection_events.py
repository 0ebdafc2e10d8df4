"""The reaction of the broker to each event of Proton's engine."""

import logging
from collections.abc import Callable, Mapping
from typing import Any
from uuid import uuid4

from proton import (
    Connection,
    Delivery,
    Event,
    EventType,
    Link,
    Receiver,
    Session,
    Transport,
)

from bridge.simulator.servicebus.links import Links
from bridge.simulator.servicebus.proton_links import close_link, note_format

log = logging.getLogger(__name__)

Handlers = Mapping[EventType, Callable[[Any], None]]


class ConnectionEvents:
    """Handles the events of one connection.

    Args:
        links: the links of the connection.

    Attributes:
        format: the message-format of the transfer whose frame came last.
    """

    def __init__(self, links: Links) -> None:
        self._links = links
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
        """Handle an event; most events need no reaction of a broker."""
        handler = self._handlers.get(event.type)
        if handler is not None:
            handler(event.context)

    def _on_open(self, connection: Connection) -> None:
        connection.container = f"local-{uuid4()}"
        connection.open()

    def _on_close(self, connection: Connection) -> None:
        self._links.close_all(dropped=False)
        connection.close()

    def _on_session_open(self, session: Session) -> None:
        session.open()

    def _on_session_close(self, session: Session) -> None:
        self._links.close_session(session)
        session.close()

    def _on_attach(self, link: Link) -> None:
        self._links.attach(link)

    def _on_detach(self, link: Link) -> None:
        self._links.close(link)
        close_link(link)
        # Freed at once: a client may open and close links on one connection for days.
        link.free()

    def _on_flow(self, link: Link) -> None:
        role = self._links.role(link)
        if role is not None:
            role.on_flow()

    def _on_delivery(self, delivery: Delivery) -> None:
        if delivery.aborted:
            delivery.settle()
            return
        is_incoming = isinstance(delivery.link, Receiver)
        if is_incoming and self.format is not None:
            note_format(delivery, self.format)
        role = self._links.role(delivery.link)
        is_whole = not delivery.partial if is_incoming else delivery.updated
        if role is not None and is_whole:
            role.on_delivery(delivery)

    def _on_error(self, engine: Transport) -> None:
        # Clients send frames after the end of their session: not worth a warning.
        log.debug("amqp error", extra={"condition": str(engine.condition)})
