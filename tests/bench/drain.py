"""A backlog drained: to a webhook, to Service Bus, to many sinks with one hanging."""

import asyncio
import shutil
import sqlite3
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from functools import partial
from pathlib import Path

import aiohttp
from aiohttp import web
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient

from bridge.sinks.base import SinkConfig
from tests.bench.figures import Figure, in_turns
from tests.bench.measuring import Counter, imds, resident, running, served
from tests.support.builders import outgoing, patient_outbox, route, router
from tests.system.processes import simulator

CONCURRENCY = SinkConfig.concurrency


async def backlog(path: Path, sinks: list[str], count: int) -> None:
    """Leave a backlog, each event with an EventId of its own."""
    async with patient_outbox(
        path, router({name: route() for name in sinks})
    ) as outbox:
        for first in range(0, count, 500):
            data: dict[str, object] = {"x": "y" * 1000}
            events = [
                outgoing(f"{n}", key=f"K{n}", data=data)
                for n in range(first, min(first + 500, count))
            ]
            await outbox.commit(events, now=time.time())


@asynccontextmanager
async def stored(sink: str, count: int) -> AsyncIterator[Callable[[], Path]]:
    """Write a backlog once; yields what returns a copy of it, the last one is gone."""
    with tempfile.TemporaryDirectory() as folder:
        first, place = Path(folder) / "first.db", Path(folder) / "turn"
        await backlog(first, [sink], count)

        def copy() -> Path:
            shutil.rmtree(place, ignore_errors=True)
            place.mkdir()
            shutil.copy(first, place / "state.db")
            return place / "state.db"

        yield copy


async def webhook(count: int, turns: int) -> list[Figure]:
    """Drain to a webhook, against a bare POST loop with as many at a time."""
    counter = Counter()
    routes = [*imds(lambda: {"Events": []}), web.post("/hook", counter.take)]
    before = resident()
    async with served(routes) as url:

        async def bare() -> list[float]:
            return [await bare_posts(f"{url}/hook", count, counter)]

        async with stored("hook", count) as copy:

            async def ours() -> list[float]:
                config = tables(url, copy(), ["hook"])
                began = time.perf_counter()
                async with running(config):
                    await counter.expect(count)
                    return [count / (time.perf_counter() - began)]

            ((mine, least),) = await in_turns(ours, bare, turns)
    return [
        Figure(
            what="backlog to a webhook, events per second",
            ours=mine,
            bare=least,
            unit="1/s",
            wanted=">= 0.6",
        ),
        Figure.once(
            f"memory after {count * turns:,} deliveries", resident(), before, "MiB"
        ),
    ]


def tables(url: str, state: Path, sinks: list[str]) -> dict[str, object]:
    """Return a configuration with webhooks of these names."""
    return {
        "imds": {"endpoint": url},
        "state": {"path": str(state)},
        "http": {"listen": ""},
        "sinks": [
            {"name": name, "type": "webhook", "url": f"{url}/{name}"} for name in sinks
        ],
    }


async def bare_posts(url: str, count: int, counter: Counter) -> float:
    """Return how many POSTs a second a bare loop makes."""
    numbers = iter(range(count))
    body = b"x" * 1400

    async def post(session: aiohttp.ClientSession) -> None:
        for _ in numbers:
            async with session.post(url, data=body) as response:
                await response.read()

    async with aiohttp.ClientSession() as session:
        began = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            group.create_task(counter.expect(count))
            for _ in range(CONCURRENCY):
                group.create_task(post(session))
        return count / (time.perf_counter() - began)


async def service_bus(count: int, turns: int) -> list[Figure]:
    """Drain to a topic, against the bare SDK that sends one message at a time."""
    async with simulator("--imds-port", "0") as at:

        async def ours() -> list[float]:
            with tempfile.TemporaryDirectory() as folder:
                state = Path(folder) / "state.db"
                await backlog(state, ["bus"], count)
                config = tables(at.imds, state, [])
                config["sinks"] = [
                    {
                        "name": "bus",
                        "type": "servicebus",
                        "connection_string": at.connection_string,
                        "topic": "scheduled-events",
                    }
                ]
                began = time.perf_counter()
                async with running(config):
                    await drained(state, count)
                    return [count / (time.perf_counter() - began)]

        async def bare() -> list[float]:
            return [await bare_sends(at.connection_string, max(count // 5, 50))]

        ((mine, least),) = await in_turns(ours, bare, turns)
    return [
        Figure(
            what="backlog to Service Bus, events per second",
            ours=mine,
            bare=least,
            unit="1/s",
            wanted=">= 0.8",
        )
    ]


async def bare_sends(connection_string: str, count: int) -> float:
    """Return how many messages a second the bare SDK sends, one after the other."""
    async with (
        ServiceBusClient.from_connection_string(connection_string) as client,
        client.get_queue_sender("replies") as sender,
    ):
        await sender.send_messages(ServiceBusMessage("warm"))
        began = time.perf_counter()
        for _ in range(count):
            await sender.send_messages(ServiceBusMessage(b"x" * 1400))
        return count / (time.perf_counter() - began)


async def drained(state: Path, count: int) -> int:
    """Return as soon as so many are delivered, and how many these are."""
    with closing(sqlite3.connect(f"{state.as_uri()}?mode=ro", uri=True)) as db:
        while (n := _delivered(db)) < count:
            await asyncio.sleep(0.01)
        return n


def _delivered(db: sqlite3.Connection) -> int:
    found: tuple[int] = db.execute(
        "SELECT count(*) FROM deliveries WHERE sink = 'bus' AND state = 'delivered'"
    ).fetchone()
    return found[0]


async def fan_out(count: int, turns: int) -> list[Figure]:
    """Drain to 4 and 16 sinks and one that hangs; against one, and one that hangs."""
    table = []
    for sinks in (4, 16):
        ((many, one),) = await in_turns(
            partial(fanned_out, count, sinks), partial(fanned_out, count, 1), turns
        )
        table.append(
            Figure(
                what=f"deliveries per second to {sinks} sinks, and one that hangs",
                ours=many,
                bare=one,
                unit="1/s",
            )
        )
    return table


async def fanned_out(count: int, sinks: int) -> list[float]:
    """Return the deliveries a second to so many sinks beside one that hangs."""

    async def hang(_: web.Request) -> web.Response:
        await asyncio.sleep(3600)
        return web.Response()

    counter = Counter()
    routes = [
        *imds(lambda: {"Events": []}),
        web.post("/hangs", hang),
        web.post("/{name}", counter.take),
    ]
    names = [f"s{number}" for number in range(sinks)]
    total = count * sinks
    with tempfile.TemporaryDirectory() as folder:
        async with served(routes) as url:
            state = Path(folder) / "state.db"
            await backlog(state, [*names, "hangs"], count)
            began = time.perf_counter()
            config = tables(url, state, [*names, "hangs"])
            config["shutdown_grace"] = 0
            async with running(config):
                await counter.expect(total)
                return [total / (time.perf_counter() - began)]
