"""Starts that end on the state file: counted beside it, and not for ever."""

import asyncio
import logging
import os
import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

import pytest

from bridge.foundation.errors import (
    ConfigError,
    ForeignDatabaseError,
    OutboxError,
    OutboxLockedError,
    OutboxUnavailableError,
)
from bridge.outbox.recovery.trouble import Note, Trouble
from bridge.outbox.statefile import open_database
from bridge.outbox.storage.file import connect
from bridge.outbox.storage.journal import load, write

MINE = "13f56399-bd52-4150-9748-7190aae1ff21"
AFRESH = "state file is corrupt: starting afresh"


def note(path: Path) -> Note:
    return Trouble.of(path).note


async def start(path: Path, error: BaseException | None = None) -> None:
    """Start on the file, keep something, and end as asked."""
    async with open_database(path, MINE) as database:
        database.put({("meta", ("x",)): (b"kept",)})
        if error is not None:
            raise error


async def failing_start(path: Path, error: BaseException) -> None:
    with suppress(type(error)):
        await start(path, error)


def kept_aside(path: Path) -> list[Path]:
    return sorted(path.parent.glob("state.db.corrupt-*"))


DAMAGED = OutboxError("the state file cannot be read or written: no such thing")


async def test_third_start_in_a_row_that_would_end_on_the_file_moves_it_aside(
    state_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        await failing_start(state_path, DAMAGED)
        assert kept_aside(state_path) == []

    async with open_database(state_path, MINE) as database:
        assert await database.read(lambda db: load(db, "x")) == b"kept"

    assert len(kept_aside(state_path)) == 1
    (record,) = [r for r in caplog.records if r.message == AFRESH]
    assert "no such thing" in vars(record)["fault"]


async def test_error_of_a_worker_is_found_among_those_of_others(
    state_path: Path,
) -> None:
    group = BaseExceptionGroup("workers", [asyncio.CancelledError(), DAMAGED])

    await failing_start(state_path, group)

    assert note(state_path) == Note(ended=1, damage=str(DAMAGED))


@pytest.mark.parametrize(
    "error",
    [
        ConfigError(["approvals.sessions: a placeholder has no value"]),
        OutboxLockedError("another forwarder runs on it"),
        OutboxUnavailableError("no room"),
        KeyError("a bug elsewhere"),
        asyncio.CancelledError(),
        None,
    ],
)
async def test_end_for_another_reason_does_not_count(
    error: BaseException | None, state_path: Path
) -> None:
    for _ in range(6):
        if error is None:
            await start(state_path)
        else:
            await failing_start(state_path, error)

    assert kept_aside(state_path) == []
    assert not Path(f"{state_path}.trouble").exists()


async def test_stop_as_asked_between_two_ends_changes_nothing(state_path: Path) -> None:
    await failing_start(state_path, DAMAGED)
    await start(state_path)
    assert note(state_path).ended == 1

    await failing_start(state_path, DAMAGED)

    assert note(state_path).ended == 2


async def test_ends_are_forgotten_once_it_has_run_well(state_path: Path) -> None:
    await failing_start(state_path, DAMAGED)
    await start(state_path)  # looks thoroughly, and finds nothing

    async with open_database(state_path, MINE, well_after=0.0):
        async with asyncio.timeout(60):
            while Path(f"{state_path}.trouble").exists():
                await asyncio.sleep(0.001)

    assert note(state_path) == Note()


async def test_kills_while_the_file_is_opened_are_counted_and_come_to_an_end(
    state_path: Path,
) -> None:
    """Nobody knows why it was killed: so more of them than of ends are borne."""
    await start(state_path)
    for _ in range(5):
        Trouble.of(state_path).begin()

    await start(state_path)

    assert len(kept_aside(state_path)) == 1


async def test_file_moved_aside_twice_in_a_row_is_begun_empty(
    state_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What was copied may be what is wrong; and then the file is not what is wrong."""
    for _ in range(9):
        await failing_start(state_path, DAMAGED)

    first, second = [vars(r) for r in caplog.records if r.message == AFRESH]
    assert first["copied"] > 0
    assert second["copied"] == 0
    assert len(kept_aside(state_path)) == 2


def bad_schema(path: Path) -> None:
    """Damage that no look of SQLite's finds: a column of another type."""
    with closing(connect(path)) as db:
        db.execute("PRAGMA writable_schema = ON")
        db.execute(
            """UPDATE sqlite_master SET sql = replace(sql, 'at REAL', 'at BLOB')
               WHERE name = 'sightings'"""
        )


def wrong_type(path: Path) -> None:
    with closing(connect(path)) as db:
        db.execute("INSERT INTO sightings (key, at) VALUES ('K', 'soon')")


def no_text(path: Path) -> None:
    with closing(connect(path)) as db:
        db.execute("INSERT INTO sightings (key, at) VALUES (CAST(x'ff' AS TEXT), 1.0)")


def absurd_count(path: Path) -> None:
    with closing(connect(path)) as db:
        db.execute("INSERT INTO sqlite_sequence VALUES ('items', ?)", (2**62,))


def no_version(path: Path) -> None:
    with closing(connect(path)) as db:
        db.execute("PRAGMA user_version = 0")


def absurd_version(path: Path) -> None:
    with closing(connect(path)) as db:
        db.execute("PRAGMA user_version = 67108868")


@pytest.mark.parametrize(
    "harm", [bad_schema, wrong_type, no_text, absurd_count, no_version, absurd_version]
)
async def test_damage_that_sqlite_does_not_see_is_found_at_the_start(
    harm: Callable[[Path], None], state_path: Path
) -> None:
    await start(state_path)
    with closing(sqlite3.connect(state_path)) as db:
        harm(state_path)
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)

    async with open_database(state_path, MINE) as database:
        assert await database.read(lambda db: load(db, "x")) == b"kept"

    assert len(kept_aside(state_path)) == 1


async def test_damage_met_while_it_runs_is_noted_at_once(state_path: Path) -> None:
    def job(db: sqlite3.Connection) -> None:
        db.execute("SELECT * FROM nowhere")

    async with open_database(state_path, MINE) as database:
        for _ in range(2):
            with pytest.raises(OutboxError):
                await database.run(job)
        assert "nowhere" in (note(state_path).damage or "")

    await start(state_path)  # looks thoroughly, and finds nothing
    assert note(state_path) == Note()


async def test_what_ends_a_life_that_met_damage_counts_whatever_it_is(
    state_path: Path,
) -> None:
    """What was read may be of a wrong type, and fail only where it is used."""
    with suppress(TypeError):
        async with open_database(state_path, MINE) as database:
            await database.read(lambda db: load(db, "x") + 1)  # type: ignore[operator]  # of a wrong type

    assert note(state_path).ended == 1


async def test_note_that_cannot_be_read_asks_for_a_thorough_look(
    state_path: Path,
) -> None:
    for body in (b"", b"\xff\xfe", b'{"ended": "many"}'):
        Path(f"{state_path}.trouble").write_bytes(body)
        expected = "the note beside the state file cannot be read"
        assert note(state_path).damage == expected

    await start(state_path)

    assert note(state_path) == Note()


async def test_note_that_cannot_be_written_holds_up_nothing(state_path: Path) -> None:
    Path(f"{state_path}.trouble.new").mkdir()

    await failing_start(state_path, DAMAGED)
    await start(state_path)


@pytest.mark.skipif(os.name != "posix", reason="Windows has no such rights")
def test_note_is_read_by_nobody_else(state_path: Path) -> None:
    Trouble.of(state_path).begin()

    assert Path(f"{state_path}.trouble").stat().st_mode & 0o777 == 0o600


async def test_database_of_another_program_is_refused_and_never_moved(
    state_path: Path,
) -> None:
    with closing(sqlite3.connect(state_path)) as theirs:
        theirs.execute("CREATE TABLE meta (theirs)")

    for _ in range(4):
        with pytest.raises(ForeignDatabaseError):
            await start(state_path)

    assert kept_aside(state_path) == []


# -- a kill while the fresh file takes the place of the damaged one --------------------


async def test_fresh_file_that_was_whole_is_taken_up(state_path: Path) -> None:
    await start(state_path)
    state_path.rename(f"{state_path}.fresh")

    async with open_database(state_path, MINE) as database:
        assert await database.read(lambda db: load(db, "x")) == b"kept"


async def test_fresh_file_does_not_get_the_log_of_the_damaged_one(
    state_path: Path,
) -> None:
    """The file was moved aside before the kill, but not yet its log."""
    await start(state_path)
    fresh = state_path.read_bytes()
    with closing(connect(state_path)) as db:
        write(db, [{("meta", ("x",)): (b"of the damaged file",)}])
        log = Path(f"{state_path}-wal").read_bytes()
    state_path.unlink()
    Path(f"{state_path}-wal").write_bytes(log)
    Path(f"{state_path}.fresh").write_bytes(fresh)

    async with open_database(state_path, MINE) as database:
        assert await database.read(lambda db: load(db, "x")) == b"kept"


async def test_fresh_file_beside_the_old_one_was_not_whole(state_path: Path) -> None:
    await start(state_path)
    Path(f"{state_path}.fresh").write_bytes(b"half of it")
    Path(f"{state_path}.fresh-wal").write_bytes(b"half of it")

    async with open_database(state_path, MINE) as database:
        assert await database.read(lambda db: load(db, "x")) == b"kept"

    assert list(state_path.parent.glob("*.fresh*")) == []


async def test_what_cannot_be_copied_is_no_end_of_every_start(
    state_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Here since the fresh file cannot be made."""
    state_path.write_bytes(b"no database" * 1000)
    Path(f"{state_path}.fresh-wal").mkdir()

    await start(state_path)

    (record,) = [r for r in caplog.records if r.levelno == logging.ERROR]
    assert "nothing could be copied" in vars(record)["fault"]
