"""Run a loopback HTTP server that answers local callers in JSON."""

import asyncio
import ssl
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Sequence,
)
from contextlib import asynccontextmanager, contextmanager
from ipaddress import ip_address
from typing import Final

import orjson
from aiohttp import web
from msgspec import Struct, field

from bridge.simulator.errors import (
    BadInputError,
    ForeignCallerError,
    ListenError,
    NoSuchEntityError,
    NoSuchEventError,
    NotLiveError,
)

Answering = Callable[[], Awaitable[web.StreamResponse]]

JSON_TYPE = "application/json; charset=utf-8"
MAX_BODY = 16 * 1024 * 1024
_MOST_CONNECTIONS = 256
# When the simulator stops, it does not wait for requests that a fault delays.
_SHUTDOWN_SECONDS = 0.2
_STATUSES = {
    BadInputError: 400,
    ForeignCallerError: 403,
    NoSuchEntityError: 404,
    NoSuchEventError: 404,
    NotLiveError: 409,
}


@asynccontextmanager
async def listening(
    app: web.Application,
    *,
    name: str,
    host: str,
    port: int,
    tls: ssl.SSLContext | None = None,
) -> AsyncIterator[str]:
    """Serve ``app``; yield its URL, without a slash at the end.

    Args:
        app: the application to serve.
        name: the name of the server in errors.
        host: the address to listen on.
        port: the port to listen on; 0: a free one.
        tls: serve HTTPS with it; None: serve HTTP.

    Raises:
        ListenError: the server cannot listen at the address.
    """
    guard = Guard(most=_MOST_CONNECTIONS)
    app.middlewares.insert(0, guard.middleware)
    runner = web.AppRunner(
        app,
        access_log=None,
        handler_cancellation=True,
        shutdown_timeout=_SHUTDOWN_SECONDS,
    )
    await runner.setup()
    try:
        with _as_listen_error(name, host, port):
            server = await guard.listen(runner, host, port, tls=tls)
        try:
            scheme = "http" if tls is None else "https"
            place = f"{_bracketed(host)}:{server.sockets[0].getsockname()[1]}"
            yield f"{scheme}://{place}"
        finally:
            server.close()
    finally:
        await runner.cleanup()


@contextmanager
def _as_listen_error(name: str, host: str, port: int) -> Iterator[None]:
    try:
        yield
    except (OSError, OverflowError) as error:
        raise ListenError(name, host, port, error) from error


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def as_json(value: object, *, status: int = 200) -> web.Response:
    """Return a JSON response that holds ``value``."""
    return web.Response(
        status=status,
        body=orjson.dumps(value),
        headers={"Content-Type": JSON_TYPE},
    )


async def with_json_errors(answer: Answering) -> web.StreamResponse:
    """Return the answer, or an error response in JSON."""
    try:
        return await answer()
    except tuple(_STATUSES) as error:
        return as_json({"error": str(error)}, status=_STATUSES[type(error)])
    except web.HTTPException as error:
        refused = as_json({"error": error.reason}, status=error.status)
        if "Allow" in error.headers:
            refused.headers["Allow"] = error.headers["Allow"]
        return refused


# -- Limit the connections of an HTTP server, and the time of a request ----------------
#
# The bridge's health port has a guard like this; the simulator has its own, because it
# imports nothing of the bridge. A client that leaks connections must not block others.
#
#     more than ``most``           → the connection that was silent longest is closed; a
#                                    connection that is being answered only if there is
#                                    no other
#     head not complete in time    → the connection is closed
#     answer not read in time      → the connection is closed


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


# -- Control requests: from local scripts or from the simulator's own pages ------------
#
# A web page of any site can make a browser on this machine send requests here, for
# example to schedule events. The browser names the site in Origin and Sec-Fetch-Site.
# If a site lets its own name point to this machine (DNS rebinding), Host has that name.
# A script sends neither Origin nor Sec-Fetch-Site, and its Host is a loopback address.


_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_OWN_SITES: Final = frozenset(
    {"same-origin", "none"}
)  # none: address typed by a person
_READING: Final = frozenset({"GET", "HEAD"})


def for_callers_here(
    routes: Iterable[web.RouteDef], *, host: str
) -> Sequence[web.RouteDef]:
    """Return routes that refuse pages of other sites and foreign host names.

    Args:
        routes: the routes that control the simulator.
        host: the listening address; if other machines can reach it, any Host is valid.
    """
    is_here = _is_loopback(host)
    return [
        web.RouteDef(
            each.method,
            each.path,
            _guarded(each.handler, is_here=is_here),
            each.kwargs,
        )
        for each in routes
    ]


def _guarded(handler: _Handler, *, is_here: bool) -> _Handler:
    async def guarded(request: web.Request) -> web.StreamResponse:
        _check(request, is_here=is_here)
        return await handler(request)

    return guarded


def _check(request: web.Request, *, is_here: bool) -> None:
    """Check that no page of another site has sent the request.

    Raises:
        ForeignCallerError: such a page has sent it, or may have sent it.
    """
    names = request.headers.getall("Host", [])
    if is_here and not all(_is_loopback(_without_port(name)) for name in names):
        raise ForeignCallerError(
            f"Host is {_shown(names)}, and only localhost and loopback addresses, "
            "such as 127.0.0.1, may control the simulator"
        )
    site = request.headers.get("Sec-Fetch-Site")
    if site not in {None, *_OWN_SITES} and not _is_opened_in_a_tab(request):
        raise ForeignCallerError(
            "a page of another site (Sec-Fetch-Site) may not control the simulator"
        )
    # Qpid JMS names http:// as the origin of a WebSocket over TLS. No page can come
    # from there: at this port, everything is TLS.
    schemes = {request.scheme, "http"}
    own = [f"{each}://{name}".lower() for name in names for each in schemes]
    for origin in request.headers.getall("Origin", []):
        is_own = origin.lower() in own
        if not is_own and not (origin == "null" and site == "same-origin"):
            raise ForeignCallerError(
                f"a page of another site (Origin {_shown([origin])}) may not control "
                "the simulator"
            )


def _is_opened_in_a_tab(request: web.Request) -> bool:
    """Return whether a person opens a page by a link; this changes nothing."""
    is_page = request.headers.get("Sec-Fetch-Dest") == "document"
    return is_page and request.method in _READING


def _shown(names: Sequence[str]) -> str:
    return ", ".join(repr(name[:100]) for name in names)


def _without_port(host: str) -> str:
    is_bare = host.endswith("]") or ":" not in host
    return (host if is_bare else host.rpartition(":")[0]).strip("[]")


def _is_loopback(name: str) -> bool:
    name = name.lower().removesuffix(".")
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return name == "localhost" or name.endswith(".localhost")
