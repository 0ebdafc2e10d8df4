"""A simulated IMDS on loopback: the metadata of a VM, and an API to control it.

    async with ImdsSimulator(ImdsSettings(scenario=…, speed=60)) as imds:
        …  # clients read imds.url + "/metadata/scheduledevents?api-version=…"
        imds.schedule(EventLife(event_type="Reboot", resources=("vm-1",)))

Another process can do the same with requests under /simulator. A page of another site
cannot (see http_server.py).
"""

from collections import deque
from collections.abc import Sequence
from contextlib import AsyncExitStack
from email.utils import formatdate
from typing import Annotated, Final, Self

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler

from bridge.simulator.clock import Clock
from bridge.simulator.errors import BadInputError
from bridge.simulator.foreign import parse
from bridge.simulator.http_server import (
    JSON_TYPE,
    MAX_BODY,
    as_json,
    for_callers_here,
    listening,
    with_json_errors,
)
from bridge.simulator.imds.control import control_routes
from bridge.simulator.imds.document import (
    INSTANCE_VERSIONS,
    VERSIONS,
    element,
    instance_of,
)
from bridge.simulator.imds.state import ImdsSettings, ImdsState, LoggedRequest


class ImdsSimulator(ImdsState):
    """The IMDS of one VM, used as an async context manager.

    Args:
        settings: the initial state.
        host: the address to listen on.
        port: the port to listen on; 0: a free one.
        clock: the source of time; None: the system's clock.
        control: additional routes: more of /simulator, and the page at /.

    Attributes:
        url: where it listens, without a slash at the end; "" before.
    """

    def __init__(
        self,
        settings: ImdsSettings | None = None,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        clock: Clock | None = None,
        control: Sequence[web.RouteDef] = (),
    ) -> None:
        super().__init__(settings or ImdsSettings(), clock)
        self.url = ""
        self._host = host
        self._port = port
        self._control = control
        self._open = AsyncExitStack()

    async def __aenter__(self) -> Self:
        control = (*control_routes(self), *self._control)
        app = _application(self, for_callers_here(control, host=self._host))
        self.url = await self._open.enter_async_context(
            listening(app, name="the IMDS", host=self._host, port=self._port)
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._open.aclose()


def _application(state: ImdsState, control: Sequence[web.RouteDef]) -> web.Application:
    metadata = MetadataApi(state)

    @web.middleware
    async def answered(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.path == "/" or request.path.startswith("/simulator/"):

            async def answer() -> web.StreamResponse:
                return await handler(request)

            return await with_json_errors(answer)
        return await metadata.answered(request, handler)

    app = web.Application(middlewares=[answered], client_max_size=MAX_BODY)
    app.add_routes(metadata.routes())
    app.add_routes(control)
    return app


# -- The HTTP API of /metadata, with the rules and errors of the real service ----------


_REQUESTS_A_SECOND = 5
_MORE: Final = "For more information refer to aka.ms/azureimds"


class _StartRequest(msgspec.Struct, frozen=True, rename="pascal"):
    event_id: str


class _StartRequests(msgspec.Struct, frozen=True, rename="pascal"):
    start_requests: Annotated[list[_StartRequest], msgspec.Meta(min_length=1)]
    # Required by the preview version, as text or number; not needed later.
    document_incarnation: int | str | None = None


class _UnknownVersionError(Exception):
    """A request without a known api-version; ``known`` lists the valid ones."""

    def __init__(self, asked: str | None, known: Sequence[str]) -> None:
        fault = "is invalid or was" if asked else "was"
        super().__init__(
            f"Bad request. api-version {fault} not specified in the request. {_MORE}"
        )
        self.newest = list(reversed(known[-3:]))


class MetadataApi:
    """Answers the requests of a VM.

    Args:
        state: the state of the simulated IMDS.
    """

    def __init__(self, state: ImdsState) -> None:
        self._state = state
        self._recent: deque[float] = deque()

    def routes(self) -> Sequence[web.RouteDef]:
        """Return the routes under /metadata."""
        events, instance = "/metadata/scheduledevents", "/metadata/instance"
        return [
            web.get(events, self._document, allow_head=False),
            web.post(events, self._start_requests),
            web.get(instance, self._instance, allow_head=False),
            web.get(instance + "/{path:.+}", self._instance, allow_head=False),
            web.get("/metadata/versions", self._versions, allow_head=False),
        ]

    async def answered(
        self, request: web.Request, handler: Handler
    ) -> web.StreamResponse:
        """Answer one request to /metadata: log it, apply faults, check it."""

        async def answer() -> web.StreamResponse:
            return await with_json_errors(checked)

        async def checked() -> web.StreamResponse:
            return self._refusal(request) or await _versioned(request, handler)

        await self._log(request)
        state = self._state
        response = await state.faults.answered(request, answer, state.clock)
        if not response.prepared:
            response.headers["Date"] = formatdate(state.clock.now(), usegmt=True)
        return response

    async def _log(self, request: web.Request) -> None:
        body = await request.read()
        self._state.requests.append(
            LoggedRequest(
                method=request.method,
                path=request.path,
                query=dict(request.query),
                headers={str(name): value for name, value in request.headers.items()},
                body=body.decode(errors="replace"),
                at=self._state.clock.now(),
            )
        )

    def _refusal(self, request: web.Request) -> web.Response | None:
        if self._state.options.rate_limit and self._is_too_many():
            return _refused("Too many requests", status=429)
        if request.headers.get("Metadata", "").lower() != "true":
            return _refused(
                f"Bad request. Required metadata header not specified. {_MORE}"
            )
        if "X-Forwarded-For" in request.headers:
            return _refused(f"Bad request. Forwarded requests are not allowed. {_MORE}")
        if len(set(request.query)) < len(request.query):
            return _refused(f"Bad request. Duplicate query parameters. {_MORE}")
        return None

    def _is_too_many(self) -> bool:
        now = self._state.clock.now()
        while self._recent and self._recent[0] <= now - 1:
            self._recent.popleft()
        if len(self._recent) >= _REQUESTS_A_SECOND:
            return True
        self._recent.append(now)
        return False

    async def _document(self, request: web.Request) -> web.Response:
        version = _version(request, VERSIONS)
        await self._state.enabled()
        view = self._state.read(version)
        headers = {"Content-Type": JSON_TYPE}
        if self._state.options.etag:
            headers["ETag"] = view.etag
            if _has_seen(request, view.etag):
                return web.Response(status=304, headers={"ETag": view.etag})
        return web.Response(body=view.body, headers=headers)

    async def _start_requests(self, request: web.Request) -> web.Response:
        version = _version(request, VERSIONS)
        try:
            given = parse(await request.read(), _StartRequests)
        except BadInputError as error:
            return _refused(f"Bad request. {error}")
        event_ids = tuple(wanted.event_id for wanted in given.start_requests)
        if not self._state.submit(event_ids, version):
            return _refused("Bad request. There is no such EventId in the document.")
        return web.Response()

    async def _instance(self, request: web.Request) -> web.Response:
        version = _version(request, INSTANCE_VERSIONS)
        if self._state.compute is None:
            raise web.HTTPNotFound
        tree = instance_of(self._state.compute, version)
        path = request.match_info.get("path", "").strip("/")
        found = element(tree, path.split("/")) if path else tree
        if found is None:
            raise web.HTTPNotFound
        return _formatted(found, request.query.get("format"))

    async def _versions(self, _request: web.Request) -> web.Response:
        return as_json({"apiVersions": list(INSTANCE_VERSIONS)})


async def _versioned(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except _UnknownVersionError as error:
        newest = {"error": str(error), "newest-versions": error.newest}
        return as_json(newest, status=400)


def _formatted(found: object, wanted: str | None) -> web.Response:
    is_leaf = not isinstance(found, dict | list)
    if is_leaf and wanted == "text":
        return web.Response(text=str(found))
    if is_leaf or wanted not in {None, "json"}:
        return _refused(f"Bad request. Requested format is not supported. {_MORE}")
    return as_json(found)


def _version(request: web.Request, known: Sequence[str]) -> str:
    asked = request.query.get("api-version")
    if asked is None or asked not in known:
        raise _UnknownVersionError(asked, known)
    return asked


def _has_seen(request: web.Request, etag: str) -> bool:
    offered = request.headers.get("If-None-Match", "").split(",")
    return etag in {tag.strip().removeprefix("W/").strip('"') for tag in offered}


def _refused(text: str, *, status: int = 400) -> web.Response:
    return as_json({"error": text}, status=status)
