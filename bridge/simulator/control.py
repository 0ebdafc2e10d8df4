"""Driving the simulated IMDS from another process: HTTP under ``/simulator/``.

GET    /simulator/state                 what is going on
PUT    /simulator/document[?raw=1]      serve this document, verbatim
DELETE /simulator/document              serve our own again
POST   /simulator/events                schedule an event
POST   /simulator/events/{id}/start     start it
DELETE /simulator/events/{id}           take it away: completed or cancelled
POST   /simulator/incarnation           {"incarnation": 3}: the VM has moved
PUT    /simulator/instance              other metadata; null = 404
POST   /simulator/faults, DELETE        see faults.py
PUT    /simulator/options               etag, firstCallDelay, rateLimit, startOn
GET    /simulator/requests, DELETE      what came in
"""

import uuid
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Literal, Protocol

import msgspec
from aiohttp import web

from bridge.simulator.errors import SimulatorError
from bridge.simulator.faults import Faults
from bridge.simulator.lifecycle import Event, Lifecycle, StartOn


class Controlled(Protocol):
    """What of the simulator can be controlled."""

    lifecycle: Lifecycle
    faults: Faults
    compute: dict[str, object] | None

    @property
    def options(self) -> "Switches":
        """How the service behaves."""
        ...

    @property
    def requests(self) -> "Log":
        """What came in."""
        ...


class Switches(Protocol):
    """The switches of the service."""

    etag: bool
    first_call_delay: float
    rate_limit: bool


class Log(Protocol):
    """The requests kept."""

    def clear(self) -> None:
        """Forget them."""
        ...


class NewEvent(
    msgspec.Struct, kw_only=True, forbid_unknown_fields=True, rename="camel"
):
    """An event to schedule; ``not_before`` is in seconds from now."""

    type: str
    resources: tuple[str, ...]
    event_id: str | None = None
    not_before: float | None = None
    duration: int = -1
    source: str = "Platform"
    description: str = ""
    status: Literal["Scheduled", "Started"] = "Scheduled"

    def event(self) -> Event:
        """Return the event, from now on."""
        after = None if self.not_before is None else timedelta(seconds=self.not_before)
        return Event(
            event_id=self.event_id or str(uuid.uuid4()).upper(),
            event_type=self.type,
            resources=self.resources,
            status=self.status,
            not_before=None if after is None else datetime.now(UTC) + after,
            description=self.description,
            source=self.source,
            duration=self.duration,
        )


class NewOptions(
    msgspec.Struct, kw_only=True, forbid_unknown_fields=True, rename="camel"
):
    """Switches to set; what is left out stays as it is."""

    etag: bool | None = None
    first_call_delay: float | None = None
    rate_limit: bool | None = None
    start_on: StartOn | None = None


class NewIncarnation(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The number that the document has from now on."""

    incarnation: int


def add_control(app: web.Application, imds: Controlled) -> None:
    """Add the control endpoints to the application of a simulator."""
    routes = _Routes(imds)
    for method, path, handler in (
        ("GET", "/simulator/state", routes.state),
        ("PUT", "/simulator/document", routes.document),
        ("DELETE", "/simulator/document", routes.own_document),
        ("POST", "/simulator/events", routes.schedule),
        ("DELETE", "/simulator/events/{id}", routes.remove),
        ("POST", "/simulator/events/{id}/start", routes.start),
        ("POST", "/simulator/incarnation", routes.incarnation),
        ("PUT", "/simulator/instance", routes.instance),
        ("POST", "/simulator/faults", routes.fault),
        ("DELETE", "/simulator/faults", routes.no_faults),
        ("PUT", "/simulator/options", routes.switch),
        ("GET", "/simulator/requests", routes.requests),
        ("DELETE", "/simulator/requests", routes.no_requests),
    ):
        app.router.add_route(method, path, explained(handler))


Handler = Callable[[web.Request], Awaitable[object]]


def explained(handler: Handler) -> Callable[[web.Request], Awaitable[web.Response]]:
    """Answer with JSON, or 400 and one sentence where the input is wrong."""

    async def answer(request: web.Request) -> web.Response:
        try:
            result = await handler(request)
        except (SimulatorError, msgspec.DecodeError) as error:
            return web.json_response({"error": str(error)}, status=400)
        body = msgspec.json.encode({} if result is None else result)
        return web.Response(body=body, content_type="application/json")

    return answer


class _Routes:
    def __init__(self, imds: Controlled) -> None:
        self.imds = imds

    async def state(self, _: web.Request) -> object:
        life = self.imds.lifecycle
        return {
            "incarnation": life.incarnation,
            "events": [event.as_json("2020-07-01") for event in life.events.values()],
            "approvals": {key: sorted(names) for key, names in life.approvals.items()},
            "startOn": life.start_on,
            "isVerbatim": life.verbatim is not None,
        }

    async def document(self, request: web.Request) -> object:
        body = await request.read()
        if "raw" not in request.query:
            msgspec.json.decode(body)
        self.imds.lifecycle.show(body)
        return None

    async def own_document(self, _: web.Request) -> object:
        self.imds.lifecycle.show(None)
        return None

    async def schedule(self, request: web.Request) -> object:
        event = msgspec.json.decode(await request.read(), type=NewEvent).event()
        self.imds.lifecycle.schedule(event)
        return event.as_json("2020-07-01")

    async def remove(self, request: web.Request) -> object:
        self.imds.lifecycle.remove(request.match_info["id"])
        return None

    async def start(self, request: web.Request) -> object:
        self.imds.lifecycle.start(request.match_info["id"])
        return None

    async def incarnation(self, request: web.Request) -> object:
        new = msgspec.json.decode(await request.read(), type=NewIncarnation)
        self.imds.lifecycle.incarnation = new.incarnation
        return None

    async def instance(self, request: web.Request) -> object:
        body = await request.read()
        self.imds.compute = msgspec.json.decode(body, type=dict[str, object] | None)
        return None

    async def fault(self, request: web.Request) -> object:
        self.imds.faults.add_json(await request.read())
        return None

    async def no_faults(self, _: web.Request) -> object:
        self.imds.faults.clear()
        return None

    async def switch(self, request: web.Request) -> object:
        new = msgspec.json.decode(await request.read(), type=NewOptions)
        options = self.imds.options
        if new.etag is not None:
            options.etag = new.etag
        if new.first_call_delay is not None:
            options.first_call_delay = new.first_call_delay
        if new.rate_limit is not None:
            options.rate_limit = new.rate_limit
        if new.start_on is not None:
            self.imds.lifecycle.start_on = new.start_on
        return None

    async def requests(self, _: web.Request) -> object:
        return self.imds.requests

    async def no_requests(self, _: web.Request) -> object:
        self.imds.requests.clear()
        return None
