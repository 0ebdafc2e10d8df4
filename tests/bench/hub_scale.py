"""A hub at the size of its aims: 10,000 bridges, a million messages, 200 browsers.

The hub's own intake keeps the bridges, what is open, and some of what is over. The rest
of the million is copied from that within the store, under other EventIds: it would take
the intake a quarter of an hour. Then it keeps more messages, the pages are asked for,
and a wave of events comes while browsers look on.
"""

import asyncio
import os
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path

import aiohttp
from sqlalchemy import Connection, func, literal, select

from bridge.foundation.values import Address
from bridge.hub.access import AccessConfig
from bridge.hub.store.kept_facts import Incoming
from bridge.hub.store.store import Store, open_store
from bridge.hub.store.tables import events, machines, messages
from tests.bench.figures import Figure
from tests.bench.measuring import quantile, resident
from tests.support import postgres
from tests.support.fleet import event, step, vm
from tests.support.hub import HubWorld, beat, config, received

_AT_ONCE = 200
_GETS = 40
_EVERY = 5.0  # seconds between the looks of a browser without JavaScript
_WAVE_SECONDS = 10.0
_STREAM = {"Accept": "text/event-stream"}
_LISTS = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How much a hub has to bear.

    Attributes:
        open: events that are announced or running.
        originals: events that are over, of which the others are copies.
        messages: that are kept, of events that are over for the most part.
        wave: events that come in ten seconds.
        streams: live pages that one viewer has open.
    """

    bridges: int
    open: int
    originals: int
    messages: int
    browsers: int
    wave: int
    streams: int


FULL = Size(
    bridges=10_000,
    open=3_000,
    originals=2_000,
    messages=1_000_000,
    browsers=200,
    wave=3_000,
    streams=480,
)
QUICK = Size(
    bridges=200, open=60, originals=20, messages=2_000, browsers=10, wave=60, streams=60
)


def life_of(number: int, size: Size, *, is_over: bool) -> Iterator[Incoming]:
    """Yield what two bridges tell of an event: five messages, four while it is open."""
    names = [f"web-{(number * 2 + n) % size.bridges}" for n in range(2)]
    raw = event(f"{number:08X}-0000-4000-8000-000000000000", Resources=names)
    later = {**raw, "Description": "It comes later."}
    begun = {**later, "EventStatus": "Started", "NotBefore": ""}
    who = vm(number * 2 % size.bridges)
    yield received(step("scheduled", raw, who=who))
    yield received(
        step("scheduled", raw, who=vm((number * 2 + 1) % size.bridges), repeats=1)
    )
    yield received(step("updated", later, previous=raw, who=who, seconds=1))
    yield received(
        step("updated", later, previous=raw, who=who, seconds=1.5, repeats=1)
    )
    if is_over:
        yield received(step("started", begun, previous=later, who=who, seconds=2))
        yield received(step("completed", begun, who=who, seconds=3))


def portions(found: Iterable[Incoming]) -> Iterator[Sequence[Incoming]]:
    """Yield messages in portions, as a receiver takes them."""
    rest = iter(found)
    while batch := list(islice(rest, _AT_ONCE)):
        yield batch


def first(size: Size) -> Iterator[Incoming]:
    """Yield what the intake keeps."""
    for number in range(size.bridges):
        yield beat(number)
    for number in range(size.open):
        yield from life_of(number, size, is_over=False)
    yield from over(size.open, size.originals, size)


def over(start: int, count: int, size: Size) -> Iterator[Incoming]:
    """Yield the lives of events that are over."""
    for number in range(start, start + count):
        yield from life_of(number, size, is_over=True)


async def fill(store: Store, size: Size) -> int:
    """Fill a store; return how many messages it has."""
    for portion in portions(first(size)):
        await store.keep(portion)
    counted = select(func.count()).select_from(messages)
    kept = await store.read(lambda c: c.scalar(counted)) or 0
    each = size.originals * 6
    for number in range(1 + max(size.messages - kept, 0) // each):
        await in_thread(store, partial(copy_over, number=number))
    return await store.read(lambda c: c.scalar(counted)) or 0


async def in_thread(store: Store, work: Callable[[Connection], None]) -> None:
    """Do something in the store that may take as long as it takes."""

    def run() -> None:
        with store.writer.begin() as connection:
            work(connection)

    await asyncio.to_thread(run)


def copy_over(connection: Connection, number: int) -> None:
    """Copy all that is over and no copy, under other EventIds."""
    originals = select(events.c.event_key).where(
        events.c.is_open.is_(False), events.c.event_key.not_like("C%")
    )
    for table in (messages, machines, events):
        names = [column.name for column in table.c if column.name != "seq"]
        rest = [table.c[name] for name in names if name != "event_key"]
        key = literal(f"C{number * 7919 % 1000:03}") + table.c.event_key
        query = select(key, *rest).where(table.c.event_key.in_(originals))
        order = ["event_key", *(name for name in names if name != "event_key")]
        connection.execute(table.insert().from_select(order, query))


async def rate(store: Store, size: Size) -> float:
    """Return how many more messages a second are kept."""
    found = list(over(10**6, size.wave // 3, size))
    began = time.perf_counter()
    for portion in portions(found):
        await store.keep(portion)
    return len(found) / (time.perf_counter() - began)


async def gets(url: str, path: str) -> float:
    """Return the p95 of a page in milliseconds."""
    taken = []
    async with aiohttp.ClientSession() as http:
        for _ in range(_GETS):
            began = time.perf_counter()
            async with http.get(f"{url}{path}") as found:
                assert found.status == 200, found.status
                await found.read()
            taken.append(1000 * (time.perf_counter() - began))
    return quantile(taken, 0.95)


@dataclass(slots=True)
class Browsers:
    """Whoever looks at the list: a stream tells of a change, and the page is fetched.

    Attributes:
        seen: when each was shown a list last, in seconds of this process.
        frames: how many lists all of them were sent.
    """

    url: str
    count: int
    seen: dict[int, float] = field(default_factory=dict)
    frames: int = 0

    async def look(self, number: int) -> None:
        """Look on until cancelled."""
        timeout = aiohttp.ClientTimeout(total=None)
        connector = aiohttp.TCPConnector(limit=0)
        async with (
            aiohttp.ClientSession(
                connector=connector, timeout=timeout, read_bufsize=2**22
            ) as http,
            http.get(f"{self.url}/?q=NEW", headers=_STREAM) as stream,
        ):
            async for line in stream.content:
                if mark := line.removeprefix(b"data:").strip().decode():
                    if not line.startswith(b"data:"):
                        continue
                    given = {"X-Sebridge-Mark": mark}
                    async with http.get(f"{self.url}/?q=NEW", headers=given) as page:
                        await page.read()
                    self.seen[number] = time.perf_counter()
                    self.frames += 1

    async def are_all_there(self) -> None:
        """Return as soon as each was shown a list."""
        while len(self.seen) < self.count:
            await asyncio.sleep(0.1)


async def wave(world: HubWorld, size: Size) -> tuple[list[float], float, float]:
    """Let a wave of events come while browsers look on.

    Returns:
        Seconds from the last message of the wave to the list that shows it, one for
        each browser; the longest that a page took meanwhile, in milliseconds; and the
        memory of this process in MiB.
    """
    browsers = Browsers(world.url, size.browsers)
    slowest = 0.0
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(browsers.look(n)) for n in range(size.browsers)]
        async with asyncio.timeout(60):
            await browsers.are_all_there()
        began = time.perf_counter()
        for start in range(0, size.wave, _AT_ONCE):
            numbers = range(start, min(start + _AT_ONCE, size.wave))
            raws = [event(f"NEW-{n:05}", Resources=[f"web-{n}"]) for n in numbers]
            await world.store.keep([received(step("scheduled", raw)) for raw in raws])
            due = began + _WAVE_SECONDS * (start + _AT_ONCE) / size.wave
            await asyncio.sleep(max(due - time.perf_counter(), 0))
            slowest = max(slowest, await one_get(world.url))
        ended, before = time.perf_counter(), browsers.frames
        # The list has 200 rows, and a later event changes none of them: one that is
        # nearer than all others is shown first, and says that the wave is through.
        near = event("NEW-LAST", NotBefore="Mon, 02 Mar 2026 12:01:00 GMT")
        await world.store.keep([received(step("scheduled", near))])
        async with asyncio.timeout(60):
            while min(browsers.seen.values()) < ended or browsers.frames == before:
                await asyncio.sleep(0.05)
        late = [seen - ended for seen in browsers.seen.values()]
        memory = resident()
        for task in tasks:
            task.cancel()
    return late, slowest, memory


async def crowd(world: HubWorld, size: Size) -> float:
    """Return how many seconds a new viewer waits for rows and for the live page.

    One viewer has nearly all streams that a hub gives, of as many different lists as it
    gives, while events come.
    """
    async with AsyncExitStack() as stack:
        connector = aiohttp.TCPConnector(limit=0)
        session = aiohttp.ClientSession(connector=connector)
        http = await stack.enter_async_context(session)
        await asyncio.sleep(2)  # the browsers of the wave have left
        for number in range(size.streams):
            url = f"{world.url}/?q=web-{number % (_LISTS - 1)}"
            await stack.enter_async_context(http.get(url, headers=_STREAM))
        raws = [event(f"CROWD-{n}", Resources=[f"web-{n}"]) for n in range(size.open)]
        for raw in raws[:_AT_ONCE]:
            await world.store.keep([received(step("scheduled", raw))])
        began = time.perf_counter()
        async with http.get(f"{world.url}/?type=Freeze") as page:
            assert "<tr id=" in await page.text()
        async with http.get(f"{world.url}/?type=Freeze", headers=_STREAM) as stream:
            assert stream.status == 200, stream.status
            while not (await stream.content.readline()).startswith(b"data:"):
                pass
        return time.perf_counter() - began


async def one_get(url: str) -> float:
    """Return how long a page takes, in milliseconds."""
    began = time.perf_counter()
    async with aiohttp.request("GET", f"{url}/") as found:
        await found.read()
    return 1000 * (time.perf_counter() - began)


@asynccontextmanager
async def desk_of(address: str) -> AsyncIterator[HubWorld]:
    """Open a hub without sources on a store."""
    access = AccessConfig(approvers=("local",))
    found = config(store=Address(address, {}), access=access)
    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(open_store(found))
        yield await stack.enter_async_context(HubWorld(store, found).open())


async def measure(address: str, kind: str, size: Size) -> list[Figure]:
    """Fill a store, and measure what is asked of it then."""

    def figure(what: str, value: float, unit: str, wanted: str = "") -> Figure:
        name = f"hub at scale: {what}, {kind}"
        return Figure.once(name, value, 1, unit, wanted)

    async with desk_of(address) as world:
        found = [
            figure("messages", await fill(world.store, size), ""),
            figure("kept a second", await rate(world.store, size), "1/s", ">= 1000"),
        ]
        for path, wanted in (
            ("/", "<= 300"),
            ("/?q=web-77", "<= 500"),
            ("/?open=false", ""),
            ("/bridges", ""),
            ("/api/v1/events?open=true", ""),
        ):
            taken = await gets(world.url, path)
            found.append(figure(f"{path}, p95", taken, "ms", wanted))
        late, slowest, memory = await wave(world, size)
        waited = await crowd(world, size)
        words = f"a new viewer beside {size.streams} streams of another"
        return [
            *found,
            figure(f"{size.browsers} browsers see the wave", max(late), "s", "<= 5"),
            figure("/ meanwhile, the slowest", slowest, "ms"),
            figure("memory with the browsers", memory, "MiB"),
            figure(words, waited, "s", "<= 5"),
        ]


async def figures(size: Size) -> list[Figure]:
    """Measure all of it on SQLite, and on PostgreSQL where it is installed."""
    wanted = os.environ.get("SEBRIDGE_BENCH_STORE", "")
    found = []
    with tempfile.TemporaryDirectory() as name:
        if wanted in {"", "sqlite"}:
            path = Path(name) / "hub.db"
            found += await measure(f"sqlite:{path}", "SQLite", size)
            large = path.stat().st_size / 2**20
            words = "hub at scale: the file, SQLite"
            found.append(Figure.once(words, large, 1, "MiB"))
    if postgres.is_there() and wanted in {"", "postgresql"}:
        with postgres.cluster(is_durable=True) as cluster:
            found += await measure(cluster.url, "PostgreSQL", size)
    return found
