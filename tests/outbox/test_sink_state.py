"""What a sink keeps in the state file: its own, and as long as the event lives."""

import sqlite3
from pathlib import Path

from bridge.outbox.sink_state import SinkMemory
from bridge.outbox.storage.database import Database
from bridge.outbox.storage.mirror import Mirror
from bridge.outbox.storage.schema import MIGRATIONS
from bridge.outbox.store import Outbox
from bridge.sinks.base import Memory
from tests.support.builders import router
from tests.support.fakes import START, FakeClock

NOW = START.timestamp()
_MEMORY: type[Memory] = SinkMemory


def memory_of(database: Database, sink: str = "ops") -> SinkMemory:
    return SinkMemory(database, sink, FakeClock())


async def test_what_is_kept_is_known_in_the_next_life(state_path: Path) -> None:
    async with Database.open(state_path) as database:
        memory = memory_of(database)
        await memory.keep("E", b"first")
        await memory.keep("E", b"second")
        await memory.keep("F", b"other")

    async with Database.open(state_path) as database:
        memory = memory_of(database)
        assert await memory.recall("E") == b"second"
        assert await memory.recall("G") is None
        assert await memory.all() == {"E": b"second", "F": b"other"}


async def test_sinks_know_nothing_of_each_other(state_path: Path) -> None:
    async with Database.open(state_path) as database:
        await memory_of(database, "ops").keep("E", b"ops")
        await memory_of(database, "night").keep("E", b"night")

        assert await memory_of(database, "ops").all() == {"E": b"ops"}
        assert await memory_of(database, "night").recall("E") == b"night"


async def test_it_goes_with_retention_but_not_while_the_event_lives(
    state_path: Path,
) -> None:
    async with Outbox.open(state_path, router()) as outbox:
        memory = memory_of(outbox.database)
        for key in ("ALIVE", "GONE"):
            await memory.keep(key, b"x")

        later = NOW + 1000
        await outbox.pruning.prune(
            before=NOW + 1, now=later, alive=frozenset({"ALIVE"})
        )

        assert await memory.all() == {"ALIVE": b"x"}


async def test_twin_in_memory_knows_it(state_path: Path) -> None:
    async with Database.open(state_path) as database:
        await memory_of(database).keep("E", b"x")
        twin = Mirror.load(state_path)

        query = "SELECT sink, key, value FROM sink_memory"
        rows = twin.connection.execute(query).fetchall()
        twin.close()

    assert rows == [("ops", "E", b"x")]


async def test_file_of_the_version_before_gets_its_table(state_path: Path) -> None:
    old = sqlite3.connect(state_path)
    for number, script in enumerate(MIGRATIONS[:3], 1):
        old.executescript(f"{script} PRAGMA user_version = {number};")
    old.close()

    async with Database.open(state_path) as database:
        await memory_of(database).keep("E", b"x")

        assert await memory_of(database).recall("E") == b"x"
