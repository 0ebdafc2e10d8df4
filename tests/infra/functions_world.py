"""What stands around the Functions app: a host, a namespace, a Slack.

The host does what that of Azure does: it receives, hands the message over as the
library decodes it, and completes it, or abandons it when the function failed.
"""

import asyncio
import itertools
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import Self, cast
from urllib.parse import urlencode

import azure.functions as func
from aiohttp import web
from aiohttp.test_utils import TestServer
from azure.functions.meta import Datum
from azure.functions.servicebus import ServiceBusMessageInConverter
from azure.servicebus import ServiceBusReceivedMessage
from azure.servicebus.aio import ServiceBusClient, ServiceBusReceiver
from slack_sdk.signature import SignatureVerifier

from approver.buttons import Action, Button, write
from approver.handlers import Handlers
from approver.vote_rules import digest
from bridge.events.build import from_outcome
from bridge.events.cloudevent import CloudEvent
from bridge.servicebus.sender import Message
from bridge.simulator.servicebus.broker import Broker
from bridge.simulator.servicebus.settings import (
    Entities,
    QueueSettings,
    SubscriptionSettings,
    TopicSettings,
)
from bridge.sinks.base import ApprovalAddress
from bridge.sinks.servicebus.sink import render
from function_app import build
from tests.support.builders import event_context_of
from tests.support.example_events import outcome as outcome_of
from tests.support.example_events import published, seen, transition
from tests.support.fakes import START

PATIENCE = 40.0  # seconds: the machine may be busy with other tests
BUTTON_SECRET = "b" * 32
SIGNING_SECRET = "8f742231b10e8888abcd99yyyzzz85a5"
APPROVALS = "vm-approvals-sessions"
SESSION = "13f56399-bd52-4150-9748-7190aae1ff21"
ADDRESS = ApprovalAddress(namespace="here", entity=APPROVALS, session=SESSION)
ENTITIES = Entities(
    queues=(
        QueueSettings(name=APPROVALS, requires_session=True),
        QueueSettings(name="approver-clicks"),
        QueueSettings(name="approver-votes", requires_session=True),
    ),
    topics=(
        TopicSettings(
            name="scheduled-events",
            subscriptions=(SubscriptionSettings(name="consumer"),),
        ),
    ),
)


class Served:
    """Says which handlers serve the app now."""

    def __init__(self) -> None:
        self._handlers: list[Handlers] = []

    def __call__(self) -> Handlers:
        return self._handlers[-1]

    @asynccontextmanager
    async def by(self, handlers: Handlers) -> AsyncIterator[None]:
        """Let these serve it meanwhile, and close them."""
        async with handlers:
            self._handlers.append(handlers)
            try:
                yield
            finally:
                self._handlers.remove(handlers)


SERVED = Served()
FUNCTIONS = {each.get_function_name(): each for each in build(SERVED).get_functions()}


def cloud_event(
    kind: str, event: Mapping[str, object], after: float = 0.0
) -> CloudEvent:
    """Return what the bridge tells of a transition, seconds after the start."""
    when: datetime = START + timedelta(seconds=after)
    return published(transition(kind, event, unobserved=0), at=when).event


def outcome_event(
    outcome: str,
    event: Mapping[str, object],
    message_id: str | None,
    after: float = 0.0,
) -> CloudEvent:
    """Return what the bridge tells of what became of an approval, after seconds."""
    found = outcome_of(
        outcome,
        event_id=str(event["EventId"]),
        event=seen(event),
        imds_status=None,
        confirmed=None,
        request={"messageId": message_id},
        origin=(APPROVALS, message_id, 1),
    )
    when = START + timedelta(seconds=after)
    return from_outcome(event_context_of(), found, when).event


def on_the_bus(event: CloudEvent, at: ApprovalAddress = ADDRESS) -> Message:
    """Return the message that the bridge's sink sends of it."""
    return render(event, session="event", vm_id=SESSION, approvals=at)


def button_value(
    event: Mapping[str, object],
    action: Action = "approve",
    secret: str = BUTTON_SECRET,
    entity: str = APPROVALS,
) -> str:
    """Return the value of a button under a message that shows ``event``."""
    button = Button(
        action=action,
        event_id=str(event["EventId"]),
        digest=digest(event),
        reply_to=entity,
        session=SESSION,
    )
    return write(button, secret)


class Slack:
    """Slack's side of a click: it signs, and takes answers to a response_url.

    A response_url takes five answers of JSON; what it took is in ``posts``.
    """

    def __init__(self) -> None:
        self.posts: list[dict[str, object]] = []
        self._count = itertools.count()
        self._server: TestServer | None = None

    async def __aenter__(self) -> Self:
        application = web.Application()
        application.router.add_post("/actions/{id}", self._take)
        self._server = TestServer(application)
        await self._server.start_server()
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._server is not None:
            await self._server.close()

    @property
    def hooks(self) -> str:
        """What every response_url begins with."""
        assert self._server is not None
        return str(self._server.make_url("/"))

    def payload(self, user: str, value: str, at: str = "1") -> dict[str, object]:
        """Return what Slack sends when a person clicks, at some time."""
        buttons = {"type": "actions", "block_id": "buttons", "elements": []}
        text = {"type": "mrkdwn", "text": "Freeze of WestNO_0"}
        return {
            "type": "block_actions",
            "user": {"id": user, "username": "alice", "team_id": "T012AB3CD"},
            "team": {"id": "T012AB3CD", "domain": "example"},
            "channel": {"id": "C012AB3CD", "name": "ops"},
            "container": {"type": "message", "message_ts": "1.0"},
            "message": {
                "ts": "1.0",
                "blocks": [{"type": "section", "block_id": "s", "text": text}, buttons],
            },
            "response_url": f"{self.hooks}actions/{next(self._count)}",
            "actions": [
                {
                    "action_id": "sebridge-approve",
                    "block_id": "buttons",
                    "type": "button",
                    "value": value,
                    "action_ts": f"1531420618.{at}",
                }
            ],
        }

    async def _take(self, request: web.Request) -> web.Response:
        if request.content_type != "application/json":
            return web.Response(status=400, text="invalid_payload")
        body = json.loads(await request.text())
        if not body.get("text") and not body.get("blocks"):
            return web.Response(status=400, text="no_text")
        known = sum(post["path"] == request.path for post in self.posts)
        if known == 5:
            return web.Response(status=404, text="used_url")
        self.posts.append({"path": request.path, **body})
        return web.Response(text="ok")


def form(payload: Mapping[str, object]) -> bytes:
    """Return a payload as Slack posts it."""
    return urlencode({"payload": json.dumps(payload)}).encode()


def signature(
    body: bytes, secret: str = SIGNING_SECRET, age: int = 0
) -> dict[str, str]:
    """Return the headers of a request that Slack signed ``age`` seconds ago."""
    timestamp = str(int(time.time()) - age)
    signed = SignatureVerifier(secret).generate_signature(
        timestamp=timestamp, body=body
    )
    return {
        "X-Slack-Request-Timestamp": timestamp,
        "X-Slack-Signature": signed or "",
        "Content-Type": "application/x-www-form-urlencoded",
    }


def request(
    path: str, body: bytes, headers: Mapping[str, str] | None = None
) -> func.HttpRequest:
    """Return a request as a function gets it."""
    return func.HttpRequest(
        "POST", f"https://here/api/{path}", headers=dict(headers or {}), body=body
    )


async def called(name: str, req: func.HttpRequest) -> func.HttpResponse:
    """Call an HTTP function."""
    function = cast(
        "Callable[[func.HttpRequest], Awaitable[func.HttpResponse]]",
        FUNCTIONS[name].get_user_function(),
    )
    return await function(req)


class Host:
    """The Functions host, in front of a broker."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self._guard = asyncio.Lock()
        self._client = ServiceBusClient.from_connection_string(
            broker.connection_string, retry_total=0
        )
        self._events = self._client.get_subscription_receiver(
            "scheduled-events", "consumer", max_wait_time=PATIENCE
        )
        self._clicks = self._client.get_queue_receiver(
            "approver-clicks", max_wait_time=PATIENCE
        )

    async def __aenter__(self) -> Self:
        receivers = (self._events, self._clicks)
        await asyncio.gather(*(each.__aenter__() for each in receivers))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.close()

    async def hear(self) -> None:
        """Hand one message of the subscription to the app."""
        await self._trigger("hear_event", self._events)

    async def count(self, clicks: int = 1) -> None:
        """Hand clicks to the app, all at once."""
        trigger = (self._trigger("count_click", self._clicks) for _ in range(clicks))
        await asyncio.gather(*trigger)

    async def approvals(
        self, count: int = 1, session: str = SESSION
    ) -> list[ServiceBusReceivedMessage]:
        """Take as many messages as a bridge should find in its session."""
        found: list[ServiceBusReceivedMessage] = []
        async with self._client.get_queue_receiver(
            APPROVALS, session_id=session, max_wait_time=PATIENCE
        ) as receiver:
            while len(found) < count:
                messages = await receiver.receive_messages(count)
                assert messages
                for message in messages:
                    await receiver.complete_message(message)
                found.extend(messages)
        return found

    def waiting(self, entity: str = APPROVALS) -> int:
        """Return how many messages wait in an entity."""
        return self.broker.snapshot()[entity].active

    async def _trigger(self, name: str, receiver: ServiceBusReceiver) -> None:
        function = cast(
            "Callable[[func.ServiceBusMessage], Awaitable[None]]",
            FUNCTIONS[name].get_user_function(),
        )
        async with self._guard:  # two coroutines break a receiver
            (message,) = await receiver.receive_messages(1)
        try:
            await function(decoded(message))
        except BaseException:
            async with self._guard:
                await receiver.abandon_message(message)
            raise
        async with self._guard:
            await receiver.complete_message(message)


def decoded(message: ServiceBusReceivedMessage) -> func.ServiceBusMessage:
    """Return a message as the library makes it of what the host hands over."""
    texts = {
        "MessageId": message.message_id,
        "ContentType": message.content_type,
        "CorrelationId": message.correlation_id,
        "ReplyTo": message.reply_to,
        "ReplyToSessionId": message.reply_to_session_id,
        "SessionId": message.session_id,
    }
    metadata = {
        name: Datum(value, "string") for name, value in texts.items() if value
    } | {
        "UserProperties": Datum("{}", "json"),
        "ApplicationProperties": Datum("{}", "json"),
    }
    found = ServiceBusMessageInConverter.decode(
        Datum(b"".join(cast("list[bytes]", [*message.body])), "bytes"),
        trigger_metadata=metadata,
    )
    assert not isinstance(found, list)
    return found
