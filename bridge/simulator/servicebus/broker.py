"""The broker: listens on loopback for Service Bus clients.

It uses plain AMQP over TCP, like Microsoft's emulator. TLS and WebSockets have ports of
their own. Messages are kept in memory only. A client needs only the connection string.
"""

import asyncio
import logging
import socket
import struct
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from typing import Self

from msgspec.structs import replace

from bridge.simulator.servicebus.access import Access, Right
from bridge.simulator.servicebus.backlog import Counts
from bridge.simulator.servicebus.config import default_entities
from bridge.simulator.servicebus.doors import PATH, Doors, Ports, open_doors
from bridge.simulator.servicebus.endpoints import Wire
from bridge.simulator.servicebus.entities import Namespace
from bridge.simulator.servicebus.entity_actions import Changes, EntityActions
from bridge.simulator.servicebus.faults import Faults
from bridge.simulator.servicebus.hub import Hub
from bridge.simulator.servicebus.links import Links
from bridge.simulator.servicebus.python_wire import PythonEngine
from bridge.simulator.servicebus.settings import Entities
from bridge.simulator.servicebus.values import Condition, RefusedError, amqp_error

# -- One connection: bytes between its socket and the engine that speaks AMQP ----------


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


# -- The output of one connection, which faults can delay or close ---------------------


# SO_LINGER with 0 s: closing the socket resets the connection.
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


class Outlet:
    """Writes to the socket in order, delayed if a fault says so.

    Args:
        faults: say how long each write is delayed.
    """

    def __init__(self, faults: Faults) -> None:
        self._faults = faults
        self._transport: asyncio.Transport | None = None
        self._delayed: deque[bytes | None] = deque()
        self._due = 0.0
        self._is_closed = True

    @property
    def is_closed(self) -> bool:
        """Whether nothing more can be written, because the socket is closed."""
        return self._is_closed

    def open(self, transport: asyncio.BaseTransport) -> None:
        """Start writing to a socket."""
        if isinstance(transport, asyncio.Transport):
            self._transport = transport
            self._is_closed = False

    def write(self, written: bytes) -> None:
        """Write bytes, now or after the delay."""
        self._put(written)

    def close(self) -> None:
        """Close the socket after everything is written."""
        self._put(None)

    def abort(self) -> None:
        """Reset the connection, without an orderly close, as if the network broke.

        This also ends a connection that was closed here, but whose client does not
        answer. A lost connection may have no socket any more: TLS and WebSockets drop
        the socket a little before they report the loss.
        """
        if self._transport is None:
            return
        connection: socket.socket | None = self._transport.get_extra_info("socket")
        if connection is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        self._transport.abort()

    def pause_reading(self, *, paused: bool) -> None:
        """Stop reading from the socket, or continue."""
        if self._transport is None or self._transport.is_closing():
            return
        if paused:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def _put(self, written: bytes | None) -> None:
        loop = asyncio.get_running_loop()
        delay = self._faults.reply_delay.total_seconds()
        # After the fault ends, new bytes must not overtake bytes that are delayed.
        self._due = max(self._due, loop.time() + delay)
        self._delayed.append(written)
        if self._due > loop.time():
            loop.call_at(self._due, self._put_next)
        else:
            self._put_next()

    def _put_next(self) -> None:
        written = self._delayed.popleft()
        if self._transport is None or self._is_closed:
            return
        if written is not None:
            self._transport.write(written)
        else:
            self._transport.close()
            self._is_closed = True


# -- The broker: listens on loopback for Service Bus clients ---------------------------


_GRACE_SECONDS = 1.0
# With this field, an SDK uses no TLS, and connects to the given port.
_EMULATOR = "UseDevelopmentEmulator=true;"


class Broker:
    """A local broker, used as an async context manager.

    The context can be entered again after it was left. The broker then listens on the
    same ports and still has all messages, as after a restart.

    Args:
        entities: its queues and topics; left out: default_entities().
        host: the address to listen on.
        port: the port to listen on; 0: a free one.
        doors: TLS and WebSockets; left out: neither.
        clock: returns seconds since the epoch.
        wire: makes the AMQP engine of each connection; tests give another one.

    Attributes:
        actions: shows entities, and puts, resubmits and purges messages.
        changes: makes, changes and deletes entities.
        clock: returns seconds since the epoch.
    """

    def __init__(  # noqa: PLR0913 - independent of each other, and each has a default
        self,
        entities: Entities | None = None,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        doors: Doors | None = None,
        clock: Callable[[], float] = time.time,
        wire: Wire = PythonEngine,
    ) -> None:
        self._wire = wire
        self._host = host
        self._port = port
        self._doors = doors or Doors()
        entities = entities or default_entities()
        self._namespace = Namespace(entities, clock)
        self._access = Access(self._namespace.access, clock)
        self._hub = Hub(self._namespace, clock, self._access)
        self.actions = EntityActions(self._hub, clock)
        self.changes = Changes(self._hub)
        self.clock = clock
        self._server: asyncio.Server | None = None
        self._open = AsyncExitStack()

    @property
    def port(self) -> int:
        """The port that clients connect to; known when the broker listens."""
        return self._port

    @property
    def connection_string(self) -> str:
        """The connection string; some clients accept only `true` in lower case."""
        root = self._access.root
        return (
            f"Endpoint=sb://{self._host}:{self._port};"
            f"SharedAccessKeyName={root.name};"
            f"SharedAccessKey={root.keys[0]};{_EMULATOR}"
        )

    @property
    def addresses(self) -> Mapping[str, str]:
        """The addresses of the broker, as `sebridge simulate` prints them.

        An SDK takes an endpoint as its ``custom_endpoint_address``; without one, the
        SDK uses the ports of the cloud, 5671 and 443.
        """
        doors, host = self._doors, self._host
        found = {"connectionString": self.connection_string}
        if doors.websocket_port is not None:
            scheme = "ws" if doors.tls is None else "wss"
            found["webSocket"] = f"{scheme}://{host}:{doors.websocket_port}{PATH}"
            found["webSocketEndpoint"] = f"sb://{host}:{doors.websocket_port}"
        if doors.tls is not None:
            secure = f"Endpoint=sb://{host}:{doors.tls_port};"
            keys = self.connection_string.partition(";")[2]
            found["tlsConnectionString"] = secure + keys.replace(_EMULATOR, "")
            found["tlsEndpoint"] = f"sb://{host}:{doors.tls_port}"
            found["certificate"] = str(doors.tls.authority or doors.tls.certificate)
        return found

    @property
    def faults(self) -> Faults:
        """The faults on demand."""
        return self._hub.faults

    def snapshot(self) -> Mapping[str, Counts]:
        """Return the counts of every queue, topic and subscription by its path."""
        self._namespace.run_due()
        return self._namespace.snapshot()

    def put(self, entity: str, body: bytes) -> None:
        """Send a message to a queue or topic, without a connection.

        Raises:
            RefusedError: the entity does not exist, or refuses the message.
        """
        self.actions.put(entity, body)

    def is_manager(self, token: str, path: str) -> bool:
        """Return whether a token gives the right Manage on a path.

        Without any rule of shared access, every token is accepted.

        Raises:
            RefusedError: the token is invalid.
        """
        claims = self._access.claims()
        claims.put(token, path)
        return claims.gives(path, Right.MANAGE)

    async def __aenter__(self) -> Self:
        """Listen.

        Raises:
            OSError: the port is in use.
            ListenError: the port for TLS or for WebSockets is in use.
            SimulatorError: the certificate cannot be used.
        """
        self._hub.start()
        async with AsyncExitStack() as opening:
            opening.push_async_callback(self._close)
            await self._listen()
            doors = open_doors(self._doors, self._host, self._new_peer)
            self._keep_ports(await opening.enter_async_context(doors))
            self._open = opening.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._server is None:
            return
        self._server.close()
        await self._close_connections()
        await self._open.aclose()

    async def _listen(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(
                self._new_peer, self._host, self._port
            )
        except OSError as error:
            raise OSError(
                error.errno,
                f"the broker cannot listen on {self._host}:{self._port}: "
                f"{error.strerror}",
            ) from error
        self._port = self._server.sockets[0].getsockname()[1]

    def _new_peer(self) -> Peer:
        return Peer(self._hub, self._wire)

    def _keep_ports(self, ports: Ports) -> None:
        if ports.tls is not None:
            self._doors = replace(self._doors, tls_port=ports.tls)
        if ports.websocket is not None:
            self._doors = replace(self._doors, websocket_port=ports.websocket)

    async def _close_connections(self) -> None:
        """Close all connections, and break those whose clients do not answer."""
        self._hub.stop()
        try:
            async with asyncio.timeout(_GRACE_SECONDS):
                await self._hub.left.wait()
        except TimeoutError:
            self._hub.faults.drop_connections()
            await self._hub.left.wait()

    async def _close(self) -> None:
        self._hub.stop()
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()
            self._server = None
