"""What one event costs after a rest, a slow receiver, and what a long backlog costs.

``cold`` is as it is on a VM: seconds of rest between two events, with other programs on
the cores meanwhile, so that neither code nor data is in the processor's caches.
"""

import asyncio
import contextlib
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import aiohttp
from aiohttp import web

from tests.bench.drain import backlog, tables
from tests.bench.figures import Figure, in_turns
from tests.bench.latency import World, committing, hooked
from tests.bench.measuring import (
    Counter,
    cpu,
    imds,
    quantile,
    resident,
    running,
    served,
)
from tests.support.builders import outgoing, patient_outbox, route, router

_SLOW_EVENTS, _SLOW_ANSWER, _SLOW_AIM = 100, 0.2, 0.9  # seconds
_REST = 2.0  # seconds
_OTHER_PROGRAM = """
import time
end, memory = time.monotonic() + {seconds}, bytearray(2**26)
while time.monotonic() < end:
    memory = bytearray(memory)
"""
_COST_AIM = 4.0  # milliseconds
_CONFIG = """
[log]
level = "error"
[imds]
endpoint = "{url}"
poll_interval = "250ms"
[state]
path = "{state}"
[http]
listen = ""
[[sinks]]
name = "hook"
type = "webhook"
url = "{hook}"
when.lifecycle = false
"""


async def slow(turns: int) -> list[Figure]:
    """Return the seconds for 100 events to a webhook that answers after 200 ms."""
    found = [await _slow() for _ in range(turns)]
    return [
        Figure(
            what=f"{_SLOW_EVENTS} events to a webhook of 200 ms, against the aim",
            ours=tuple(found),
            bare=(_SLOW_AIM,) * turns,
            unit="s",
            wanted="<= 1",
        )
    ]


async def _slow() -> float:
    counter, began = Counter(), list[float]()

    async def take(request: web.Request) -> web.Response:
        began.append(time.perf_counter())
        await asyncio.sleep(_SLOW_ANSWER)
        return await counter.take(request)

    routes = [*imds(lambda: {"Events": []}), web.post("/hook", take)]
    with tempfile.TemporaryDirectory() as folder:
        async with served(routes) as url:
            state = Path(folder) / "state.db"
            await backlog(state, ["hook"], _SLOW_EVENTS)
            config = tables(url, state, [])
            config["sinks"] = [
                {
                    "name": "hook",
                    "type": "webhook",
                    "url": f"{url}/hook",
                    "when": {"lifecycle": False},
                }
            ]
            async with running(config):
                await counter.expect(_SLOW_EVENTS)
    return counter.last - began[0]


async def cold(rounds: int, turns: int) -> list[Figure]:
    """Return p50 of single events among seconds of rest, against commit and POST."""
    world = World()
    async with hooked(world) as (config, folder, url):

        async def ours() -> list[float]:
            found = list[float]()
            async with running(config):
                for _ in range(rounds):
                    await _rest()
                    found += await world.announce(1)
            return [quantile(found, 0.5)]

        async def bare() -> list[float]:
            found = list[float]()
            with committing(folder) as commit:
                async with aiohttp.ClientSession() as session:
                    for _ in range(rounds):
                        await _rest()
                        began = time.perf_counter()
                        commit()
                        async with session.post(f"{url}/hook", data="bare") as response:
                            await response.read()
                        found.append((await world.arrived.get() - began) * 1000)
            return [quantile(found, 0.5)]

        ((mine, least),) = await in_turns(ours, bare, turns)
    return [
        Figure(
            what="IMDS answer to webhook after seconds of rest, p50",
            ours=mine,
            bare=least,
            unit="ms",
            wanted="<= 3",
        )
    ]


async def _rest() -> None:
    """Wait while other programs use both cores."""
    script = _OTHER_PROGRAM.format(seconds=_REST)
    others = [
        await asyncio.create_subprocess_exec(sys.executable, "-c", script)
        for _ in range(2)
    ]
    for one in others:
        await one.wait()
    await asyncio.sleep(0.3)  # with the poll that is under way


async def cost(rounds: int, turns: int) -> list[Figure]:
    """Return the CPU milliseconds of one event, beyond those of the polls."""
    found = []
    for _ in range(turns):
        world = World()
        async with hooked(world) as (_, folder, url):
            found.append(await _cost(world, folder, url, rounds))
    return [
        Figure(
            what="CPU of one event, IMDS to webhook, against the aim",
            ours=tuple(found),
            bare=(_COST_AIM,) * turns,
            unit="ms",
            wanted="<= 1",
        )
    ]


async def _cost(world: World, folder: Path, url: str, rounds: int) -> float:
    """Return what a forwarder in a process of its own takes for each event."""
    async with process_of(folder, url, f"{url}/hook") as pid:
        await world.announce(5)  # all is loaded
        before, began = cpu(pid), time.perf_counter()
        await world.announce(rounds)
        busy, seconds = cpu(pid) - before, time.perf_counter() - began
        before = cpu(pid)
        await asyncio.sleep(seconds)
        return 1000 * (busy - (cpu(pid) - before)) / (2 * rounds)  # it comes and goes


@contextlib.asynccontextmanager
async def process_of(folder: Path, url: str, hook: str) -> AsyncIterator[int]:
    """Run the forwarder as a process, with four polls a second; yields its pid."""
    file = folder / "bridge.toml"
    file.write_text(_CONFIG.format(url=url, hook=hook, state=folder / "state.db"))
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "bridge", "run", "-c", str(file)
    )
    try:
        yield process.pid
    finally:
        process.terminate()
        await process.wait()


SHAPES: dict[str, Callable[[int], tuple[str, bool]]] = {
    "chains of five": lambda n: (f"K{n // 5}", False),
    "one key": lambda n: ("K", False),
    "NotBefore in 2 h": lambda n: (f"K{n}", True),
}


async def waiting(count: int) -> list[Figure]:
    """Return memory and start with a backlog of each shape, against those with none."""
    bare_memory, bare_start = await _waited(0, SHAPES["one key"])
    found = []
    for name, shape in SHAPES.items():
        memory, start = await _waited(count, shape)
        what = f"{count:,} waiting, {name}"
        found += [
            Figure.once(f"{what}: memory", memory, bare_memory, "MiB"),
            Figure.once(f"{what}: start to the first poll", start, bare_start, "s"),
        ]
    return found


async def _waited(
    count: int, shape: Callable[[int], tuple[str, bool]]
) -> tuple[float, float]:
    """Start with so many that wait for a webhook that is not there.

    Returns:
        MiB after 10 s, and seconds to the first poll.
    """
    polled = asyncio.Event()

    def document() -> object:
        polled.set()
        return {"DocumentIncarnation": 1, "Events": []}

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        await _filled(folder / "state.db", count, shape)
        async with served(imds(document)) as url:
            began = time.perf_counter()
            async with process_of(folder, url, "http://127.0.0.1:9/hook") as pid:
                await polled.wait()
                start = time.perf_counter() - began
                await asyncio.sleep(10)
                return resident(pid), start


async def _filled(
    state: Path, count: int, shape: Callable[[int], tuple[str, bool]]
) -> None:
    later = datetime.now(tz=UTC) + timedelta(hours=2)
    async with patient_outbox(state, router({"hook": route()})) as outbox:
        for first in range(0, count, 500):
            events = []
            for n in range(first, min(first + 500, count)):
                key, is_timed = shape(n)
                moment = later if is_timed else None
                events.append(outgoing(f"{n}", key=key, not_before=moment))
            await outbox.commit(events, now=time.time())
