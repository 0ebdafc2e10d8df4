"""A receiver on loopback for webhooks, Slack and Teams messages.

    async with Inbox() as inbox:
        …  # POST or PUT to inbox.url + any path
        message = await inbox.wait_for(lambda m: m.path == "/siem", 5)

Control requests: GET and DELETE /messages (?path= filters by prefix), POST and DELETE
/faults, PUT /options; pages of other sites are refused (see http_server.py).

Under /slack/ it behaves like Slack: /slack/api/ is the Web API (see
slack/server.py), any other path is an incoming webhook. Under /teams/ it behaves
like Teams for a bot (see teams/server.py).
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from typing import Final, Self
from weakref import WeakSet

from aiohttp import web
from aiohttp.typedefs import Handler
from msgspec import Struct

from bridge.simulator.clock import Clock, SystemClock
from bridge.simulator.faults import FaultQueue, parse_fault
from bridge.simulator.foreign import Input, load_or_text, parse
from bridge.simulator.http_server import (
    MAX_BODY,
    as_json,
    for_callers_here,
    listening,
    with_json_errors,
)
from bridge.simulator.slack.clicks import ACTIONS
from bridge.simulator.slack.refusals import RateError, RefusedError, refusal
from bridge.simulator.slack.server import API, SlackServer, refused
from bridge.simulator.teams.refusals import TeamsRefusalError
from bridge.simulator.teams.server import ROOT as TEAMS
from bridge.simulator.teams.server import TeamsServer
from bridge.simulator.teams.server import refused as refused_by_teams

# -- Store the messages of the inbox, and wake the readers that wait for one -----------
#
# Used by one event loop. Only the last messages are kept, so it may run for weeks.


KEPT: Final = 10_000


class Message(Struct, frozen=True, kw_only=True):
    """One accepted request.

    Attributes:
        received_at: RFC 3339, UTC.
        headers: by their lower-case names.
        body: JSON if the content type says so, and ``load`` accepts it; else text.
    """

    received_at: str
    path: str
    headers: Mapping[str, str]
    body: object

    def as_json(self) -> dict[str, object]:
        """Return the message as GET /messages shows it."""
        return {
            "receivedAt": self.received_at,
            "path": self.path,
            "headers": dict(self.headers),
            "body": self.body,
        }


class Mailbox:
    """The messages, oldest first, and the streams that wait for more."""

    def __init__(self) -> None:
        self._messages = deque[Message](maxlen=KEPT)
        # Weak: a stream is removed when its reader is gone.
        self._listeners = WeakSet[asyncio.Queue[Message]]()

    @property
    def messages(self) -> tuple[Message, ...]:
        """The messages, oldest first."""
        return tuple(self._messages)

    def put(self, message: Message) -> None:
        """Store a message and pass it to the waiting streams."""
        self._messages.append(message)
        for listener in self._listeners:
            listener.put_nowait(message)

    def clear(self) -> None:
        """Remove all messages."""
        self._messages.clear()

    def stream(self) -> AsyncIterator[Message]:
        """Return a stream of all messages from now on."""
        listener: asyncio.Queue[Message] = asyncio.Queue()
        self._listeners.add(listener)
        return _drained(listener)

    async def wait_for(
        self, predicate: Callable[[Message], bool], within: float
    ) -> Message:
        """Return the first message that matches; it may have arrived before the call.

        Args:
            predicate: returns whether a message matches.
            within: how many seconds to wait.

        Raises:
            TimeoutError: no such message arrived.
        """
        coming = self.stream()  # opened first, so that no message is missed
        for message in self._messages:
            if predicate(message):
                return message
        async with asyncio.timeout(within):
            async for message in coming:
                if predicate(message):
                    return message
        raise TimeoutError  # never reached: a stream has no end


async def _drained(listener: asyncio.Queue[Message]) -> AsyncIterator[Message]:
    while True:
        yield await listener.get()


# -- A receiver on loopback for webhooks, Slack and Teams messages ---------------------


__all__ = ["Inbox", "Message"]

_SLACK_PATH: Final = "/slack/"
_TEAMS_LOGIN: Final = f"{TEAMS}login/"  # its bodies have secrets
# Slack accepts about one message a second in a channel.
_SLACK_SECONDS: Final = 1.0


class _Options(Input, frozen=True, kw_only=True):
    slack_rate_limit: bool


class Inbox(Mailbox):
    """The receiver, used as an async context manager.

    Args:
        host: the address to listen on.
        port: the port to listen on; 0: a free one.
        clock: the source of time; None: the system's clock.

    Attributes:
        url: where it listens, without a slash at the end; "" before.
        faults: the faults on demand.
        slack: the workspace behind Slack's Web API.
        teams: the Teams that a bot talks to.
        slack_rate_limit: answer 429 above one message a second for each webhook path.
    """

    def __init__(
        self, host: str = "127.0.0.1", port: int = 0, *, clock: Clock | None = None
    ) -> None:
        super().__init__()
        self.url = ""
        self.faults = FaultQueue()
        self.slack_rate_limit = False
        self._host = host
        self._port = port
        self._clock = clock or SystemClock()
        self.slack = SlackServer(self._clock)
        self.teams = TeamsServer(self._clock)
        self._last_webhook_at: dict[str, float] = {}
        self._open = AsyncExitStack()

    async def __aenter__(self) -> Self:
        app = self._application()
        self.url = await self._open.enter_async_context(
            listening(app, name="the inbox", host=self._host, port=self._port)
        )
        self.slack.clicks.base_url = self.url
        self.teams.listen_at(self.url)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._open.aclose()

    def _application(self) -> web.Application:
        app = web.Application(middlewares=[_json_errors], client_max_size=MAX_BODY)
        control = [
            web.get("/messages", self._list, allow_head=False),
            web.delete("/messages", self._clear),
            web.post("/faults", self._add_fault),
            web.delete("/faults", self._clear_faults),
            web.put("/options", self._configure),
            *self.slack.routes(),
            *self.teams.routes(),
        ]
        app.add_routes(for_callers_here(control, host=self._host))
        app.add_routes(
            [
                web.get(API + "{method}", self._receive, allow_head=False),
                web.get(TEAMS + "{path:.+}", self._receive, allow_head=False),
                web.post("/{path:.*}", self._receive),
                web.put("/{path:.*}", self._receive),
                web.options("/{path:.*}", _consent),
            ]
        )
        return app

    async def _receive(self, request: web.Request) -> web.StreamResponse:
        async def answer() -> web.StreamResponse:
            return await self._take(request)

        return await self.faults.answered(request, answer, self._clock)

    async def _take(self, request: web.Request) -> web.Response:
        message = Message(
            received_at=self._now(),
            path=request.path,
            headers=_headers(request),
            body=_body(await request.read(), request.content_type),
        )
        if request.path.startswith(API):
            return await self._take_api_call(request, message)
        if request.path.startswith(TEAMS):
            return await self._take_teams_request(request, message)
        if request.path.startswith(ACTIONS):
            return await self.slack.respond(request.path, message.body)
        if request.path.startswith(_SLACK_PATH):
            return self._take_webhook(message)
        self.put(message)
        return web.Response(status=204)

    def _take_webhook(self, message: Message) -> web.Response:
        if (code := refusal(message.body)) is not None:
            return web.Response(status=400, text=code)
        now = self._clock.now()
        last = self._last_webhook_at.get(message.path)
        if self.slack_rate_limit and last is not None and now < last + _SLACK_SECONDS:
            return web.Response(
                status=429, text="rate_limited", headers={"Retry-After": "1"}
            )
        self._last_webhook_at[message.path] = now
        self.put(message)
        self.slack.take(message.path, message.body)
        return web.Response(text="ok")

    async def _take_api_call(
        self, request: web.Request, message: Message
    ) -> web.Response:
        try:
            answer = self.slack.answer(request, await request.read())
        except (RefusedError, RateError) as error:
            return refused(error)
        if request.method == "POST":
            self.put(message)
        return answer

    async def _take_teams_request(
        self, request: web.Request, message: Message
    ) -> web.Response:
        try:
            answer = self.teams.answer(request, await request.read())
        except TeamsRefusalError as error:
            return refused_by_teams(error)
        if request.method != "GET" and not request.path.startswith(_TEAMS_LOGIN):
            self.put(message)
        return answer

    def _now(self) -> str:
        now = datetime.fromtimestamp(self._clock.now(), UTC)
        return now.isoformat(timespec="microseconds").replace("+00:00", "Z")

    async def _list(self, request: web.Request) -> web.Response:
        prefix = request.query.get("path", "")
        wanted = (each for each in self.messages if each.path.startswith(prefix))
        return as_json([message.as_json() for message in wanted])

    async def _clear(self, _request: web.Request) -> web.Response:
        self.clear()
        return web.Response(status=204)

    async def _add_fault(self, request: web.Request) -> web.Response:
        self.faults.add(parse_fault(await request.read()))
        return web.Response(status=204)

    async def _clear_faults(self, _request: web.Request) -> web.Response:
        self.faults.clear()
        return web.Response(status=204)

    async def _configure(self, request: web.Request) -> web.Response:
        given = parse(await request.read(), _Options)
        self.slack_rate_limit = given.slack_rate_limit
        return web.Response(status=204)


@web.middleware
async def _json_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    async def answer() -> web.StreamResponse:
        return await handler(request)

    return await with_json_errors(answer)


async def _consent(request: web.Request) -> web.Response:
    """Accept any sender, as the CloudEvents webhook handshake requires."""
    rate = request.headers.get("WebHook-Request-Rate", "*")
    return web.Response(
        headers={
            "Allow": "OPTIONS, POST, PUT",
            "WebHook-Allowed-Origin": "*",
            "WebHook-Allowed-Rate": rate,
        }
    )


def _headers(request: web.Request) -> dict[str, str]:
    names = {name.lower() for name in request.headers}
    return {name: ", ".join(request.headers.getall(name)) for name in sorted(names)}


def _body(body: bytes, content_type: str) -> object:
    subtype = content_type.partition("/")[2]
    is_json = subtype == "json" or subtype.endswith("+json")
    return load_or_text(body) if is_json else body.decode(errors="replace")
