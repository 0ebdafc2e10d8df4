"""Receivers that keep to the rules of what they stand for."""

import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import web


@dataclass
class Receiver:
    """A delivery target that protects itself, as http-webhook.md section 4 has it.

    Attributes:
        allowed: the origin it takes events from; None = it knows no handshake.
        rate: requests a minute, "*" for any number, None to leave it out.
        is_open: whether it takes events without permission, as most do.
        mute: methods that it leaves without an answer.
    """

    allowed: str | None = "*"
    rate: str | None = "*"
    is_open: bool = False
    mute: frozenset[str] = frozenset()
    status: int = 200
    permitted: bool = False
    asked: list[Mapping[str, str]] = field(default_factory=list)
    taken: list[Mapping[str, str]] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    url: str = ""

    async def answer(self, request: web.BaseRequest) -> web.Response:
        origin = request.headers.get("WebHook-Request-Origin")
        if request.method in self.mute and request.transport is not None:
            request.transport.abort()
        if request.method == "OPTIONS":
            self.asked.append(request.headers)
            if self.allowed is None or origin is None:
                return web.Response(status=405)
            self.permitted = True
            headers = {"WebHook-Allowed-Origin": self.allowed, "Allow": "POST"}
            if self.rate is not None:
                headers["WebHook-Allowed-Rate"] = self.rate
            return web.Response(status=self.status, headers=headers)
        if not self.is_open and (not self.permitted or origin is None):
            return web.Response(status=403)
        self.taken.append(request.headers)
        self.times.append(time.monotonic())
        return web.Response(status=204)

    @asynccontextmanager
    async def serving(self) -> AsyncIterator["Receiver"]:
        runner = web.ServerRunner(web.Server(self.answer))
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        host, port = runner.addresses[0][:2]
        self.url = f"http://{host}:{port}/events"
        try:
            yield self
        finally:
            await runner.cleanup()
