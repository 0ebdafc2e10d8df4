"""The health port, and the socket for commands; open from the start.

Many forwarders never get a request: aiohttp's server is loaded at the first connection,
because it costs 3 MiB.
"""

import asyncio
import logging
import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING

from msgspec import Struct

from bridge.foundation.background import in_background
from bridge.foundation.clock import Bell
from bridge.health.config import HttpConfig
from bridge.health.status import StatusSource
from bridge.net import local_socket
from bridge.net.addresses import ListenAddress
from bridge.net.listening import Port, addresses, listen, listening
from bridge.outbox.storage.lock import FileId, StateLock, identity_of

if TYPE_CHECKING:
    from aiohttp import web

log = logging.getLogger(__name__)

_LOOK_EVERY, _SLACK = 10.0, 2.0  # seconds; together with a poll of IMDS
_LAST_WAIT = 1.0  # seconds, for a disk that hangs at the stop

Make = Callable[[], asyncio.Protocol]


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

    def load() -> "tuple[web.AppRunner, Make]":
        from bridge.health.server import application, loaded  # noqa: PLC0415 - 3 MiB

        return loaded(application(config, status_source))

    lazy_server = _LazyServer(load)
    port = Port("http.listen")
    status_source.ports.append(port)
    begins = {
        at.text: partial(_listen, lazy_server.protocol, at, listener)
        for at in (config.addresses if listener is None else config.addresses[:1])
    }
    try:
        async with listening(begins, port, status_source.clock):
            yield
    finally:
        await lazy_server.close()


async def _listen(
    make: Make, at: ListenAddress, listener: socket.socket | None
) -> asyncio.Server:
    if listener is not None:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(make, sock=listener)
    else:
        server = await listen(make, at)
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

    def load() -> "tuple[web.AppRunner, Make]":
        from bridge.health.server import commands, loaded  # noqa: PLC0415 - 3 MiB

        return loaded(commands(status_source))

    lazy_server, clock = _LazyServer(load), status_source.clock
    command_socket = _CommandSocket(lock, lazy_server.protocol, status_source)
    keeping = in_background(command_socket.keep, name="command socket", clock=clock)
    try:
        async with keeping:
            yield
    finally:
        await command_socket.close()
        await lazy_server.close()


class _CommandSocket(Struct):
    """Makes the socket beside the state file, and makes it anew if it is gone."""

    lock: StateLock
    make: Make
    status_source: StatusSource
    _end: Callable[[], object] | None = None
    _file: FileId | None = None

    async def keep(self) -> None:
        """Make it whenever it is not there."""
        never = Bell()
        while True:
            await self._make()
            await self.status_source.clock.wait(never, _LOOK_EVERY, slack=_SLACK)

    async def _make(self) -> None:
        path = self.lock.path
        if self._end and _identity(local_socket.address_of(path)) == self._file:
            return
        await self.close()
        if (fault := self.lock.fault()) is None:
            try:
                self._end, self._file = await local_socket.serve(
                    path, self.make, _identity
                )
            except OSError as error:
                fault = error.strerror or str(error)
        if fault is not None and fault != self.status_source.unasked:
            address = local_socket.address_of(path)
            log.warning(
                "commands cannot ask this forwarder: tried again",
                extra={"path": address, "fault": fault},
            )
        self.status_source.unasked = fault

    async def close(self) -> None:
        """Answer nobody any more."""
        end, self._end = self._end, None
        if end is None:
            return
        end()
        if _identity(local_socket.address_of(self.lock.path)) != self._file:
            return  # another forwarder may have made it
        with suppress(TimeoutError):  # a disk may hang
            async with asyncio.timeout(_LAST_WAIT):
                await asyncio.to_thread(local_socket.remove, self.lock.path)


def _identity(address: str) -> FileId | None:
    """Return what tells the socket from another one at its place; None = none is there.

    A pipe of Windows cannot be removed, and takes a look for a connection.
    """
    return (0, 0) if sys.platform == "win32" else identity_of(address)


# -- a server that is loaded at the first connection -----------------------------------


class _LazyServer(Struct):
    """Makes the protocols of connections; the first one loads the server.

    Attributes:
        load: loads the server; returns its runner and its factory of protocols.
    """

    load: "Callable[[], tuple[web.AppRunner, Make]]"
    _runner: "web.AppRunner | None" = None
    _make: Make | None = None
    _is_closed: bool = False

    def protocol(self) -> asyncio.Protocol:
        """Return the protocol for a new connection."""
        if self._is_closed:
            return _Aborted()
        if self._make is None:
            self._runner, self._make = self.load()
        return self._make()

    async def close(self) -> None:
        """Close all connections, also those that come later."""
        self._is_closed = True
        if self._runner is not None:
            await self._runner.cleanup()


class _Aborted(asyncio.Protocol):
    """A connection that is closed at once."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)  # noqa: S101 - for mypy  # nosec B101
        transport.abort()
