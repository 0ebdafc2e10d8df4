"""A local Azure Resource Manager that acknowledges scheduled events.

    async with Arm([imds]) as arm:
        …  # POST arm.url + "/subscriptions/…/scheduledevents/{id}/acknowledge"

    one    POST …/scheduledevents/{id}/acknowledge      200; 404, 409 {"error": …}
    list   POST …/scheduledevents {"value": [id, …]}    200, or 207 in one of two forms

POST /faults adds faults on demand (401, 403, 429 with Retry-After, slow …), as in the
inbox.

Source: specification/maintenance/resource-manager of Azure/azure-rest-api-specs,
2025-11-01.
"""

import re
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Literal, Protocol, Self

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler
from msgspec import Struct

from bridge.simulator.clock import Clock, SystemClock
from bridge.simulator.errors import NoSuchEventError
from bridge.simulator.faults import FaultQueue, parse_fault
from bridge.simulator.foreign import Input, parse
from bridge.simulator.http_server import (
    MAX_BODY,
    as_json,
    for_callers_here,
    listening,
    with_json_errors,
)
from bridge.simulator.imds.document import ScheduledEvent, Status
from bridge.simulator.tls import TlsFiles, server_context

_RESOURCE = (
    r"/subscriptions/[0-9a-f-]{36}/resourcegroups/[^/]+/providers/microsoft\.compute"
    r"/(?:virtualmachines|virtualmachinescalesets|availabilitysets)/[^/]+"
    r"/providers/microsoft\.maintenance/scheduledevents"
)
_ONE = re.compile(rf"{_RESOURCE}/([^/]+)/acknowledge", re.IGNORECASE)
_LIST = re.compile(_RESOURCE, re.IGNORECASE)
_VERSION = re.compile(r"\d{4}-\d\d-\d\d(-preview)?")
_APPROVED = {"value": "Successfully Approved"}
_BY = "azure-resource-manager"
_MOST_REQUESTS = 10_000


class Machine(Protocol):
    """The scheduled events of one VM: an ``ImdsState``."""

    def find(self, event_id: str) -> ScheduledEvent:
        """Return a live event.

        Raises:
            NoSuchEventError: it does not exist.
        """
        ...

    def approve(self, event_id: str, by: str) -> bool:
        """Accept an approval; False: the EventId is missing."""
        ...


class _Options(Input, frozen=True, kw_only=True):
    form: Literal["response", "error"] = "response"
    targets: bool = True
    token: str = ""


class _Events(msgspec.Struct, frozen=True):
    value: list[str]


class ReceivedRequest(Struct, frozen=True, kw_only=True):
    """A request, as received."""

    path: str
    authorization: str
    body: bytes


class Arm:
    """Resource Manager, used as an async context manager.

    Args:
        machines: the VMs whose events can be acknowledged.
        host: the address to listen on.
        port: the port to listen on; 0: a free one.
        clock: the source of time; None: the system's clock.
        tls: the certificate; None: HTTP.

    Attributes:
        url: where it listens, without a slash at the end; "" before.
        faults: the faults on demand.
        requests: the last requests, oldest first.
        options: the form of a 207, whether a 207 names targets, and the only token that
            is accepted; "": any token, or none.
    """

    def __init__(
        self,
        machines: Sequence[Machine],
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        clock: Clock | None = None,
        tls: TlsFiles | None = None,
    ) -> None:
        self._tls = tls
        self.url = ""
        self.faults = FaultQueue()
        self.requests: list[ReceivedRequest] = []
        self.options = _Options()
        self._machines = machines
        self._host = host
        self._port = port
        self._clock = clock or SystemClock()
        self._open = AsyncExitStack()

    async def __aenter__(self) -> Self:
        app = web.Application(middlewares=[_json_errors], client_max_size=MAX_BODY)
        control = [
            web.get("/requests", self._list_requests),
            web.post("/faults", self._add_fault),
            web.delete("/faults", self._clear_faults),
            web.put("/options", self._configure),
        ]
        app.add_routes(for_callers_here(control, host=self._host))
        app.add_routes([web.post("/{path:.*}", self._receive)])
        context = None if self._tls is None else server_context(self._tls)
        self.url = await self._open.enter_async_context(
            listening(
                app, name="the ARM", host=self._host, port=self._port, tls=context
            )
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._open.aclose()

    async def _receive(self, request: web.Request) -> web.StreamResponse:
        async def answer() -> web.StreamResponse:
            return await self._answer(request)

        received = ReceivedRequest(
            path=request.path_qs,
            authorization=request.headers.get("Authorization", ""),
            body=await request.read(),
        )
        self.requests = [*self.requests, received][-_MOST_REQUESTS:]
        return await self.faults.answered(request, answer, self._clock)

    async def _answer(self, request: web.Request) -> web.Response:
        wanted, given = self.options.token, request.headers.get("Authorization", "")
        if wanted and given != f"Bearer {wanted}":
            return _refused(401, "AuthenticationFailed", "The token is not valid.")
        if not _VERSION.fullmatch(request.query.get("api-version", "")):
            words = "The api-version query parameter (?api-version=) is required."
            return _refused(400, "MissingApiVersionParameter", words)
        if one := _ONE.fullmatch(request.path):
            return self._one(one[1])
        if _LIST.fullmatch(request.path):
            return self._many(parse(await request.read(), _Events).value)
        return _refused(404, "ResourceNotFound", "There is no such resource.")

    def _one(self, event_id: str) -> web.Response:
        code = self._acknowledge(event_id)
        if code == "NotFound":
            return _refused(404, code, f"Event {event_id} is not found.")
        if code == "Conflict":
            return _refused(409, code, f"Event {event_id} has started already.")
        return as_json(_APPROVED)

    def _many(self, event_ids: Sequence[str]) -> web.Response:
        codes = [(event_id, self._acknowledge(event_id)) for event_id in event_ids]
        if all(code == "OK" for _, code in codes):
            return as_json(_APPROVED)
        details = [
            {**self._target(event_id), "code": code, "message": f"{code}: {event_id}"}
            for event_id, code in codes
        ]
        summary = {"code": "MultiStatusResponse", "message": "See the details."}
        return as_json({self.options.form: summary, "details": details}, status=207)

    def _target(self, event_id: str) -> dict[str, str]:
        return {"target": event_id} if self.options.targets else {}

    def _acknowledge(self, event_id: str) -> str:
        """Approve an event on every VM that has it; return the code of ARM."""
        found = [one for one in self._machines if _event(one, event_id) is not None]
        events = [_event(one, event_id) for one in found]
        if not found:
            return "NotFound"
        if all(event and event.status is Status.STARTED for event in events):
            return "Conflict"
        for machine in found:
            machine.approve(event_id, _BY)
        return "OK"

    async def _list_requests(self, _: web.Request) -> web.Response:
        return as_json([{"path": one.path} for one in self.requests])

    async def _add_fault(self, request: web.Request) -> web.Response:
        self.faults.add(parse_fault(await request.read()))
        return as_json({})

    async def _clear_faults(self, _: web.Request) -> web.Response:
        self.faults.clear()
        return as_json({})

    async def _configure(self, request: web.Request) -> web.Response:
        self.options = parse(await request.read(), _Options)
        return as_json({})


def _event(machine: Machine, event_id: str) -> ScheduledEvent | None:
    try:
        return machine.find(event_id)
    except NoSuchEventError:
        return None


def _refused(status: int, code: str, message: str) -> web.Response:
    return as_json({"error": {"code": code, "message": message}}, status=status)


@web.middleware
async def _json_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    async def answer() -> web.StreamResponse:
        return await handler(request)

    return await with_json_errors(answer)
