"""The state file as a file: one forwarder, one VM, one version, and no damage."""

import asyncio
import contextlib
import logging
import multiprocessing
import os
import sqlite3
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from bridge.foundation.errors import (
    NewerSchemaError,
    OutboxLockedError,
    OutboxUnavailableError,
)
from bridge.foundation.sqlite_files import set_aside
from bridge.outbox.statefile import (
    default_path,
    locked,
    open_database,
    owner_of,
)
from bridge.outbox.storage.database import Database
from bridge.outbox.storage.file import File, connect
from bridge.outbox.storage.journal import Rows, load, write

MINE = "13f56399-bd52-4150-9748-7190aae1ff21"
OTHER = "99999999-bd52-4150-9748-7190aae1ff21"
KEPT: Rows = {("meta", ("x",)): (b"kept",)}
NOW = datetime(2026, 3, 2, 12, tzinfo=UTC)


async def written(path: Path, vm_id: str | None) -> None:
    """Leave a state file behind that holds one value."""
    async with open_database(path, vm_id) as database:
        database.put(KEPT)


async def value(database: Database) -> bytes | None:
    found: bytes | None = await database.read(lambda db: load(db, "x"))
    return found


@pytest.fixture
async def state(state_path: Path) -> Path:
    await written(state_path, MINE)
    return state_path


def set_apart(path: Path) -> list[Path]:
    """Return the state files that were moved aside."""
    return sorted(path.parent.glob("state.db.*-*T*"))


# -- who may read it -----------------------------------------------------------


@pytest.fixture
def no_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def rights(folder: Path) -> dict[str, str]:
    return {one.name: f"{one.stat().st_mode & 0o777:o}" for one in folder.iterdir()}


posix = pytest.mark.skipif(os.name != "posix", reason="Windows has no such rights")


@posix
@pytest.mark.usefixtures("no_umask")
async def test_nobody_else_may_read_the_state_file_nor_what_belongs_to_it(
    tmp_path: Path,
) -> None:
    path = tmp_path / "new" / "state.db"

    with locked(path):
        async with open_database(path, MINE) as database:
            database.put(KEPT)
            found = rights(path.parent)

    assert found == dict.fromkeys(
        ["state.db", "state.db-wal", "state.db-shm", "state.db.lock"], "600"
    )
    assert f"{path.parent.stat().st_mode & 0o777:o}" == "700"


@posix
@pytest.mark.parametrize("is_damaged", [True, False])
@pytest.mark.usefixtures("no_umask")
async def test_file_that_others_could_read_is_theirs_no_more_nor_once_moved_aside(
    state: Path, *, is_damaged: bool
) -> None:
    if is_damaged:
        state.write_bytes(b"no database" * 1000)
    Path(f"{state}-wal").touch()
    for part in state.parent.iterdir():
        part.chmod(0o644)

    async with open_database(state, OTHER):
        found = rights(state.parent)

    assert set(found.values()) == {"600"}
    assert set_apart(state)


# -- the lock ------------------------------------------------------------------


def test_second_forwarder_on_one_state_file_is_refused(state_path: Path) -> None:
    with (
        locked(state_path),
        pytest.raises(OutboxLockedError, match="a forwarder already runs on") as caught,
        locked(state_path),
    ):
        pytest.fail("both hold it")  # pragma: no cover - must not come here

    assert str(state_path) in str(caught.value)


def test_lock_is_free_again_when_its_holder_is_gone(state_path: Path) -> None:
    with contextlib.suppress(KeyError), locked(state_path):
        raise KeyError

    with locked(state_path):
        pass


def hold(path: Path, pipe: Any) -> None:
    with locked(path):
        pipe.send("held")
        pipe.recv()


def test_lock_of_a_killed_process_is_free(state_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    with here, there:
        process = context.Process(target=hold, args=(state_path, there))
        process.start()
        assert here.recv() == "held"
        with pytest.raises(OutboxLockedError), locked(state_path):
            pytest.fail("both hold it")  # pragma: no cover - must not come here

        process.kill()
        process.join()

    with locked(state_path):
        pass


def test_two_state_files_in_one_folder_are_two(tmp_path: Path) -> None:
    with locked(tmp_path / "a.db"), locked(tmp_path / "b.db"):
        pass


def test_folder_of_the_state_file_is_made(tmp_path: Path) -> None:
    with locked(tmp_path / "not" / "there" / "state.db"):
        assert (tmp_path / "not" / "there").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("path", ["file/state.db", "file/folder/state.db"])
def test_folder_that_cannot_be_made_is_tried_again(path: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")

    with locked(tmp_path / path) as lock:
        fault = lock.fault()
        lock.take()
        assert lock.fault() == fault
        (tmp_path / "file").unlink()
        lock.take()

        assert lock.fault() is None
    assert str(fault).startswith(f"the lock {tmp_path / path}.lock cannot be opened: ")


@posix
def test_other_file_in_place_of_the_lock_is_left_alone(state_path: Path) -> None:
    os.mkfifo(f"{state_path}.lock")

    with locked(state_path) as lock:
        assert str(lock.fault()).endswith("cannot be opened: it is not a file")


# -- whose it is ---------------------------------------------------------------


@pytest.mark.parametrize("vm_id", [MINE, MINE.upper(), None])
async def test_state_of_this_vm_is_taken_up(vm_id: str | None, state: Path) -> None:
    """An unknown vmId takes it, too: IMDS may just not have answered."""
    async with open_database(state, vm_id) as database:
        assert await value(database) == b"kept"

    assert set_apart(state) == []


async def test_state_of_another_vm_is_moved_aside(
    state: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_database(state, OTHER) as database:
        assert await value(database) is None
        assert await owner_of(database) == OTHER

    (kept,) = set_apart(state)
    assert MINE in kept.name
    async with Database.open(File(kept)) as database:
        assert await value(database) == b"kept"
    assert "state file is of another VM: starting afresh" in caplog.messages


async def test_state_written_while_the_vm_was_unknown_is_taken_up(
    state_path: Path,
) -> None:
    await written(state_path, None)

    async with open_database(state_path, MINE) as database:
        assert await value(database) == b"kept"
        assert await owner_of(database) == MINE


async def test_owner_is_not_forgotten_while_the_vm_is_unknown(state: Path) -> None:
    async with open_database(state, None) as database:
        assert await owner_of(database) == MINE


@pytest.mark.parametrize("vm_id", ["../../etc/x", "a/b", "C:\\x", "ö\0", "x" * 300])
async def test_vm_id_that_is_no_file_name_is_no_trouble(
    vm_id: str, state_path: Path
) -> None:
    """[identity] may call a VM anything."""
    await written(state_path, vm_id)

    async with open_database(state_path, MINE) as database:
        assert await value(database) is None

    assert len(set_apart(state_path)) == 1


# -- damage --------------------------------------------------------------------


def overwritten(path: Path, offset: int, size: int) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(b"\xde\xad" * (size // 2))


@pytest.mark.parametrize(
    ("offset", "size", "left"),
    [
        (0, 100, None),
        (0, 4096, None),
        (4096, 4096, None),
        (4096 * 3, 4096 * 4, b"kept"),
    ],
    ids=["header", "first page", "second page", "middle"],
)
async def test_damaged_state_is_moved_aside(
    offset: int,
    size: int,
    left: bytes | None,
    state: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    overwritten(state, offset, size)

    async with open_database(state, MINE) as database:
        assert await value(database) == left
        assert await owner_of(database) == MINE

    (kept,) = set_apart(state)
    assert ".corrupt-" in kept.name
    (record,) = [r for r in caplog.records if r.levelno == logging.ERROR]
    assert record.message == "state file is corrupt: starting afresh"
    assert str(kept) == vars(record)["kept"]


def killed(path: Path) -> Path:
    """Return a copy of a state file as a SIGKILL would have left it."""
    connection = connect(path)
    write(connection, [{("meta", ("x",)): (b"newer",)}])
    left = path.with_name("killed.db")
    for suffix in ("", "-wal"):
        put(Path(f"{left}{suffix}"), Path(f"{path}{suffix}").read_bytes())
    connection.close()
    return left


UNREAD = "log of the state file cannot be read: starting without it"
EMPTY = "state file is empty: starting afresh"


def young(path: Path) -> Path:
    """Leave a file as a kill soon after its first start would: all is in the log."""
    connection = connect(path)
    write(connection, [{("meta", ("x",)): (b"kept",)}])
    for suffix in ("", "-wal"):
        part = Path(f"{path}{suffix}")
        put(part.with_name(f"copy{suffix}"), part.read_bytes())
    connection.close()
    for suffix in ("", "-wal"):
        path.with_name(f"copy{suffix}").rename(f"{path}{suffix}")
    return path


def no_log(path: Path) -> None:
    overwritten(Path(f"{path}-wal"), 0, 32)


def zeros_as_log(path: Path) -> None:
    put(Path(f"{path}-wal"), bytes(4096))


def short_log(path: Path) -> None:
    os.truncate(f"{path}-wal", 31)


def no_content(path: Path) -> None:
    os.truncate(path, 0)


def no_file(path: Path) -> None:
    path.unlink()


@pytest.mark.parametrize("harm", [no_log, zeros_as_log, short_log, no_content, no_file])
@pytest.mark.parametrize("is_young", [True, False])
async def test_log_that_sqlite_would_delete_is_kept_and_said(
    harm: Callable[[Path], None],
    state_path: Path,
    caplog: pytest.LogCaptureFixture,
    *,
    is_young: bool,
) -> None:
    if is_young:
        state = young(state_path)
    else:
        await written(state_path, MINE)
        state = killed(state_path).rename(state_path)
        Path(f"{state_path.with_name('killed.db')}-wal").rename(f"{state_path}-wal")
    harm(state)
    before = content(Path(f"{state}-wal"))

    async with open_database(state, MINE) as database:
        has_file = not is_young and harm not in {no_content, no_file}
        assert await value(database) == (b"kept" if has_file else None)
        (kept,) = state.parent.glob("state.db-wal.unread-*")
        assert str(kept) in (database.lost or "")

    assert content(kept) == before
    assert UNREAD in caplog.messages


@pytest.mark.parametrize("size", [0, 4096])
async def test_empty_file_is_said(
    size: int, state_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    put(state_path, content(young(state_path))[:size])
    Path(f"{state_path}-wal").unlink()

    async with open_database(state_path, MINE) as database:
        assert await value(database) is None
        assert database.lost == "it is empty"

    assert EMPTY in caplog.messages


async def test_young_file_is_taken_up(
    state_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_database(young(state_path), MINE) as database:
        assert await value(database) == b"kept"
        assert database.lost is None

    async with open_database(state_path.with_name("new.db"), MINE) as database:
        assert database.lost is None
    assert caplog.messages == []


def content(path: Path) -> bytes:
    return path.read_bytes()


def put(path: Path, content: bytes) -> None:
    path.write_bytes(content)


async def test_what_was_not_checkpointed_is_taken_up(state: Path) -> None:
    """The last commits stand in the -wal file alone."""
    async with open_database(killed(state), MINE) as database:
        assert await value(database) == b"newer"


async def test_state_of_sinks_that_have_grown_older_is_taken_up(state: Path) -> None:
    """Their age is a number of seconds among values that are bytes."""
    async with open_database(state, MINE) as database:
        database.put({("meta", ("running:siem",)): (1.5,)})

    async with open_database(state, MINE) as database:
        assert await value(database) == b"kept"
        query = "SELECT value FROM meta WHERE key = 'running:siem'"
        assert await database.read(lambda db: db.execute(query).fetchone()) == (1.5,)
    assert set_apart(state) == []


async def test_log_of_a_damaged_state_is_moved_along_with_it(state: Path) -> None:
    left = killed(state)
    put(Path(f"{left}-wal"), b"no log" * 1000)
    put(Path(f"{left}-shm"), b"no index" * 1000)
    put(left, b"no database" * 1000)

    async with open_database(left, MINE) as database:
        assert await value(database) is None
        database.put(KEPT)

    async with open_database(left, MINE) as database:
        assert await value(database) == b"kept"
    assert len(list(left.parent.glob("killed.db.corrupt-*T??????"))) == 1


def test_what_belongs_to_the_state_is_moved_along(state_path: Path) -> None:
    for suffix in ("", "-wal", "-shm"):
        put(Path(f"{state_path}{suffix}"), suffix.encode())

    kept = set_aside(state_path, "corrupt", NOW)

    for suffix in ("", "-wal", "-shm"):
        assert Path(f"{kept}{suffix}").read_bytes() == suffix.encode()
    assert len(list(state_path.parent.iterdir())) == 3


def test_two_moved_aside_in_one_second_are_both_kept(state_path: Path) -> None:
    for content in (b"first", b"second", b"third"):
        put(state_path, content)
        set_aside(state_path, "corrupt", NOW)

    kept = [path.read_bytes() for path in state_path.parent.glob("*.corrupt-*")]
    assert sorted(kept) == [b"first", b"second", b"third"]


async def test_truncated_state_is_moved_aside(state: Path) -> None:
    with state.open("r+b") as file:
        file.truncate(4096 * 5)

    await written(state, MINE)

    assert len(set_apart(state)) == 1


async def test_empty_file_is_a_fresh_start(state_path: Path) -> None:
    """What a power loss leaves of a file that was just made."""
    put(state_path, b"")

    await written(state_path, MINE)

    assert set_apart(state_path) == []


async def test_state_of_a_newer_version_is_refused_and_left_alone(state: Path) -> None:
    with contextlib.closing(sqlite3.connect(state)) as connection:
        connection.execute("PRAGMA user_version = 99")
    before = content(state)

    with pytest.raises(NewerSchemaError, match="schema version 99"):
        await written(state, OTHER)

    assert content(state) == before
    assert set_apart(state) == []


OLDER = """
    CREATE TABLE meta (key TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
    CREATE TABLE told (cause TEXT PRIMARY KEY) WITHOUT ROWID;
    CREATE TABLE deliveries (id INTEGER PRIMARY KEY, state TEXT NOT NULL);
    INSERT INTO meta VALUES ('x', 'older'), ('schema', 9);
    INSERT INTO deliveries (state)
        VALUES ('pending'), ('pending'), ('dead'), ('delivered');
    PRAGMA user_version = 4;
"""


async def test_state_of_an_older_version_is_moved_aside_and_what_waits_is_said(
    state_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with contextlib.closing(sqlite3.connect(state_path)) as db:
        db.executescript(OLDER)

    async with open_database(state_path, MINE) as database:
        assert await value(database) is None
        assert not database.is_degraded

    (kept,) = set_apart(state_path)
    assert kept.name.startswith("state.db.older-")
    (record,) = caplog.records
    assert record.message == "state file is of an older version: starting afresh"
    found = {name: vars(record)[name] for name in ("kept", "pending", "dead")}
    assert found == {"kept": str(kept), "pending": 2, "dead": 1}


async def test_folder_in_place_of_the_file_is_said(tmp_path: Path) -> None:
    async with open_database(tmp_path, MINE) as database:
        database.put(KEPT)

        assert f"{tmp_path} is not a file: move it away" in str(database.fault)


@posix
@pytest.mark.parametrize("suffix", ["", "-journal", "-wal", ".trouble", ".fresh"])
async def test_start_does_not_wait_in_a_fifo(suffix: str, state_path: Path) -> None:
    os.mkfifo(f"{state_path}{suffix}")

    async with asyncio.timeout(60):
        if suffix in {"", "-journal", "-wal"}:
            with pytest.raises(OutboxUnavailableError, match="not a file: move it"):
                connect(state_path)
        async with open_database(state_path, MINE) as database:
            database.put(KEPT)


@posix
async def test_state_is_known_while_a_fifo_stands_for_its_log(state: Path) -> None:
    os.mkfifo(f"{state}-wal")

    async with open_database(state, MINE) as database:
        assert await database.read(lambda db: load(db, "x")) == b"kept"


async def test_file_that_cannot_be_moved_aside_is_said(tmp_path: Path) -> None:
    """Here since its new name would be longer than names may be."""
    path = tmp_path / ("x" * 245)
    put(path, b"no database" * 1000)

    async with open_database(path, MINE) as database:
        database.put(KEPT)

        assert "cannot be moved: File name too long" in str(database.fault)


# -- where it is ---------------------------------------------------------------


def test_state_is_kept_where_services_keep_it() -> None:
    assert default_path("linux") == "/var/lib/sebridge/state.db"


@pytest.mark.parametrize("set_to", ["D:\\Data", None])
def test_state_is_kept_in_programdata_on_windows(
    set_to: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if set_to is None:
        monkeypatch.delenv("PROGRAMDATA", raising=False)
    else:
        monkeypatch.setenv("PROGRAMDATA", set_to)

    folder = set_to or "C:\\ProgramData"
    assert default_path("win32") == f"{folder}\\sebridge\\state\\state.db"
