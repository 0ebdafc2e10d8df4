"""The port of the probe: 200 while this VM is in rotation, 503 while it is not.

``/alive`` is always 200, for a scale set that deletes what is unhealthy: being out of
rotation is no illness.

Requests need no token, because the answer contains nothing secret. Each response closes
its connection, so that the balancer notices a stop at once.
"""

import asyncio
import logging
import os
import socket
from collections.abc import AsyncIterator, Iterator, Mapping, MutableMapping
from contextlib import asynccontextmanager
from datetime import datetime
from functools import partial
from typing import Protocol

import aiohttp
import orjson
from aiohttp import web
from msgspec import Struct, field

from bridge.events.cloudevent import rfc3339
from bridge.foundation.clock import Clock
from bridge.foundation.workers import cancel_all
from bridge.net.addresses import ListenAddress
from bridge.net.connection_limit import Guard
from bridge.net.http_client import open_session
from bridge.net.listening import Port, addresses, listening
from bridge.traffic.config import TrafficConfig

# -- Checks the health of the application, for the answer of the probe -----------------
#
# A balancer has only one probe for each rule. So one answer must cover both: the
# rotation of this VM, and the health of the application.


_FAULTS = (aiohttp.ClientError, OSError, ValueError, asyncio.TimeoutError)


class App(Protocol):
    """The application whose health also decides the answer of the probe."""

    async def unwell_since(self) -> datetime | None:
        """Return since when the application is not healthy; None = it is healthy."""
        ...


class AppCheck(Struct):
    """Requests the application's health URL; callers at the same time share a request.

    Attributes:
        timeout: how many seconds one request may take.
    """

    session: aiohttp.ClientSession
    url: str
    timeout: float
    clock: Clock
    _asking: "asyncio.Task[bool] | None" = None
    _unwell_since: datetime | None = field(default=None)

    async def unwell_since(self) -> datetime | None:
        """Return since when the application does not answer 2xx; None = it does."""
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._ask(), name="traffic:app")
        is_well = await asyncio.shield(self._asking)
        if is_well:
            self._unwell_since = None
        elif self._unwell_since is None:
            self._unwell_since = self.clock.now()
        return self._unwell_since

    async def close(self) -> None:
        """Cancel the request in flight."""
        if self._asking is not None:
            await cancel_all(self._asking)

    async def _ask(self) -> bool:
        limit = aiohttp.ClientTimeout(total=self.timeout)
        try:
            async with self.session.get(
                self.url, allow_redirects=False, timeout=limit
            ) as response:
                return 200 <= response.status < 300
        except _FAULTS as error:
            log.debug("the application does not answer", extra={"fault": str(error)})
            return False


@asynccontextmanager
async def open_app(url: str, timeout: float, clock: Clock) -> AsyncIterator[App | None]:  # noqa: ASYNC109 - of one request
    """Open a check of the application; None if ``url`` is empty."""
    if not url:
        yield None
        return
    async with open_session(user_agent="scheduled-events-bridge-probe") as session:
        check = AppCheck(session, url, timeout, clock)
        try:
            yield check
        finally:
            await check.close()


# -- The port of the probe: 200 while this VM is in rotation, 503 while it is not ------


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
    port = Port("traffic.listen")
    begins = {
        at.text: partial(_listen, guard, runner, at, listener)
        for at in (config.addresses if listener is None else config.addresses[:1])
    }

    try:
        async with listening(begins, port, clock):
            yield port
    finally:
        await runner.cleanup()


async def _listen(
    guard: Guard,
    runner: web.AppRunner,
    at: ListenAddress,
    listener: socket.socket | None,
) -> asyncio.Server:
    if listener is not None:
        server = await guard.take_over(runner, listener)
    else:
        server = await guard.listen(runner, at)
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


# -- Takes over listeners from systemd, so that a restart refuses no connection --------
#
# Nor can another program take the port meanwhile.
#
# Source: sd_listen_fds(3).


_FIRST = 3
_NAMES = "LISTEN_FDNAMES"
# FileDescriptorName= of sebridge-traffic.socket and sebridge-health.socket
TRAFFIC, HEALTH = "traffic", "health"


def inherited_listeners(
    environ: MutableMapping[str, str],
) -> Mapping[str, socket.socket]:
    """Return the listeners that systemd passed, by their names.

    The variables are removed, so that child processes do not use them.

    Args:
        environ: the environment of this process.
    """
    variables = {
        key: environ.pop(key, "") for key in ("LISTEN_PID", "LISTEN_FDS", _NAMES)
    }
    if variables["LISTEN_PID"] != str(os.getpid()):
        return {}
    names, found = variables[_NAMES].split(":"), dict[str, socket.socket]()
    for descriptor, name in _descriptors(variables["LISTEN_FDS"], names):
        is_known = name in {TRAFFIC, HEALTH} and name not in found
        if is_known and (listener := _listener(descriptor)) is not None:
            found[name] = listener
    return found


def _descriptors(count: str, names: list[str]) -> Iterator[tuple[int, str]]:
    passed = int(count) if count.isascii() and count.isdigit() else 0
    return zip(range(_FIRST, _FIRST + passed), names, strict=False)


def _listener(descriptor: int) -> socket.socket | None:
    """Return the socket if it listens for connections, else None."""
    try:
        found = socket.socket(fileno=descriptor)
    except OSError:
        return None
    is_stream = found.type == socket.SOCK_STREAM
    if not (is_stream and found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)):
        found.detach()
        return None
    found.settimeout(0)
    os.set_inheritable(found.fileno(), False)  # noqa: FBT003 - positional only
    return found
