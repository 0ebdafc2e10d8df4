"""The far sides of the three sinks, which write down what they get."""

import asyncio
import json
import math
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from aiohttp import web
from azure.servicebus.aio import ServiceBusClient
from azure.servicebus.exceptions import ServiceBusError

from tests.chaos.history import REPLIES, Got, History, Replied, canonical_json

MOODS = ("refuse", "hang", "reset", "lose-answer")


class Hook:
    """A webhook that has its moods.

    Attributes:
        mood: one of ``MOODS``; "" = it takes everything.
    """

    def __init__(self, history: History) -> None:
        self.mood, self.url = "", ""
        self.has_received = asyncio.Event()
        self._got = history.got["hook"]

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Listen on a free port."""
        app = web.Application()
        app.add_routes([web.post("/hook", self._take)])
        runner = web.AppRunner(
            app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1
        )
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}/hook"
        try:
            yield
        finally:
            await runner.cleanup()

    async def _take(self, request: web.Request) -> web.Response:
        body = await request.read()
        mood = self.mood
        if mood == "hang":
            await asyncio.sleep(60)
        if mood == "reset" and request.transport is not None:
            request.transport.abort()
        if mood in {"", "lose-answer"}:
            self._got.append(Got(len(self._got), time.time(), json.loads(body)))
            self.has_received.set()
        return web.Response(status=503 if mood else 200)


async def read_bus(
    connection_string: str, history: History, stop: asyncio.Event
) -> None:
    """Read the subscription as a consumer does, whatever befalls the broker."""
    while not stop.is_set():
        try:
            await _read_bus(connection_string, history, stop)
        except (ServiceBusError, OSError, TimeoutError, ValueError):
            # The last one is the SDK's own of a link that broke while it settled.
            await asyncio.sleep(0.2)


async def _read_bus(
    connection_string: str, history: History, stop: asyncio.Event
) -> None:
    client = ServiceBusClient.from_connection_string(connection_string, retry_total=0)
    async with (
        client,
        client.get_subscription_receiver("scheduled-events", "consumer") as receiver,
    ):
        while not stop.is_set():
            batch = await receiver.receive_messages(100, max_wait_time=1)
            for message in batch:
                event = json.loads(b"".join(message.body))
                place = message.sequence_number or 0
                history.got["bus"].append(Got(place, time.time(), event))
                await receiver.complete_message(message)


async def read_replies(connection_string: str, history: History) -> None:
    """Read all that approvers were answered, once nothing more is to come."""
    client = ServiceBusClient.from_connection_string(connection_string)
    async with client, client.get_queue_receiver(REPLIES) as receiver:
        while batch := await receiver.receive_messages(100, max_wait_time=2):
            for message in batch:
                reply = json.loads(b"".join(message.body))
                outcomes = tuple(map(canonical_json, reply["outcomes"]))
                number, name = str(message.message_id), str(message.correlation_id)
                history.replies.append(Replied(number, name, outcomes))
                await receiver.complete_message(message)


def read_file(path: Path, history: History) -> int:
    """Read the lines; return how many were torn by a kill."""
    torn = 0
    lines = path.read_bytes().split(b"\n") if path.exists() else []
    for number, line in enumerate(lines):
        try:
            event = json.loads(line)
        except ValueError:
            torn += bool(line)
            continue
        history.got["file"].append(Got(number, math.inf, event))
    return torn
