"""A simulated IMDS on loopback: the metadata of a VM, and an API to control it.

    async with ImdsSimulator(ImdsSettings(scenario=…, speed=60)) as imds:
        …  # clients read imds.url + "/metadata/scheduledevents?api-version=…"
        imds.schedule(EventLife(event_type="Reboot", resources=("vm-1",)))

Another process can do the same with requests under /simulator. A page of another site
cannot (see callers.py).
"""

from collections.abc import Sequence
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Self

from aiohttp import web
from aiohttp.typedefs import Handler

from bridge.simulator.callers import for_callers_here
from bridge.simulator.clock import Clock
from bridge.simulator.http_server import MAX_BODY, listening, with_json_errors
from bridge.simulator.imds.control import control_routes
from bridge.simulator.imds.metadata_api import MetadataApi
from bridge.simulator.imds.state import ImdsSettings, ImdsState


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

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
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
