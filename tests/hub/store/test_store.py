"""What messages say is kept in either store, whatever comes between."""

import asyncio
import os
import sqlite3
import stat
from contextlib import closing
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import orjson
import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from msgspec.structs import replace
from sqlalchemy import func, select, text
from sqlalchemy.event import listens_for, remove

from bridge.foundation.errors import HubStoreAwayError, HubStoreError
from bridge.foundation.values import Address
from bridge.hub import azure_messages, bridge_messages
from bridge.hub.bridges import bridge_in
from bridge.hub.config import HubConfig
from bridge.hub.store import rows
from bridge.hub.store.intake import end_said
from bridge.hub.store.kept_facts import Incoming
from bridge.hub.store.store import Store, open_store
from bridge.hub.store.tables import (
    bridges,
    events,
    machines,
    messages,
    metadata,
    unreadable,
    votes,
)
from tests.support.builders import EVENT_ID
from tests.support.fleet import at, azure, event, life, step, vm
from tests.support.postgres import Cluster

LATER = event(NotBefore="Mon, 02 Mar 2026 13:00:00 GMT", DurationInSeconds=4)


@pytest.fixture
def hub_config(bare_config: HubConfig) -> HubConfig:
    """Return a configuration whose schema the store of each test makes itself."""
    return bare_config


def received(
    body: bytes, heard: float = 0.0, reply_to: str | None = None, session: str = "s"
) -> Incoming:
    found = bridge_messages.read(
        body, heard=at(heard), source="bridges", reply_to=reply_to, session=session
    )
    return Incoming(
        origin="bridges",
        body=body,
        heard=at(heard),
        reply_to=reply_to,
        session=session,
        fact=found.fact,
        report=found.report,
    )


def grid(body: bytes, heard: float = 0.0) -> Incoming:
    fact = azure_messages.read(body, heard=at(heard))
    return Incoming(origin="azure", body=body, heard=at(heard), fact=fact)


async def rows_of(store: Store, table: Any, *order: Any) -> list[Any]:
    query = select(table).order_by(*(order or table.primary_key.columns))
    return await store.read(lambda connection: list(connection.execute(query).all()))


async def the_event(store: Store) -> Any:
    (row,) = await rows_of(store, events)
    return row


def moment(value: int) -> datetime:
    return rows.moment_of(value)


async def test_schema_is_what_the_code_says(store: Store) -> None:
    def differences(connection: Any) -> list[Any]:
        found: list[Any] = compare_metadata(
            MigrationContext.configure(connection), metadata
        )
        return found

    assert await store.read(differences) == []


async def test_step_is_kept_with_its_machines_and_its_bridge(store: Store) -> None:
    await store.keep([received(step("scheduled"), 5, reply_to="vm-approvals")])

    row = await the_event(store)
    assert (row.event_key, row.status, row.is_open) == (EVENT_ID, "scheduled", True)
    assert (row.group, row.event_type, row.lives) == ("web", "Freeze", 1)
    assert moment(row.heard) == at(5)
    assert (row.azure_received, row.azure_seen) == (None, None)
    (shown,) = rows.state_in(row.state).occurrences
    assert shown.first_reported_by.vm_name == "web-0"
    assert [m.name for m in await rows_of(store, machines)] == ["web-0", "web-1"]
    ((address, reporter),) = rows.details_in(row.details).addresses
    assert (address.entity, reporter) == ("vm-approvals", vm().vm_id)
    (bridge,) = await rows_of(store, bridges)
    assert (bridge.name, bridge.origin) == ("web-0", "bridges")


async def test_redelivery_changes_nothing_but_the_version(store: Store) -> None:
    batch = [received(step("scheduled")), received(step("started", seconds=9))]
    await store.keep(batch)
    first = await the_event(store)
    await store.keep([*reversed(batch), *batch])
    again = await the_event(store)

    marks = {"version": 0, "xid": 0}
    assert {**again._mapping, **marks} == {**first._mapping, **marks}
    assert again.version > first.version
    assert len(await rows_of(store, messages)) == 2


async def test_of_one_id_each_reporter_is_kept_with_its_address(store: Store) -> None:
    """Else whoever sends the same id with an earlier time replaces an honest report."""
    for number in (1, 0, 2):
        body = step("scheduled", seconds=number, who=vm(number))
        await store.keep([received(body, reply_to="q", session=f"s{number}")])

    found = await rows_of(store, messages, messages.c.time)
    assert [message.vm_id for message in found] == [vm(n).vm_id for n in range(3)]
    kept = rows.details_in((await the_event(store)).details).addresses
    assert [address.session for address, _ in kept] == ["s0", "s1", "s2"]


async def test_times_of_azure_are_the_first_and_the_last(store: Store) -> None:
    body = azure("Scheduled")
    for heard in (20, 10, 30):
        await store.keep([grid(body, heard)])
    await store.keep([received(step("scheduled"), 25)])

    row = await the_event(store)
    assert moment(row.azure_received) == at(10)
    assert moment(row.azure_seen) == at(30)
    assert moment(row.heard) == at(30)
    assert row.has_bridge


async def test_end_takes_an_event_from_what_is_open(store: Store) -> None:
    await store.keep(
        [received(step("scheduled")), received(step("completed", seconds=60))]
    )

    row = await the_event(store)
    assert (row.is_open, row.not_before, moment(row.ended)) == (False, None, at(60))


async def test_machine_that_was_made_anew_takes_the_place(store: Store) -> None:
    anew = replace(vm(), vm_id="99999999-0000-0000-0000-000000000000")
    new = received(life("started", who=anew), 50)
    old = received(life("heartbeat", seconds=9), 10)

    for batch in ([old], [new], [received(life("heartbeat", seconds=8), 9)]):
        await store.keep(batch)

    assert [row.vm_id for row in await rows_of(store, bridges)] == [anew.vm_id]


async def test_many_machines_made_anew_in_one_batch(store: Store) -> None:
    old = [received(life("heartbeat", who=vm(n)), 1) for n in range(3)]
    anew = [
        replace(vm(n), vm_id=f"99999999-0000-0000-0000-00000000000{n}") for n in (0, 2)
    ]
    await store.keep(old)
    await store.keep([received(life("started", who=who), 50) for who in anew])

    found = {row.name: row.vm_id for row in await rows_of(store, bridges)}
    wanted = {"web-0": anew[0].vm_id, "web-1": vm(1).vm_id, "web-2": anew[1].vm_id}
    assert found == wanted


async def test_batch_takes_as_many_statements_however_large_it_is(
    store: Store,
) -> None:
    """A way to the database for each message would halve what a hub keeps a second."""

    async def statements(machines: range) -> int:
        made: list[str] = []

        @listens_for(store.writer, "before_cursor_execute")
        def note(*given: Any) -> None:
            made.append(given[2])

        numbers = list(machines)
        steps = [step("scheduled", event(f"E-{n}"), who=vm(n)) for n in numbers]
        lives = [life("heartbeat", who=vm(n)) for n in numbers]
        await store.keep([received(body, reply_to="q") for body in (*steps, *lives)])
        remove(store.writer, "before_cursor_execute", note)
        return len(made)

    await statements(range(200, 201))  # the first batch of a hub also reads the pins
    assert await statements(range(2)) == await statements(range(100, 160))


async def test_bridge_is_joined_whatever_the_order(store: Store) -> None:
    words = [
        received(life("heartbeat", seconds=9, intervalSeconds=60), 9),
        received(life("started", seconds=1, approvals={"digest": "d"}), 1),
    ]
    await store.keep(words[:1])
    await store.keep([words[1], words[1]])

    (row,) = await rows_of(store, bridges)
    assert moment(row.heard) == at(9)
    assert bridge_in(row.reported).beat.data == {"intervalSeconds": 60}


async def test_votes_for_what_is_no_longer_are_forgotten(store: Store) -> None:
    await store.keep([received(step("scheduled"))])
    vote = {
        "event_key": EVENT_ID,
        "life": 1,
        "via": "bridge",
        "person": "a",
        "time": 0,
        "reason": "",
        "entry": "ann",
        "seen": orjson.dumps(event()),
    }
    await store.write(lambda c: c.execute(votes.insert(), vote))
    await store.keep([received(step("updated", LATER, previous=event(), seconds=5))])
    assert len(await rows_of(store, votes)) == 1

    longer = event(DurationInSeconds=60)
    await store.keep([received(step("updated", longer, previous=LATER, seconds=9))])
    assert await rows_of(store, votes) == []


async def test_change_by_a_stranger_makes_no_vote_void(store: Store) -> None:
    witness = step("scheduled", who=vm(8))
    await store.keep([received(witness)])
    vote = {
        "event_key": EVENT_ID,
        "life": 1,
        "via": "bridge",
        "person": "a",
        "time": 0,
        "reason": "",
        "entry": "a",
        "seen": orjson.dumps(event()),
    }
    await store.write(lambda c: c.execute(votes.insert(), vote))
    longer = event(DurationInSeconds=60)
    change = step("updated", longer, previous=event(), seconds=9, who=vm(9))
    await store.keep([received(change)])

    assert len(await rows_of(store, votes)) == 1
    await store.keep([received(step("updated", longer, previous=event(), who=vm(1)))])
    assert await rows_of(store, votes) == []


async def test_end_by_a_stranger_counts_after_a_while(store: Store) -> None:
    stranger = step("completed", seconds=60, who=vm(9))
    await store.keep([received(step("scheduled")), received(stranger, 60)])
    row = await the_event(store)
    assert (row.is_open, row.status) == (True, "scheduled")

    assert await store.write(lambda c: end_said(c, moment(row.said_until))) == 0
    late = moment(row.said_until) + timedelta(seconds=1)
    assert await store.write(lambda c: end_said(c, late)) == 1
    row = await the_event(store)
    assert (row.is_open, row.status, row.said_until) == (False, "completed", None)
    await store.keep([received(step("scheduled", who=vm(8)), 70)])
    assert not (await the_event(store)).is_open


@pytest.mark.slow
async def test_event_takes_no_more_room_however_many_messages_come(
    store: Store,
) -> None:
    for start in range(0, 1200, 300):
        numbers = range(start, start + 300)
        crowd = [step("scheduled", who=vm(n + 100), seconds=n) for n in numbers]
        await store.keep(
            [
                received(body, n, reply_to="q", session=f"{n}")
                for n, body in enumerate(crowd)
            ]
        )
    row = await the_event(store)
    assert (row.dropped, len(await rows_of(store, messages))) == (200, 1000)
    assert len(rows.details_in(row.details).addresses) == 1000

    await store.keep([received(step("scheduled", seconds=9000), 9000)])
    kept = await rows_of(store, messages, messages.c.time)
    assert len(kept) == 1000


async def test_message_that_changes_nothing_is_counted_unless_it_is_stored(
    store: Store,
) -> None:
    crowd = [step("scheduled", who=vm(n + 100), seconds=n) for n in range(1200)]
    await store.keep([received(body, n) for n, body in enumerate(crowd)])
    full = await the_event(store)

    more = step("updated", LATER, who=vm(101), seconds=5000)
    end = step("completed", who=vm(9999), seconds=5000)
    await store.keep([received(more, 5000), received(end, 5000)])
    await store.keep([received(crowd[7], 5000)])

    row = await the_event(store)
    assert (row.dropped, row.status) == (full.dropped + 2, full.status)
    assert len(await rows_of(store, messages)) == 1000


@pytest.fixture
async def full(store: Store) -> Store:
    """Return a store with an event of which no more is kept by others."""
    for start in range(0, 1000, 250):
        crowd = [step("scheduled", who=vm(n + 100)) for n in range(start, start + 250)]
        await store.keep([received(body, start + n) for n, body in enumerate(crowd)])
    await store.keep([received(step("scheduled", who=vm(2000)), 1000)])
    return store


async def everything(store: Store) -> dict[str, list[Any]]:
    tables = [table for table in metadata.sorted_tables if table.name != "meta"]
    return {table.name: await rows_of(store, table) for table in tables}


@pytest.mark.slow
async def test_message_that_is_surplus_is_counted_and_changes_nothing_else(
    full: Store,
) -> None:
    before = await everything(full)
    worse = event(EventType="Terminate", Resources=["web-0", "other"])
    forged = step("updated", worse, previous=event(), who=vm(3000), seconds=1100)
    many = [forged, step("started", who=vm(3001)), step("scheduled", who=vm(3002))]
    await full.keep(
        [received(one, 1100, reply_to="evil", session="evil") for one in many]
    )
    after = await everything(full)

    (old,), (new,) = before.pop("events"), after.pop("events")
    changed = {n for n in old._fields if getattr(old, n) != getattr(new, n)}
    assert (changed - {"version"}, new.dropped) == ({"dropped"}, old.dropped + 3)
    del before["bridges"], after["bridges"]  # a report about a bridge is no surplus
    assert after == before


@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "second"),
    [
        (step("completed", seconds=1100), step("scheduled", who=vm(9), seconds=1200)),
        (
            step(
                "updated",
                event(Resources=["web-0", "web-9"]),
                previous=event(),
                seconds=1100,
            ),
            step("scheduled", event(Resources=["web-0", "web-9"]), who=vm(9)),
        ),
    ],
    ids=["end", "resources"],
)
@pytest.mark.parametrize("is_one_batch", [False, True])
async def test_what_counts_by_another_message_is_no_surplus(
    full: Store, first: bytes, second: bytes, *, is_one_batch: bool
) -> None:
    """The same batch may hold an end, or the word that a machine is in Resources."""
    batch = [received(first, 1100), received(second, 1200)]
    for part in [batch] if is_one_batch else [batch[:1], batch[1:]]:
        await full.keep(part)

    kept = await rows_of(full, messages)
    assert vm(9).vm_id in {row.vm_id for row in kept}


async def test_object_of_an_earlier_message_is_read_again(store: Store) -> None:
    """Of two reports the later one holds; when it is not kept, the other one does."""
    first = step("scheduled", seconds=30, who=vm(1))
    second = step("scheduled", LATER, seconds=10)
    await store.keep([received(first, 30)])
    await store.keep([received(second, 31)])

    (shown,) = rows.state_in((await the_event(store)).state).occurrences
    assert shown.event == event()


async def test_what_cannot_be_read_is_kept_and_capped(store: Store) -> None:
    bad = [
        Incoming(origin="b", body=b"\0%d" % n, heard=at(0), fault="no JSON")
        for n in range(700)
    ]
    await store.keep(bad)
    await store.keep(bad)

    found = await rows_of(store, unreadable)
    assert len(found) == 1000
    assert found[-1].body == b"\x00699"


async def test_what_the_store_refuses_is_found_by_halves(store: Store) -> None:
    good = [received(step("scheduled", event(f"E-{n}"))) for n in range(5)]
    bad = received(step("scheduled", event("BAD")))
    assert bad.fact is not None
    bad = replace(bad, fact=replace(bad.fact, source="\ud800"))

    await store.keep([*good[:3], bad, *good[3:]])

    assert len(await rows_of(store, events)) == 5
    (kept,) = await rows_of(store, unreadable)
    assert (kept.body, kept.reason) == (bad.body, "the store refuses what it says")


async def test_what_cannot_even_be_kept_aside_stops_nobody(store: Store) -> None:
    lost = Incoming(origin="\ud800", body=b"", heard=at(0), fault="no JSON")

    await store.keep([lost, received(step("scheduled"))])

    assert len(await rows_of(store, events)) == 1


async def test_name_that_no_index_takes_is_put_aside(store: Store) -> None:
    """PostgreSQL calls that an operational error, as if it were away."""
    name = "".join(chr(0x4E00 + n * 7919 % 20_000) for n in range(2000))
    bad = received(step("scheduled", event("BAD", Resources=[name])))

    await store.keep([received(step("scheduled")), bad])

    found = len(await rows_of(store, events)), len(await rows_of(store, unreadable))
    assert found == ((1, 1) if store.is_shared else (2, 0))


async def test_two_writers_of_one_event_lose_nothing(hub_config: HubConfig) -> None:
    async with open_store(hub_config) as one, open_store(hub_config) as other:
        batches = [
            [
                received(
                    step("scheduled", event(f"E-{n}"), seconds=w, who=vm(w), repeats=w)
                )
                for n in range(10)
            ]
            for w in range(6)
        ]
        await asyncio.gather(
            *((one, other)[w % 2].keep(batch) for w, batch in enumerate(batches))
        )

        found = await rows_of(one, events)
        count = select(func.count()).select_from(messages)
        assert len(found) == 10
        assert all(row.status == "scheduled" for row in found)
        assert await other.read(lambda c: c.scalar(count)) == 60
        assert len({row.version for row in found}) == 10
        assert len(await rows_of(other, bridges)) == 6


async def test_store_of_the_next_version_is_used_and_a_later_one_is_not(
    hub_config: HubConfig,
) -> None:
    async def mark(number: str) -> None:
        async with open_store(hub_config) as opened:
            change = text("UPDATE alembic_version SET version_num = :n")
            await opened.write(lambda c: c.execute(change, {"n": number}))

    await mark("2")
    await mark("3")
    with pytest.raises(HubStoreError, match="update it"):
        await mark("4")


async def test_nobody_else_may_read_the_file_nor_what_belongs_to_it(
    tmp_path: Path,
) -> None:
    """Whatever the umask says, and also one that was readable before."""
    (tmp_path / "hub.db").touch(0o644)
    config = HubConfig(store=Address(f"sqlite:{tmp_path / 'hub.db'}", {}))
    before = os.umask(0)
    try:
        async with open_store(config) as opened:
            await opened.keep([received(step("scheduled"))])
            modes = {path.name: path.stat().st_mode for path in tmp_path.iterdir()}
    finally:
        os.umask(before)

    assert {stat.S_IMODE(mode) for mode in modes.values()} == {0o600}
    assert {"hub.db", "hub.db-wal"} <= modes.keys()


OLDER = {
    "an old number": "UPDATE alembic_version SET version_num = '0002'",
    "a column that was added later": "ALTER TABLE bridges DROP COLUMN was_silent",
    "a table that was added later": "DROP TABLE audit",
}


@pytest.mark.parametrize("change", OLDER.values(), ids=OLDER)
async def test_file_of_before_the_first_release_is_moved_aside_with_a_word(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, change: str
) -> None:
    given = HubConfig(store=Address(f"sqlite:{tmp_path / 'hub.db'}", {}))
    async with open_store(given) as opened:
        await opened.keep(
            [received(step("scheduled", event(f"E-{n}"))) for n in range(3)]
        )
        await opened.write(lambda c: c.execute(text(change)))

    async with open_store(given) as opened:
        assert await rows_of(opened, events) == []
        await opened.keep([received(step("scheduled"))])

    (said,) = [one for one in caplog.records if "moved aside" in one.message]
    assert (said.events, said.decisions, said.votes) == (3, 0, 0)  # type: ignore[attr-defined]  # from extra
    kept = Path(said.kept)  # type: ignore[attr-defined]  # from extra
    with closing(sqlite3.connect(kept)) as old:
        assert old.execute("SELECT count(*) FROM events").fetchone() == (3,)


async def test_database_of_before_the_first_release_is_refused_with_a_word(
    cluster: Cluster,
) -> None:
    cluster.forget()
    given = HubConfig(store=Address(cluster.url, {}))
    async with open_store(given) as opened:
        await opened.keep([received(step("scheduled"))])
        change = text("UPDATE alembic_version SET version_num = '0002'")
        await opened.write(lambda c: c.execute(change))

    with pytest.raises(HubStoreError) as caught:
        async with open_store(given):
            pass
    words = str(caught.value)
    assert "(1 events, 0 decisions, 0 votes)" in words
    assert "create an empty database" in words
    assert "postgres@" not in words


async def test_place_that_is_not_there_is_reported(tmp_path: Path) -> None:
    nowhere = HubConfig(store=Address(f"sqlite:{tmp_path}/no/hub.db", {}))
    with pytest.raises(HubStoreError, match="no folder"):
        async with open_store(nowhere):
            pass
    away = HubConfig(store=Address("postgresql://u:hunter2@127.0.0.1:1/d", {}))
    with pytest.raises(HubStoreAwayError) as caught:
        async with open_store(away):
            pass
    assert "hunter2" not in str(caught.value)


async def test_cause_is_reported_and_no_secret(cluster: Cluster) -> None:
    given = {
        f"postgresql://u:hunter2@127.0.0.1:{cluster.port}/d": "does not exist",
        "postgresql://u:hunter2@127.0.0.1:1/d": "connection refused",
    }
    for place, words in given.items():
        with pytest.raises(HubStoreError) as caught:
            async with open_store(HubConfig(store=Address(place, {}))):
                pass
        assert words in str(caught.value)
        assert "hunter2" not in str(caught.value)


@pytest.mark.integration
async def test_database_that_goes_away_and_comes_back(
    cluster: Cluster, tmp_path: Path
) -> None:
    config = HubConfig(store=Address(f"{cluster.url}?options=", {}))
    cluster.sql("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
    async with open_store(config) as opened:
        await asyncio.to_thread(cluster.stop)
        with pytest.raises(HubStoreAwayError):
            await opened.keep([received(step("scheduled"))])
        await asyncio.to_thread(cluster.start)
        await opened.keep([received(step("scheduled"))])

        assert (await the_event(opened)).status == "scheduled"
