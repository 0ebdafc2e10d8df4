"""The participants of the demo: a consumer, an approver, and the forwarder process.

They use the real Service Bus SDK and the real command, as a user does.
"""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from azure.servicebus import ServiceBusMessage, ServiceBusReceivedMessage
from azure.servicebus.aio import ServiceBusClient

from bridge.demo.timeline import Timeline

TOPIC, SUBSCRIPTION, REPLIES = "scheduled-events", "consumer", "replies"
APPROVALS = "vm-approvals"
_STOP_WITHIN = 15.0

CONFIG = f"""\
# Written by `sebridge demo`: a whole configuration of the forwarder.
[imds]
endpoint = "{{imds}}"
poll_interval = "500ms"

[state]
path = "{{state}}"

[http]
listen = ""

[[sinks]]
name = "bus"
type = "servicebus"
connection_string = "file:{{bus}}"
topic = "{TOPIC}"

[[sinks]]
name = "ops"
type = "slack"
{{slack}}

[[sinks]]
name = "siem"
type = "webhook"
url = "{{inbox}}/siem"

[approvals]
connection_string = "file:{{bus}}"
queue = "{APPROVALS}"
reply_to = ["{REPLIES}"]
{{more}}"""
WEBHOOK = 'webhook_url = "file:{secret}"'
BOT = """\
token = "file:{secret}"
channel = "ops"
api_url = "{inbox}/slack/api/\""""


@dataclass(slots=True)
class Seen:
    """What arrived on one channel, in order, and its latency in milliseconds."""

    what: list[str] = field(default_factory=list)
    latencies: list[float] = field(default_factory=list)
    news: asyncio.Event = field(default_factory=asyncio.Event)

    def add(self, what: str, millis: float | None = None) -> None:
        """Record one more arrival."""
        self.what.append(what)
        if millis is not None:
            self.latencies.append(millis)
        self.news.set()


def secret_file(folder: Path, name: str, secret: str) -> str:
    """Write a secret to a file that only its owner can read; return the path."""
    path = folder / name
    path.touch(0o600)
    path.write_text(secret, encoding="utf-8")
    return path.as_posix()


@asynccontextmanager
async def forwarder(
    folder: Path, config: str, environ: dict[str, str]
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run ``sebridge run`` as a process of its own; stop it on exit."""
    path = folder / "bridge.toml"
    path.write_text(config, encoding="utf-8")
    with (folder / "forwarder.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "bridge", "run", "-c", str(path)),
            stdout=log,
            stderr=log,
            env=environ,
        )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.terminate()
            try:
                await asyncio.wait_for(process.wait(), _STOP_WITHIN)
            except TimeoutError:
                process.kill()
                await process.wait()


@dataclass(slots=True)
class Consumer:
    """Reads the topic like an Azure Function, and sends an approval.

    Attributes:
        after: the short name of the event after which it approves; "" = never.
    """

    client: ServiceBusClient
    timeline: Timeline
    after: str
    seen: Seen
    sent: Seen
    _entity: str = ""

    async def run(self) -> None:
        """Read messages until cancelled."""
        receiver = self.client.get_subscription_receiver(TOPIC, SUBSCRIPTION)
        async with receiver:
            async for message in receiver:
                event = json.loads(text_of(message))
                what, millis = label_of(event), age_of(event)
                self.timeline.happened("Service Bus", what, millis)
                self.seen.add(what, millis)
                await receiver.complete_message(message)
                self._entity = message.reply_to or self._entity
                if what == self.after and self._entity:
                    await self._approve(self._entity, event)

    async def _approve(self, entity: str, event: dict[str, object]) -> None:
        """Send a StartRequest, in the format of the Azure documentation."""
        event_id = event["subject"]
        body = json.dumps({"StartRequests": [{"EventId": event_id}]})
        async with self.client.get_queue_sender(entity) as sender:
            await sender.send_messages(
                ServiceBusMessage(
                    body,
                    message_id=f"approval-{event_id}",
                    reply_to=REPLIES,
                    application_properties={
                        "approvedBy": "demo",
                        "reason": "watching the demo",
                    },
                )
            )
            self.timeline.happened("approver", f"StartRequest sent to {entity}")
            self.sent.add("StartRequest")


async def read_replies(
    client: ServiceBusClient, timeline: Timeline, seen: Seen
) -> None:
    """Read the replies to the approval until cancelled."""
    async with client.get_queue_receiver(REPLIES) as receiver:
        async for message in receiver:
            for outcome in json.loads(text_of(message))["outcomes"]:
                timeline.happened("approver", f"reply: {outcome['outcome']}")
                seen.add(f"reply: {outcome['outcome']}")
            await receiver.complete_message(message)


def text_of(message: ServiceBusReceivedMessage) -> str:
    """Return the body of a message as text."""
    body = message.body
    return (body if isinstance(body, bytes) else b"".join(body)).decode()


def short_type(kind: str) -> str:
    """Return a short name of an event's type, such as ``startrequest.relayed``."""
    middle = kind.removeprefix("sebridge.").removesuffix(".v1")
    return middle.removeprefix("scheduledevent.")


def label_of(event: dict[str, Any]) -> str:
    """Return a short name of an event; for a command: its sink, action and result."""
    what = short_type(event["type"])
    if not what.startswith("command."):
        return what
    data = event["data"]
    return f"{data['sink']} {data['action']} {what.removeprefix('command.')}"


def age_of(event: dict[str, object]) -> float:
    """Return the age of an event in milliseconds, since the bridge observed it."""
    observed = datetime.fromisoformat(str(event["time"]))
    return (datetime.now(UTC) - observed).total_seconds() * 1000
