"""Live pages: the stream that tells a browser that its page shows something else."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, closing
from typing import Any

import aiohttp
import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from bridge.foundation.clock import SystemClock
from bridge.foundation.errors import HubStoreAwayError
from bridge.hub.access import AccessConfig
from bridge.hub.config import HubConfig
from bridge.hub.pages.listing import ListQuery
from bridge.hub.pages.live import Live, _Watched
from bridge.hub.pages.rendering import Content, Look
from bridge.hub.store.store import Store
from tests.support.builders import EVENT_ID
from tests.support.fakes import FakeClock
from tests.support.hub import HubWorld, access, beat, config

PAGE = f"/events/{EVENT_ID}"
STREAM = {"Accept": "text/event-stream"}


@pytest.fixture
def hub_config(sqlite_config: HubConfig) -> HubConfig:
    """Return one store alone: a stream sees no difference."""
    return sqlite_config


@pytest.fixture
async def world(store: Store) -> AsyncIterator[HubWorld]:
    many = tuple(f"p{n}" for n in range(20))
    given = msgspec.structs.replace(access(), approvers=("ann", *many))
    async with HubWorld(store, config(access=given)).open() as opened:
        yield opened


@asynccontextmanager
async def stream(
    world: HubWorld, path: str, who: str = "ann"
) -> AsyncIterator[aiohttp.ClientResponse]:
    headers = {**STREAM, "User": who}
    async with (
        aiohttp.ClientSession() as http,
        http.get(f"{world.url}{path}", headers=headers) as found,
    ):
        yield found


async def mark_of(found: aiohttp.ClientResponse) -> str:
    """Return the next mark that a stream tells."""
    async with asyncio.timeout(30):
        async for line in found.content:
            if line.startswith(b"data: ") and line.strip() != b"data:":
                return line.removeprefix(b"data: ").decode().strip()
    raise AssertionError("the stream has ended")


async def page(world: HubWorld, path: str, mark: str = "") -> str:
    headers = {"User": "ann", "Accept": "text/html", "X-Sebridge-Mark": mark}
    async with (
        aiohttp.ClientSession() as http,
        http.get(f"{world.url}{path}", headers=headers) as found,
    ):
        return await found.text()


@pytest.mark.parametrize(
    "path", ["/", PAGE, "/bridges", "/decisions", "/machines/a/b/c"]
)
async def test_stream_is_of_the_page_that_is_shown(world: HubWorld, path: str) -> None:
    """Also of one that does not exist yet."""
    async with stream(world, path) as found:
        assert found.content_type == "text/event-stream"
        assert f'data-mark="{await mark_of(found)}"' in await page(world, path)


async def test_change_is_reported_and_shown(world: HubWorld) -> None:
    async with stream(world, "/") as list_, stream(world, PAGE) as event:
        before = await mark_of(list_), await mark_of(event)
        await world.scheduled()
        marks = await mark_of(list_), await mark_of(event)
        assert before != marks
        text = await page(world, "/", marks[0])
        assert f'data-mark="{marks[0]}"' in text
        assert "1 event waits for a decision" in text
        await world.post()
        assert "decided, not sent yet" in await page(world, PAGE, await mark_of(event))


async def test_time_alone_is_no_change(world: HubWorld) -> None:
    """Browsers count down by themselves."""
    await world.scheduled()
    world.clock.pass_by(60)
    first = await page(world, PAGE)
    world.clock.pass_by(7)
    second = await page(world, PAGE)

    assert ("in 14 min 00 s" in first, "in 13 min 53 s" in second) == (True, True)
    assert (
        first.partition("data-mark=")[2][:18] == second.partition("data-mark=")[2][:18]
    )


async def test_stream_that_asks_for_what_cannot_be_is_refused(world: HubWorld) -> None:
    async with stream(world, "/?page=x") as found:
        assert found.status == 400


def test_filters_that_mean_the_same_are_one_list() -> None:
    def of(**query: str) -> ListQuery:
        return ListQuery.of(query)

    assert of(q=" Web-1 ", type="freeze", source="PLATFORM", open="true") == of(
        q="web-1", type="Freeze", source="Platform", resourceGroup=""
    )
    assert of(resourceGroup="RG", colour="red") == of(resourceGroup="rg", page="0")
    assert of(open="false") != of()


# -- how many ----------------------------------------------------------------------


async def test_person_has_five_streams_and_others_have_theirs(world: HubWorld) -> None:
    async with AsyncExitStack() as stack:
        for _ in range(5):
            mine = await stack.enter_async_context(stream(world, "/"))
            assert mine.status == 200
        async with stream(world, "/") as sixth:
            assert sixth.status == 429
            assert "5 live pages" in (await sixth.json())["error"]
        async with stream(world, "/", "p1") as other:
            assert other.status == 200


async def test_page_that_was_left_is_not_counted(world: HubWorld) -> None:
    """Who goes from page to page has one at a time; a ping would take 15 s to tell."""
    async with AsyncExitStack() as stack:
        for _ in range(5):
            await stack.enter_async_context(stream(world, "/"))
    async with asyncio.timeout(60):
        while True:
            async with stream(world, "/") as found:
                if found.status == 200:
                    return


async def test_local_person_has_as_many_as_they_like(store: Store) -> None:
    given = config(access=AccessConfig(approvers=("local",)))
    async with HubWorld(store, given).open() as world, AsyncExitStack() as stack:
        for _ in range(20):
            mine = await stack.enter_async_context(stream(world, "/"))
            assert mine.status == 200


async def test_fifty_different_lists_are_live_and_no_more(world: HubWorld) -> None:
    async with AsyncExitStack() as stack:
        for n in range(50):
            opened = stream(world, f"/?q={n}", f"p{n // 5}")
            assert (await stack.enter_async_context(opened)).status == 200
        async with stream(world, "/?q=more") as found:
            assert found.status == 503
        async with stream(world, "/?q=7") as found:
            assert found.status == 200, "it is one of them"
    async with asyncio.timeout(60):  # the others have left
        while True:
            async with stream(world, "/?q=more") as found:
                if found.status == 200:
                    return


# -- the stream itself -------------------------------------------------------------


class Reader:
    """Somebody who looks on, as the stream sees them."""

    def __init__(self, *, reads: bool = True) -> None:
        self.frames: list[bytes] = []
        self._reads = reads

    async def write(self, data: bytes) -> None:
        if not self._reads:
            raise ConnectionResetError
        self.frames.append(data)


def look(key: str = "/") -> Look:
    return Look(key, lambda _c, _s: Content("x", {}))


async def test_quiet_page_is_read_once_and_its_stream_is_kept_open() -> None:
    clock, made, numbers = FakeClock(), 0, [1]

    async def version() -> object:
        if not numbers:
            raise HubStoreAwayError("away")
        return numbers[0]

    async def read(_: Look) -> Content:
        nonlocal made
        made += 1
        return Content("x", {"number": numbers[0]})

    live, watched = Live(clock, version, read), _Watched(look())
    one, other = Reader(), Reader()
    tasks = [
        asyncio.create_task(live._send(who, watched))  # type: ignore[arg-type]  # it writes
        for who in (one, other)
    ]
    await clock.advance(0)
    assert made == 1, "for both of them"
    await clock.advance(16)
    assert [f.split(b"\n")[0] for f in one.frames] == [
        *(b"retry: 3000", b"event: mark", b"event: ping")
    ]
    assert made <= 4, "parts of a page depend on the time"
    numbers[0] = 2
    await clock.advance(2)
    assert b"event: mark" in one.frames[-1]
    assert one.frames == other.frames
    numbers.clear()
    before = len(one.frames)
    await clock.advance(40)
    assert len(one.frames) == before, "it would say that all is well"
    assert not any(task.done() for task in tasks), "the store comes back"
    for task in tasks:
        task.cancel()
    gone = Reader(reads=False)
    with pytest.raises(ConnectionResetError):
        await live._send(gone, watched)  # type: ignore[arg-type]  # as above


async def test_reader_that_does_not_read_is_dropped_and_costs_others_nothing() -> None:
    """A phone that is asleep, behind buffers that are full."""

    async def version() -> object:
        return 1

    async def read(_: Look) -> Content:
        found = Content("x", {})
        found.mark = "mark" * 5_000_000  # more than the buffers of any system
        return found

    live = Live(SystemClock(), version, read, patience=0.3)

    async def handler(request: web.Request) -> web.StreamResponse:
        return await live.stream(request, "ann", look())

    app = web.Application()
    app.router.add_get("/", handler)
    async with TestServer(app) as server, asyncio.timeout(30):
        sleeper = socket.create_connection((server.host, server.port))
        with closing(sleeper):
            sleeper.sendall(b"GET / HTTP/1.1\r\nHost: hub\r\n\r\n")
            while not live.readers:
                await asyncio.sleep(0.01)
            while live.readers:
                await asyncio.sleep(0.01)
        async with (
            aiohttp.ClientSession(read_bufsize=1 << 26) as http,
            http.get(server.make_url("/")) as found,
        ):
            while not (await found.content.readline()).startswith(b"data: "):
                pass


async def test_costly_page_does_not_hold_up_another() -> None:
    """One viewer's filters are slow; who shows another page does not wait for them."""
    clock, waits = FakeClock(), asyncio.Event()

    async def version() -> object:
        return 1

    async def read(wanted: Look) -> Content:
        if wanted.key == "slow":
            await waits.wait()
        return Content("x", {})

    live, quick = Live(clock, version, read), Reader()
    tasks: list[asyncio.Task[Any]] = [
        asyncio.create_task(live._send(who, _Watched(look(key))))  # type: ignore[arg-type]  # it writes
        for who, key in ((Reader(), "slow"), (quick, "quick"))
    ]
    await clock.advance(1)
    assert b"event: mark" in quick.frames[-1]
    waits.set()
    for task in tasks:
        task.cancel()


async def test_too_many_readers_are_told(world: HubWorld) -> None:
    live = Live(FakeClock(), None, None)  # type: ignore[arg-type]  # neither is asked
    live._people["ann"] = 4
    live._people["others"] = 496
    with pytest.raises(web.HTTPServiceUnavailable):
        await live.stream(None, "ann", look())  # type: ignore[arg-type]  # as above
    await world.store.keep([beat()])
