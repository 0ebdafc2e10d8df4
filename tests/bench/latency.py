"""From the answer of IMDS to the request at the webhook, through the durable outbox.

Against one synchronous=FULL commit plus one bare POST, in the same run.
"""

import asyncio
import contextlib
import sqlite3
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from tests.bench.drain import tables
from tests.bench.figures import Figure, in_turns
from tests.bench.measuring import imds, quantile, running, served


class World:
    """An IMDS with one event at every second look, and a webhook that waits for it."""

    def __init__(self) -> None:
        self.arrived: asyncio.Queue[float] = asyncio.Queue()
        self.incarnation = 1
        self.answered = 0.0

    def document(self) -> object:
        """Return the document as it is now, and note when."""
        self.answered = time.perf_counter()
        if self.incarnation % 2:
            return {"DocumentIncarnation": self.incarnation, "Events": []}
        event = {
            "EventId": f"{self.incarnation}",
            "EventStatus": "Scheduled",
            "EventType": "Freeze",
            "Resources": ["vm"],
        }
        return {"DocumentIncarnation": self.incarnation, "Events": [event]}

    async def hook(self, request: web.Request) -> web.Response:
        """Take an event, and note when."""
        await request.read()
        self.arrived.put_nowait(time.perf_counter())
        return web.Response()

    async def announce(self, rounds: int) -> list[float]:
        """Let so many events come and go; return the milliseconds of each."""
        found = []
        for _ in range(rounds):
            self.incarnation += 1
            at = await self.arrived.get()
            found.append((at - self.answered) * 1000)
            self.incarnation += 1
            await self.arrived.get()
        return found


async def figures(rounds: int, turns: int) -> list[Figure]:
    """Return p50, p95 and p99 against a bare commit and POST."""
    world = World()
    async with hooked(world) as (config, folder, url):

        async def ours() -> list[float]:
            return await announced(world, config, rounds)

        async def bare() -> list[float]:
            times = await bare_commits(folder, f"{url}/hook", rounds, world.arrived)
            return [quantile(times, share) for share in (0.5, 0.95, 0.99)]

        found = await in_turns(ours, bare, turns)
    return percentiles("webhook", found)


def percentiles(receiver: str, found: list[list[Any]]) -> list[Figure]:
    """Return the rows of p50, p95 and p99, of what ``in_turns`` has returned."""
    aims = (("p50", "<= 2.5"), ("p95", "<= 2.6"), ("p99", "<= 3"))
    return [
        Figure(
            what=f"IMDS answer to {receiver}, {name}",
            ours=ours,
            bare=bare,
            unit="ms",
            wanted=wanted,
        )
        for (name, wanted), (ours, bare) in zip(aims, found, strict=True)
    ]


async def batched(rounds: int, turns: int) -> list[Figure]:
    """Return p50 of single events where a request may hold 100, against one by one."""
    world, many = World(), {"batch": 100, "content_mode": "batch"}
    async with (
        hooked(world, **many) as (config, _, _),
        hooked(world) as (alone, _, _),
    ):

        async def ours() -> list[float]:
            return await announced(world, config, rounds)

        async def bare() -> list[float]:
            return await announced(world, alone, rounds)

        (values, *_) = await in_turns(ours, bare, turns)
    return [
        Figure(
            what="a single event with batch = 100, by one without, p50",
            ours=values[0],
            bare=values[1],
            unit="ms",
            wanted="<= 1.1",
        )
    ]


@contextlib.asynccontextmanager
async def hooked(
    world: World, **keys: object
) -> AsyncIterator[tuple[dict[str, object], Path, str]]:
    """Serve a world; yields a configuration for it, a folder, and the URL."""
    routes = [*imds(world.document), web.post("/hook", world.hook)]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        async with served(routes) as url:
            config = tables(url, folder / "state.db", ["hook"])
            config["imds"] = {"endpoint": url, "poll_interval": "250ms"}
            sink = {"name": "hook", "type": "webhook", "url": f"{url}/hook", **keys}
            config["sinks"] = [{**sink, "when": {"lifecycle": False}}]
            yield config, folder, url


async def announced(
    world: World, config: dict[str, object], rounds: int
) -> list[float]:
    """Run a forwarder while events come and go; return p50, p95 and p99."""
    async with running(config):
        times = await world.announce(rounds)
    return [quantile(times, share) for share in (0.5, 0.95, 0.99)]


async def bare_commits(
    folder: Path, url: str, rounds: int, arrived: "asyncio.Queue[float]"
) -> list[float]:
    """Return the milliseconds of one commit plus one POST each."""
    found = []
    with committing(folder) as commit:
        async with aiohttp.ClientSession() as session:
            for _ in range(rounds):
                began = time.perf_counter()
                commit()
                async with session.post(url, data="bare") as response:
                    await response.read()
                found.append((await arrived.get() - began) * 1000)
                await asyncio.sleep(0.05)  # as idle as ours is in between
    return found


@contextlib.contextmanager
def committing(folder: Path) -> Iterator[Callable[[], object]]:
    """Yield a function that commits one row of 1,000 characters to the disk."""
    db = sqlite3.connect(folder / "bare.db", isolation_level=None)
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = FULL")
    db.execute("CREATE TABLE IF NOT EXISTS t (body TEXT)")
    try:
        yield lambda: db.execute("INSERT INTO t VALUES (?)", ("x" * 1000,))
    finally:
        db.close()
