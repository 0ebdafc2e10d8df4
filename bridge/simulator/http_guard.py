"""Limit the connections of an HTTP server, and the time of a request.

The bridge's health port has a guard like this; the simulator has its own, because it
imports nothing of the bridge. A client that leaks connections must not block others.

    more than ``most``           → the connection that was silent longest is closed; a
                                   connection that is being answered only if there is
                                   no other
    head not complete in time    → the connection is closed
    answer not read in time      → the connection is closed
"""

import asyncio
import ssl
from collections.abc import Awaitable, Callable

from aiohttp import web
from msgspec import Struct, field

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_HEAD_SECONDS = 5.0
_READ_SECONDS = 30.0
# asyncio accepts all connections of the backlog before it serves any of them. If the
# backlog is full, the client's system tries again after a second.
_BACKLOG = 128


class Guard(Struct, kw_only=True):
    """The connections of one server.

    Attributes:
        most: the largest number of connections.
        head_seconds: the longest time from the connection, or from the first byte of a
            later request, to the end of the request's head.
        read_seconds: how long a client may leave an answer unread.
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
        """Mark the connection as being answered while the handler runs."""
        protocol = request.transport and request.transport.get_protocol()
        if not isinstance(protocol, _Connection):
            return await handler(request)
        protocol.begin_answer()
        try:
            return await handler(request)
        finally:
            protocol.end_answer()

    async def listen(
        self,
        runner: web.AppRunner,
        host: str,
        port: int,
        *,
        tls: ssl.SSLContext | None = None,
    ) -> asyncio.Server:
        """Serve ``runner``, which must be set up; with ``tls``, as HTTPS.

        Raises:
            OSError: the address cannot be listened on.
        """
        assert runner.server is not None, "it is set up"  # noqa: S101 - for mypy  # nosec B101
        make = runner.server
        return await asyncio.get_running_loop().create_server(
            lambda: _Connection(make(), self), host, port, ssl=tls, backlog=_BACKLOG
        )

    def enter(self, connection: "_Connection") -> None:
        """Register a connection; if there are too many, close another one."""
        if len(self._held) >= self.most:
            quiet = (one for one in self._held if not one.is_answered)
            next(quiet, next(iter(self._held))).abort()
        self._held[connection] = None

    def leave(self, connection: "_Connection") -> None:
        """Remove a connection."""
        self._held.pop(connection, None)

    def heard(self, connection: "_Connection") -> None:
        """Record activity: move a connection to the end of the list."""
        if connection in self._held:
            del self._held[connection]
            self._held[connection] = None


class _Connection(asyncio.Protocol):
    """Passes everything to aiohttp's own protocol, and keeps the time limits."""

    def __init__(self, inner: asyncio.Protocol, guard: Guard) -> None:
        self.is_answered = False
        self._inner = inner
        self._guard = guard
        self._transport: asyncio.Transport | None = None
        self._head_timer: asyncio.TimerHandle | None = None
        self._read_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)  # noqa: S101 - for mypy  # nosec B101
        self._transport = transport
        self._inner.connection_made(transport)
        self._head_timer = self._abort_after(self._guard.head_seconds)
        self._guard.enter(self)

    def data_received(self, data: bytes) -> None:
        self._guard.heard(self)
        if self._head_timer is None and not self.is_answered:
            self._head_timer = self._abort_after(self._guard.head_seconds)
        self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        return self._inner.eof_received()

    def pause_writing(self) -> None:
        self._read_timer = self._abort_after(self._guard.read_seconds)
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._guard.heard(self)
        self._read_timer = _cancelled(self._read_timer)
        self._inner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._guard.leave(self)
        self._head_timer = _cancelled(self._head_timer)
        self._read_timer = _cancelled(self._read_timer)
        self._inner.connection_lost(exc)

    def begin_answer(self) -> None:
        """Record that the head of a request is complete."""
        self.is_answered = True
        self._head_timer = _cancelled(self._head_timer)

    def end_answer(self) -> None:
        """Record that the handler has finished."""
        self.is_answered = False
        self._guard.heard(self)

    def abort(self) -> None:
        """Close the connection at once, and stop counting it."""
        self._guard.leave(self)
        if self._transport is not None:
            self._transport.abort()

    def _abort_after(self, seconds: float) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(seconds, self.abort)


def _cancelled(timer: asyncio.TimerHandle | None) -> asyncio.TimerHandle | None:
    """Cancel a timer; return None in its place."""
    if timer is not None:
        timer.cancel()
    return None
