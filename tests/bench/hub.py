"""What a hub of 1,000 machines takes: what it keeps a second, and how fast it answers.

The messages are those of bridges, already received: the broker is not measured. The
bare loop beside the first stores the same bodies, in the same portions, in one table.
"""

import sqlite3
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import aiohttp
from aiohttp import web
from sqlalchemy import select

from bridge.foundation.values import Address
from bridge.hub.access import AccessConfig
from bridge.hub.config import HubConfig
from bridge.hub.housekeeping import FleetMonitor
from bridge.hub.metrics import HubMetrics
from bridge.hub.store.kept_facts import Incoming
from bridge.hub.store.store import Store, open_store
from bridge.hub.store.tables import bridges
from tests.bench.figures import Figure, in_turns
from tests.bench.measuring import quantile, resident, served
from tests.support import postgres
from tests.support.fleet import event, step, vm
from tests.support.hub import HubWorld, beat, config, received

MACHINES = 1_000
_REPORTERS = 12  # each event is told by so many bridges, at worst
_AT_ONCE = 200
_GETS = 100


def messages(machines: int) -> list[Incoming]:
    """Return what a fleet tells: its bridges, an event for each twelve, its start."""
    found = [beat(number) for number in range(machines)]
    for number in range(0, machines, _REPORTERS):
        names = range(number, min(number + _REPORTERS, machines))
        resources = [f"web-{n}" for n in names]
        raw = event(f"00000000-0000-0000-0000-{number:012}", Resources=resources)
        found += [received(step("scheduled", raw, who=vm(n), repeats=n)) for n in names]
    return found


def portions(found: Sequence[Incoming]) -> list[Sequence[Incoming]]:
    return [found[n : n + _AT_ONCE] for n in range(0, len(found), _AT_ONCE)]


async def kept(store: Store, found: Sequence[Incoming]) -> float:
    """Return how many messages a second are kept."""
    began = time.perf_counter()
    for portion in portions(found):
        await store.keep(portion)
    return len(found) / (time.perf_counter() - began)


def stored(path: Path, found: Sequence[Incoming]) -> float:
    """Return how many bodies a second a bare table takes."""
    path.unlink(missing_ok=True)
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("PRAGMA synchronous=FULL")
        db.execute("CREATE TABLE bodies (body BLOB)")
        began = time.perf_counter()
        for portion in portions(found):
            rows = [(one.body,) for one in portion]
            db.executemany("INSERT INTO bodies VALUES (?)", rows)
            db.commit()
        return len(found) / (time.perf_counter() - began)


async def ingest(machines: int, turns: int, url: str | None = None) -> Figure:
    """Measure how much a hub keeps; with the address of a PostgreSQL, there."""
    found = messages(machines)
    with tempfile.TemporaryDirectory() as name:
        folder, number = Path(name), 0

        async def ours() -> Sequence[float]:
            nonlocal number
            number += 1
            address = url or f"sqlite:{folder / f'{number}.db'}"
            if url is not None:
                postgres_is_empty(url)
            async with open_store(HubConfig(store=Address(address, {}))) as store:
                return [await kept(store, found)]

        async def bare() -> Sequence[float]:
            return [stored(folder / "bare.db", found)]

        ((ours_, bare_),) = await in_turns(ours, bare, turns)
    kind = "SQLite" if url is None else "PostgreSQL"
    return Figure(
        what=f"hub: messages kept a second, {kind}",
        ours=ours_,
        bare=bare_,
        unit="1/s",
    )


def postgres_is_empty(url: str) -> None:
    """Let a database be as new."""
    import psycopg  # noqa: PLC0415 - of this one alone

    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public")


async def gets(url: str) -> float:
    """Return the p95 of a page in milliseconds."""
    taken = []
    async with aiohttp.ClientSession() as http:
        for _ in range(_GETS):
            began = time.perf_counter()
            async with http.get(url) as found:
                await found.read()
            taken.append(1000 * (time.perf_counter() - began))
    return quantile(taken, 0.95)


@asynccontextmanager
async def fleet(machines: int) -> AsyncIterator[HubWorld]:
    """Open a hub that knows a fleet."""
    with tempfile.TemporaryDirectory() as name:
        address = Address(f"sqlite:{Path(name) / 'hub.db'}", {})
        found = config(store=address, access=AccessConfig(approvers=("local",)))
        async with AsyncExitStack() as stack:
            store = await stack.enter_async_context(open_store(found))
            await kept(store, messages(machines))
            yield await stack.enter_async_context(HubWorld(store, found).open())


async def pages(machines: int, turns: int) -> list[Figure]:
    """Measure pages against a server that has the very same bytes at hand."""
    figures = []
    async with fleet(machines) as world, aiohttp.ClientSession() as http:
        for what, path in (("/", "/"), ("a search", "/?q=web-1"), ("/bridges",) * 2):
            async with http.get(f"{world.url}{path}") as found:
                body = await found.read()

            async def same(_: web.Request, body: bytes = body) -> web.Response:
                return web.Response(body=body, content_type="text/html")

            async with served([web.get("/", same)]) as bare_url:

                async def ours(path: str = path) -> Sequence[float]:
                    return [await gets(f"{world.url}{path}")]

                async def bare(url: str = bare_url) -> Sequence[float]:
                    return [await gets(url)]

                ((ours_, bare_),) = await in_turns(ours, bare, turns)
            name = f"hub: {what}, p95"
            figures.append(Figure(what=name, ours=ours_, bare=bare_, unit="ms"))
        figures.append(await looks(world, turns))
    figures.append(Figure.once("hub: memory with its fleet", resident(), 1, "MiB"))
    return figures


async def looks(world: HubWorld, turns: int) -> Figure:
    """Measure checks of the whole fleet, by one read of its rows."""
    metrics = HubMetrics(("b",), "1")

    async def ours() -> Sequence[float]:
        fleet_monitor = FleetMonitor(
            world.store,
            world.clock,
            metrics,
            world.situation,
            retention=world.config.retention,
        )
        began = time.perf_counter()
        await fleet_monitor.step()
        return [1000 * (time.perf_counter() - began)]

    async def bare() -> Sequence[float]:
        began = time.perf_counter()
        await world.store.read(lambda c: c.execute(select(bridges)).all())
        return [1000 * (time.perf_counter() - began)]

    ((ours_, bare_),) = await in_turns(ours, bare, turns)
    what = "hub: a look at all bridges, by a read of their rows"
    return Figure(what=what, ours=ours_, bare=bare_, unit="ms")


async def figures(machines: int, turns: int) -> list[Figure]:
    """Measure all of it; PostgreSQL where it is installed."""
    found = [await ingest(machines, turns)]
    if postgres.is_there():
        with postgres.cluster(is_durable=True) as cluster:
            found.append(await ingest(machines, turns, cluster.url))
    return [*found, *await pages(machines, turns)]
