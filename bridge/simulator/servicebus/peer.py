"""One connection: bytes between its socket and the engine that speaks AMQP."""

import asyncio
import logging

from bridge.simulator.servicebus.endpoints import Wire
from bridge.simulator.servicebus.errors import Condition, RefusedError, amqp_error
from bridge.simulator.servicebus.hub import Hub
from bridge.simulator.servicebus.links import Links
from bridge.simulator.servicebus.outlet import Outlet

log = logging.getLogger(__name__)


class Peer(asyncio.Protocol):
    """The broker's end of one connection.

    Args:
        hub: connects its links to the entities.
        wire: makes the engine.

    Attributes:
        claims: the valid tokens of the connection.
    """

    def __init__(self, hub: Hub, wire: Wire) -> None:
        self._hub = hub
        self.claims = hub.access.claims()
        self._links = Links(hub, self)
        self._engine = wire(self._links)
        self._outlet = Outlet(hub.faults)
        self._tick: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start; if the broker is frozen, accept the connection but read nothing."""
        self._outlet.open(transport)
        self._hub.join(self)
        if self._hub.faults.is_frozen:
            self.freeze(frozen=True)

    def data_received(self, data: bytes) -> None:
        """Pass the bytes to the engine, which reports the client's actions."""
        self._engine.receive(data)
        self._hub.touch(self)
        self._hub.turn()

    def connection_lost(self, exc: Exception | None) -> None:
        """Remove everything that belongs to the connection."""
        log.debug("connection lost", extra={"error": repr(exc)})
        self._links.close_all(dropped=True)
        if self._tick is not None:
            self._tick.cancel()
        self._outlet.close()
        self._engine.free()
        self._hub.leave(self)
        self._hub.turn()

    def __str__(self) -> str:
        """Return the container id of the client."""
        return self._engine.client or "a client without a name"

    def flush(self) -> None:
        """Write the output of the engine, unless a fault delays it."""
        if self._hub.faults.is_frozen or self._outlet.is_closed:
            return
        self._run_tick()
        if output := self._engine.take_output():
            self._outlet.write(output)
        if self._engine.is_finished:
            self._outlet.close()

    def drop(self) -> None:
        """Break the connection without a close frame."""
        self._outlet.abort()

    def close(self) -> None:
        """Close the connection, with the error of a broker that shuts down."""
        forced = RefusedError(Condition.CONNECTION_FORCED, "the broker is shut down")
        self._engine.close(amqp_error(forced))
        self.flush()
        self._outlet.close()

    def detach_links(self, path: str | None, why: RefusedError | None = None) -> None:
        """Detach the links of one entity, or of all."""
        self._links.detach(path, why)

    def freeze(self, *, frozen: bool) -> None:
        """Stop reading, or continue."""
        self._outlet.pause_reading(paused=frozen)

    def _run_tick(self) -> None:
        loop = asyncio.get_running_loop()
        due = self._engine.tick(loop.time())
        if self._tick is not None:
            self._tick.cancel()
        self._tick = loop.call_at(due, self.flush) if due else None
