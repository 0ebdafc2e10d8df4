"""The port of the probe: 200 while this VM is in rotation, 503 while it is not.

``/alive`` is always 200, for a scale set that deletes what is unhealthy: being out of
rotation is no illness.

Requests need no token, because the answer contains nothing secret. Each response closes
its connection, so that the balancer notices a stop at once.
"""

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Protocol

import orjson
from aiohttp import web

from bridge.events.build import rfc3339
from bridge.foundation.clock import Clock
from bridge.net.connection_limit import Guard
from bridge.net.listening import Port, addresses, listening
from bridge.traffic.app_check import App
from bridge.traffic.config import TrafficConfig

log = logging.getLogger(__name__)

_MOST_CONNECTIONS = 256
_SHUTDOWN_SECONDS = 1.0
# Source: https://learn.microsoft.com/azure/virtual-machine-scale-sets/virtual-machine-scale-sets-health-extension#rich-health-states
_ALIVE = {"ApplicationHealthState": "Healthy"}
_METHODS = ("GET", "HEAD", "OPTIONS")
_HEADERS = {
    "Cache-Control": "no-store",
    "Connection": "close",
    "Server": "sebridge",
    "X-Content-Type-Options": "nosniff",
}


class Rotation(Protocol):
    """Knows whether this VM is in rotation."""

    def shown(self) -> Mapping[str, object]:
        """Return the body of the answer."""
        ...


@asynccontextmanager
async def serve(
    config: TrafficConfig,
    rotation: Rotation,
    app: App | None,
    clock: Clock,
    listener: socket.socket | None = None,
) -> AsyncIterator[Port]:
    """Answer probes while the context is open, as soon as the port is free.

    Args:
        config: ``[traffic]``.
        rotation: knows whether this VM is in rotation.
        app: the application that must also be healthy; None = none is configured.
        clock: measures the time between two tries to listen.
        listener: a socket to use in place of ``traffic.listen``; None = none.
    """
    guard = Guard(most=_MOST_CONNECTIONS)
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", _Answerer(rotation, app).answer)
    runner = guard.runner(application, _SHUTDOWN_SECONDS)
    await runner.setup()
    port = Port("traffic.listen", config.listen)

    async def begin() -> asyncio.Server:
        return await _listen(guard, runner, config, listener)

    try:
        async with listening(begin, port, clock):
            yield port
    finally:
        await runner.cleanup()


async def _listen(
    guard: Guard,
    runner: web.AppRunner,
    config: TrafficConfig,
    listener: socket.socket | None,
) -> asyncio.Server:
    if listener is not None:
        server = await guard.take_over(runner, listener)
    else:
        server = await guard.listen(runner, *config.address)
    found = {"addresses": addresses(server), "isInherited": listener is not None}
    log.info("traffic probe open", extra=found)
    return server


class _Answerer:
    """Answers the requests."""

    def __init__(self, rotation: Rotation, app: App | None) -> None:
        self._rotation = rotation
        self._app = app

    async def answer(self, request: web.Request) -> web.Response:
        if request.path not in {"/", "/alive"}:
            return _response(404, {"error": "only / and /alive are answered"})
        if request.method not in _METHODS:
            wrong = {"error": "only GET, HEAD and OPTIONS are answered"}
            return _response(405, wrong, {"Allow": ", ".join(_METHODS)})
        allowed = {"Allow": ", ".join(_METHODS)} if request.method == "OPTIONS" else {}
        if request.path == "/alive":
            return _response(200, _ALIVE, allowed)
        shown = await self._shown()
        return _response(200 if shown["traffic"] == "in" else 503, shown, allowed)

    async def _shown(self) -> Mapping[str, object]:
        shown = self._rotation.shown()
        if self._app is None or shown["traffic"] != "in":
            return shown
        since = await self._app.unwell_since()
        shown = self._rotation.shown()  # may have changed during the check
        if since is None or shown["traffic"] != "in":
            return shown
        return {
            "traffic": "out",
            "reason": "app",
            "eventId": None,
            "since": rfc3339(since),
        }


def _response(
    status: int, body: object, headers: Mapping[str, str] | None = None
) -> web.Response:
    response = web.Response(
        body=orjson.dumps(body),
        status=status,
        content_type="application/json",
        headers={**_HEADERS, **(headers or {})},
    )
    response.force_close()
    return response
