"""A local Slack with a clock that tests move, and an app that calls it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from bridge.simulator.inbox import Inbox
from tests.simulator.imds_client import FakeClock, HttpClient, Reply, http_client

TOKEN = "xoxb-1-simulated"
JSON = "application/json; charset=utf-8"
FORM = "application/x-www-form-urlencoded"


@dataclass
class App:
    """An app with a token, and the Slack that it calls."""

    inbox: Inbox
    clock: FakeClock
    http: HttpClient

    async def ask(self, method: str, token: str | None = TOKEN, **args: Any) -> Reply:
        """Call a method, with its arguments as JSON."""
        headers = {"Content-Type": JSON}
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        return await self.http.send("POST", f"/slack/api/{method}", args, headers)

    async def call(self, method: str, token: str | None = TOKEN, **args: Any) -> Any:
        """Call a method; return its answer as JSON."""
        return (await self.ask(method, token, **args)).json

    async def form(self, method: str, **args: str) -> Any:
        """Call a method, with its arguments and the token as a form."""
        body = urlencode({"token": TOKEN, **args}).encode()
        headers = {"Content-Type": FORM}
        reply = await self.http.send("POST", f"/slack/api/{method}", body, headers)
        return reply.json

    async def post(self, text: str = "hello", **args: Any) -> Any:
        """Post to #ops; return the answer."""
        return await self.call("chat.postMessage", channel="ops", text=text, **args)

    async def have(self, **settings: Any) -> None:
        """Set the channels, tokens and limits of the workspace."""
        reply = await self.http.send("PUT", "/slack/workspace", settings)
        assert reply.status == 204, reply.body

    async def history(self, channel: str, **args: Any) -> Any:
        """Return the messages of a channel, newest first."""
        answer = await self.call("conversations.history", channel=channel, **args)
        return answer["messages"]


@asynccontextmanager
async def slack() -> AsyncIterator[App]:
    clock = FakeClock()
    async with Inbox(clock=clock) as inbox, http_client(inbox.url) as http:
        yield App(inbox, clock, http)
