"""The Functions app with a bot, a namespace, and a local Teams around it."""

import json
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import aiohttp
from aiohttp import web
from aiohttp.test_utils import TestServer

from approver.handlers import Handlers
from approver.settings import Settings
from approver.timings import Timings
from bridge.foundation.values import Secret
from bridge.servicebus.namespace import NamespaceConfig
from bridge.servicebus.sender import Sender
from bridge.simulator.inbox import Inbox
from bridge.simulator.servicebus.broker import Broker
from bridge.simulator.teams.page import address
from bridge.simulator.teams.team import PEOPLE, Conversation, Post
from bridge.sinks.base import ApprovalAddress
from tests.infra.functions_world import (
    ADDRESS,
    BUTTON_SECRET,
    ENTITIES,
    SERVED,
    SIGNING_SECRET,
    Host,
    called,
    cloud_event,
    on_the_bus,
    outcome_event,
    request,
)
from tests.simulator.servicebus_fixtures import WallClock
from tests.support.brisk import without_naps
from tests.support.builders import imds_event, not_before

APP_ID = "5eb41d6e-0000-4000-8000-00000000b07a"
OTHER_APP = "5eb41d6e-0000-4000-8000-00000000ffff"
SECRET = "s" * 40
CHANNEL = "19:operations@thread.tacv2"
GROUP = "6700f000-0000-4000-8000-000000000001"
ALICE, BOB, EVE = (each.object_id for each in PEOPLE)
SOON = not_before(
    86_400, datetime.now(UTC)
)  # a busy machine needs an hour to come here


def event_of(event_id: str, **fields: object) -> dict[str, object]:
    """Return an event that can still be decided on."""
    return imds_event(event_id, **{"NotBefore": SOON, **fields})


def settings_of(inbox: Inbox) -> dict[str, str]:
    """Return the app settings of the bot in the local Teams."""
    at = inbox.teams.addresses()
    return {
        "TEAMS_APP_ID": APP_ID,
        "TEAMS_APP_SECRET": SECRET,
        "TEAMS_TENANT": at["tenant"],
        "TEAMS_CONVERSATION": CHANNEL,
        "TEAMS_SERVICE": at["service"],
        "TEAMS_LOGIN": at["login"],
        "TEAMS_GRAPH": at["graph"],
        "TEAMS_KEYS": at["keys"],
    }


@dataclass
class TeamsStage:
    """All that stands around the app, and short ways to make it happen."""

    host: Host
    inbox: Inbox
    events: Sender
    clock: WallClock

    @property
    def now(self) -> datetime:
        """The time of the namespace and of the app."""
        return datetime.fromtimestamp(self.clock(), UTC)

    def settings(self, **more: str) -> Settings:
        """Return the app settings, some of them changed."""
        return Settings.from_environment({**os.environ, **more})

    @asynccontextmanager
    async def other(
        self, timings: Timings | None = None, **settings: str
    ) -> AsyncIterator[None]:
        """Let the app have other settings meanwhile, or less time."""
        settings_now = self.settings(**settings)
        async with SERVED.by(Handlers(settings_now, lambda: self.now, timings)):
            yield

    async def tell(
        self,
        kind: str,
        event: Mapping[str, object],
        after: float = 0.0,
        at: ApprovalAddress = ADDRESS,
    ) -> None:
        """Let the bridge tell of an event, and the app hear it."""
        await self.events.send(on_the_bus(cloud_event(kind, event, after), at))
        await self.host.hear()

    async def settle(
        self,
        outcome: str,
        event: Mapping[str, object],
        message_id: str | None,
        after: float = 0.0,
    ) -> None:
        """Let the bridge tell what became of an approval, and the app hear it."""
        found = outcome_event(outcome, event, message_id, after)
        await self.events.send(on_the_bus(found))
        await self.host.hear()

    async def click(self, user: str, verb: str, post: Post) -> dict[str, Any]:
        """Let a person click on a button; return what the bot answers."""
        click = {
            "conversation": CHANNEL,
            "message": post.id,
            "user": user,
            "verb": verb,
        }
        async with aiohttp.request(
            "POST", f"{self.inbox.url}/teams/click", json=click
        ) as response:
            found: dict[str, Any] = await response.json()
        assert response.status == 200, found
        return found

    async def page(self, user: str = "") -> str:
        """Return the page as a person sees it."""
        query = {"conversation": CHANNEL, "as": user}
        async with aiohttp.request(
            "GET", f"{self.inbox.url}/teams", params=query
        ) as response:
            assert response.status == 200
            return await response.text()

    def page_of(self, user: str) -> str:
        """Return the address of the page for a person."""
        return f"{self.inbox.url}{address(CHANNEL, user)}"

    @property
    def conversation(self) -> Conversation:
        """The channel."""
        return self.inbox.teams.team.conversation(CHANNEL)

    def card(self, event: Mapping[str, object]) -> Post:
        """Return the message about an event, of which there is one."""
        (post,) = self.cards(event)
        return post

    def cards(self, event: Mapping[str, object]) -> list[Post]:
        """Return the messages about an event."""
        name = str(event["EventId"])
        posts = self.conversation.posts.values()
        return [each for each in posts if name in runs(each.card)]


def runs(card: object) -> list[str]:
    """Return all texts of a card, in their order."""
    if isinstance(card, list):
        return [text for each in card for text in runs(each)]
    if not isinstance(card, Mapping):
        return []
    own = [str(card["text"])] if "text" in card else []
    parts = (card.get(name) for name in ("body", "items", "columns", "inlines"))
    return [*own, *(text for part in parts for text in runs(part))]


def buttons(card: Mapping[str, Any]) -> list[str]:
    """Return the titles of the buttons of a card."""
    return [each["title"] for each in card["actions"]]


@asynccontextmanager
async def teams_stage(**settings: str) -> AsyncIterator[TeamsStage]:
    """Open all of it; the app has these settings besides those of the bot."""
    async with AsyncExitStack() as stack:
        patch = stack.enter_context(without_naps())
        clock = WallClock()
        broker = await stack.enter_async_context(Broker(ENTITIES, clock=clock))
        inbox = await stack.enter_async_context(Inbox())
        inbox.teams.service.is_limited = False
        own = {
            "SERVICEBUS": broker.connection_string,
            "BUTTON_SECRET": BUTTON_SECRET,
            "SLACK_SIGNING_SECRET": SIGNING_SECRET,
            **settings_of(inbox),
            "APPROVERS": f"{ALICE},{BOB}",
            **settings,
        }
        for name, value in own.items():
            patch.setenv(name, value)
        inbox.teams.clicks.endpoint = await stack.enter_async_context(_endpoint())
        secret = Secret(broker.connection_string, {})
        events = Sender(NamespaceConfig(connection_string=secret), "scheduled-events")
        stack.push_async_callback(events.close)
        host = await stack.enter_async_context(Host(broker))
        found = TeamsStage(host, inbox, events, clock)
        async with found.other():
            yield found


@asynccontextmanager
async def _endpoint() -> AsyncIterator[str]:
    """Lend the address where the app hears Teams."""

    async def hear(raw: web.Request) -> web.Response:
        status, body = await heard(await raw.read(), raw.headers)
        text = None if body is None else json.dumps(body)
        return web.Response(status=status, text=text, content_type="application/json")

    application = web.Application()
    application.router.add_post("/api/messages", hear)
    async with TestServer(application) as server:
        yield str(server.make_url("/api/messages"))


async def heard(body: bytes, headers: Mapping[str, str]) -> tuple[int, Any]:
    """Let the app hear a request of Teams; return its status and answer."""
    response = await called("hear_teams", request("messages", body, headers))
    said = response.get_body()
    return response.status_code, json.loads(said) if said else None
