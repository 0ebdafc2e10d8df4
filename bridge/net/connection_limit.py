"""Limits the connections of an HTTP server, and how long a request may take.

Any process on this machine can connect to the health port, and any machine in the
network to the traffic probe. Each connection needs a file descriptor. Without free file
descriptors, no sink can be reached.

    more than ``most``                   → the connection that was silent longest is
                                           closed; one with a request in progress only
                                           if there is no other
    request head not complete in time    → closed
    response not read in time            → closed
"""

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import http_exceptions, web
from msgspec import Struct, field

from bridge.net.addresses import ListenAddress
from bridge.net.listening import listen

log = logging.getLogger(__name__)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_HEAD_SECONDS = 5.0
_READ_SECONDS = 30.0
# The most connections that wait to be accepted. The loop accepts all of them before it
# reads from any. If no place is left, the client tries again after a second.
_BACKLOG = 128


class Guard(Struct, kw_only=True):
    """The connections of one server.

    Attributes:
        most: how many connections are open at the same time.
        head_seconds: the limit from the beginning of the connection, or from the first
            byte of a later request, to the end of the request's head.
        read_seconds: how long a client may leave a response unread.
    """

    most: int
    head_seconds: float = _HEAD_SECONDS
    read_seconds: float = _READ_SECONDS
    _held: dict["_Connection", None] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """The number of open connections."""
        return len(self._held)

    @web.middleware
    async def middleware(
        self, request: web.Request, handler: Handler
    ) -> web.StreamResponse:
        """Mark the connection as busy while its request is handled."""
        protocol = request.transport and request.transport.get_protocol()
        if not isinstance(protocol, _Connection):
            return await handler(request)
        protocol.begin_answer()
        try:
            return await handler(request)
        finally:
            protocol.end_answer()

    async def listen(self, runner: web.AppRunner, at: ListenAddress) -> asyncio.Server:
        """Serve the application of ``runner`` on an address.

        Raises:
            OSError: the server cannot listen on the address.
        """
        return await listen(self.maker(runner), at, _BACKLOG)

    async def take_over(
        self, runner: web.AppRunner, listener: socket.socket
    ) -> asyncio.Server:
        """Serve the application of ``runner`` on a socket that listens already."""
        return await asyncio.get_running_loop().create_server(
            self.maker(runner), sock=listener, backlog=_BACKLOG
        )

    def runner(self, app: web.Application, shutdown: float) -> web.AppRunner:
        """Return the runner of an application, with this guard in front of it.

        Args:
            app: the application.
            shutdown: seconds for responses in progress when it is closed.
        """
        app.middlewares.insert(0, self.middleware)
        return web.AppRunner(
            app, access_log=None, logger=_Log(log), shutdown_timeout=shutdown
        )

    def maker(self, runner: web.AppRunner) -> Callable[[], asyncio.Protocol]:
        """Return the factory of protocols for connections to ``runner``."""
        assert runner.server is not None, "it is set up"  # noqa: S101 - for mypy  # nosec B101
        make = runner.server
        return lambda: _Connection(make(), self)

    def enter(self, connection: "_Connection") -> None:
        """Add a connection. If there are too many, close another one."""
        if len(self._held) >= self.most:
            quiet = (one for one in self._held if not one.is_answered)
            next(quiet, next(iter(self._held))).abort()
        self._held[connection] = None

    def leave(self, connection: "_Connection") -> None:
        """Remove a connection."""
        self._held.pop(connection, None)

    def heard(self, connection: "_Connection") -> None:
        """Move a connection that was not silent to the end: it is closed last."""
        if connection in self._held:
            del self._held[connection]
            self._held[connection] = None


class _Log(logging.LoggerAdapter[logging.Logger]):
    """What aiohttp's server logs: a request that is no HTTP is one line, no traceback.

    The line does not have the text of the error, because that quotes the request.
    """

    def exception(self, msg: object, *args: object, **more: Any) -> None:
        """Log an error of a request."""
        fault = more.get("exc_info")
        if isinstance(fault, http_exceptions.HttpProcessingError):
            found = {"client": args[0] if args else None, "kind": type(fault).__name__}
            log.info("malformed request", extra=found)
        else:
            super().exception(msg, *args, **more)


class _Connection(asyncio.Protocol):
    """A protocol between the transport and aiohttp's own protocol."""

    def __init__(self, inner: asyncio.Protocol, guard: Guard) -> None:
        self.is_answered = False
        self._inner = inner
        self._guard = guard
        self._transport: asyncio.Transport | None = None
        self._limit: asyncio.TimerHandle | None = None
        self._unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)  # noqa: S101 - for mypy  # nosec B101
        self._transport = transport
        self._inner.connection_made(transport)
        self._limit = self._abort_after(self._guard.head_seconds)
        self._guard.enter(self)

    def data_received(self, data: bytes) -> None:
        self._guard.heard(self)
        if self._limit is None and not self.is_answered:
            self._limit = self._abort_after(self._guard.head_seconds)
        self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        return self._inner.eof_received()

    def pause_writing(self) -> None:
        self._unread = self._abort_after(self._guard.read_seconds)
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._guard.heard(self)
        self._unread = _no_longer(self._unread)
        self._inner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._guard.leave(self)
        self._limit = _no_longer(self._limit)
        self._unread = _no_longer(self._unread)
        self._inner.connection_lost(exc)

    def begin_answer(self) -> None:
        """Record that the head of a request is complete."""
        self.is_answered = True
        self._limit = _no_longer(self._limit)

    def end_answer(self) -> None:
        """Record that the request was handled."""
        self.is_answered = False
        self._guard.heard(self)

    def abort(self) -> None:
        """Close the connection at once, and remove it from the count."""
        self._guard.leave(self)
        if self._transport is not None:
            self._transport.abort()

    def _abort_after(self, seconds: float) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(seconds, self.abort)


def _no_longer(timer: asyncio.TimerHandle | None) -> asyncio.TimerHandle | None:
    """Cancel a timer, and return None to replace it."""
    if timer is not None:
        timer.cancel()
    return None
