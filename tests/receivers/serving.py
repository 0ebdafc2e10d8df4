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
    method: str = "POST"

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


@dataclass(frozen=True, slots=True)
class Way:
    """How a service is reached in the tests.

    Attributes:
        path: with its query.
        headers: what carries the credentials, as the service sees it.
        options: what the configuration says beyond preset and URL.
        environ: what the example of ``config/presets`` needs.
        wrong: options with credentials that are wrong; None: there are no credentials.
        statuses: answers of the service, and the letter of what they mean: T
            transient, R refused, P permanent.
    """

    service: type
    path: str
    headers: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, object] = field(default_factory=dict)
    environ: Mapping[str, str] = field(default_factory=dict)
    wrong: Mapping[str, object] | None = None
    statuses: Mapping[int, str] = field(default_factory=dict)


def faults_of(rules: Mapping[str, bool]) -> list[str]:
    """Return the names of the rules that do not hold."""
    return [name for name, holds in rules.items() if not holds]


@asynccontextmanager
async def serving(service: Service) -> AsyncIterator[str]:
    """Serve on loopback; yields the URL without a path."""

    async def handle(request: web.Request) -> web.Response:
        if request.method not in getattr(service, "methods", {"POST"}):
            return web.Response(status=405)
        body = await request.read()
        post = Post(request.path, body, request.headers, request.query, request.method)
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
