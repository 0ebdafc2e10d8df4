"""A local Instance Metadata Service that behaves as the real one does.

Source: https://learn.microsoft.com/azure/virtual-machines/instance-metadata-service
"""

import asyncio
import json
import time
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Self

from aiohttp import web

from bridge.simulator import faults
from bridge.simulator.control import add_control
from bridge.simulator.faults import Faults
from bridge.simulator.instance import Machine
from bridge.simulator.lifecycle import VERSIONS, Lifecycle, ids_of
from bridge.simulator.listening import listen

_KEPT_REQUESTS = 10_000
_INSTANCE_VERSIONS = (
    "2017-08-01",
    "2019-06-04",
    "2020-09-01",
    "2021-02-01",
    "2021-12-13",
    "2023-07-01",
    "2025-04-07",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A request that came in, for whoever wants to check them."""

    at: datetime
    method: str
    path: str
    query: str
    headers: dict[str, str]
    body: str


@dataclass(slots=True, kw_only=True)
class Options:
    """How the service behaves where it may behave in several ways."""

    etag: bool = False
    first_call_delay: float = 0.0
    rate_limit: bool = False


@dataclass(slots=True)
class ImdsSimulator:
    """The service. ``async with ImdsSimulator() as imds: imds.url``.

    Attributes:
        lifecycle: the scheduled events; change them here.
        faults: what the next requests meet.
        compute: instance metadata; None = 404, as while it is not there yet.
        enabled: set by the first request for the document, as the real service
            enables the feature then.
        requests: what came in, the last ten thousand.
    """

    host: str = "127.0.0.1"
    port: int = 0
    machine: Machine = field(default_factory=Machine)
    options: Options = field(default_factory=Options)
    lifecycle: Lifecycle = field(default_factory=Lifecycle)
    faults: Faults = field(default_factory=Faults)
    compute: dict[str, object] | None = None
    enabled: asyncio.Event = field(default_factory=asyncio.Event)
    requests: deque[Request] = field(
        default_factory=lambda: deque(maxlen=_KEPT_REQUESTS)
    )
    monotonic: Callable[[], float] = time.monotonic
    _recent: deque[float] = field(default_factory=lambda: deque(maxlen=5))
    _stack: AsyncExitStack = field(default_factory=AsyncExitStack)

    def __post_init__(self) -> None:
        self.compute = self.machine.compute()

    @property
    def url(self) -> str:
        """The address to give to ``[imds] endpoint``."""
        return f"http://{self.host}:{self.port}"

    async def __aenter__(self) -> Self:
        self.port = await self._stack.enter_async_context(
            listen(self.application(), self.host, self.port, "the IMDS")
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    def application(self) -> web.Application:
        """Return the web application, not listening yet."""
        app = web.Application(middlewares=[self._guard])
        app.router.add_route("*", "/metadata/scheduledevents", self._events)
        app.router.add_route("*", "/metadata/instance", self._instance)
        app.router.add_route("*", "/metadata/instance/compute", self._compute)
        app.router.add_route("*", "/metadata/versions", self._versions)
        add_control(app, self)
        return app

    @web.middleware
    async def _guard(
        self,
        request: web.Request,
        handler: Callable[[web.Request], Awaitable[web.StreamResponse]],
    ) -> web.StreamResponse:
        if not request.path.startswith("/metadata/"):
            return await handler(request)
        await self._keep(request)
        if (fault := self.faults.take(request)) is not None:
            return await faults.answer(fault, request, handler)
        if (wrong := fault_of(request)) is not None:
            return refused(wrong)
        if self._is_throttled():
            return web.json_response({"error": "Too many requests"}, status=429)
        return await handler(request)

    async def _keep(self, request: web.Request) -> None:
        body = await request.read()
        self.requests.append(
            Request(
                at=datetime.now(UTC),
                method=request.method,
                path=request.path,
                query=request.query_string,
                headers={k.lower(): v for k, v in request.headers.items()},
                body=body.decode(errors="replace"),
            )
        )

    def _is_throttled(self) -> bool:
        """Whether this is the sixth request within a second."""
        if not self.options.rate_limit:
            return False
        now = self.monotonic()
        is_full = len(self._recent) == self._recent.maxlen
        if is_full and now - self._recent[0] < 1.0:
            return True
        self._recent.append(now)
        return False

    async def _events(self, request: web.Request) -> web.StreamResponse:
        version = request.query.get("api-version", "")
        if version not in VERSIONS:
            return wrong_version(VERSIONS)
        if request.method == "GET":
            return await self._document(request, version)
        if request.method == "POST":
            return await self._start(request, version)
        return web.json_response({"error": "Method not allowed"}, status=405)

    async def _document(self, request: web.Request, version: str) -> web.Response:
        if not self.enabled.is_set() and self.options.first_call_delay:
            await asyncio.sleep(self.options.first_call_delay)
        self.lifecycle.pass_time(datetime.now(UTC))
        body = self.lifecycle.document(version)
        self.enabled.set()
        headers = {}
        if self.options.etag:
            headers["ETag"] = str(self.lifecycle.incarnation)
            if request.headers.get("If-None-Match") == headers["ETag"]:
                return web.Response(status=304, headers=headers)
        return web.Response(body=body, content_type="application/json", headers=headers)

    async def _start(self, request: web.Request, version: str) -> web.Response:
        ids = start_requests(await request.read(), version)
        if ids is None:
            return refused("Bad request. StartRequests is malformed")
        if not all(self.lifecycle.knows(event_id) for event_id in ids):
            return refused("Bad request. There is no such EventId")
        by = request.headers.get("X-Simulated-Vm", self.machine.name)
        for event_id in ids:
            self.lifecycle.approve(event_id, by)
        return web.Response(status=200)

    async def _compute(self, request: web.Request) -> web.Response:
        return self._metadata(request, self.compute)

    async def _instance(self, request: web.Request) -> web.Response:
        whole = None if self.compute is None else {"compute": self.compute}
        return self._metadata(request, whole)

    def _metadata(self, request: web.Request, value: object) -> web.Response:
        if request.method != "GET":
            return web.json_response({"error": "Method not allowed"}, status=405)
        if not request.query.get("api-version"):
            return wrong_version(_INSTANCE_VERSIONS)
        if value is None:
            return web.json_response({"error": "Not found"}, status=404)
        return web.json_response(value)

    async def _versions(self, _: web.Request) -> web.Response:
        return web.json_response({"apiVersions": list(_INSTANCE_VERSIONS)})


def start_requests(body: bytes, version: str) -> list[str] | None:
    """Return the EventIds that a body asks to start; None if it is malformed."""
    try:
        whole = json.loads(body)
    except ValueError:
        return None
    allowed = {"StartRequests"}
    if version == VERSIONS[0]:
        allowed.add("DocumentIncarnation")
    if not isinstance(whole, dict) or not whole.keys() <= allowed:
        return None
    requests = whole.get("StartRequests")
    if not isinstance(requests, list) or not requests:
        return None
    ids = ids_of({"Events": requests})
    return ids if len(ids) == len(requests) else None


def fault_of(request: web.Request) -> str | None:
    """Return what is wrong with a request as such; None = nothing."""
    if request.headers.get("Metadata", "").lower() != "true":
        return "Bad request. Required metadata header not specified"
    if "X-Forwarded-For" in request.headers:
        return "Bad request. X-Forwarded-For is not allowed"
    if any(len(request.query.getall(key)) > 1 for key in request.query):
        return "Bad request. Duplicate query parameter"
    return None


def refused(text: str) -> web.Response:
    """Return a 400 as the service words it."""
    return web.json_response({"error": text}, status=400)


def wrong_version(versions: tuple[str, ...]) -> web.Response:
    """Return the 400 that lists the newest versions."""
    return web.json_response(
        {
            "error": "Bad request. api-version was not specified or is not supported. "
            "For more information refer to aka.ms/azureimds",
            "newest-versions": sorted(versions, reverse=True)[:3],
        },
        status=400,
    )
