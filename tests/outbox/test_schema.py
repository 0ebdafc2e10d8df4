"""The way back: an older program works on the file of a newer one."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from bridge.outbox.storage.mirror import Mirror

from bridge.foundation.errors import NewerSchemaError
from bridge.outbox.records import CHECKPOINT, Checkpoint, Decision, Reply
from bridge.outbox.sink_state import SinkMemory
from bridge.outbox.statefile import open_database
from bridge.outbox.storage.connection import connect
from bridge.outbox.storage.meta import load
from bridge.outbox.storage.schema import MIGRATIONS, READABLE_SINCE, versions
from bridge.outbox.store import Outbox
from tests.support.builders import ME, SINK, outgoing, router
from tests.support.fakes import FakeClock

NEWER = len(MIGRATIONS) + 3
NOW = 1_800_000_000.0
TABLES = (
    "meta",
    "told",
    "sightings",
    "followers",
    "items",
    "deliveries",
    "approvals",
    "sink_memory",
)


def made_newer(path: Path) -> None:
    """Do to a file what migrations to come may do: a column more in each table."""
    with closing(connect(path)) as db:
        for table in TABLES:
            db.execute(f"ALTER TABLE {table} ADD COLUMN later TEXT DEFAULT 'as ever'")
        db.execute("CREATE TABLE things (later TEXT)")
        db.execute("UPDATE meta SET value = ? WHERE key = 'schema'", (NEWER,))


def found(path: Path) -> tuple[tuple[int, int], dict[str, set[object]]]:
    with closing(sqlite3.connect(path)) as db:
        later = {
            table: {value for (value,) in db.execute(f"SELECT later FROM {table}")}  # noqa: S608
            for table in TABLES
        }
        return versions(db), later


async def used(path: Path, name: str) -> None:
    """Write to every table, deliver and forget: a life of the forwarder."""
    async with open_database(path, ME.vm_id) as database:
        outbox = Outbox(database, router())
        await outbox.commit(
            [outgoing(name, key="K")],
            now=NOW,
            checkpoint=Checkpoint(body=b"{}", sightings=frozenset({name})),
            decisions=[
                Decision(
                    message=name, key="K", event_id="k", sequence=1, state="relayed"
                )
            ],
            reply=Reply(key=name, body=b"{}"),
        )
        await SinkMemory(database, SINK, FakeClock()).keep(name, b"value")
        ((delivery,), _) = await outbox.deliveries.due(SINK, now=NOW, limit=1)
        assert await outbox.deliveries.delivered(delivery, now=NOW) is False
        await outbox.commit([outgoing(f"{name} waits", key=name)], now=NOW)


async def test_older_program_works_on_a_newer_file_and_leaves_its_columns_alone(
    state_path: Path,
) -> None:
    await used(state_path, "before")
    made_newer(state_path)

    await used(state_path, "after")

    numbers, later = found(state_path)
    assert numbers == (READABLE_SINCE, NEWER)
    assert later == {table: {"as ever"} for table in TABLES}
    assert list(state_path.parent.glob("*.corrupt-*")) == []


async def test_older_program_goes_on_in_memory_with_what_a_newer_file_holds(
    state_path: Path,
) -> None:
    await used(state_path, "before")
    made_newer(state_path)

    with closing(Mirror.load(state_path).connection) as twin:
        assert load(twin, CHECKPOINT) == b"{}"
        pending = twin.execute("SELECT count(*) FROM deliveries").fetchone()
        assert pending == (2,)


async def test_older_program_saves_what_it_knows_of_a_damaged_newer_file(
    state_path: Path,
) -> None:
    await used(state_path, "before")
    made_newer(state_path)
    with closing(connect(state_path)) as db:
        db.execute("INSERT INTO sightings (key, at) VALUES ('K', 'soon')")

    async with open_database(state_path, ME.vm_id) as database:
        assert await database.read(versions) == (READABLE_SINCE, len(MIGRATIONS))
        outbox = Outbox(database, router())
        ((delivery,), _) = await outbox.deliveries.due(SINK, now=NOW, limit=9)
        assert delivery.cloud_event_id == "before waits"


@pytest.mark.parametrize("number", range(1, READABLE_SINCE + 1))
async def test_file_of_an_older_program_becomes_one_that_it_still_can_read(
    number: int, state_path: Path
) -> None:
    with closing(sqlite3.connect(state_path)) as old:
        script = "".join(MIGRATIONS[:number])
        old.executescript(f"{script} PRAGMA user_version = {number};")

    await used(state_path, "now")

    with closing(sqlite3.connect(state_path)) as db:
        assert versions(db) == (READABLE_SINCE, len(MIGRATIONS))
    assert list(state_path.parent.glob("*.corrupt-*")) == []


async def test_rows_of_a_program_that_counts_no_checksum_are_sent_unchecked(
    state_path: Path,
) -> None:
    await used(state_path, "before")
    with closing(connect(state_path)) as db:
        db.execute("UPDATE items SET checksum = NULL")

    async with open_database(state_path, ME.vm_id) as database:
        found, _ = await Outbox(database, router()).deliveries.due(
            SINK, now=NOW, limit=9
        )
        assert [d.cloud_event_id for d in found] == ["before waits"]


async def test_file_that_this_version_cannot_read_is_refused(state_path: Path) -> None:
    await used(state_path, "before")
    with closing(connect(state_path)) as db:
        db.execute(f"PRAGMA user_version = {len(MIGRATIONS) + 1}")

    with pytest.raises(NewerSchemaError):
        await used(state_path, "after")
