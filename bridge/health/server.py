"""What the health port answers: /livez /readyz /metrics /status, and a page at /.

A browser on this machine may be led here by a page of anybody's, under a name that
anybody's name server gives to 127.0.0.1. So where no token is asked for, the Host must
be one of this machine's own names. ``/readyz`` answers everybody, because a probe knows
neither; but whoever may not read ``/status`` is told only which kinds of things are
missing, with no name of an entity, a session or a sink. And any process may connect as
often as it likes, so few connections are held.
"""

import asyncio
import hmac
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import aiohttp
import orjson
from aiohttp import web

from bridge.health.config import HttpConfig, is_loopback
from bridge.health.status import StatusSource, kinds_of
from bridge.net.connection_limit import Guard

log = logging.getLogger(__name__)

_OPEN_PATHS = {"/livez", "/readyz"}
_MOST_CONNECTIONS = 32
_SHUTDOWN_SECONDS = 1.0  # for answers under way: one that nobody reads has no end
_NOT_MEANT = "without http.token, only localhost and loopback addresses are answered\n"


@asynccontextmanager
async def opened(
    config: HttpConfig, status_source: StatusSource
) -> AsyncIterator[Callable[[], asyncio.Protocol]]:
    """Set the server up; yields what makes who speaks on a connection."""
    guard = Guard(most=_MOST_CONNECTIONS)
    app = application(config, status_source)
    app.middlewares.insert(0, guard.middleware)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=_SHUTDOWN_SECONDS)
    await runner.setup()
    try:
        yield guard.maker(runner)
    finally:
        await runner.cleanup()


def application(config: HttpConfig, status_source: StatusSource) -> web.Application:
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
        return _liveness(status_source)

    async def readyz(request: web.Request) -> web.Response:
        return _readiness(status_source, names_all=_may_see_details(config, request))

    async def status(_: web.Request) -> web.Response:
        return _json(await status_source.status())

    async def metrics(_: web.Request) -> web.Response:
        # Who is only asked for /livez and /readyz does without.
        from prometheus_client import exposition as form  # noqa: PLC0415 - see above

        await status_source.measure()
        return web.Response(
            body=form.generate_latest(status_source.metrics.registry),
            headers={"Content-Type": form.CONTENT_TYPE_LATEST},
        )

    async def page(request: web.Request) -> web.Response:
        # Most forwarders are never looked at: they do without.
        from bridge.health import status_page as view  # noqa: PLC0415 - see above

        refreshes = "refresh" in request.query
        text = view.page(
            await status_source.status(), status_source.clock.now(), refreshes=refreshes
        )
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


def _liveness(status_source: StatusSource) -> web.Response:
    if status_source.is_alive():
        return web.Response(text="ok\n")
    return web.Response(status=503, text="the thread of the state file is silent\n")


def _readiness(status_source: StatusSource, *, names_all: bool) -> web.Response:
    missing = status_source.missing()
    told = [*missing, *status_source.notes()]
    return _json(told if names_all else kinds_of(told), status=503 if missing else 200)


def _is_meant(config: HttpConfig, request: web.Request) -> bool:
    """Whether whoever asks knows where he is; no browser leaves Host out."""
    host = request.headers.get("Host")
    if config.token is not None or host is None:
        return True
    name = host if host.endswith("]") else host.rpartition(":")[0] or host
    return is_loopback(name)


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
