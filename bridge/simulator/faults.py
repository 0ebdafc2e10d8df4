"""Faults on demand for the local HTTP servers: the next requests fail as told.

    {"status": 503, "retryAfter": 2, "times": 3}   three answers of 503
    {"hang": 10}                                   answer only after 10 s
    {"reset": true}                                drop the connection unanswered
    {"truncate": true}                             promise more bytes than are sent
    {"body": "garbage"}                            answer 200 with this
"times": 0 = until cleared; "method" and "path" (a prefix) limit which requests.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import msgspec
from aiohttp import web

from bridge.simulator.errors import SimulatorError


class Fault(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """One fault; ``times`` counts down, 0 from the start = until cleared."""

    path: str = ""
    method: str = ""
    status: int | None = None
    retry_after: int | str | None = None
    hang: float = 0.0
    reset: bool = False
    truncate: bool = False
    body: str | None = None
    times: int = 1

    def concerns(self, request: web.Request) -> bool:
        """Whether a request is to fail so."""
        is_method = not self.method or self.method.upper() == request.method
        return is_method and request.path.startswith(self.path)


@dataclass(slots=True)
class Faults:
    """The faults still to come, in order."""

    waiting: list[Fault] = field(default_factory=list)

    def add(self, fault: Fault) -> None:
        """Let the next fitting requests fail."""
        self.waiting.append(fault)

    def clear(self) -> None:
        """Let everything work again."""
        self.waiting.clear()

    def add_json(self, body: bytes) -> None:
        """Add a fault as the control endpoint takes it.

        Raises:
            SimulatorError: it is none.
        """
        try:
            self.add(msgspec.json.decode(body, type=Fault))
        except msgspec.DecodeError as error:
            raise SimulatorError(f"no fault: {error}") from error

    def take(self, request: web.Request) -> Fault | None:
        """Return the fault that this request meets, and count it."""
        for fault in self.waiting:
            if fault.concerns(request):
                if fault.times:
                    fault.times -= 1
                    if not fault.times:
                        self.waiting.remove(fault)
                return fault
        return None


Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


async def answer(
    fault: Fault, request: web.Request, handler: Handler
) -> web.StreamResponse:
    """Answer a request as its fault wants it."""
    if fault.hang:
        await asyncio.sleep(fault.hang)
    if fault.reset:
        await request.read()
        return _abort(request)
    if fault.truncate:
        return await _truncated(request, await handler(request))
    if fault.status is not None or fault.body is not None:
        after = fault.retry_after
        headers = {} if after is None else {"Retry-After": str(after)}
        return web.Response(
            status=fault.status or 200, text=fault.body or "", headers=headers
        )
    return await handler(request)


def _abort(request: web.Request) -> web.StreamResponse:
    if request.transport is not None:
        request.transport.abort()
    return web.Response()


async def _truncated(
    request: web.Request, whole: web.StreamResponse
) -> web.StreamResponse:
    body = whole.body if isinstance(whole, web.Response) else b""
    text = bytes(body) if isinstance(body, bytes) else b"{}"
    response = web.StreamResponse(headers={"Content-Length": str(len(text) + 100)})
    await response.prepare(request)
    await response.write(text[: len(text) // 2 + 1])
    _abort(request)
    return response
