"""The health port, and the socket for commands; open from the start.

    listening ──first connection──▶ load the HTTP server ──▶ it gets all connections

Many forwarders never get a request. They do not load aiohttp's server and the
Prometheus client, which would need a tenth of the memory of the process.
"""

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    suppress,
)
from functools import partial

from msgspec import Struct, field

from bridge.foundation.background import in_background
from bridge.foundation.clock import Bell, Clock
from bridge.health.config import HttpConfig
from bridge.health.status import StatusSource
from bridge.net import local_socket
from bridge.net.addresses import ListenAddress
from bridge.net.listening import Port, addresses, listen, listening
from bridge.outbox.storage.lock import StateLock

log = logging.getLogger(__name__)

_LOOK_EVERY, _SLACK = 10.0, 2.0  # seconds; together with a poll of IMDS
_LAST_WAIT = 1.0  # seconds, for a disk that hangs at the stop


@asynccontextmanager
async def serve(
    config: HttpConfig,
    status_source: StatusSource,
    listener: socket.socket | None = None,
) -> AsyncIterator[None]:
    """Serve the health port while the context is open, as soon as it is free.

    Args:
        config: ``[http]``.
        status_source: the parts that the status is read from.
        listener: a socket to use in place of ``http.listen``; None = none.
    """
    if not config.listen:
        if listener is not None:
            listener.close()
        yield
        return
    async with AsyncExitStack() as stack:

        def load() -> Loaded:
            # Only loaded at the first connection: it costs memory.
            from bridge.health.server import (  # noqa: PLC0415 - see above
                application,
                opened,
            )

            return opened(application(config, status_source))

        lazy_server = _LazyServer(load, stack)
        port = Port("http.listen")
        status_source.ports.append(port)
        begins = {
            at.text: partial(_listen, lazy_server, at, listener)
            for at in (config.addresses if listener is None else config.addresses[:1])
        }

        try:
            async with (
                listening(begins, port, status_source.clock),
                in_background(
                    lazy_server.answer,
                    name="health port",
                    clock=status_source.clock,
                    may_end=True,
                ),
            ):
                yield
        finally:
            lazy_server.close()


async def _listen(
    lazy_server: "_LazyServer", at: ListenAddress, listener: socket.socket | None
) -> asyncio.Server:
    loop = asyncio.get_running_loop()
    if listener is not None:
        server = await loop.create_server(lazy_server.protocol, sock=listener)
    else:
        server = await listen(lazy_server.protocol, at)
    log.info("health port open", extra={"addresses": addresses(server)})
    return server


# -- the socket on which commands ask --------------------------------------------------


@asynccontextmanager
async def serve_commands(
    lock: StateLock, status_source: StatusSource
) -> AsyncIterator[None]:
    """Answer the commands of this machine while the context is open.

    Args:
        lock: of the state file, beside which the socket lies. As long as the lock is
            not held, there is no socket.
        status_source: the parts that the commands ask.
    """

    def load() -> Loaded:
        # Only loaded at the first connection: it costs memory.
        from bridge.health.server import commands, opened  # noqa: PLC0415 - see above

        return opened(commands(status_source))

    clock = status_source.clock
    async with AsyncExitStack() as stack:
        lazy_server = _LazyServer(load, stack)
        command_socket = _CommandSocket(lock, lazy_server.protocol, clock)
        name = "command socket"
        try:
            async with (
                in_background(command_socket.keep, name=name, clock=clock),
                in_background(lazy_server.answer, name=name, clock=clock, may_end=True),
            ):
                yield
        finally:
            await command_socket.close()
            lazy_server.close()


class _CommandSocket(Struct):
    """Makes the socket beside the state file, and makes it anew if it is gone."""

    lock: StateLock
    protocol: Callable[[], asyncio.Protocol]
    clock: Clock
    _end: Callable[[], object] | None = None
    _file: local_socket.FileId | None = None
    _fault: str | None = None

    async def keep(self) -> None:
        """Make it whenever it is not there."""
        never = Bell()
        while True:
            await self._make()
            await self.clock.wait(never, _LOOK_EVERY, slack=_SLACK)

    async def _make(self) -> None:
        path = self.lock.path
        if self._end and local_socket.identity_of(path) == self._file:
            return
        await self.close()
        if (fault := self.lock.fault()) is None:
            try:
                self._end, self._file = await local_socket.serve(path, self.protocol)
            except OSError as error:
                fault = error.strerror or str(error)
        if fault is not None and fault != self._fault:
            address = local_socket.address_of(path)
            log.warning(
                "commands cannot ask this forwarder: tried again",
                extra={"path": address, "fault": fault},
            )
        self._fault = fault

    async def close(self) -> None:
        """Answer nobody any more."""
        end, self._end = self._end, None
        if end is None:
            return
        end()
        if local_socket.identity_of(self.lock.path) != self._file:
            return  # another forwarder may have made it
        with suppress(TimeoutError):  # a disk may hang
            async with asyncio.timeout(_LAST_WAIT):
                await asyncio.to_thread(local_socket.remove, self.lock.path)


# -- a server that is loaded at the first connection -----------------------------------

Loaded = AbstractAsyncContextManager[Callable[[], asyncio.Protocol]]


class _LazyServer(Struct):
    """Loads the HTTP server at the first connection, and passes connections to it.

    Attributes:
        load: loads the server.
        stack: closes the server.
    """

    load: Callable[[], Loaded]
    stack: AsyncExitStack
    _waiting: dict[asyncio.Transport, None] = field(default_factory=dict)
    _called: asyncio.Event = field(default_factory=asyncio.Event)
    _make: Callable[[], asyncio.Protocol] | None = None
    _is_closed: bool = False

    def protocol(self) -> asyncio.Protocol:
        """Return the protocol for a new connection."""
        return _Waiting(self) if self._make is None else self._make()

    async def answer(self) -> None:
        """Load the server at the first connection; pass it all waiting connections."""
        await self._called.wait()
        make = await self.stack.enter_async_context(self.load())
        self._make = make
        for transport in tuple(self._waiting):  # the oldest connection first
            _give(transport, make())
        self._waiting.clear()

    def enter(self, transport: asyncio.Transport) -> None:
        """Pass a connection to the server; if that is not loaded yet, let it wait."""
        if self._is_closed:
            transport.abort()
        elif self._make is not None:
            _give(transport, self._make())
        else:
            self._waiting[transport] = None
            self._called.set()

    def leave(self, transport: asyncio.Transport) -> None:
        """Remove a connection that was closed."""
        self._waiting.pop(transport, None)

    def close(self) -> None:
        """Abort the connections that wait, and all that come later."""
        self._is_closed = True
        for transport in tuple(self._waiting):
            transport.abort()


def _give(transport: asyncio.Transport, protocol: asyncio.Protocol) -> None:
    """Give another protocol to a connection of which nothing was read yet."""
    transport.set_protocol(protocol)
    protocol.connection_made(transport)
    transport.resume_reading()


class _Waiting(asyncio.Protocol):
    """A connection that waits until the server is loaded; it reads no data."""

    def __init__(self, lazy_server: _LazyServer) -> None:
        self._lazy_server = lazy_server
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)  # noqa: S101 - for mypy  # nosec B101
        self._transport = transport
        transport.pause_reading()
        self._lazy_server.enter(transport)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's
        if self._transport is not None:
            self._lazy_server.leave(self._transport)
