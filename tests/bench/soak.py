"""Memory of a forwarder whose sinks fail while events come, and after that."""

import asyncio
import itertools
import sqlite3
import sys
import tempfile
from contextlib import closing
from pathlib import Path

from aiohttp import web

from tests.bench.figures import Figure
from tests.bench.measuring import imds, resident, served
from tests.support.configurations import config_text, webhook

_LIMIT = 70.0  # MiB
_EVENTS = 20  # in the document at any time


class World:
    """An IMDS whose events all change at each look, and sinks that mostly fail."""

    def __init__(self) -> None:
        self.is_calm = False
        self._looks = 0
        self._answers = itertools.count()

    def document(self) -> object:
        """Return the document: events that come and go, none once all is calm."""
        self._looks += not self.is_calm
        events = [] if self.is_calm else map(self._event, range(_EVENTS))
        number = self._looks + self.is_calm
        return {"DocumentIncarnation": number, "Events": list(events)}

    def _event(self, place: int) -> dict[str, object]:
        return {
            "EventId": f"{place}-{self._looks // 4}",
            "EventStatus": "Scheduled",
            "EventType": "Freeze",
            "Resources": [f"vm-{number}" for number in range(self._looks % 4 + 1)],
        }

    async def steady(self, request: web.Request) -> web.Response:
        """Take an event."""
        await request.read()
        return web.Response()

    async def flaky(self, request: web.Request) -> web.Response:
        """Take every third event at once; fail, or ask to wait, for the others."""
        await request.read()
        what = 0 if self.is_calm else next(self._answers) % 3
        if what == 0:
            return web.Response()
        if what == 1:
            return web.Response(status=503, text="x" * 20_000)
        return web.Response(status=429, headers={"Retry-After": "1"})

    async def slow(self, request: web.Request) -> web.Response:
        """Take an event after a second."""
        await request.read()
        if not self.is_calm:
            await asyncio.sleep(1)
        return web.Response()


async def figures(seconds: float, rest: float, interval: str = "1s") -> list[Figure]:
    """Return the highest memory in a soak, and that after a rest, by 70 MiB.

    Beside them stands how many deliveries were pending then, of all that there were.

    Args:
        seconds: how long events come and sinks fail.
        rest: how long the sinks may catch up.
        interval: of the polls, and so of the changes.
    """
    world = World()
    sinks = {"steady": world.steady, "flaky": world.flaky, "slow": world.slow}
    routes = [web.post(f"/{name}", hook) for name, hook in sinks.items()]
    with tempfile.TemporaryDirectory() as name:
        async with served([*imds(world.document), *routes]) as url:
            path, state = Path(name) / "bridge.toml", f"{name}/state.db"
            whole = {"when": {"scope": "all"}}
            text = config_text(
                *(webhook(f"{url}/{name}", name, **whole) for name in sinks),
                imds={"endpoint": url, "poll_interval": interval},
                state=Path(state),
                log={"level": "error"},
            )
            path.write_text(text)
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "bridge", "run", "-c", str(path))
            )
            try:
                found = [await highest(process.pid, seconds)]
                backlogs = [pending(state)]
                world.is_calm = True
                await asyncio.sleep(rest)
                found.append(resident(process.pid))
                backlogs.append(pending(state))
            finally:
                process.terminate()
                await process.wait()
    return [*_memory(found), *_backlogs(backlogs)]


def _memory(found: list[float]) -> list[Figure]:
    whats = ("memory at most in a soak, by 70 MiB", "memory after it, by 70 MiB")
    return [
        Figure.once(what, ours, _LIMIT, "MiB", "<= 1")
        for what, ours in zip(whats, found, strict=True)
    ]


def _backlogs(found: list[tuple[int, int]]) -> list[Figure]:
    whats = ("pending at the end of a soak, by all", "pending after it, by all")
    return [
        Figure.once(what, *counts, "")
        for what, counts in zip(whats, found, strict=True)
    ]


def pending(state: str) -> tuple[int, int]:
    """Return how many deliveries of a state file are pending, and how many it has."""
    with closing(sqlite3.connect(f"file:{state}?mode=ro", uri=True)) as db:
        found: tuple[int, int] = db.execute(
            "SELECT sum(n) FILTER (WHERE state = 'pending'), sum(n) FROM tallies"
        ).fetchone()
        return found


async def highest(pid: int, seconds: float) -> float:
    """Return the highest resident memory of a process within some time, in MiB."""
    loop = asyncio.get_running_loop()
    until, most = loop.time() + seconds, 0.0
    while loop.time() < until:
        most = max(most, resident(pid))
        await asyncio.sleep(0.5)
    return most
