"""The broker: listens on loopback for Service Bus clients.

It uses plain AMQP over TCP, like Microsoft's emulator. TLS and WebSockets have ports of
their own. Messages are kept in memory only. A client needs only the connection string.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Self

from msgspec.structs import replace

from bridge.simulator.servicebus.access import Access, Right
from bridge.simulator.servicebus.backlog import Counts
from bridge.simulator.servicebus.changes import Changes
from bridge.simulator.servicebus.config import default_entities
from bridge.simulator.servicebus.doors import Doors, Ports, open_doors
from bridge.simulator.servicebus.endpoints import Wire
from bridge.simulator.servicebus.entities import Namespace
from bridge.simulator.servicebus.entity_actions import EntityActions
from bridge.simulator.servicebus.faults import Faults
from bridge.simulator.servicebus.hub import Hub
from bridge.simulator.servicebus.peer import Peer
from bridge.simulator.servicebus.python_wire import PythonEngine
from bridge.simulator.servicebus.settings import Entities
from bridge.simulator.servicebus.websocket import PATH

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

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
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
