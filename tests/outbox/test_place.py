"""The state file where it should be, and what follows where it no longer is.

A read-only disk is a real one: a file system of a megabyte, mounted for the test.
"""

import shutil
import sqlite3
import stat
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path

import pytest

from bridge.foundation.errors import (
    OutboxError,
    OutboxLockedError,
    OutboxUnavailableError,
)
from bridge.outbox.questions import Selection
from bridge.outbox.records import Checkpoint
from bridge.outbox.statefile import locked, open_database
from bridge.outbox.storage.database import Database
from bridge.outbox.storage.file import File
from bridge.outbox.store import Outbox
from tests.support.book import Book
from tests.support.builders import outgoing, route, router
from tests.support.disks import Disk
from tests.support.outboxes import publish_counts
from tests.support.stopwatch import Stopwatch

NOW = 1_800_000_000.0
A = "a"


@asynccontextmanager
async def running(path: Path) -> AsyncIterator[Outbox]:
    """Open the state file as the forwarder does, with its lock."""
    with locked(path) as lock:
        async with open_database(path, "VM", lock=lock) as database:
            yield await Outbox.of(database, router({A: route()}))


async def put(outbox: Outbox, *names: str) -> None:
    events = [outgoing(name, key="K") for name in names]
    await outbox.commit(events, now=NOW, checkpoint=Checkpoint(body=b"{}"))


async def states(outbox: Outbox) -> dict[str | None, str]:
    found = await Book(outbox).find(Selection())
    return {one.cloud_event_id: one.state for one in found}


async def on_disk(path: Path) -> dict[str | None, str]:
    """Return what another process sees."""
    async with Database.open(File(path)) as database:
        return await states(await Outbox.of(database, router({A: route()})))


async def waiting(outbox: Outbox) -> int:
    """Return how many deliveries wait, also while nothing can be written."""
    tallies = await outbox.deliveries.tallies()
    return tallies[A].pending if A in tallies else 0


def refuses_another(path: Path) -> bool:
    try:
        with locked(path):
            return False
    except OutboxLockedError:
        return True


def problems(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [str(vars(r).get("fault")) for r in caplog.records if r.levelno >= 30]


# -- read-only at the start ------------------------------------------------------


@pytest.fixture
async def crashed(disk: Disk) -> Disk:
    """Leave a state file as a power cut does, on a disk that is read-only then."""
    parts = [Path(f"{disk.state}{suffix}") for suffix in ("", "-wal", "-shm", ".lock")]
    async with running(disk.state) as outbox:
        await put(outbox, "1")
        images = [part.read_bytes() for part in parts]
    for part, image in zip(parts, images, strict=True):
        part.write_bytes(image)
    disk.remount("ro")
    return disk


async def test_read_only_disk_is_written_as_soon_as_it_can_be(crashed: Disk) -> None:
    """The connection that could only read never writes."""
    async with running(crashed.state) as outbox:
        await put(outbox, "2")
        assert outbox.database.is_degraded
        await outbox.database.heal()
        assert outbox.database.is_degraded

        crashed.remount("rw")
        for _ in range(2):
            await outbox.database.heal()

        assert not outbox.database.is_degraded
        assert await on_disk(crashed.state) == {"1": "pending", "2": "pending"}


async def test_two_that_began_on_a_read_only_disk_do_not_both_write(
    crashed: Disk,
) -> None:
    """Neither has the lock while the disk can only be read."""
    async with running(crashed.state) as outbox:
        await put(outbox, "2")
        with locked(crashed.state) as other:
            crashed.remount("rw")
            other.take()
            for _ in range(3):
                await outbox.database.heal()
            assert outbox.database.is_degraded
            assert await on_disk(crashed.state) == {"1": "pending"}

        for _ in range(2):
            await outbox.database.heal()

        assert not outbox.database.is_degraded
        assert refuses_another(crashed.state)


# -- removed while it runs -------------------------------------------------------


async def test_lock_that_was_removed_is_noticed_and_taken_anew(
    state_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(state_path) as outbox:
        await put(outbox, "1")
        Path(f"{state_path}.lock").unlink()

        await outbox.database.read(lambda _: None)  # as the housekeeping does

        assert outbox.database.is_degraded
        await outbox.database.heal()
        assert not outbox.database.is_degraded
        assert refuses_another(state_path)
    assert problems(caplog) == [
        f"{state_path}.lock was removed or replaced: another forwarder may start"
    ]


async def test_lock_that_another_forwarder_has_taken_meanwhile_is_left_to_it(
    state_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """This one delivers from memory, and writes nothing until the other is gone."""
    async with running(state_path) as outbox:
        Path(f"{state_path}.lock").unlink()
        with locked(state_path):
            await put(outbox, "1")
            for _ in range(3):
                await outbox.database.heal()

            assert outbox.database.is_degraded
            assert await waiting(outbox) == 1
            assert await on_disk(state_path) == {}
        await outbox.database.heal()

        assert not outbox.database.is_degraded
        assert await on_disk(state_path) == {"1": "pending"}
    assert len(problems(caplog)) == 1


async def test_directory_that_was_removed_is_made_anew_with_all_that_was_in_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "lib" / "state.db"
    async with running(path) as outbox:
        await put(outbox, "1")
        shutil.rmtree(path.parent)

        await put(outbox, "2")

        assert outbox.database.is_degraded
        await outbox.database.heal()
        assert not outbox.database.is_degraded
        assert await on_disk(path) == {"1": "pending", "2": "pending"}
        assert await publish_counts(outbox, "1", "2") == {"1": 1, "2": 1}
        assert refuses_another(path)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert not list(path.parent.glob("*.restored*"))
    async with running(path) as outbox:
        assert await states(outbox) == {"1": "pending", "2": "pending"}
    assert len(problems(caplog)) == 1


async def test_state_file_that_was_removed_alone_is_written_anew(
    state_path: Path,
) -> None:
    async with running(state_path) as outbox:
        await put(outbox, "1")
        for suffix in ("", "-wal", "-shm"):
            Path(f"{state_path}{suffix}").unlink()
        await outbox.database.read(lambda _: None)
        await outbox.database.heal()
        await put(outbox, "2")

        assert await on_disk(state_path) == {"1": "pending", "2": "pending"}


async def test_log_of_sqlite_that_was_removed_alone_is_noticed(
    state_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The last transactions are in the log only: a kill would lose them."""
    async with running(state_path) as outbox:
        await put(outbox, "1")
        Path(f"{state_path}-wal").unlink()
        await put(outbox, "2")
        assert outbox.database.is_degraded
        await outbox.database.heal()
        assert not outbox.database.is_degraded
        await put(outbox, "3")

        expected = dict.fromkeys(("1", "2", "3"), "pending")
        assert await on_disk(state_path) == expected
        assert await publish_counts(outbox, "1", "2", "3") == dict.fromkeys("123", 1)
    assert await on_disk(state_path) == expected
    assert problems(caplog) == [f"{state_path}-wal was removed or replaced"]


async def test_file_of_another_in_its_place_is_left_alone(state_path: Path) -> None:
    async with running(state_path) as outbox:
        await put(outbox, "1")
        for suffix in ("", "-wal", "-shm"):
            Path(f"{state_path}{suffix}").unlink()
        state_path.write_bytes(b"of somebody else")
        await put(outbox, "2")
        await outbox.database.heal()

        assert outbox.database.is_degraded
        assert await waiting(outbox) == 2
    assert state_path.read_bytes() == b"of somebody else"


async def test_directory_that_cannot_be_made_anew_is_tried_again(
    tmp_path: Path,
) -> None:
    path = tmp_path / "lib" / "state.db"
    async with running(path) as outbox:
        await put(outbox, "1")
        shutil.rmtree(path.parent)
        path.parent.write_bytes(b"")
        await put(outbox, "2")
        await outbox.database.heal()
        assert outbox.database.is_degraded

        path.parent.unlink()
        await outbox.database.heal()

        assert await on_disk(path) == {"1": "pending", "2": "pending"}


async def test_file_that_cannot_be_written_anew_is_tried_again(
    state_path: Path,
) -> None:
    async with running(state_path) as outbox:
        await put(outbox, "1")
        for suffix in ("", "-wal", "-shm"):
            Path(f"{state_path}{suffix}").unlink()
        obstacle = Path(f"{state_path}.restored")
        obstacle.mkdir()
        await put(outbox, "2")
        await outbox.database.heal()
        assert outbox.database.is_degraded

        obstacle.rmdir()
        await outbox.database.heal()

        assert await on_disk(state_path) == {"1": "pending", "2": "pending"}


# -- not to be used at the start -------------------------------------------------


@contextmanager
def no_lock(path: Path) -> Iterator[None]:
    """Have something else where the lock should be."""
    obstacle = Path(f"{path}.lock")
    obstacle.unlink(missing_ok=True)
    obstacle.mkdir()
    yield
    obstacle.rmdir()


async def test_what_is_in_the_file_is_known_without_its_lock(state_path: Path) -> None:
    async with running(state_path) as outbox:
        await put(outbox, "1")
    before = state_path.read_bytes()
    with no_lock(state_path):
        async with running(state_path) as outbox:
            await put(outbox, "2")

            assert await waiting(outbox) == 2
            await outbox.database.heal()
            assert outbox.database.is_degraded
    assert state_path.read_bytes() == before


async def test_file_is_used_as_soon_as_it_can_be_locked(state_path: Path) -> None:
    async with running(state_path) as outbox:
        await put(outbox, "1")
    with no_lock(state_path):
        opening = running(state_path)
        outbox = await opening.__aenter__()
        await put(outbox, "2")
    await outbox.database.heal()

    assert not outbox.database.is_degraded
    assert await on_disk(state_path) == {"1": "pending", "2": "pending"}
    assert refuses_another(state_path)
    await opening.__aexit__(None, None, None)


@pytest.mark.parametrize("what", ["another VM's", "damaged"])
async def test_file_that_cannot_be_kept_is_moved_aside_as_soon_as_it_can_be_locked(
    what: str, state_path: Path
) -> None:
    if what == "damaged":
        state_path.write_bytes(b"no database" * 1000)
    else:
        async with open_database(state_path, "OTHER") as database:
            await put(await Outbox.of(database, router({A: route()})), "1")
    before = state_path.read_bytes()
    with no_lock(state_path):
        opening = running(state_path)
        outbox = await opening.__aenter__()
        await put(outbox, "2")
        await outbox.database.heal()
        assert await waiting(outbox) == 1
        assert state_path.read_bytes() == before
    await outbox.database.heal()

    assert not outbox.database.is_degraded
    assert await on_disk(state_path) == {"2": "pending"}
    (kept,) = state_path.parent.glob("state.db.*-*T??????")
    assert kept.read_bytes()[:16] == before[:16]
    await opening.__aexit__(None, None, None)


async def test_file_of_a_newer_version_is_left_alone_when_it_can_be_locked(
    state_path: Path,
) -> None:
    async with running(state_path) as outbox:
        await put(outbox, "0")
    with closing(sqlite3.connect(state_path)) as db:
        db.execute("PRAGMA user_version = 99")
    with no_lock(state_path):
        opening = running(state_path)
        outbox = await opening.__aenter__()
        await put(outbox, "1")
    before = state_path.read_bytes()
    for _ in range(2):
        await outbox.database.heal()

    assert outbox.database.is_degraded
    assert state_path.read_bytes() == before
    await opening.__aexit__(None, None, None)


# -- the lock of another process -------------------------------------------------


async def test_start_that_read_nothing_ends_if_another_has_the_lock_by_then(
    tmp_path: Path,
) -> None:
    path = tmp_path / "lib" / "state.db"
    path.parent.touch()

    async def start() -> None:
        async with running(path) as outbox:
            await put(outbox, "1")
            path.parent.unlink()
            with locked(path):
                await outbox.database.heal()
                await outbox.database.died()

    with pytest.raises(OutboxLockedError):
        await start()


@contextmanager
def held(path: Path, how: str) -> Iterator[None]:
    """Let another process, so to say, hold the file without end."""
    other = sqlite3.connect(path, isolation_level=None)
    if how == "alone":
        other.execute("PRAGMA locking_mode = EXCLUSIVE")
    other.execute("BEGIN IMMEDIATE")
    other.execute("INSERT OR REPLACE INTO meta (key, value) VALUES ('other', 1)")
    try:
        yield
    finally:
        other.execute("ROLLBACK")
        other.close()


@pytest.mark.parametrize("how", ["as a writer", "alone"])
async def test_lock_of_another_process_delays_the_first_event_by_2_s_at_most(
    state_path: Path, how: str
) -> None:
    async with running(state_path) as outbox:
        await put(outbox, "1")
    with held(state_path, how):
        watch = Stopwatch()
        async with running(state_path) as outbox:
            await put(outbox, "2")
            took = watch.seconds

            assert outbox.database.is_degraded
    assert took < 2


async def test_lock_that_was_waited_for_at_the_start_is_waited_for_later(
    state_path: Path,
) -> None:
    """Else each look of a command from outside would send it to memory."""
    async with running(state_path) as outbox:
        await put(outbox, "1")
    with held(state_path, "alone"):
        opening = running(state_path)
        outbox = await opening.__aenter__()
        assert outbox.database.is_degraded
    await outbox.database.heal()

    (left,) = await outbox.database.read(
        lambda db: db.execute("PRAGMA busy_timeout").fetchone()
    )

    assert not outbox.database.is_degraded
    assert left == 1000
    await opening.__aexit__(None, None, None)


def test_file_whose_check_has_failed_is_checked_again_before_it_is_used(
    state_path: Path,
) -> None:
    """It may be damaged: nothing may be written to it before a check has ended."""
    faults: list[OutboxError] = [
        OutboxUnavailableError("the disk is away"),
        OutboxError("it needs too much memory"),
        OutboxError("it needs too much memory"),
    ]

    def check() -> None:
        if faults:
            raise faults.pop(0)

    file = File(state_path, check=check)
    for opening in (file.open, file.regain, file.regain):
        with pytest.raises(OutboxError):
            opening()
    assert not state_path.exists()

    assert file.regain()
    file.close()
