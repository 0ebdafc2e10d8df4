"""One connection: bytes in and out of Proton's engine, and its events.

Sans-io: Proton neither opens sockets nor knows the time. It gets one frame at a time,
so that the message-format of a transfer is known when its event comes.
"""

import asyncio
import logging

from proton import (
    Collector,
    Connection,
    Transport,
    TransportException,
)

from bridge.simulator.servicebus.connection_events import ConnectionEvents
from bridge.simulator.servicebus.errors import Condition, RefusedError
from bridge.simulator.servicebus.frames import (
    MAX_FRAME_BYTES,
    FrameSplitter,
    message_format,
)
from bridge.simulator.servicebus.hub import Hub
from bridge.simulator.servicebus.links import Links
from bridge.simulator.servicebus.outlet import Outlet
from bridge.simulator.servicebus.proton_links import (
    amqp_condition,
)

log = logging.getLogger(__name__)

# Proton advertises half of what it enforces: clients see 240 s, as in the cloud. Their
# own pings come at least every 30 s.
_IDLE_TIMEOUT_SECONDS = 480


class Peer(asyncio.Protocol):
    """The broker's end of one connection.

    Args:
        hub: connects its links to the entities.

    Attributes:
        claims: what its tokens allow.
    """

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self.claims = hub.access.claims()
        self._frames = FrameSplitter()
        self._links = Links(hub, self)
        self._outlet = Outlet(hub.faults)
        self._collector = Collector()
        self._connection = Connection()
        self._connection.collect(self._collector)
        self._engine = _new_engine(self._connection)
        self._tick: asyncio.TimerHandle | None = None
        self._events = ConnectionEvents(self._links)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start; a frozen broker accepts the connection and does nothing else."""
        self._outlet.open(transport)
        self._hub.join(self)
        if self._hub.faults.is_frozen:
            self.freeze(frozen=True)

    def data_received(self, data: bytes) -> None:
        """Pass the bytes to the engine, and handle its events."""
        for frame in self._frames.feed(data):
            self._push(frame)
        self._hub.touch(self)
        self._hub.turn()

    def connection_lost(self, exc: Exception | None) -> None:
        """Remove everything that belongs to the connection."""
        log.debug("connection lost", extra={"error": repr(exc)})
        self._links.close_all(dropped=True)
        if self._tick is not None:
            self._tick.cancel()
        self._outlet.close()
        self._engine.unbind()
        self._connection.free()
        self._hub.leave(self)
        self._hub.turn()

    def __str__(self) -> str:
        """Return the name that the client has given itself."""
        return str(self._connection.remote_container or "a client without a name")

    def flush(self) -> None:
        """Write the output of the engine, unless a fault delays it."""
        if self._hub.faults.is_frozen or self._outlet.is_closed:
            return
        self._run_tick()
        while (size := self._engine.pending()) > 0:
            self._outlet.write(bytes(self._engine.peek(size) or b""))
            self._engine.pop(size)
        if size < 0:
            self._outlet.close()

    def drop(self) -> None:
        """Break the connection without a close frame."""
        self._outlet.abort()

    def close(self) -> None:
        """Close the connection like a broker that shuts down."""
        forced = RefusedError(Condition.CONNECTION_FORCED, "the broker is shut down")
        self._connection.condition = amqp_condition(forced)
        self._connection.close()
        self.flush()
        self._outlet.close()

    def detach_links(self, path: str | None) -> None:
        """Detach the links of one entity, or of all."""
        self._links.detach(path)

    def freeze(self, *, frozen: bool) -> None:
        """Stop reading, or continue."""
        self._outlet.pause_reading(paused=frozen)

    def _push(self, frame: bytes) -> None:
        self._events.format = message_format(frame)
        try:
            while frame and (room := self._engine.capacity()) > 0:
                self._engine.push(frame[:room])
                frame = frame[room:]
        except TransportException:
            # The event that follows says why, and the engine answers it.
            log.debug("amqp input refused")
        self._run_events()

    def _run_events(self) -> None:
        while (event := self._collector.peek()) is not None:
            self._events.handle(event)
            self._collector.pop()

    def _run_tick(self) -> None:
        loop = asyncio.get_running_loop()
        due = self._engine.tick(loop.time())
        if self._tick is not None:
            self._tick.cancel()
        self._tick = loop.call_at(due, self._on_tick) if due else None

    def _on_tick(self) -> None:
        self._run_tick()
        self._run_events()
        self.flush()


def _new_engine(connection: Connection) -> Transport:
    engine = Transport(Transport.SERVER)
    engine.max_frame_size = MAX_FRAME_BYTES
    engine.idle_timeout = _IDLE_TIMEOUT_SECONDS
    engine.sasl().allowed_mechs("ANONYMOUS")
    engine.bind(connection)
    return engine
