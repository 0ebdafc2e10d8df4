"""Faults on demand: what a server does instead of its normal answer.

Shapes:  JSON of a control request → Fault; Fault, answer → what the client gets
"""

import socket
import struct
from typing import Annotated, Final

import msgspec
from aiohttp import web
from msgspec import Struct, field
from msgspec.structs import replace

from bridge.simulator.clock import Clock
from bridge.simulator.errors import BadInputError
from bridge.simulator.foreign import Input, parse
from bridge.simulator.http_server import JSON_TYPE, Answering

GARBAGE: Final = b'{"DocumentIncarnation": 2, "Events": [{"Event\xff\x00'
_NO_LINGER = struct.pack("ii", 1, 0)


class Answer(Struct, frozen=True, kw_only=True):
    """Answers with another status."""

    status: int
    retry_after: str | None = None
    body: str = ""


class Hang(Struct, frozen=True):
    """Waits some seconds, then answers normally."""

    seconds: float


class Reset(Struct, frozen=True):
    """Reads the request, then resets the connection."""


class Truncated(Struct, frozen=True):
    """Sends half of the body that Content-Length promises, then disconnects."""


class Garbage(Struct, frozen=True):
    """Answers 200 with a body that is not JSON."""

    body: bytes = GARBAGE


Strike = Answer | Hang | Reset | Truncated | Garbage


class Fault(Struct, frozen=True, kw_only=True):
    """One fault and the requests it applies to.

    Attributes:
        strike: what happens.
        method: the method of the requests; None: any.
        path: the path of the requests, or a parent of it.
        times: the number of requests; None: all until the faults are cleared.
        takes_effect: whether the server processes the request before the fault, so that
            only the answer is lost.
    """

    strike: Strike
    method: str | None = None
    path: str = "/"
    times: int | None = 1
    takes_effect: bool = False

    def strikes(self, method: str, path: str) -> bool:
        """Return whether the fault applies to a request."""
        is_below = path == self.path or path.startswith(self.path.rstrip("/") + "/")
        return is_below and self.method in {None, method}


class _FaultInput(Input, frozen=True, kw_only=True):
    method: str | None = None
    path: str = "/"
    times: Annotated[int, msgspec.Meta(ge=1)] = 1
    until_cleared: bool = False
    takes_effect: bool = False
    status: Annotated[int, msgspec.Meta(ge=200, le=599)] | None = None
    retry_after: int | float | str | None = None
    hang: Annotated[float, msgspec.Meta(ge=0)] | None = None
    reset: bool = False
    truncated: bool = False
    garbage: bool = False
    body: str | None = None


def parse_fault(body: bytes) -> Fault:
    """Read a fault such as {"path": "/siem", "status": 503, "times": 3}.

    Raises:
        BadInputError: the body is not a fault.
    """
    given = parse(body, _FaultInput)
    strikes = _strikes(given)
    if len(strikes) != 1:
        raise BadInputError(
            "a fault has exactly one of status, hang, reset, truncated, garbage"
        )
    return Fault(
        strike=strikes[0],
        method=given.method.upper() if given.method else None,
        path=given.path,
        times=None if given.until_cleared else given.times,
        takes_effect=given.takes_effect,
    )


def _strikes(given: _FaultInput) -> list[Strike]:
    strikes: list[Strike] = []
    if given.status is not None:
        wait = None if given.retry_after is None else str(given.retry_after)
        strikes.append(
            Answer(status=given.status, retry_after=wait, body=given.body or "")
        )
    if given.hang is not None:
        strikes.append(Hang(given.hang))
    if given.reset:
        strikes.append(Reset())
    if given.truncated:
        strikes.append(Truncated())
    if given.garbage:
        strikes.append(Garbage(given.body.encode() if given.body else GARBAGE))
    return strikes


class FaultQueue(Struct):
    """The faults that wait for a request, in order."""

    _waiting: list[Fault] = field(default_factory=list)

    def add(self, fault: Fault) -> None:
        """Add a fault at the end."""
        self._waiting.append(fault)

    def clear(self) -> None:
        """Remove all faults."""
        self._waiting.clear()

    def waiting(self) -> tuple[Fault, ...]:
        """Return the faults that still apply to a later request."""
        return tuple(self._waiting)

    def take(self, method: str, path: str) -> Fault | None:
        """Return the first fault for a request, and count it as used; else None."""
        for place, fault in enumerate(self._waiting):
            if fault.strikes(method, path):
                self._count_down(place, fault)
                return fault
        return None

    def _count_down(self, place: int, fault: Fault) -> None:
        if fault.times is None:
            return
        if fault.times > 1:
            self._waiting[place] = replace(fault, times=fault.times - 1)
        else:
            del self._waiting[place]

    async def answered(
        self, request: web.Request, answer: Answering, clock: Clock
    ) -> web.StreamResponse:
        """Answer ``request``, or apply the next fault for it."""
        await request.read()
        fault = self.take(request.method, request.path)
        if fault is None:
            return await answer()
        if fault.takes_effect:
            answer = _returning(await answer())
        return await _apply(fault.strike, request, answer, clock)


def _returning(response: web.StreamResponse) -> Answering:
    async def answer() -> web.StreamResponse:
        return response

    return answer


async def _apply(
    strike: Strike, request: web.Request, answer: Answering, clock: Clock
) -> web.StreamResponse:
    match strike:
        case Answer():
            headers = {"Retry-After": strike.retry_after} if strike.retry_after else {}
            return web.Response(status=strike.status, text=strike.body, headers=headers)
        case Hang():
            await clock.sleep(strike.seconds)
            return await answer()
        case Reset():
            return _reset(request)
        case Truncated():
            return await _truncated(request, await answer())
        case Garbage():
            return web.Response(body=strike.body, headers={"Content-Type": JSON_TYPE})


def _reset(request: web.Request) -> web.Response:
    if request.transport is not None:
        connection: socket.socket = request.transport.get_extra_info("socket")
        # Without this option the client sees an orderly end of the connection.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
        request.transport.abort()
    return web.Response()  # required by aiohttp; its connection is closed already


async def _truncated(
    request: web.Request, whole: web.StreamResponse
) -> web.StreamResponse:
    body = whole.body if isinstance(whole, web.Response) else b""
    content = body if isinstance(body, bytes) else b"{}"
    part = web.StreamResponse(
        status=whole.status,
        headers={"Content-Type": JSON_TYPE, "Content-Length": str(len(content) + 1)},
    )
    await part.prepare(request)
    await part.write(content[: len(content) // 2])
    if request.transport is not None:
        request.transport.close()
    return part
