"""The health port on loopback: /livez /readyz /metrics /status."""

import hmac
import ipaddress
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager

import orjson
from aiohttp import web
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from bridge.errors import BridgeError
from bridge.options import Secret, Section
from bridge.status import Board

log = logging.getLogger(__name__)

_OPEN_PATHS = {"/livez", "/readyz"}


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
        if request.path in _OPEN_PATHS or _is_allowed(config, request):
            return await handler(request)
        return web.Response(
            status=401,
            text="a bearer token is required\n",
            headers={"WWW-Authenticate": "Bearer"},
        )

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

    app = web.Application(middlewares=[authorize])
    app.router.add_get("/livez", livez)
    app.router.add_get("/readyz", readyz)
    app.router.add_get("/status", status)
    app.router.add_get("/metrics", metrics)
    return app


def _is_allowed(config: HttpConfig, request: web.Request) -> bool:
    if config.token is None:
        return True
    scheme, _, given = request.headers.get("Authorization", "").partition(" ")
    try:
        wanted = config.token.reveal()
    except ValueError as error:  # its file is gone: a rotation, perhaps
        log.warning("the bearer token cannot be read", extra={"fault": str(error)})
        return False
    is_equal = hmac.compare_digest(given.encode(errors="replace"), wanted.encode())
    return is_equal and scheme.lower() == "bearer"


def _json(value: object, status: int = 200) -> web.Response:
    return web.Response(
        body=orjson.dumps(value), status=status, content_type="application/json"
    )
