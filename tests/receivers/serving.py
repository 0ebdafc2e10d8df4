"""A service as it is documented, behind a real HTTP server on loopback."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import orjson
from aiohttp import web
from multidict import CIMultiDict, CIMultiDictProxy


@dataclass(frozen=True, slots=True)
class Post:
    """A request with its body; header names have no case."""

    path: str
    body: bytes
    headers: CIMultiDictProxy[str] | CIMultiDict[str]
    query: Mapping[str, str] = field(default_factory=dict)

    @property
    def media_type(self) -> str:
        return self.headers.get("Content-Type", "").partition(";")[0].strip().lower()

    @property
    def scheme(self) -> str:
        return self.headers.get("Authorization", "").partition(" ")[0]

    @property
    def credentials(self) -> str:
        return self.headers.get("Authorization", "").partition(" ")[2]


@dataclass(frozen=True, slots=True)
class Reply:
    status: int
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


def json_reply(status: int, value: object, **headers: str) -> Reply:
    return Reply(status, orjson.dumps(value), {"Content-Type": "application/json"})


class Service(Protocol):
    """What takes a request or refuses it, by the rules that its makers document."""

    def answer(self, post: Post) -> Reply: ...


@asynccontextmanager
async def serving(service: Service) -> AsyncIterator[str]:
    """Serve on loopback; yields the URL without a path."""

    async def handle(request: web.Request) -> web.Response:
        if request.method != "POST":
            return web.Response(status=405)
        body = await request.read()
        post = Post(request.path, body, request.headers, request.query)
        reply = service.answer(post)
        return web.Response(
            status=reply.status, body=reply.body, headers=dict(reply.headers)
        )

    app = web.Application(client_max_size=4 * 1024 * 1024)
    app.router.add_route("*", "/{path:.*}", handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    address: Any = runner.addresses[0]
    try:
        yield f"http://127.0.0.1:{address[1]}"
    finally:
        await runner.cleanup()
