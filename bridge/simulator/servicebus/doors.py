"""The ports of a broker: AMQP over TCP, over TLS, and over WebSockets.

All ports serve the same entities. The broker always listens for plain TCP itself.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from http import HTTPStatus

from aiohttp import WSMsgType, web
from aiohttp.typedefs import Handler
from msgspec import Struct

from bridge.simulator.errors import ForeignCallerError, ListenError
from bridge.simulator.http_server import for_callers_here, listening
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


# -- AMQP over WebSockets: the bytes of a connection, in binary messages ---------------
#
# The boundaries of these messages have no meaning: both sides read a stream of bytes.
#
# A browser lets a page of any site open a WebSocket to this machine, and names the site
# in the header Origin. Such a page is refused, as at the simulator's other addresses.
#
# Source: AMQP WebSocket binding, version 1.0. Azure Service Bus, AMQP 1.0 protocol
#         guide: the path, and the subprotocol.


PATH = "/$servicebus/websocket"

_SUBPROTOCOLS = ("AMQPWSB10", "amqp")
# Below the message limit of every client.
_PIECE_BYTES = 64 * 1024
_BINARY_LIMIT = 4 * 1024 * 1024


def websocket_app(
    new_protocol: Callable[[], asyncio.Protocol], *, host: str
) -> web.Application:
    """Return an application that serves AMQP at ``PATH``.

    Args:
        new_protocol: creates the broker's end of a connection.
        host: the listening address.
    """

    async def serve(request: web.Request) -> web.StreamResponse:
        socket = web.WebSocketResponse(
            protocols=_SUBPROTOCOLS, max_msg_size=_BINARY_LIMIT
        )
        await socket.prepare(request)
        await _run_connection(request, socket, new_protocol())
        return socket

    app = web.Application(middlewares=[_refuse_foreign_pages])
    routes = [web.get(path, serve, allow_head=False) for path in (PATH, f"{PATH}/")]
    app.add_routes(for_callers_here(routes, host=host))
    return app


@web.middleware
async def _refuse_foreign_pages(
    request: web.Request, handler: Handler
) -> web.StreamResponse:
    try:
        return await handler(request)
    except ForeignCallerError as error:
        return web.Response(status=HTTPStatus.FORBIDDEN, text=f"{error}.\n")


async def _run_connection(
    request: web.Request, socket: web.WebSocketResponse, protocol: asyncio.Protocol
) -> None:
    """Pass the bytes of one connection on until either side ends it."""
    stream = _Stream(request.transport)
    protocol.connection_made(stream)
    try:
        async with asyncio.TaskGroup() as group:
            writing = group.create_task(stream.write_to(socket))
            await stream.read_from(socket, protocol)
            writing.cancel()
    finally:
        stream.end()
        protocol.connection_lost(None)


class _Stream(asyncio.Transport):
    """A WebSocket as the transport that a protocol writes to.

    Args:
        below: the transport of the HTTP connection.
    """

    def __init__(self, below: asyncio.Transport | None) -> None:
        super().__init__()
        self._below = below
        self._waiting: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._may_read = asyncio.Event()
        self._may_read.set()
        self._is_closing = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Queue bytes for the WebSocket, in order."""
        written = bytes(data)
        for start in range(0, len(written), _PIECE_BYTES):
            self._waiting.put_nowait(written[start : start + _PIECE_BYTES])

    def close(self) -> None:
        """Close the WebSocket after everything is written."""
        self._is_closing = True
        self._waiting.put_nowait(None)

    def abort(self) -> None:
        """Break the connection."""
        self._is_closing = True
        if self._below is not None:
            self._below.abort()

    def is_closing(self) -> bool:
        """Whether the WebSocket is closed, or is being closed."""
        return self._is_closing

    def pause_reading(self) -> None:
        """Stop passing received bytes to the protocol."""
        self._may_read.clear()

    def resume_reading(self) -> None:
        """Pass received bytes to the protocol again."""
        self._may_read.set()

    def get_extra_info(self, name: str, default: object = None) -> object:
        """Return a fact about the HTTP connection, such as its socket."""
        if self._below is None:
            return default
        found: object = self._below.get_extra_info(name, default)
        return found

    def end(self) -> None:
        """Record that the WebSocket is lost."""
        self._is_closing = True

    async def write_to(self, socket: web.WebSocketResponse) -> None:
        """Send the queued bytes; return when the WebSocket is closed or broken."""
        try:
            while (piece := await self._waiting.get()) is not None:
                await socket.send_bytes(piece)
        except ConnectionError:
            return  # read_from notices the loss, too, and ends the connection
        await socket.close()

    async def read_from(
        self, socket: web.WebSocketResponse, protocol: asyncio.Protocol
    ) -> None:
        """Pass received bytes to the protocol; return when the client is gone."""
        while (message := await socket.receive()).type is WSMsgType.BINARY:
            await self._may_read.wait()
            protocol.data_received(message.data)
        if message.type is WSMsgType.TEXT:
            await socket.close(code=1003, message=b"AMQP comes in binary messages")
