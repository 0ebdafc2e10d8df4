"""The health port on loopback: /livez /readyz /metrics /status, and a page at /.

A browser on this machine may be led here by a page of anybody's, under a name that
anybody's name server gives to 127.0.0.1. So where no token is asked for, the Host must
be one of this machine's own names.
"""

import hmac
import ipaddress
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager

import aiohttp
import orjson
from aiohttp import web
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from bridge.errors import BridgeError
from bridge.options import Section
from bridge.status import Board
from bridge.values import Secret

log = logging.getLogger(__name__)

_OPEN_PATHS = {"/livez", "/readyz"}
_NOT_MEANT = "without http.token, only localhost and loopback addresses are answered\n"


class HttpConfig(Section, frozen=True, kw_only=True):
    """``[http]``: where the health port listens; "" = nowhere."""

    listen: str = "127.0.0.1:9465"
    token: Secret | None = None

    def faults(self) -> Iterator[tuple[str, str]]:
        """Check the address, and ask for a token off loopback."""
        if not self.listen:
            return
        host, _, port = self.listen.rpartition(":")
        if not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
            yield "listen", 'must be host:port, such as "127.0.0.1:9465", or ""'
        elif not _is_loopback(host) and self.token is None:
            yield "token", f"is required, since {host} is not loopback"

    @property
    def address(self) -> tuple[str, int]:
        """Host and port."""
        host, _, port = self.listen.rpartition(":")
        return host.strip("[]"), int(port)


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
    runner = web.AppRunner(application(config, board), access_log=None)
    await runner.setup()
    try:
        await _listen(runner, config)
        yield
    finally:
        await runner.cleanup()


async def _listen(runner: web.AppRunner, config: HttpConfig) -> None:
    host, port = config.address
    try:
        await web.TCPSite(runner, host, port).start()
    except (OSError, UnicodeError) as error:  # UnicodeError: no name of a host
        cause = getattr(error, "strerror", None) or "it is no address"
        text = f"http.listen: cannot listen on {config.listen}: {cause}"
        raise BridgeError(text) from error
    log.info("health port open", extra={"addresses": _addresses(runner)})


def _addresses(runner: web.AppRunner) -> list[str]:
    return [":".join(map(str, address[:2])) for address in runner.addresses]


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
        return web.Response(text="ok\n")

    async def readyz(_: web.Request) -> web.Response:
        missing = board.missing()
        return _json([*missing, *board.notes()], status=503 if missing else 200)

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
        from bridge import page as view  # noqa: PLC0415 - see above

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


def _is_meant(config: HttpConfig, request: web.Request) -> bool:
    """Whether whoever asks knows where he is; no browser leaves Host out."""
    host = request.headers.get("Host")
    if config.token is not None or host is None:
        return True
    name = host if host.endswith("]") else host.rpartition(":")[0] or host
    return _is_loopback(name)


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
