"""Whoever means harm, and whatever dies: nothing is run, lost, or reported twice."""

import asyncio
import csv
import re
import resource
import socket
import tempfile
from contextlib import ExitStack
from datetime import timedelta
from io import StringIO
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aiohttp
import msgspec
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bridge.foundation.errors import HubStoreAwayError
from bridge.foundation.values import Address
from bridge.hub.alarm_sinks import AlarmPublisher, context_of
from bridge.hub.answers import BridgesAsked
from bridge.hub.bridges import Liveness
from bridge.hub.config import AzureSource, BridgesSource, HubConfig
from bridge.hub.load import HubFile
from bridge.hub.sources import read
from bridge.hub.store import alarms
from bridge.hub.store.lists import fleet as bridges_of
from bridge.hub.store.lists import forget_bridge
from bridge.hub.store.store import Store, open_store
from bridge.hub.views import one_event
from bridge.outbox.store import Outbox
from bridge.servicebus.decode import ReceivedMessage
from tests.hub.test_alarms import Fleet
from tests.hub.test_pages import Browser
from tests.support.builders import EVENT_ID, SINK
from tests.support.fakes import FakeClock
from tests.support.fleet import at, azure, event, life, step, vm
from tests.support.hub import BUS, HubWorld, beat, config, received

_CONNECTIONS = 10_000
_AZURE = AzureSource(name="azure", type="azure", namespace="n", queue="q")

# -- who connects ------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("hub_config", ["sqlite"], indirect=True)  # no difference here
async def test_ten_thousand_connections_that_send_nothing_are_no_harm(
    store: Store,
) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < _CONNECTIONS + 2000:
        pytest.skip(f"only {hard} files may be open here")
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, _CONNECTIONS + 2000), hard))
    async with HubWorld(store, config()).open() as world:
        await world.scheduled()
        port = int(world.url.rpartition(":")[2])
        with ExitStack() as stack:
            loop = asyncio.get_running_loop()
            for _ in range(_CONNECTIONS):
                one = stack.enter_context(socket.socket())
                one.settimeout(0)
                await loop.sock_connect(one, ("127.0.0.1", port))
            async with asyncio.timeout(60), aiohttp.ClientSession() as http:
                async with http.get(f"{world.url}/livez") as found:
                    assert found.status == 200
                async with http.get(world.url, headers={"User": "ann"}) as found:
                    assert "1 event waits" in await found.text()


# -- what is sent ------------------------------------------------------------------

ODD = [
    "../../etc/passwd",
    "a/b?c#d&e=f",
    "=cmd|' /C calc'!A0",
    "@SUM(1)",
    "\x1b]0;owned\x07",
    "a\x00b",
    "%2e%2e%2f",
    "\ud7ff\u202e.exe",
    "<svg onload=alert(1)>",
    "'; DROP TABLE events; --",
    "A" * 1024,
    "\N{COLLISION SYMBOL}",
    "{braces}",
    "100%",
    "..",
]


@pytest.mark.slow
@pytest.mark.parametrize("event_id", ODD, ids=range(len(ODD)))
async def test_event_id_is_data_wherever_it_is_shown(
    store: Store, event_id: str
) -> None:
    async with (
        HubWorld(store, config()).open() as world,
        aiohttp.ClientSession() as http,
    ):
        await store.keep([beat(), received(step("scheduled", event(event_id)))])
        browser = Browser(world, http)
        (href,) = set(re.findall(r'href="(/events[^"]+)"', await browser.open("/")))
        text = await browser.open(href)
        assert (browser.status, "<svg" in text) == (200, False)
        text = await browser.submit(path=href, decision="refuse", reason=event_id)
        assert (browser.status, "refused by ann" in text) == (200, True)
        for path in ("/", "/decisions"):
            text = await browser.open(path)
            assert (browser.status, "<svg" in text) == (200, False)
            assert "\u202e" not in text
        assert ("[U+202E].exe" in text) is ("\u202e" in event_id)
        for row in csv.reader(StringIO(await world.get("/api/v1/decisions.csv"))):
            assert not any(cell.startswith(("=", "+", "-", "@")) for cell in row)
            assert not any(ord(sign) < 32 for cell in row for sign in cell)
            assert not any("\u202e" in cell for cell in row)


async def test_text_that_cannot_be_seen_is_marked_wherever_it_is_shown(
    store: Store,
) -> None:
    """A name may be read backwards, or have a letter that nobody sees."""
    unseen = "gpj\u202eexe\u200b\U000e0041"
    raw = event(Resources=[unseen], Description=unseen, EventSource=unseen)
    async with (
        HubWorld(store, config()).open() as world,
        aiohttp.ClientSession() as http,
    ):
        who = msgspec.structs.replace(vm(), vm_name=unseen)
        body = step("scheduled", raw, who=who)
        started = life("started", who=who, version=unseen)
        await store.keep([received(body), received(started)])
        browser = Browser(world, http)
        for path in ("/", f"/events/{EVENT_ID}", "/bridges", f"/?q={quote(unseen)}"):
            text = await browser.open(path)
            assert browser.status == 200
            assert "[U+202E]" in text or "\\u202e" in text
            assert not set(unseen) & set(text) - set("gpjexe")
        shown = await world.get(f"/api/v1/events/{EVENT_ID}")
        assert shown["event"]["Description"] == unseen, "programs compare it"


@pytest.mark.parametrize("changes", [True, 7, "x", {"a": 1}, [None, 1, {}]])
async def test_changes_of_any_form_are_shown(store: Store, changes: object) -> None:
    """The form to decide is on this page."""
    raw, before = event(DurationInSeconds=5), event(DurationInSeconds=9)
    body = orjson.loads(step("updated", raw, previous=before))
    body["data"]["changes"] = changes
    async with (
        HubWorld(store, config()).open() as world,
        aiohttp.ClientSession() as http,
    ):
        await store.keep([beat(), received(orjson.dumps(body))])
        browser = Browser(world, http)
        assert "Approve now" in await browser.open(f"/events/{EVENT_ID}")


async def test_event_of_more_machines_than_a_statement_may_name(store: Store) -> None:
    """Nobody could see any event, and no alarm would be found, until it is over."""
    body = orjson.loads(step("scheduled"))
    body["data"]["event"]["Resources"] = [f"m{n}" for n in range(70_000)]
    async with HubWorld(store, config()).open() as world:
        given = [
            beat(),
            received(orjson.dumps(body)),
            received(step("scheduled", event("E"))),
        ]
        await store.keep(given)
        listed = (await world.get("/api/v1/events"))["events"]
        assert len(listed) == 2
        status, found = await world.post()
        assert (status, "not all Resources" in found["error"]) == (409, True)


@pytest.mark.slow
@pytest.mark.parametrize("path", [f"/events/{EVENT_ID}", "/machines/a/b/web-0"])
@pytest.mark.parametrize(
    ("body", "charset"),
    [
        (b"\xff\xfe", "utf-8"),
        (b"token=x", "nothing"),
        (b"token=x", "hex"),
        (b"token=x", "undefined"),
        (b"&" * 60_000, "utf-8"),
    ],
    ids=["bytes", "unknown", "binary", "undefined", "empty"],
)
async def test_form_that_nobody_can_read_is_the_senders_fault(
    store: Store, path: str, body: bytes, charset: str
) -> None:
    kind = f"application/x-www-form-urlencoded; charset={charset}"
    headers = {"User": "ann", "Content-Type": kind, "Accept": "text/html"}
    async with (
        HubWorld(store, config()).open() as world,
        aiohttp.ClientSession() as http,
    ):
        await world.scheduled()
        async with http.post(f"{world.url}{path}", data=body, headers=headers) as found:
            assert 400 <= found.status < 500
            assert "</html>" in await found.text()


async def test_cursor_that_no_database_takes_is_no_failure(store: Store) -> None:
    async with (
        HubWorld(store, config()).open() as world,
        aiohttp.ClientSession() as http,
    ):
        await world.scheduled()
        browser = Browser(world, http)
        await browser.open("/bridges?after=a%00b")
        assert browser.status == 200
        await browser.open("/api/v1/bridges?cursor=a%00b")
        assert browser.status == 400


def mutated(body: bytes) -> st.SearchStrategy[bytes]:
    """Return ways in which a message may be broken."""
    places = st.integers(0, len(body) - 1)
    cut = places.map(lambda n: body[:n])
    changed = st.tuples(places, st.binary(min_size=1, max_size=4)).map(
        lambda one: body[: one[0]] + one[1] + body[one[0] + len(one[1]) :]
    )
    return st.one_of(st.binary(max_size=300), cut, changed)


BODIES = st.one_of(
    mutated(step("scheduled")),
    mutated(life("started", intervalSeconds=60, approvals={"rules": []})),
    mutated(azure("Scheduled")),
)


@pytest.mark.slow
@given(bodies=st.lists(BODIES, min_size=1, max_size=8), source=st.booleans())
@settings(max_examples=60, deadline=None)
def test_message_of_any_bytes_is_kept_or_left_out(
    bodies: list[bytes], *, source: bool
) -> None:
    """Nothing is raised, and what is kept can be shown."""
    messages = [_received(body) for body in bodies]
    origin: BridgesSource | AzureSource = BUS if source else _AZURE
    batch = [one for message in messages for one in read(origin, message, at(0))]

    async def keep() -> None:
        with tempfile.TemporaryDirectory() as name:
            path = Address(f"sqlite:{Path(name) / 'hub.db'}", {})
            async with open_store(HubConfig(store=path)) as store:
                await store.keep(batch)
                situation = Fleet(store, FakeClock()).situation()
                await store.read(lambda c: bridges_of(c, situation, BridgesAsked()))
                for key in {one.fact.key for one in batch if one.fact}:
                    await store.read(
                        lambda c, key=key: one_event(c, key, situation)  # type: ignore[misc]  # a default binds it
                    )

    asyncio.run(keep())


def _received(body: bytes) -> ReceivedMessage:
    return ReceivedMessage(
        lock_token="t",
        sequence_number=1,
        body=body,
        message_id="m",
        enqueued_at=at(0),
        reply_to=None,
        reply_to_session_id=None,
    )


# -- who is silent, in any order of things -----------------------------------------

OPS = st.lists(
    st.one_of(
        st.tuples(st.just("beat"), st.integers(0, 2)),
        st.tuples(st.just("stop"), st.integers(0, 2)),
        st.tuples(st.just("forget"), st.integers(0, 2)),
        st.tuples(st.just("pass"), st.sampled_from([1, 59, 120, 181, 700])),
        st.tuples(st.just("lose"), st.just(0)),
        st.tuples(st.just("find"), st.just(0)),
        st.tuples(st.just("look"), st.just(0)),
        st.tuples(st.just("die"), st.just(0)),
    ),
    max_size=25,
)


@pytest.mark.slow
@given(ops=OPS)
@settings(max_examples=60, deadline=None)
def test_silence_and_its_end_are_reported_in_turns(ops: list[tuple[str, int]]) -> None:
    """Of each bridge: silent, back, silent … ; and at the end as it really is."""

    async def play() -> None:
        with tempfile.TemporaryDirectory() as name:
            path = Address(f"sqlite:{Path(name) / 'hub.db'}", {})
            async with open_store(HubConfig(store=path)) as store:
                world = World(store)
                for what, number in [*ops, ("find", 0), ("look", 0)]:
                    await world.do(what, number)
                await world.check()

    asyncio.run(play())


class World:
    """Three bridges, and a hub that may die."""

    def __init__(self, store: Store) -> None:
        self.clock = FakeClock()
        self.fleet = Fleet(store, self.clock)
        self.kinds: dict[object, list[str]] = {}

    @property
    def seconds(self) -> float:
        return (self.clock.now() - at(0)) / timedelta(seconds=1)

    async def do(self, what: str, number: int) -> None:
        store = self.fleet.store
        if what == "beat":
            await store.keep([beat(number, self.seconds)])
        elif what == "stop":
            body = life("stopped", who=vm(number), seconds=self.seconds)
            await store.keep([received(body, self.seconds)])
        elif what == "forget":
            vm_id, now = vm(number).vm_id or "", self.clock.now()
            await store.write(lambda c: forget_bridge(c, vm_id, now))
        elif what == "pass":
            self.clock.pass_by(number)
        elif what == "die":
            self.fleet = Fleet(store, self.clock)
            self.fleet.listening = self.clock.now()
        elif what == "look":
            for row in await self.fleet.look():
                self.kinds.setdefault(row.data["vmName"], []).append(row.kind)
        else:
            self.fleet.listening = None if what == "lose" else self.clock.now()
            if what == "find":
                self.clock.pass_by(400)  # it listens for longer than three intervals

    async def check(self) -> None:
        situation = self.fleet.situation()
        found, _ = await self.fleet.store.read(
            lambda c: bridges_of(c, situation, BridgesAsked())
        )
        for row in found:
            kinds = self.kinds.get(row.name, [])
            turns = ["hub.bridge-silent", "hub.bridge-back"] * len(kinds)
            assert kinds == turns[: len(kinds)]
            is_open = len(kinds) % 2 == 1
            assert is_open == (row.liveness is Liveness.SILENT)


# -- what dies ---------------------------------------------------------------------


async def test_hub_that_dies_while_it_hands_on_tells_the_same_event(
    store: Store, outbox: Outbox, clock: FakeClock
) -> None:
    class Dies:
        """A store that is gone before the mark."""

        def __init__(self) -> None:
            self.writes = 0

        async def write(self, work: Any) -> Any:
            self.writes += 1
            if self.writes == 2:
                raise HubStoreAwayError("it died")
            return await store.write(work)

        async def read(self, work: Any) -> Any:
            return await store.read(work)

    fleet = Fleet(store, clock)
    await store.keep([beat(0), beat(1)])
    clock.pass_by(200)
    await fleet.fleet_monitor.step()
    context = context_of(HubFile(hub=config()))
    first = AlarmPublisher(Dies(), outbox, clock, context, "", "one")  # type: ignore[arg-type]  # as little as it needs
    with pytest.raises(HubStoreAwayError):
        await first.step()
    clock.pass_by(61)
    await AlarmPublisher(store, outbox, clock, context, "", "other").step()

    due, _ = await outbox.deliveries.due(
        SINK, now=clock.now().timestamp(), limit=10, but=frozenset()
    )
    assert len(due) == 2
    assert len({one.cloud_event_id for one in due}) == 1
    assert await store.read(alarms.waiting) == []
