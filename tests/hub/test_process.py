"""The hub as a process of its own, and its database: either may die at any moment."""

import asyncio
import os
import random
import signal
import sys
import threading
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import pytest
from aiohttp import web
from azure.servicebus.aio import ServiceBusClient
from sqlalchemy import Connection, select

from bridge.foundation.errors import HubStoreError
from bridge.foundation.values import Address
from bridge.hub.config import HubConfig
from bridge.hub.store import alarms
from bridge.hub.store.store import Store, open_store
from bridge.hub.store.tables import events, meta
from bridge.simulator.servicebus.broker import Broker
from bridge.simulator.servicebus.settings import (
    Entities,
    QueueSettings,
    SubscriptionSettings,
    TopicSettings,
)
from tests.bench.measuring import served
from tests.hub.test_sources import rows, send, until
from tests.support.browser import NO_BROWSER, find
from tests.support.devtools import opened_tab
from tests.support.fleet import event, life, outcome, step
from tests.support.hub import HubWorld, config, offer
from tests.support.ports import free_port
from tests.support.postgres import Cluster
from tests.support.stopwatch import Stopwatch
from tests.system.processes import kill_rest, started

pytestmark = [pytest.mark.slow, pytest.mark.integration]
_ENTITY = "vm-approvals"
_LOCK = timedelta(seconds=10)  # what was not settled comes again after it
_ENTITIES = Entities(
    queues=(QueueSettings(name=_ENTITY),),
    topics=(
        TopicSettings(
            name="t",
            subscriptions=(
                SubscriptionSettings(
                    name="hub", max_delivery_count=100, lock_duration=_LOCK
                ),
            ),
        ),
    ),
)
_HTML = {"Accept": "text/html,*/*;q=0.8"}


@pytest.fixture
async def broker(brisk_sdk: None) -> AsyncIterator[Broker]:
    async with Broker(_ENTITIES, port=free_port()) as running:
        yield running
    kill_rest()


def toml(store: str, broker: Broker, port: int) -> str:
    return f"""
[hub]
listen = "127.0.0.1:{port}"
store = "{store}"
[[hub.sources]]
name = "b"
type = "bridges"
connection_string = "{broker.connection_string}"
topic = "t"
subscription = "hub"
[hub.sources.approvals]
entities = ["{_ENTITY}"]
[hub.access]
approvers = ["local"]
"""


@dataclass
class Fleet:
    """A hub that is started and killed, its bridges, and people who decide.

    Attributes:
        reported: the EventIds that bridges have told of.
        decided: the ids of the decisions that the hub has confirmed, by EventId.
        taken: what bridges were sent, by MessageId: each body, and how often.
    """

    broker: Broker
    path: Path
    url: str
    reported: set[str] = field(default_factory=set)
    decided: dict[str, str] = field(default_factory=dict)
    taken: dict[str, Counter[bytes]] = field(default_factory=dict)

    @asynccontextmanager
    async def hub(self) -> AsyncIterator[asyncio.subprocess.Process]:
        """Run the hub; it is killed at the end."""
        command = (sys.executable, "-m", "bridge", "hub", "-c", str(self.path))
        process = await started(
            *command,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        assert process.stdout is not None
        try:
            line = await asyncio.wait_for(process.stdout.readline(), 120)
            assert line.decode().strip() == self.url
            yield process
        finally:
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGKILL)
            await process.wait()

    async def get(self, path: str, **headers: str) -> Any:
        async with aiohttp.request("GET", f"{self.url}{path}", headers=headers) as got:
            is_json = got.content_type == "application/json"
            return got.status, await (got.json() if is_json else got.text())

    async def events(self) -> list[Any]:
        found: list[Any] = []
        cursor = "0"
        while cursor is not None:
            _, page = await self.get(f"/api/v1/events?cursor={cursor}")
            found += page["events"]
            cursor = page["next"]
        return found

    def waiting(self) -> int:
        """Return how many messages the hub has not settled; it does that last."""
        return self.broker.snapshot()["t/Subscriptions/hub"].active

    async def tell(self, count: int) -> None:
        """Let a bridge tell of new events."""
        names = [f"E-{len(self.reported) + n}" for n in range(count)]
        self.reported.update(names)
        bodies = [step("scheduled", event(name)) for name in names]
        await send(self.broker, "t", *bodies)

    async def decide(self) -> None:
        """Approve whatever waits, until cancelled; the hub may die meanwhile."""
        while True:
            with suppress(aiohttp.ClientError, KeyError):
                for one in await self.events():
                    if one["eventId"] not in self.decided:
                        await self._approve(one)
            await asyncio.sleep(0.02)

    async def _approve(self, one: Any) -> None:
        path = f"{self.url}/api/v1/events/{one['eventId']}/approval"
        given = {"decision": "approve", "content": one["content"]}
        asked = aiohttp.request("POST", path, json=given, headers={"X-Sebridge": "1"})
        async with asked as found:
            if found.status == 200:
                self.decided[one["eventId"]] = (await found.json())["id"]

    async def relay(self) -> None:
        """Take approvals as a bridge does, and tell what became of them."""
        client = ServiceBusClient.from_connection_string(self.broker.connection_string)
        async with client, client.get_queue_receiver(_ENTITY) as receiver:
            while True:
                for message in await receiver.receive_messages(20, max_wait_time=1):
                    name = str(message.message_id)
                    bodies = self.taken.setdefault(name, Counter())
                    bodies[b"".join(message.body)] += 1
                    raw = event(str(message.correlation_id))
                    body = outcome("relayed", name, raw, seconds=9)
                    await send(self.broker, "t", body)
                    await receiver.complete_message(message)


@pytest.fixture
def fleet(hub_config: HubConfig, broker: Broker, tmp_path: Path) -> Fleet:
    path, port = tmp_path / "hub.toml", free_port()
    path.write_text(toml(hub_config.store.reveal(), broker, port))
    return Fleet(broker, path, f"http://127.0.0.1:{port}")


async def test_hub_that_is_killed_again_and_again_loses_nothing(fleet: Fleet) -> None:
    dice = random.Random(21)  # noqa: S311 - the same each time
    started_ = life("started", approvals=offer(), intervalSeconds=0.0)
    await send(fleet.broker, "t", started_)
    async with asyncio.TaskGroup() as group:
        others = [group.create_task(fleet.decide()), group.create_task(fleet.relay())]
        for _ in range(4):
            async with fleet.hub():
                telling = group.create_task(fleet.tell(8))
                await asyncio.sleep(dice.uniform(0.2, 1.5))
            await telling
        async with fleet.hub():

            async def decisions() -> list[Any]:
                _, page = await fleet.get("/api/v1/decisions?limit=200")
                found: list[Any] = page["decisions"]
                return found

            async def is_done() -> bool:
                names = {one["eventId"] for one in await fleet.events()}
                shown = await decisions()
                done = {one["eventId"] for one in shown if one["state"] == "done"}
                return names == done == fleet.reported

            async with asyncio.timeout(120):
                while not await is_done() or fleet.waiting():
                    await asyncio.sleep(0.2)
            shown = await decisions()
            for task in others:
                task.cancel()

    ids = {one["eventId"]: one["id"] for one in shown}
    assert len(shown) == len(ids) == len(fleet.reported), "one for each event"
    assert fleet.decided.items() <= ids.items(), "what was confirmed is kept"
    assert set(fleet.taken) == set(ids.values())
    assert all(len(bodies) == 1 for bodies in fleet.taken.values()), "the same bytes"
    assert fleet.broker.snapshot()["t/Subscriptions/hub"].dead == 0


@pytest.mark.parametrize("hub_config", ["sqlite"], indirect=True)
async def test_page_of_a_frozen_hub_is_not_live(fleet: Fleet) -> None:
    """Its connection stays open, and nothing comes: after 35 s the page says so."""
    if (program := find()) is None:
        pytest.skip(NO_BROWSER)
    words = "document.getElementById('live').textContent"
    async with fleet.hub() as process, opened_tab(program.program) as tab:
        await tab.open(f"{fleet.url}/")
        await tab.until(f"{words} === 'live'")
        os.kill(process.pid, signal.SIGSTOP)
        watch = Stopwatch()
        await tab.until(f"{words}.startsWith('not live since')")
        assert watch.seconds < 40
        os.kill(process.pid, signal.SIGCONT)
        await tab.until(f"{words} === 'live'")


@pytest.mark.parametrize("hub_config", ["postgresql"], indirect=True)
async def test_database_that_is_killed_costs_no_message(
    fleet: Fleet, cluster: Cluster
) -> None:
    async def is_shown() -> bool:
        with suppress(KeyError, aiohttp.ClientError):
            return {e["eventId"] for e in await fleet.events()} == fleet.reported
        return False

    async with fleet.hub():
        await fleet.tell(3)
        await until(is_shown)
        await asyncio.to_thread(cluster.kill)
        await fleet.tell(4)
        status, page = await fleet.get("/", **_HTML)
        assert (status, "cannot reach its database" in page) == (503, True)
        assert (await fleet.get("/livez"))[0] == 200
        assert fleet.waiting() == 4, "nothing is settled that is not kept"
        await asyncio.to_thread(cluster.start)
        async with asyncio.timeout(120):
            while not await is_shown() or fleet.waiting():
                await asyncio.sleep(0.2)


@pytest.mark.parametrize("hub_config", ["postgresql"], indirect=True)
async def test_hub_ends_when_asked_while_its_database_is_frozen(
    fleet: Fleet, cluster: Cluster
) -> None:
    async with fleet.hub() as process:
        await fleet.tell(1)
        with cluster.frozen():
            await fleet.tell(1)
            asking = asyncio.create_task(fleet.get("/", **_HTML))
            await asyncio.sleep(0.5)
            os.kill(process.pid, signal.SIGTERM)
            async with asyncio.timeout(30):
                assert await process.wait() == 0
            await asyncio.gather(asking, return_exceptions=True)


async def test_database_that_answers_no_more_is_reported_to_people_and_programs(
    cluster: Cluster,
) -> None:
    cluster.sql("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
    found = HubConfig(store=Address(cluster.url, {}))
    async with (
        open_store(found, longest=0.5) as store,
        HubWorld(store, config()).open() as world,
    ):
        await world.scheduled()
        asked = aiohttp.request(
            "GET", f"{world.url}/", headers={"User": "ann", **_HTML}
        )
        with cluster.frozen():
            async with asked as got:
                page = await got.text()
                assert (got.status, got.headers["Refresh"]) == (503, "10")
                assert "no answer for 0.5 s" in page
                assert "default-src 'none'" in got.headers["Content-Security-Policy"]
            assert "no answer" in (await world.get("/api/v1/events"))["error"]
        async with asyncio.timeout(60):
            while "error" in (await world.get("/api/v1/events")):
                await asyncio.sleep(0.1)
        assert len(await rows(store, events)) == 1


def with_sink(path: Path, url: str, folder: Path) -> None:
    """Let a hub tell alarms to a webhook."""
    state = f'[state]\npath = "{folder / "alarms.db"}"\n'
    sink = f'[[sinks]]\nname = "p"\ntype = "webhook"\nurl = "{url}"\n'
    path.write_text(path.read_text() + state + sink)


@pytest.mark.parametrize("hub_config", ["postgresql"], indirect=True)
async def test_frozen_hub_keeps_no_silence_from_being_reported(
    fleet: Fleet, hub_config: HubConfig, tmp_path: Path
) -> None:
    """It holds the lease of alarms: the other one tells within 75 s."""
    raised: asyncio.Queue[Any] = asyncio.Queue()

    async def take(request: web.Request) -> web.Response:
        raised.put_nowait(await request.json())
        return web.Response()

    store = hub_config.store.reveal()
    async with served([web.post("/", take)]) as url, AsyncExitStack() as stack:
        hubs = []
        for name in ("a", "b"):
            path, port = tmp_path / f"{name}.toml", free_port()
            path.write_text(toml(store, fleet.broker, port))
            (tmp_path / name).mkdir()
            with_sink(path, url, tmp_path / name)
            one = Fleet(fleet.broker, path, f"http://127.0.0.1:{port}")
            hubs.append(await stack.enter_async_context(one.hub()))
            if name == "a":
                await holds_lease(hub_config)
        made = orjson.loads(life("started", approvals=offer(), intervalSeconds=2))
        made["time"] = datetime.now(UTC).isoformat()
        await send(fleet.broker, "t", orjson.dumps(made))

        async def is_stored() -> bool:
            return not fleet.waiting()

        await until(is_stored)
        os.kill(hubs[0].pid, signal.SIGSTOP)
        watch = Stopwatch()
        async with asyncio.timeout(150):
            while (await raised.get())["type"] != "sebridge.hub.bridge-silent.v1":
                pass
        assert watch.seconds < 75 + 6  # the silence begins after three intervals
        os.kill(hubs[0].pid, signal.SIGCONT)


async def holds_lease(hub_config: HubConfig) -> None:
    """Wait until a hub has the lease of alarms."""
    query = select(meta.c.value).where(meta.c.name == "alarms-handed-by")
    async with open_store(hub_config) as opened, asyncio.timeout(60):
        while await opened.read(lambda c: c.scalar(query)) is None:
            await asyncio.sleep(0.1)


@pytest.mark.parametrize("hub_config", ["postgresql"], indirect=True)
async def test_hub_that_is_frozen_within_a_transaction_holds_no_lock_for_long(
    hub_config: HubConfig,
) -> None:
    """Its process lives, so the database sees a connection that is only idle."""
    held, over = threading.Event(), threading.Event()

    def frozen(connection: Connection) -> None:
        alarms.take_lease(connection, "frozen", datetime.now(UTC), 30.0)
        held.set()
        over.wait(60)

    async def other_takes(store: Store) -> bool:
        later = datetime.now(UTC) + timedelta(seconds=40)
        with suppress(HubStoreError):
            return await store.write(
                lambda c: alarms.take_lease(c, "other", later, 30.0)
            )
        return False

    async with open_store(hub_config) as one, open_store(hub_config) as other:
        await one.write(lambda c: alarms.take_lease(c, "frozen", datetime.now(UTC), 1))
        writing = asyncio.create_task(one.write(frozen))
        await asyncio.to_thread(held.wait, 10)
        try:
            async with asyncio.timeout(45):
                while not await other_takes(other):
                    await asyncio.sleep(0.5)
        finally:
            over.set()
        with pytest.raises(HubStoreError):
            await writing
