"""A receiver for what webhook and Slack sinks send: takes, keeps and shows it.

POST or PUT on any path        kept; ``/slack/…`` is checked as Slack checks
GET    /messages[?path=/siem]  what came, oldest first
DELETE /messages               forget it
POST   /faults, DELETE         the next requests fail: see faults.py
OPTIONS on any path            consents to the CloudEvents webhook handshake
"""

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Self

from aiohttp import web

from bridge.simulator import faults
from bridge.simulator.control import explained
from bridge.simulator.faults import Faults
from bridge.simulator.listening import listen
from bridge.simulator.slack import fault_of

_KEPT_MESSAGES = 10_000
_LARGEST = 2 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """What came in. ``headers`` have lower-case names; ``body`` is JSON or text."""

    received_at: datetime
    path: str
    headers: dict[str, str]
    body: object

    def as_json(self) -> dict[str, object]:
        """Return it as ``GET /messages`` shows it."""
        return {
            "receivedAt": self.received_at.isoformat().replace("+00:00", "Z"),
            "path": self.path,
            "headers": self.headers,
            "body": self.body,
        }


@dataclass(slots=True)
class Inbox:
    """The receiver. ``async with Inbox() as inbox: inbox.url``."""

    host: str = "127.0.0.1"
    port: int = 0
    faults: Faults = field(default_factory=Faults)
    messages: deque[Message] = field(
        default_factory=lambda: deque(maxlen=_KEPT_MESSAGES)
    )
    _streams: list["asyncio.Queue[Message]"] = field(default_factory=list)
    _stack: AsyncExitStack = field(default_factory=AsyncExitStack)

    @property
    def url(self) -> str:
        """The address to send to."""
        return f"http://{self.host}:{self.port}"

    async def __aenter__(self) -> Self:
        self.port = await self._stack.enter_async_context(
            listen(self.application(), self.host, self.port, "the inbox")
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def stream(self) -> AsyncIterator[Message]:
        """Yield every message that comes from now on."""
        queue: asyncio.Queue[Message] = asyncio.Queue()
        self._streams.append(queue)
        try:
            while True:
                yield await queue.get()
        finally:
            self._streams.remove(queue)

    def application(self) -> web.Application:
        """Return the web application, not listening yet."""
        app = web.Application(middlewares=[self._meddle], client_max_size=_LARGEST)
        app.router.add_get("/messages", explained(self._list))
        app.router.add_delete("/messages", explained(self._forget))
        app.router.add_post("/faults", explained(self._fault))
        app.router.add_delete("/faults", explained(self._no_faults))
        app.router.add_route("OPTIONS", "/{path:.*}", self._consent)
        for method in ("POST", "PUT"):
            app.router.add_route(method, "/{path:.*}", self._take)
        return app

    @web.middleware
    async def _meddle(
        self,
        request: web.Request,
        handler: Callable[[web.Request], Awaitable[web.StreamResponse]],
    ) -> web.StreamResponse:
        is_ours = request.path in {"/messages", "/faults"}
        fault = None if is_ours else self.faults.take(request)
        if fault is None:
            return await handler(request)
        return await faults.answer(fault, request, handler)

    async def _take(self, request: web.Request) -> web.Response:
        text = (await request.read()).decode(errors="replace")
        is_json = "json" in request.content_type
        message = Message(
            received_at=datetime.now(UTC),
            path=request.path,
            headers={name.lower(): value for name, value in request.headers.items()},
            body=_json_or_text(text) if is_json else text,
        )
        if request.path.startswith("/slack"):
            if (wrong := fault_of(message.body)) is not None:
                return web.Response(status=400, text=wrong)
            self._keep(message)
            return web.Response(text="ok")
        self._keep(message)
        return web.Response(status=202)

    def _keep(self, message: Message) -> None:
        self.messages.append(message)
        for queue in self._streams:
            queue.put_nowait(message)

    async def _consent(self, request: web.Request) -> web.Response:
        headers = {"Allow": "POST, PUT, OPTIONS"}
        if origin := request.headers.get("WebHook-Request-Origin"):
            headers["WebHook-Allowed-Origin"] = origin
            headers["WebHook-Allowed-Rate"] = "*"
        return web.Response(headers=headers)

    async def _list(self, request: web.Request) -> object:
        path = request.query.get("path", "")
        return [m.as_json() for m in self.messages if m.path.startswith(path)]

    async def _forget(self, _: web.Request) -> object:
        self.messages.clear()
        return None

    async def _fault(self, request: web.Request) -> object:
        self.faults.add_json(await request.read())
        return None

    async def _no_faults(self, _: web.Request) -> object:
        self.faults.clear()
        return None


def _json_or_text(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return text
