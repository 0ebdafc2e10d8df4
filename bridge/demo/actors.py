"""The participants of the demo: a consumer, an approver, and the forwarder process.

They use the real Service Bus SDK and the real command, as a user does.
"""

import asyncio
import json
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
from azure.servicebus import ServiceBusMessage, ServiceBusReceivedMessage
from azure.servicebus.aio import ServiceBusClient
from msgspec import Struct, field

from bridge.demo.timeline import Timeline
from bridge.simulator.imds.scenario import Scenario

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


class Seen(Struct):
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
        await end(process)


async def end(process: asyncio.subprocess.Process) -> None:
    """Ask a process to end; kill it if it does not."""
    if process.returncode is not None:
        return
    process.terminate()
    try:
        async with asyncio.timeout(_STOP_WITHIN):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()


class Consumer(Struct):
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


# -- The parts of a demo with a command: a hook, and a load balancer that probes -------
#
# The hook is a shell script that the demo writes; the demo prints the hook's output.


SPEED = 2.0  # slow enough to drain before NotBefore
PREPARED, RESTORED = "drain prepare succeeded", "drain restore succeeded"
_SCENARIO = "spot-eviction"
_LEAST_NOTICE = 6.0
_POLL_SECONDS = 0.02
_CONFIG = """
[[sinks]]
name = "drain"
type = "command"
command = ["{hook}"]
output = "always"

[traffic]
listen = "127.0.0.1:{port}"
resume_after = "1s"
"""
_HOOK = """\
#!/bin/sh
# Drains this machine before an event, and lets it take work again after it.
log() {{ echo "$1" | tee -a "{output}"; }}
case $SEBRIDGE_ACTION in
prepare)
  log "3 jobs are running, $SEBRIDGE_NOTICE_SECONDS s are left: no new jobs"
  sleep 2
  log "all jobs are done"
  ;;
restore) log "jobs are accepted again" ;;
esac
"""


def suits(scenario: Scenario, speed: float) -> bool:
    """Return whether to play the scenario with a command: it needs time to drain."""
    notice = min((life.notice_seconds for life in scenario.lives), default=0.0)
    is_enough = notice / speed >= _LEAST_NOTICE
    return scenario.name == _SCENARIO and is_enough and sys.platform != "win32"


def usual_speed(name: str, default: float) -> float:
    """Return the default speed of a scenario."""
    return SPEED if name == _SCENARIO else default


def _free_port() -> int:
    with closing(socket.create_server(("127.0.0.1", 0))) as found:
        port: int = found.getsockname()[1]
        return port


class Acting(Struct):
    """The hook and the load balancer.

    Attributes:
        command: the lines that the hook has written.
        balancer: the changes of the probe's answer.
    """

    folder: Path
    timeline: Timeline
    command: Seen = field(default_factory=Seen)
    balancer: Seen = field(default_factory=Seen)
    port: int = field(default_factory=_free_port)

    def config(self) -> str:
        """Write the hook; return its sections of the forwarder's configuration."""
        hook = self.folder / "drain"
        hook.write_text(_HOOK.format(output=self._output), encoding="utf-8")
        hook.chmod(0o700)
        return _CONFIG.format(hook=hook.as_posix(), port=self.port)

    async def probe(self) -> None:
        """Probe like a load balancer, and show each change, until cancelled."""
        last, url = "", f"http://127.0.0.1:{self.port}/"
        async with aiohttp.ClientSession(trust_env=False) as session:
            while True:
                answer = await _probe_answer(session, url)
                if answer is not None and answer[1] != last:
                    self._show(*answer, is_first=not last)
                    last = answer[1]
                await asyncio.sleep(_POLL_SECONDS)

    async def listen(self) -> None:
        """Show what the hook writes, until cancelled."""
        shown = 0
        while True:
            text = self._output.read_text("utf-8") if self._output.exists() else ""
            lines = text.splitlines()
            for line in lines[shown:]:
                self.timeline.happened("command", line)
                self.command.add(line)
            shown = len(lines)
            await asyncio.sleep(_POLL_SECONDS)

    @property
    def _output(self) -> Path:
        return self.folder / "drain.out"

    def _show(self, status: int, traffic: str, *, is_first: bool) -> None:
        sends = "sends work" if traffic == "in" else "sends no more work"
        self.timeline.happened("balancer", f"{status} {traffic}: {sends}")
        self.balancer.add(traffic if is_first or traffic == "out" else "in again")


async def _probe_answer(
    session: aiohttp.ClientSession, url: str
) -> tuple[int, str] | None:
    """Request the probe; return its status and ``traffic``; None: no answer."""
    try:
        async with session.get(url) as response:
            content = await response.json()
            return response.status, str(content["traffic"])
    except (aiohttp.ClientError, TimeoutError, OSError):
        return None
