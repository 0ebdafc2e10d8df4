"""A message is at fault only if others are stored beside it; else the store is away."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from sqlalchemy import text

from bridge.foundation.clock import SystemClock
from bridge.foundation.errors import HubStoreAwayError
from bridge.foundation.values import Address
from bridge.hub.config import HubConfig
from bridge.hub.housekeeping import Housekeeping
from bridge.hub.sources import read
from bridge.hub.store.rows import details_in
from bridge.hub.store.store import Store, open_store
from bridge.hub.store.tables import alarms, events, unreadable
from bridge.servicebus.decode import ReceivedMessage
from bridge.servicebus.receiver import open_queue
from bridge.simulator.servicebus.broker import Broker
from tests.hub.test_sources import ENTITIES, bridges_source, reader, rows, send, until
from tests.support.fakes import FakeClock
from tests.support.fleet import at, event, step
from tests.support.hub import BUS, received
from tests.support.ports import free_port
from tests.support.postgres import Cluster

_TEN = [step("scheduled", event(f"E-{n}")) for n in range(10)]
_RENAMED = (
    "ALTER TABLE events RENAME TO away",
    "ALTER TABLE away RENAME TO events",
)
_NO_RIGHTS = (
    "REVOKE ALL ON ALL TABLES IN SCHEMA public FROM hub",
    "GRANT ALL ON ALL TABLES IN SCHEMA public TO hub",
)
_NO_RIGHT = ("REVOKE DELETE ON machines FROM hub", "GRANT DELETE ON machines TO hub")
_NO_SPACE = (
    (
        "CREATE FUNCTION full_() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE "
        "EXCEPTION 'no space left on device' USING ERRCODE = '53100'; END $$; "
        "CREATE TRIGGER full_ BEFORE INSERT ON messages EXECUTE FUNCTION full_()"
    ),
    "DROP TRIGGER full_ ON messages; DROP FUNCTION full_()",
)
_SEQUENCE = (  # as after a restore from a backup that was not whole
    (
        "INSERT INTO messages (seq, event_key, source, id, time, vm_id, content, "
        "digest, kind, origin, heard, fact, body) SELECT n, 'x', 'x', n, 0, 'x', 'x', "
        "'x', 'scheduled', 'x', 0, '{}', '{}' FROM generate_series(1, 60) AS n"
    ),
    "DELETE FROM messages WHERE event_key = 'x'",
)
_POSTGRES = {
    "rights revoked": _NO_RIGHTS,
    "one right revoked": _NO_RIGHT,
    "a table renamed away": _RENAMED,
    "full": _NO_SPACE,
    "a sequence that begins anew": _SEQUENCE,
}


@pytest.fixture
async def broker(brisk_sdk: None) -> AsyncIterator[Broker]:
    async with Broker(ENTITIES, port=free_port()) as running:
        yield running


@contextmanager
def owned(cluster: Cluster) -> Iterator[str]:
    """Yield the address of a database whose user is not its master."""
    cluster.forget()
    cluster.sql("CREATE ROLE hub LOGIN; GRANT ALL ON SCHEMA public TO hub")
    try:
        yield cluster.url.replace("postgres@", "hub@")
    finally:
        cluster.forget()
        cluster.sql("DROP OWNED BY hub; DROP ROLE hub")


async def is_(value: object) -> bool:
    return bool(value)


class Trouble:
    """A reader with ten messages before a store that refuses all of them."""

    def __init__(self, broker: Broker, store: Store) -> None:
        self.broker, self.store, self.clock = broker, store, FakeClock()
        self.reader = reader(bridges_source(broker), store, self.clock)

    @property
    def waiting(self) -> int:
        found = self.broker.snapshot()["t/Subscriptions/hub"]
        return found.active + found.dead

    @asynccontextmanager
    async def met(self) -> AsyncIterator[None]:
        """Let the reader meet the trouble; afterwards all must be stored."""
        await send(self.broker, "t", *_TEN)
        stop, one = asyncio.Event(), self.reader
        async with open_queue(one.config, one.config.origin, SystemClock()) as queue:
            stepping = asyncio.create_task(one.step(queue, stop))
            for _ in range(2):
                await until(lambda: is_(self.clock.waits))
                assert (queue.attached, self.waiting) == (False, 10)
                assert one.last_error == self.store.health.fault
                self.clock.waits.clear()
                await self.clock.advance(5)
            yield
            async with asyncio.timeout(60):
                while not stepping.done():
                    await self.clock.advance(5)
                    await asyncio.sleep(0.02)
                while self.waiting:
                    await one.step(queue, stop)
        assert len(await rows(self.store, events)) >= 10
        assert await rows(self.store, unreadable) == []
        assert self.store.health.fault is None


@pytest.mark.slow
@pytest.mark.parametrize("change", _POSTGRES.values(), ids=_POSTGRES)
async def test_postgres_that_refuses_everything_costs_no_message(
    broker: Broker, cluster: Cluster, change: tuple[str, str]
) -> None:
    with owned(cluster) as url:
        async with open_store(HubConfig(store=Address(url, {}))) as store:
            await asyncio.to_thread(cluster.sql, change[0])
            async with Trouble(broker, store).met():
                await asyncio.to_thread(cluster.sql, change[1])


@asynccontextmanager
async def renamed(_: Path, db: sqlite3.Connection) -> AsyncIterator[None]:
    db.execute(_RENAMED[0])
    yield
    db.execute(_RENAMED[1])


@asynccontextmanager
async def shut(_: Path, db: sqlite3.Connection) -> AsyncIterator[None]:
    """Refuse each message as if it were at fault itself."""
    db.execute(
        "CREATE TRIGGER shut BEFORE INSERT ON messages "
        "BEGIN SELECT RAISE(ABORT, 'shut'); END"
    )
    yield
    db.execute("DROP TRIGGER shut")


@pytest.mark.slow
@pytest.mark.parametrize("change", [renamed, shut])
async def test_file_that_refuses_everything_costs_no_message(
    broker: Broker, tmp_path: Path, change: Any
) -> None:
    path = tmp_path / "hub.db"
    async with AsyncExitStack() as stack:
        found = HubConfig(store=Address(f"sqlite:{path}", {}))
        store = await stack.enter_async_context(open_store(found))
        db = stack.enter_context(closing(sqlite3.connect(path, isolation_level=None)))
        trouble = change(path, db)
        await trouble.__aenter__()
        async with Trouble(broker, store).met():
            await trouble.__aexit__(None, None, None)


async def test_store_that_is_back_is_noticed_without_a_message(
    sqlite_config: HubConfig,
) -> None:
    async with open_store(sqlite_config) as store:
        await store.write(lambda c: c.execute(text(_RENAMED[0])))
        with pytest.raises(HubStoreAwayError):
            await rows(store, events)
        assert (
            store.health.fault == "the store is away (OperationalError: no such table)"
        )
        with pytest.raises(HubStoreAwayError):
            await store.check()
        await store.write(lambda c: c.execute(text(_RENAMED[1])))
        await store.check()

        assert store.health.fault is None


_LATE = (
    "CREATE TRIGGER late BEFORE INSERT ON messages WHEN NEW.event_key = 'LATE' BEGIN "
    "SELECT count(*) FROM (WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 "
    "FROM n WHERE x < 2000000) SELECT x FROM n); END"
)


@pytest.mark.slow
async def test_slow_message_is_put_aside_alone_and_tried_again(
    sqlite_config: HubConfig,
) -> None:
    late = received(step("scheduled", event("LATE")), reply_to="q")
    given = replace(sqlite_config, sources=(BUS,))
    batch = [received(step("scheduled", event(f"E-{n}"))) for n in range(2)]
    async with open_store(given, work_seconds=0.2) as store:
        await store.write(lambda c: c.execute(text(_LATE)))
        await store.keep([batch[0], late, batch[1]])

        assert len(await rows(store, events)) == 2
        (aside,) = await rows(store, unreadable)
        assert (aside.body, aside.is_slow) == (late.body, True)
        (alarm,) = await rows(store, alarms)
        assert alarm.kind == "hub.message-slow"

        upkeep = Housekeeping(store, given, FakeClock())
        await upkeep.retry(asyncio.Event())
        assert len(await rows(store, unreadable)) == 1
        await store.write(lambda c: c.execute(text("DROP TRIGGER late")))
        await upkeep.retry(asyncio.Event())
        assert await rows(store, unreadable) == []
        found = [details_in(row.details) for row in await rows(store, events)]
        assert len(found) == 3
        assert "q" in {where.entity for one in found for where, _ in one.addresses}


async def test_message_over_64_kib_is_no_message_of_a_bridge(
    sqlite_config: HubConfig,
) -> None:
    body = step("scheduled") + b" " * 64 * 1024
    given = ReceivedMessage(
        lock_token="t", message_id="m", sequence_number=1, enqueued_at=None, body=body
    )
    (found,) = read(BUS, given, at(0))
    async with open_store(sqlite_config) as store:
        await store.keep([found])
        (aside,) = await rows(store, unreadable)

    assert "64 KiB" in aside.reason
    assert aside.body == body[: 64 * 1024]
