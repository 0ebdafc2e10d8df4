"""From the announcement to the StartRequest, with a command that takes no time.

Against the least that keeps to the rules of IMDS: the command, another look 250 ms
after the first one, since a decision is made on a fresh document, and a POST 250 ms
after that one.
"""

import asyncio
import statistics
import tempfile
import time
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import aiohttp
from aiohttp import web

from tests.bench.figures import Figure, in_turns
from tests.bench.measuring import imds, running, served

COMMAND = "/bin/true"
SPACING = 0.25  # seconds between two requests, as IMDS wants it
EVENTS = "/metadata/scheduledevents"


class Announcer:
    """An IMDS that announces one event after the other, and takes StartRequests."""

    def __init__(self) -> None:
        self.number = 0
        self.is_shown = False
        self.shown_at = 0.0
        self.not_before = ""
        self.asked: asyncio.Queue[float] = asyncio.Queue()

    def document(self) -> object:
        """Return the document as it is now; note when the event was shown first."""
        if not self.is_shown:
            return {"DocumentIncarnation": 2 * self.number, "Events": []}
        self.shown_at = self.shown_at or time.perf_counter()
        event = {
            "EventId": f"E{self.number}",
            "EventStatus": "Scheduled",
            "EventType": "Reboot",
            "ResourceType": "VirtualMachine",
            "Resources": ["vm"],
            "NotBefore": self.not_before,
        }
        return {"DocumentIncarnation": 2 * self.number + 1, "Events": [event]}

    async def start(self, request: web.Request) -> web.Response:
        """Take a StartRequest: its event is over at once. A repeat does not count."""
        (asked,) = (await request.json())["StartRequests"]
        if self.is_shown and asked["EventId"] == f"E{self.number}":
            self.is_shown = False
            self.asked.put_nowait(time.perf_counter())
        return web.Response()

    async def announce(self, rounds: int) -> float:
        """Announce so many events; return the median of milliseconds."""
        found = []
        for _ in range(rounds):
            self.number += 1
            later = datetime.now(UTC) + timedelta(minutes=15)
            self.not_before = format_datetime(later, usegmt=True)
            self.shown_at, self.is_shown = 0.0, True
            at = await self.asked.get()
            found.append((at - self.shown_at) * 1000)
            await asyncio.sleep(2.5)  # until the event is gone, and all is quiet
        return statistics.median(found)


async def figures(rounds: int, turns: int) -> list[Figure]:
    """Return the time to the StartRequest."""
    announcer = Announcer()
    routes = [*imds(announcer.document), web.post(EVENTS, announcer.start)]
    with tempfile.TemporaryDirectory() as name:
        async with served(routes) as url:
            config: dict[str, object] = {
                "imds": {"endpoint": url},
                "state": {"path": f"{name}/state.db"},
                "http": {"listen": ""},
                "sinks": [{"name": "drain", "type": "command", "command": [COMMAND]}],
                "approvals": {
                    "rules": [
                        {
                            "name": "drained",
                            "event_types": ["Reboot"],
                            "action": "auto-approve",
                            "after": ["drain"],
                        }
                    ]
                },
            }

            async def ours() -> list[float]:
                async with running(config):
                    return [await announcer.announce(rounds)]

            async def bare() -> list[float]:
                return [await bare_rounds(f"{url}{EVENTS}", rounds)]

            ((mine, least),) = await in_turns(ours, bare, turns)
    return [
        Figure(
            what="announcement, command, StartRequest",
            ours=mine,
            bare=least,
            unit="ms",
            wanted="<= 1.1",
        )
    ]


async def bare_rounds(url: str, rounds: int) -> float:
    """Return the milliseconds of the least that could be done, as a median."""
    found = []
    async with aiohttp.ClientSession() as session:
        for _ in range(rounds):
            began = time.perf_counter()
            process = await asyncio.create_subprocess_exec(COMMAND)
            await process.wait()
            await asyncio.sleep(began + SPACING - time.perf_counter())
            async with session.get(url) as response:
                await response.read()
            await asyncio.sleep(began + 2 * SPACING - time.perf_counter())
            body = {"StartRequests": [{"EventId": "none"}]}
            async with session.post(url, json=body) as response:
                await response.read()
            found.append((time.perf_counter() - began) * 1000)
    return statistics.median(found)
