"""The health port on loopback: /livez /readyz /metrics /status, and a page at /.

A browser on this machine may be led here by a page of anybody's, under a name that
anybody's name server gives to 127.0.0.1. So where no token is asked for, the Host must
be one of this machine's own names. ``/readyz`` answers everybody, because a probe knows
neither; but whoever may not read ``/status`` is told only which kinds of things are
missing, with no name of an entity, a session or a sink. And any process may connect as
often as it likes, so few connections are held.
"""

import asyncio
import hmac
import ipaddress
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager

import aiohttp
import orjson
from aiohttp import web
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from bridge.foundation.errors import BridgeError
from bridge.foundation.sections import Section
from bridge.foundation.values import Secret
from bridge.health.status import Board, kinds_of
from bridge.net.addresses import is_listen_address, split_address
from bridge.net.connection_limit import Guard

log = logging.getLogger(__name__)

_OPEN_PATHS = {"/livez", "/readyz"}
_MOST_CONNECTIONS = 32
_SHUTDOWN_SECONDS = 1.0  # for answers under way: one that nobody reads has no end
_NOT_MEANT = "without http.token, only localhost and loopback addresses are answered\n"


class HttpConfig(Section, frozen=True, kw_only=True):
    """``[http]``: where the health port listens; "" = nowhere.

    Attributes:
        listen: the address and port; "" opens no port. Example: ``"127.0.0.1:9465"``.
        token: what is asked for by all paths but /livez and /readyz: a bearer token, or
            the password of a browser; required off loopback.
    """

    listen: str = "127.0.0.1:9465"
    token: Secret | None = None

    def faults(self) -> Iterator[tuple[str, str]]:
        """Check the address, and ask for a token off loopback."""
        if not self.listen:
            return
        host = self.listen.rpartition(":")[0]
        if not is_listen_address(self.listen):
            yield "listen", 'must be host:port, such as "127.0.0.1:9465", or ""'
        elif not _is_loopback(host) and self.token is None:
            yield "token", f"is required, since {host} is not loopback"

    @property
    def address(self) -> tuple[str, int]:
        """Host and port."""
        return split_address(self.listen)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


@asynccontextmanager
async def serve(config: HttpConfig, board: Board) -> AsyncIterator[None]:
    """Serve the health port as long as the context is open.

    Raises:
        BridgeError: the address cannot be listened on.
    """
    if not config.listen:
        yield
        return
    guard = Guard(most=_MOST_CONNECTIONS)
    app = application(config, board)
    app.middlewares.insert(0, guard.middleware)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=_SHUTDOWN_SECONDS)
    await runner.setup()
    try:
        server = await _listen(guard, runner, config)
        try:
            yield
        finally:
            server.close()
    finally:
        await runner.cleanup()


async def _listen(
    guard: Guard, runner: web.AppRunner, config: HttpConfig
) -> asyncio.Server:
    host, port = config.address
    try:
        server = await guard.listen(runner, host, port)
    except (OSError, UnicodeError) as error:  # UnicodeError: no name of a host
        cause = getattr(error, "strerror", None) or "it is no address"
        text = f"http.listen: cannot listen on {config.listen}: {cause}"
        raise BridgeError(text) from error
    log.info("health port open", extra={"addresses": _addresses(server)})
    return server


def _addresses(server: asyncio.Server) -> list[str]:
    names = [one.getsockname() for one in server.sockets]
    return [":".join(map(str, name[:2])) for name in names]


def application(config: HttpConfig, board: Board) -> web.Application:
    """Return the web application, not listening yet."""

    @web.middleware
    async def authorize(
        request: web.Request,
        handler: Callable[[web.Request], Awaitable[web.StreamResponse]],
    ) -> web.StreamResponse:
        if request.path not in _OPEN_PATHS:
            if not _is_meant(config, request):
                return web.Response(status=421, text=_NOT_MEANT)
            if not _is_allowed(config, request):
                return _refusal(request)
        return await handler(request)

    async def livez(_: web.Request) -> web.Response:
        return _liveness(board)

    async def readyz(request: web.Request) -> web.Response:
        return _readiness(board, names_all=_may_see_details(config, request))

    async def status(_: web.Request) -> web.Response:
        return _json(await board.status())

    async def metrics(_: web.Request) -> web.Response:
        await board.measure()
        return web.Response(
            body=generate_latest(board.metrics.registry),
            headers={"Content-Type": CONTENT_TYPE_LATEST},
        )

    async def page(request: web.Request) -> web.Response:
        # Most forwarders are never looked at: they do without.
        from bridge.health import status_page as view  # noqa: PLC0415 - see above

        refreshes = "refresh" in request.query
        text = view.page(await board.status(), board.clock.now(), refreshes=refreshes)
        return web.Response(
            text=text, content_type="text/html", charset="utf-8", headers=view.HEADERS
        )

    app = web.Application(middlewares=[authorize])
    app.router.add_get("/", page)
    app.router.add_get("/livez", livez)
    app.router.add_get("/readyz", readyz)
    app.router.add_get("/status", status)
    app.router.add_get("/metrics", metrics)
    return app


def _liveness(board: Board) -> web.Response:
    if board.is_alive():
        return web.Response(text="ok\n")
    return web.Response(status=503, text="the thread of the state file is silent\n")


def _readiness(board: Board, *, names_all: bool) -> web.Response:
    missing = board.missing()
    told = [*missing, *board.notes()]
    return _json(told if names_all else kinds_of(told), status=503 if missing else 200)


def _is_meant(config: HttpConfig, request: web.Request) -> bool:
    """Whether whoever asks knows where he is; no browser leaves Host out."""
    host = request.headers.get("Host")
    if config.token is not None or host is None:
        return True
    name = host if host.endswith("]") else host.rpartition(":")[0] or host
    return _is_loopback(name)


def _may_see_details(config: HttpConfig, request: web.Request) -> bool:
    """Whether whoever asks may read ``/status``.

    Most probes send no token: its file is not read for them, nor warned of.
    """
    if config.token is not None and "Authorization" not in request.headers:
        return False
    return _is_meant(config, request) and _is_allowed(config, request)


def _refusal(request: web.Request) -> web.Response:
    """Ask for the token; a browser can only be asked for a password."""
    scheme = 'Basic realm="sebridge", charset="UTF-8"' if request.path == "/" else ""
    return web.Response(
        status=401,
        text="a bearer token is required\n",
        headers={"WWW-Authenticate": scheme or "Bearer"},
    )


def _is_allowed(config: HttpConfig, request: web.Request) -> bool:
    if config.token is None:
        return True
    try:
        wanted = config.token.reveal()
    except ValueError as error:  # its file is gone: a rotation, perhaps
        log.warning("the bearer token cannot be read", extra={"fault": str(error)})
        return False
    given = _given(request.headers.get("Authorization", ""))
    return given is not None and hmac.compare_digest(
        given.encode(errors="replace"), wanted.encode()
    )


def _given(authorization: str) -> str | None:
    """Return the token: as such, or as the password of any user."""
    scheme, _, token = authorization.partition(" ")
    if scheme.lower() == "bearer":
        return token
    try:
        basic = aiohttp.BasicAuth.decode(authorization, encoding="utf-8")
    except ValueError:
        return None
    return str(basic.password)


def _json(value: object, status: int = 200) -> web.Response:
    return web.Response(
        body=orjson.dumps(value), status=status, content_type="application/json"
    )
