"""The web server of the hub: it identifies the person before it handles a request.

Handlers find the person in ``request[PERSON]``. ``/livez`` and ``/readyz`` need no
identity, ``/metrics`` needs a bearer token.
"""

import asyncio
import hmac
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from aiohttp import web
from aiohttp.typedefs import Middleware
from msgspec import Struct

from bridge.foundation.errors import BridgeError
from bridge.hub.access import Refusal, RequestInfo, identify, is_this_machine
from bridge.hub.api import PERSON, Handler, fault, faults_as_json
from bridge.hub.config import HubConfig
from bridge.hub.metrics import HubMetrics
from bridge.net.addresses import ListenAddress
from bridge.net.connection_limit import Guard
from bridge.net.listening import addresses

log = logging.getLogger(__name__)

_MOST_CONNECTIONS = 1000  # enough for 200 browsers and other clients
_SHUTDOWN_SECONDS = 1.0
_MOST_BYTES = 64 * 1024
_WITHOUT_IDENTITY = {"/livez", "/readyz"}
_METRICS = "/metrics"
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "X-Frame-Options": "DENY",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
}


class Hub(Struct, frozen=True, kw_only=True):
    """The parts of the hub that the server needs.

    Attributes:
        missing: returns why the hub is not ready; empty = it is ready.
        routes: the routes of the API and of the pages.
        error_pages: turns errors in JSON into pages, for browsers; None = it does not.
    """

    config: HubConfig
    metrics: HubMetrics
    missing: Callable[[], list[str]]
    routes: Sequence[web.RouteDef]
    error_pages: Middleware | None = None


def application(hub: Hub) -> web.Application:
    """Return the web application, not listening yet."""

    @web.middleware
    async def authenticated(
        request: web.Request, handler: Handler
    ) -> web.StreamResponse:
        if request.path in _WITHOUT_IDENTITY:
            return await handler(request)
        if request.path == _METRICS:
            return await _authorize_metrics(hub.config, request, handler)
        person = identify(hub.config.access, request_info(request))
        if isinstance(person, Refusal):
            return fault(person.status, person.words)
        request[PERSON] = person
        return await handler(request)

    async def livez(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def readyz(_: web.Request) -> web.Response:
        missing = hub.missing()
        return web.json_response(missing, status=503 if missing else 200)

    async def metrics(_: web.Request) -> web.Response:
        from prometheus_client import exposition as form  # noqa: PLC0415 - at first use

        body = form.generate_latest(hub.metrics.registry)
        if hub.metrics.alarms is not None:
            body += form.generate_latest(hub.metrics.alarms)
        return web.Response(
            body=body,
            headers={"Content-Type": form.CONTENT_TYPE_LATEST},
        )

    people = [] if hub.error_pages is None else [hub.error_pages]
    layers = [_security_headers, *people, faults_as_json, authenticated]
    app = web.Application(middlewares=layers, client_max_size=_MOST_BYTES)
    app.router.add_get("/livez", livez)
    app.router.add_get("/readyz", readyz)
    app.router.add_get(_METRICS, metrics)
    app.router.add_routes(hub.routes)
    return app


def request_info(request: web.Request) -> RequestInfo:
    """Return the parts of a request that identify its sender."""
    name = request.transport and request.transport.get_extra_info("peername")
    return RequestInfo(
        peer=str(name[0]) if name else "",
        host=request.headers.get("Host"),
        headers=[
            (key.decode("latin-1"), value.decode("utf-8", "replace"))
            for key, value in request.raw_headers
        ],
    )


@web.middleware
async def _security_headers(
    request: web.Request, handler: Handler
) -> web.StreamResponse:
    found = await handler(request)
    for name, value in _HEADERS.items():
        found.headers.setdefault(name, value)
    return found


async def _authorize_metrics(
    config: HubConfig, request: web.Request, handler: Handler
) -> web.StreamResponse:
    """Check the bearer token of a request for /metrics.

    Without a configured token, only loopback mode answers, and only this machine.
    """
    if config.token is None:
        is_near = config.access.mode == "loopback" and is_this_machine(
            request.headers.get("Host")
        )
        return await handler(request) if is_near else fault(403, "needs hub.token")
    given = request.headers.get("Authorization", "").partition(" ")
    wanted = config.token.reveal().encode()
    is_known = hmac.compare_digest(given[2].encode(errors="replace"), wanted)
    if given[0].lower() != "bearer" or not is_known:
        found = fault(401, "a bearer token is required")
        found.headers["WWW-Authenticate"] = "Bearer"
        return found
    return await handler(request)


@asynccontextmanager
async def serve(hub: Hub) -> AsyncIterator[tuple[str, int]]:
    """Serve as long as the context is open; yields host and port.

    Raises:
        BridgeError: the hub cannot listen on the address.
    """
    guard = Guard(most=_MOST_CONNECTIONS)
    runner = guard.runner(application(hub), _SHUTDOWN_SECONDS)
    await runner.setup()
    try:
        async with AsyncExitStack() as stack:
            servers = [
                await _listen(at, guard, runner, stack) for at in hub.config.addresses
            ]
            host, port = servers[0].sockets[0].getsockname()[:2]
            yield host, port
    finally:
        await runner.cleanup()


async def _listen(
    at: ListenAddress, guard: Guard, runner: web.AppRunner, stack: AsyncExitStack
) -> asyncio.Server:
    try:
        server = await guard.listen(runner, at)
    except (OSError, UnicodeError) as error:
        cause = getattr(error, "strerror", None) or "it is no address"
        text = f"hub.listen: cannot listen on {at.text}: {cause}"
        raise BridgeError(text) from error
    stack.callback(server.close)
    for one in addresses(server):
        log.info("hub listens", extra={"address": one})
    return server
