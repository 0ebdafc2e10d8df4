"""The SQLite file of a hub: damaged, removed, replaced, or overwritten."""

import errno
import os
import random
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from bridge.foundation.errors import HubStoreAwayError, HubStoreError
from bridge.foundation.values import Address
from bridge.hub.config import HubConfig
from bridge.hub.store.engine import Place
from bridge.hub.store.store import Store, glance, open_store
from bridge.hub.store.tables import decisions, events, messages, votes
from tests.hub.test_sources import rows
from tests.support.fleet import event, life, step, vm
from tests.support.hub import HubWorld, config, received

_SAID = "store is damaged: what can be read of it is kept"
_COUNT = 60


def config_of(path: Path) -> HubConfig:
    return HubConfig(store=Address(f"sqlite:{path}", {}))


async def fill(store: Store, count: int = _COUNT) -> None:
    """Store events, a vote, and a decision."""
    batch = [received(step("scheduled", event(f"E-{n}"))) for n in range(count)]
    batch += [received(life("heartbeat", who=vm(n))) for n in range(5)]
    await store.keep(batch)
    async with HubWorld(store, config(persons=2)).open() as world:
        await world.post(event_id="E-1")
    async with HubWorld(store, config()).open() as world:
        await world.scheduled()
        await world.post("bob")


@pytest.fixture
async def filled(tmp_path: Path) -> Path:
    """Return a file that a hub has left as a kill does: with its log."""
    path = tmp_path / "made" / "hub.db"
    path.parent.mkdir()
    async with open_store(config_of(path)) as store:
        await fill(store)
        copy = tmp_path / "hub.db"
        for suffix in ("", "-wal"):
            shutil.copy(f"{path}{suffix}", f"{copy}{suffix}")
    return copy


def write(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


def without_log(path: Path) -> None:
    """Bring everything into the file itself, as after a stop."""
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        db.execute("PRAGMA journal_mode = DELETE")


def garbage(path: Path, *pages: int) -> None:
    dice = random.Random(7)  # noqa: S311 - the same each time
    without_log(path)
    for page in pages:
        write(path, page * 4096, dice.randbytes(4096))


def garbage_at_an_event(path: Path) -> None:
    """Damage a page that names an event, so none of a vote or a decision."""
    without_log(path)
    data = path.read_bytes()
    garbage(path, next(n for n in range(60) if b"E-30" in data[n * 4096 :][:4096]))


def cut(path: Path, size: int) -> None:
    """Cut a file to a size; a negative one is counted from its end."""
    without_log(path)
    os.truncate(path, size if size > 0 else path.stat().st_size + size)


def cleared(path: Path, size: int) -> None:
    without_log(path)
    write(path, 0, bytes(size))


def alone(path: Path) -> None:
    path.unlink()


def empty(path: Path) -> None:
    without_log(path)
    path.write_bytes(b"")


def text(path: Path) -> None:
    without_log(path)
    path.write_text("this is no database\n" * 1000)


def bad_log(path: Path) -> None:
    log = Path(f"{path}-wal")
    data = log.read_bytes()
    log.write_bytes(b"\0" * 32 + data[32:])


def bad_json(path: Path, column: str = "state") -> None:
    without_log(path)
    with closing(sqlite3.connect(path)) as db, db:
        change = f"UPDATE events SET {column} = CAST('{{' AS BLOB)"  # noqa: S608 - our own names
        db.execute(f"{change} WHERE event_key = 'E-7'")


Change = Callable[[Path], object]
# What is done to the file, and how many events, votes and decisions must be kept.
DAMAGED: dict[str, tuple[Change, int, int]] = {
    "header cleared": (lambda p: cleared(p, 100), _COUNT, 1),
    "first page cleared": (lambda p: cleared(p, 4096), _COUNT, 1),
    "three pages cleared": (lambda p: cleared(p, 3 * 4096), 0, 0),
    "cut in the header": (lambda p: cut(p, 50), 0, 0),
    "cut after a page": (lambda p: cut(p, 4096), 0, 0),
    "cut in a page": (lambda p: cut(p, 20 * 4096 + 77), 0, 0),
    "last page cut": (lambda p: cut(p, -4096), _COUNT // 2, 1),
    "half of it cut": (lambda p: cut(p, -50 * 4096), 0, 0),
    "a page of garbage": (garbage_at_an_event, _COUNT // 2, 1),
    "five pages of garbage": (lambda p: garbage(p, 21, 30, 35, 50, 55), 0, 0),
    "a text": (text, 0, 0),
    "a log alone": (alone, _COUNT, 1),
    "garbage throughout": (lambda p: garbage(p, *range(30)), 0, 0),
    "a state that is no JSON": (bad_json, _COUNT, 1),
    "details that are no JSON": (lambda p: bad_json(p, "details"), _COUNT, 1),
    "a summary that is no JSON": (lambda p: bad_json(p, "summary"), _COUNT, 1),
}


@pytest.mark.slow
@pytest.mark.parametrize(("change", "least", "voted"), DAMAGED.values(), ids=DAMAGED)
async def test_damaged_file_is_moved_aside_and_what_can_be_read_is_kept(
    filled: Path,
    caplog: pytest.LogCaptureFixture,
    change: Change,
    least: int,
    voted: int,
) -> None:
    change(filled)

    async with open_store(config_of(filled)) as store:
        found = len(await rows(store, events))
        given = len(await rows(store, votes)), len(await rows(store, decisions))
        await store.keep([received(step("scheduled", event("NEW")))])
        assert store.health.fault is None

    (said,) = [one for one in caplog.records if one.message == _SAID]
    assert said.events == found >= least  # type: ignore[attr-defined]  # from extra
    assert given >= (voted, voted)
    assert (said.votes, said.decisions) == given  # type: ignore[attr-defined]  # from extra
    aside = Path(said.kept)  # type: ignore[attr-defined]  # from extra
    assert aside.exists() or Path(f"{aside}-wal").exists()
    assert not [p for p in filled.parent.iterdir() if p.name.endswith((".read",))]
    async with open_store(config_of(filled)) as store:
        assert len(await rows(store, events)) == found + 1
    assert [one.message for one in caplog.records].count(_SAID) == 1


async def test_message_that_begins_with_a_byte_order_mark_is_no_damage(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "hub.db"
    body = b"\xef\xbb\xbf" + step("scheduled", event("E-1"))
    async with open_store(config_of(path)) as store:
        await store.keep([received(body)])

    async with open_store(config_of(path)) as store:
        assert [row.body for row in await rows(store, messages)] == [body]

    assert _SAID not in [one.message for one in caplog.records]


async def test_event_whose_row_is_lost_is_made_of_its_messages(filled: Path) -> None:
    bad_json(filled)

    async with open_store(config_of(filled)) as store:
        (row,) = [row for row in await rows(store, events) if row.event_key == "E-7"]
        assert (row.status, row.is_open) == ("scheduled", True)


@pytest.mark.parametrize("change", [bad_log, lambda p: write(p, 0, bytes(4096))])
async def test_file_or_log_that_holds_all_is_enough(
    filled: Path, tmp_path: Path, change: Change
) -> None:
    change(filled)
    async with open_store(config_of(filled)) as store:
        await store.keep([received(step("scheduled", event("NEW")))])
        assert "NEW" in {row.event_key for row in await rows(store, events)}
    other = tmp_path / "empty.db"
    other.touch()
    async with open_store(config_of(other)) as store:
        assert await rows(store, events) == []


@pytest.mark.parametrize("change", [bad_log, lambda p: os.truncate(f"{p}-wal", 31)])
async def test_log_that_is_none_is_kept_and_said(
    filled: Path, caplog: pytest.LogCaptureFixture, change: Change
) -> None:
    change(filled)
    before = Path(f"{filled}-wal").read_bytes()
    with pytest.raises(HubStoreError, match="its log cannot be read"):
        await glance(config_of(filled), lambda db: db)

    async with open_store(config_of(filled)):
        pass

    (said,) = [one for one in caplog.records if one.levelname == "ERROR"]
    assert said.message == "log of the store cannot be read: starting without it"
    assert Path(said.kept).read_bytes() == before  # type: ignore[attr-defined]  # from extra


async def test_file_that_is_empty_is_said_and_a_new_one_is_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for path in (tmp_path / "new.db", tmp_path / "empty.db"):
        if path.stem == "empty":
            path.touch()
        async with open_store(config_of(path)):
            pass

    (said,) = [one for one in caplog.records if one.levelname != "INFO"]
    assert said.message == "store is empty: starting afresh"
    assert said.path.endswith("empty.db")  # type: ignore[attr-defined]  # from extra


async def test_what_a_person_must_change_is_said(tmp_path: Path) -> None:
    folder, other = tmp_path / "a", tmp_path / "state.db"
    folder.mkdir()
    with closing(sqlite3.connect(other)) as db, db:
        db.execute("CREATE TABLE deliveries (id INTEGER)")
    given = {folder: "is a directory", other: "of another program: name another file"}
    if os.name == "posix":
        os.mkfifo(tmp_path / "c-wal")
        given[tmp_path / "c"] = "c-wal is not a file: move it away"

    for path, words in given.items():
        with pytest.raises(HubStoreError, match=words):
            async with open_store(config_of(path)):
                pass


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
async def test_file_that_may_not_be_read_is_said(tmp_path: Path) -> None:
    path = tmp_path / "hub.db"
    path.touch(mode=0o000)

    with pytest.raises(HubStoreError, match="chown"):
        async with open_store(config_of(path)):
            pass


async def test_file_that_is_removed_is_written_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "hub.db"
    async with open_store(config_of(path)) as store:
        await fill(store, 3)
        for _ in range(2):
            path.unlink()
            assert len(await rows(store, events)) == 4
            assert path.exists()
        for part in tmp_path.iterdir():
            part.unlink()
        await store.keep([received(step("scheduled", event("NEW")))])
        assert store.health.fault is None

    async with open_store(config_of(path)) as store:
        assert len(await rows(store, events)) == 5
        assert len(await rows(store, votes)) == len(await rows(store, decisions)) == 1
    assert path.stat().st_mode & 0o077 == 0
    said = [one.message for one in caplog.records]
    assert said.count("store was removed: it is written again") == 3


@pytest.mark.parametrize("parts", [("-wal",), ("-wal", "-shm")])
async def test_log_that_is_removed_costs_nothing(
    tmp_path: Path, parts: tuple[str, ...]
) -> None:
    path, seen = tmp_path / "hub.db", tmp_path / "seen.db"
    async with open_store(config_of(path)) as store:
        await fill(store, 3)
        for number in range(2):
            for part in parts:
                Path(f"{path}{part}").unlink(missing_ok=True)
            await store.keep([received(step("scheduled", event(f"NEW-{number}")))])
            assert len(await rows(store, events)) == 5 + number
            assert store.health.fault is None
        for part in ("", "-wal"):  # what a kill would leave
            Path(f"{seen}{part}").write_bytes(Path(f"{path}{part}").read_bytes())

    for one in (path, seen):
        async with open_store(config_of(one)) as store:
            assert len(await rows(store, events)) == 6


async def test_file_that_is_replaced_is_left_alone_and_said(tmp_path: Path) -> None:
    path, ours = tmp_path / "hub.db", tmp_path / "ours.db"
    async with open_store(config_of(path)) as store:
        await fill(store, 3)
        path.rename(ours)
        path.write_bytes(b"an older copy")
        for work in (store.keep([received(step("started"))]), rows(store, events)):
            with pytest.raises(HubStoreAwayError, match="replaced by another file"):
                await work
        assert "replaced" in str(store.health.fault)
        assert path.read_bytes() == b"an older copy"
        ours.rename(path)
        await store.check()

        assert store.health.fault is None
        assert len(await rows(store, events)) == 4


@pytest.mark.parametrize("data", [b"no database" * 4000, b"", bytes(8192)])
async def test_file_that_is_overwritten_and_put_back(
    tmp_path: Path, data: bytes
) -> None:
    path = tmp_path / "hub.db"
    async with open_store(config_of(path)) as store:
        await fill(store, 3)
        before = path.read_bytes()
        path.write_bytes(data)
        for work in (store.keep([received(step("started"))]), rows(store, events)):
            with pytest.raises(HubStoreAwayError, match="overwritten"):
                await work
        path.write_bytes(before)
        await store.check()
        await store.keep([received(step("scheduled", event("NEW")))])

        assert len(await rows(store, events)) == 5


async def test_pages_that_are_overwritten_and_put_back(tmp_path: Path) -> None:
    """SQLite holds what it has read: it must not go on with it."""
    path = tmp_path / "hub.db"
    async with open_store(config_of(path)) as store:
        await fill(store, 30)
        await store.write(lambda c: None)
    async with open_store(config_of(path)) as store:
        before = path.read_bytes()
        write(path, 4096, b"\xff" * (len(before) - 4096))
        with pytest.raises(HubStoreAwayError):
            await rows(store, events)
        with pytest.raises(HubStoreAwayError):
            await store.keep([received(step("started"))])
        path.write_bytes(before)
        await store.check()
        await store.keep([received(step("scheduled", event("NEW")))])

        assert store.health.fault is None
        assert len(await rows(store, events)) == 32


def test_place_that_cannot_be_looked_at_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder that is closed meanwhile, or a network that has lost its server."""
    path = tmp_path / "hub.db"
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE events (event_key)")
    place = Place(path)
    place.hold()

    def stat(*_: object, **__: object) -> os.stat_result:
        raise PermissionError(errno.EACCES, "Permission denied")

    try:
        with monkeypatch.context() as patch:
            patch.setattr(os, "stat", stat)
            with pytest.raises(HubStoreAwayError):
                place.check()
        place.check()
    finally:
        place.release()


def test_file_without_a_log_is_held(tmp_path: Path) -> None:
    """Where WAL does not work, as on some network file systems, there is none."""
    path = tmp_path / "hub.db"
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE events (event_key)")
    place = Place(path)
    place.hold()
    try:
        place.check()
    finally:
        place.release()

    assert not Path(f"{path}-wal").exists()
