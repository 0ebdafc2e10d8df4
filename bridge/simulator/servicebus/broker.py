"""The broker: listens on loopback for Service Bus clients.

It uses plain AMQP over TCP, like Microsoft's emulator: no TLS, no authentication, no
persistence. A client needs only the connection string.
"""

import asyncio
import os
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Self

from bridge.simulator.servicebus.backlog import Counts
from bridge.simulator.servicebus.config import default_entities
from bridge.simulator.servicebus.endpoints import Wire
from bridge.simulator.servicebus.entities import Namespace
from bridge.simulator.servicebus.faults import Faults
from bridge.simulator.servicebus.hub import Hub
from bridge.simulator.servicebus.peer import Peer
from bridge.simulator.servicebus.settings import Entities
from bridge.simulator.servicebus.values import encode_section
from bridge.simulator.servicebus.wire import parse_message
from bridge.simulator.servicebus.wires import chosen
from bridge.simulator.wire.message import DATA

_GRACE_SECONDS = 1.0


class Broker:
    """A local broker, used as an async context manager.

    It can be entered again after it was left. It then listens on the same port with all
    of its messages, like a restarted broker.

    Args:
        entities: its queues and topics; left out: default_entities().
        host: the address to listen on.
        port: the port to listen on; 0: a free one.
        clock: returns seconds since the epoch.
        wire: makes the AMQP engine of each connection; left out: what the environment
            chooses, see ``wires``.
    """

    def __init__(
        self,
        entities: Entities | None = None,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        clock: Callable[[], float] = time.time,
        wire: Wire | None = None,
    ) -> None:
        self._wire = wire or chosen(os.environ)
        self._host = host
        self._port = port
        self._namespace = Namespace(entities or default_entities(), clock)
        self._hub = Hub(self._namespace, clock)
        self._server: asyncio.Server | None = None

    @property
    def port(self) -> int:
        """The port that clients connect to; known when the broker listens."""
        return self._port

    @property
    def connection_string(self) -> str:
        """The connection string; clients compare `true` with regard to case."""
        return (
            f"Endpoint=sb://{self._host}:{self._port};"
            "SharedAccessKeyName=RootManageSharedAccessKey;"
            "SharedAccessKey=SAS_KEY_VALUE;UseDevelopmentEmulator=true;"
        )

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
            NoSuchEntityError: it does not exist.
        """
        encoded = encode_section(DATA, body)
        self._namespace.find_target(entity).send([parse_message(encoded)])
        self._hub.turn()

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(
                lambda: Peer(self._hub, self._wire), self._host, self._port
            )
        except OSError as error:
            raise OSError(
                error.errno,
                f"the broker cannot listen on {self._host}:{self._port}: "
                f"{error.strerror}",
            ) from error
        self._port = self._server.sockets[0].getsockname()[1]
        self._hub.start()
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
        self._hub.stop()
        try:
            async with asyncio.timeout(_GRACE_SECONDS):
                await self._hub.left.wait()
        except TimeoutError:
            self._hub.faults.drop_connections()
            await self._hub.left.wait()
        await self._server.wait_closed()
        self._server = None
