"""Where the suite's tests find their namespace: a broker here, behind TLS."""

import asyncio
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import certifi
import websocket
from azure.servicebus._pyamqp import _connection as sync_connection
from azure.servicebus._pyamqp.aio import _connection_async as async_connection

from bridge.simulator.emulator import background_loop
from bridge.simulator.servicebus.broker import Broker
from bridge.simulator.servicebus.doors import Doors
from bridge.simulator.servicebus.settings import Entities
from bridge.simulator.tls_certificate import make_certificate

HOST = "localhost"
_SECONDS = 30.0


class Place:
    """One broker at a time, at the ports that the SDK is told to be the cloud's."""

    def __init__(self) -> None:
        self._open = ExitStack()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._broker: Broker | None = None
        self.credential = ("", "")

    def open(self) -> None:
        """Make a certificate, and let the SDK trust it."""
        folder = self._open.enter_context(tempfile.TemporaryDirectory())
        self._files = make_certificate(Path(folder))
        self._loop = self._open.enter_context(background_loop())
        authority = str(self._files.authority)
        certifi.where = lambda: authority
        self._point_web_sockets_here()

    def close(self) -> None:
        """Delete the certificate, and end the thread."""
        self._open.close()

    def begin(self, entities: Entities) -> None:
        """Start a broker with fresh entities."""
        doors = Doors(websocket_port=0, tls=self._files)
        self._broker = Broker(entities, doors=doors)
        self._wait(self._broker.__aenter__())
        at = self._broker.addresses
        ports = {
            "SECURE_PORT": _port(at["tlsEndpoint"]),
            "WEBSOCKET_PORT": _port(at["webSocketEndpoint"]),
        }
        for module in (sync_connection, async_connection):
            vars(module).update(ports)

    def end(self) -> None:
        """Stop the broker."""
        if self._broker is not None:
            self._wait(self._broker.__aexit__(None, None, None))
            self._broker = None

    def _point_web_sockets_here(self) -> None:
        """Add the port, which the sync SDK leaves out: it is the cloud's 443."""
        create: Any = websocket.create_connection

        def create_here(url: str, **options: Any) -> Any:
            port = sync_connection.__dict__["WEBSOCKET_PORT"]
            return create(url.replace(f"//{HOST}/", f"//{HOST}:{port}/"), **options)

        vars(websocket)["create_connection"] = create_here

    def _wait(self, doing: object) -> None:
        assert self._loop is not None
        asyncio.run_coroutine_threadsafe(doing, self._loop).result(_SECONDS)  # type: ignore[arg-type]  # of two kinds


def _port(endpoint: str) -> int:
    return int(endpoint.rpartition(":")[2])


HERE = Place()
