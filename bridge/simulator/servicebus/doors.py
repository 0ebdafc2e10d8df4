"""The ports of a broker: AMQP over TCP, over TLS, and over WebSockets.

All ports serve the same entities. The broker always listens for plain TCP itself.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from msgspec import Struct

from bridge.simulator.errors import ListenError
from bridge.simulator.http_server import listening
from bridge.simulator.servicebus.websocket import websocket_app
from bridge.simulator.tls import TlsFiles, name_port, server_context

NewProtocol = Callable[[], asyncio.Protocol]


class Doors(Struct, frozen=True, kw_only=True):
    """The ports to listen on in addition to plain TCP.

    Attributes:
        websocket_port: the port for AMQP over WebSockets, which use TLS if ``tls`` is
            set; 0: a free port; None: no WebSockets.
        tls: the certificate; None: no TLS.
        tls_port: the port for AMQP over TLS; 0: a free port.
    """

    websocket_port: int | None = None
    tls: TlsFiles | None = None
    tls_port: int = 0


class Ports(Struct, frozen=True, kw_only=True):
    """The ports that a broker listens on; None: it does not offer this protocol."""

    tls: int | None = None
    websocket: int | None = None


@asynccontextmanager
async def open_doors(
    doors: Doors, host: str, new_protocol: NewProtocol
) -> AsyncIterator[Ports]:
    """Listen as ``doors`` says; yield the ports.

    Raises:
        ListenError: a port is in use.
        SimulatorError: the certificate cannot be used.
    """
    context = None if doors.tls is None else server_context(doors.tls)
    async with (
        _tls_door(doors, host, context, new_protocol) as tls,
        _websocket_door(doors, host, context, new_protocol) as websocket,
    ):
        yield Ports(tls=tls, websocket=websocket)


@asynccontextmanager
async def _tls_door(
    doors: Doors, host: str, context: ssl.SSLContext | None, new_protocol: NewProtocol
) -> AsyncIterator[int | None]:
    if context is None:
        yield None
        return
    loop = asyncio.get_running_loop()
    try:
        server = await loop.create_server(
            new_protocol, host, doors.tls_port, ssl=context
        )
    except (OSError, OverflowError) as error:
        name = "the broker's TLS"
        raise ListenError(name, host, doors.tls_port, error) from error
    try:
        port = int(server.sockets[0].getsockname()[1])
        if doors.tls is not None:
            name_port(doors.tls, context, ("localhost", host), port)
        yield port
    finally:
        server.close()


@asynccontextmanager
async def _websocket_door(
    doors: Doors, host: str, context: ssl.SSLContext | None, new_protocol: NewProtocol
) -> AsyncIterator[int | None]:
    if doors.websocket_port is None:
        yield None
        return
    name, port = "the broker's WebSocket", doors.websocket_port
    app = websocket_app(new_protocol, host=host)
    async with listening(app, name=name, host=host, port=port, tls=context) as url:
        yield int(url.rpartition(":")[2])
