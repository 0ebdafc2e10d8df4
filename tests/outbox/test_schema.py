"""The way back: this program works on the file of a newer one that adds to it."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from bridge.foundation.errors import NewerSchemaError
from bridge.outbox.records import Checkpoint, Decision, Reply
from bridge.outbox.sink_state import SinkMemory
from bridge.outbox.statefile import open_database
from bridge.outbox.storage.file import connect
from bridge.outbox.storage.schema import SCHEMA, TABLES, version
from bridge.outbox.store import Outbox
from tests.support.builders import ME, SINK, outgoing, router
from tests.support.fakes import FakeClock

NOW = 1_800_000_000.0
UNUSED = {"appearances", "command_successes"}


def made_newer(path: Path) -> None:
    """Do to a file what a later program may do to it: a column more in each table."""
    with closing(connect(path)) as db:
        for table in TABLES:
            db.execute(f"ALTER TABLE {table} ADD COLUMN later TEXT DEFAULT 'as ever'")
        db.execute("CREATE TABLE things (later TEXT)")


def found(path: Path) -> dict[str, set[object]]:
    with closing(sqlite3.connect(path)) as db:
        return {
            table: {value for (value,) in db.execute(f"SELECT later FROM {table}")}  # noqa: S608 - our own names
            for table in TABLES
        }


async def used(path: Path, name: str) -> None:
    """Write to every table, deliver and forget: a life of the forwarder."""
    async with open_database(path, ME.vm_id) as database:
        outbox = await Outbox.of(database, router())
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
        await SinkMemory(outbox, SINK, FakeClock()).keep(name, b"value")
        ((delivery,), _) = await outbox.deliveries.due(SINK, now=NOW, limit=1)
        assert await outbox.deliveries.delivered(delivery, now=NOW)
        await outbox.commit([outgoing(f"{name} waits", key=name)], now=NOW)


async def test_older_program_works_on_a_newer_file_and_leaves_its_columns_alone(
    state_path: Path,
) -> None:
    await used(state_path, "before")
    made_newer(state_path)

    await used(state_path, "after")

    later = found(state_path)
    assert later == {
        table: set() if table in UNUSED else {"as ever"} for table in TABLES
    }
    assert list(state_path.parent.glob("*.corrupt-*")) == []


async def test_older_program_saves_what_it_knows_of_a_damaged_newer_file(
    state_path: Path,
) -> None:
    await used(state_path, "before")
    made_newer(state_path)
    with closing(connect(state_path)) as db:
        db.execute("INSERT INTO sightings (key, at) VALUES ('K', 'soon')")

    async with open_database(state_path, ME.vm_id) as database:
        assert await database.read(version) == SCHEMA
        outbox = await Outbox.of(database, router())
        ((delivery,), _) = await outbox.deliveries.due(SINK, now=NOW, limit=9)
        assert delivery.cloud_event_id == "before waits"
    assert len(list(state_path.parent.glob("*.corrupt-*"))) == 1


async def test_file_of_an_older_program_is_moved_aside_and_its_numbers_are_logged(
    state_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await used(state_path, "before")
    with closing(connect(state_path)) as db:
        db.execute(f"PRAGMA user_version = {SCHEMA - 1}")

    await used(state_path, "after")

    (kept,) = state_path.parent.glob("*.older-*")
    (record,) = [r for r in caplog.records if "older version" in r.getMessage()]
    logged = vars(record)
    assert (logged["pending"], logged["dead"], logged["kept"]) == (2, 0, str(kept))


async def test_file_that_this_version_cannot_read_is_refused(state_path: Path) -> None:
    await used(state_path, "before")
    with closing(connect(state_path)) as db:
        db.execute(f"PRAGMA user_version = {SCHEMA + 1}")

    with pytest.raises(NewerSchemaError):
        await used(state_path, "after")
