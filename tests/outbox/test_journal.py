"""Rows gather while the disk works, hangs or refuses; in the end all are written."""

import asyncio
import logging
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.foundation.errors import (
    OutboxError,
    OutboxThreadDiedError,
    OutboxUnavailableError,
)
from bridge.outbox.storage.database import Database
from bridge.outbox.storage.file import Connection, File, connect
from bridge.outbox.storage.journal import Journal, Rows, Timings
from bridge.outbox.storage.journal import write as write_rows
from bridge.outbox.storage.schema import create
from tests.support.hanging import Hanging

BRIEFLY = Timings(patience=0.1, closing=0.2)  # only where the disk hangs
USUAL = Timings(closing=0.2)
WAITS = (1, "sink", "K", "pending", 0, 5.0, None, None, None, None, None, 0.0, 0)
SENT = (1, "sink", "K", "delivered", 1, 5.0, None, None, None, None, 6.0, 0.0, 0)
FIRST = ("deliveries", (1,))


class Refusing:
    """Opens connections whose commits fail with an error as long as one is set."""

    def __init__(self) -> None:
        self.error: str | None = None
        self.commits = 0

    def open(self, path: Path) -> Connection:
        disk = self

        class Failing(Connection):
            def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
                if sql == "COMMIT":
                    disk.commits += 1
                    if disk.error is not None:
                        error = sqlite3.OperationalError("the disk says no")
                        error.sqlite_errorname = disk.error
                        raise error
                return super().execute(sql, parameters)

        return connect(path, Failing)


def named(name: str, value: int = 1) -> Rows:
    return {("meta", (name,)): (value,)}


def written(database: Database, rows: Rows) -> "asyncio.Future[bool]":
    """Put rows; return a future that gets whether they are on the disk."""
    future = asyncio.get_running_loop().create_future()

    def then(is_written: bool) -> None:  # noqa: FBT001 - a callback
        if not future.done():  # else it is written late
            future.set_result(is_written)

    database.put(rows, then)
    return future


def values(db: sqlite3.Connection) -> dict[str, object]:
    return dict(db.execute("SELECT key, value FROM meta WHERE key <> 'healed'"))


def on_disk(path: Path) -> dict[str, object]:
    with closing(sqlite3.connect(path)) as db:
        return values(db)


def opened(
    path: Path,
    open_file: Callable[[Path], Connection] = connect,
    timings: Timings = USUAL,
    **more: Any,
) -> Any:
    file = File(path, may_degrade=True, connect=open_file, **more)
    return Database.open(file, timings=timings)


async def test_rows_of_one_turn_share_a_transaction(state_path: Path) -> None:
    disk = Refusing()
    async with opened(state_path, disk.open) as database:
        before = disk.commits
        found = await asyncio.gather(*(written(database, named(n)) for n in "abc"))

        assert found == [True, True, True]
        assert disk.commits == before + 1
        assert on_disk(state_path) == {"a": 1, "b": 1, "c": 1}
        assert database.journal.unwritten() == {}


async def test_what_was_put_is_written_before_a_later_question(
    state_path: Path,
) -> None:
    async with opened(state_path) as database:
        for number in range(50):
            database.put(named("a", number))
            assert (await database.read(values))["a"] == number


async def test_hanging_disk_holds_nobody_up_and_gets_the_newest_state_in_the_end(
    state_path: Path,
) -> None:
    disk = Hanging()
    async with opened(state_path, disk.open, BRIEFLY) as database:
        disk.freeze()
        told = asyncio.Queue[bool]()
        database.put({FIRST: WAITS, **named("a", 1)}, told.put_nowait)
        assert await told.get() is False
        assert database.is_degraded
        assert database.fault == "the disk has not answered for 0.1 s"

        assert await written(database, {FIRST: SENT, **named("a", 2)}) is False
        with pytest.raises(OutboxUnavailableError, match="hangs"):
            await database.read(values)
        with pytest.raises(OutboxUnavailableError):
            await database.run(values)
        assert database.journal.unwritten() == {FIRST: SENT, **named("a", 2)}

        assert told.empty()

        disk.thaw()
        assert await told.get() is True
        while database.is_degraded:
            await asyncio.sleep(0.01)
        state = "SELECT state FROM deliveries"
        assert await database.read(lambda db: db.execute(state).fetchall()) == [
            ("delivered",)
        ]
        assert on_disk(state_path) == {"a": 2}
        assert database.journal.unwritten() == {}


async def test_transaction_that_hung_and_failed_is_written_again(
    state_path: Path,
) -> None:
    disk = Hanging()
    async with opened(state_path, disk.open, BRIEFLY) as database:
        disk.freeze()
        assert await written(database, {**named("a", 1), **named("b", 1)}) is False
        database.put(named("a", 2))
        disk.thaw(fails=True)
        while database.is_degraded:
            await asyncio.sleep(0.01)
            await database.heal()
        assert on_disk(state_path) == {"a": 2, "b": 1}


@pytest.mark.parametrize("error", ["SQLITE_FULL", "SQLITE_IOERR_WRITE", "SQLITE_BUSY"])
async def test_refusing_disk_is_said_at_once_and_gets_all_when_it_heals(
    error: str, state_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    disk = Refusing()
    async with opened(state_path, disk.open) as database:
        assert await written(database, named("a"))
        disk.error = error
        assert await written(database, named("b")) is False
        assert database.fault == "the disk says no"
        assert await written(database, named("c")) is False
        assert (await database.read(values))["a"] == 1  # it can be read

        await database.heal()
        assert database.is_degraded

        disk.error = None
        await database.heal()
        assert not database.is_degraded
        assert on_disk(state_path) == {"a": 1, "b": 1, "c": 1}
    assert [r.message for r in caplog.records] == [
        "state file cannot be written: going on in memory",
        "state file can be written again",
    ]


async def test_disk_that_takes_nothing_more_is_written_at_the_end(
    state_path: Path,
) -> None:
    disk = Refusing()
    async with opened(state_path, disk.open) as database:
        disk.error = "SQLITE_FULL"
        assert await written(database, named("a")) is False
        disk.error = None
    assert on_disk(state_path) == {"a": 1}


async def test_only_the_commit_at_fault_is_refused(
    state_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(state_path) as database:
        found = await asyncio.gather(
            written(database, named("a")),
            written(database, {**named("b"), ("meta", ("huge",)): (2**70,)}),
            written(database, named("c")),
        )
        assert list(found) == [True, False, True]
        assert not database.is_degraded
        assert database.journal.unwritten() == {}
    assert on_disk(state_path) == {"a": 1, "c": 1}
    assert [r.message for r in caplog.records] == ["change lost on its way to disk"]


async def test_question_of_a_cancelled_caller_is_answered_all_the_same(
    state_path: Path,
) -> None:
    found = list[object]()
    async with opened(state_path) as database:
        asking = database.read(values, found.append)
        await asyncio.sleep(0)
        asking.cancel()
        await database.read(values)
    assert found == [{}]


@pytest.mark.parametrize("error", ["SQLITE_CORRUPT", "SQLITE_NOTADB"])
async def test_damage_ends_the_forwarder(error: str, state_path: Path) -> None:
    disk, troubles = Refusing(), list[str]()
    async with opened(state_path, disk.open, on_trouble=troubles.append) as database:
        disk.error = error
        assert await written(database, named("a")) is False
        with pytest.raises(OutboxThreadDiedError):
            await database.died()
        with pytest.raises(OutboxThreadDiedError):
            database.put(named("b"))
        assert not database.is_answering
        assert len(troubles) == 1


async def test_closing_does_not_wait_for_a_disk_that_hangs(state_path: Path) -> None:
    disk = Hanging()
    loop = asyncio.get_running_loop()
    async with opened(state_path, disk.open, BRIEFLY) as database:
        disk.freeze()
        assert await written(database, named("a")) is False
        began = loop.time()
    assert loop.time() - began < 3
    with pytest.raises(OutboxError):
        database.put(named("b"))
    disk.thaw()


STEPS = st.lists(
    st.one_of(
        st.tuples(
            st.just("put"),
            st.dictionaries(
                st.tuples(st.sampled_from(["items", "meta"]), st.integers(1, 4)),
                st.one_of(st.none(), st.integers(1, 9)),
                max_size=4,
            ),
        ),
        st.tuples(st.sampled_from(["take", "done", "back"]), st.none()),
    ),
    max_size=40,
)


@given(STEPS)
def test_newest_state_of_each_row_is_written_however_the_disk_answers(
    steps: list[tuple[str, dict[tuple[str, int], int | None] | None]],
) -> None:
    journal, wanted = Journal(), dict[object, object]()
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as db:
        create(db)
        for step, found in [*steps, ("done", None), ("take", None), ("done", None)]:
            if step == "put":
                rows: Rows = {
                    (t, (k if t == "items" else str(k),)): _row(t, n)
                    for (t, k), n in (found or {}).items()
                }
                wanted |= rows
                journal.put(rows, 0.0)
            elif step == "take" and not journal.with_disk:
                journal.take()
            elif step == "done" and journal.with_disk:
                write_rows(db, [commit.rows for commit in journal.done()])
            elif step == "back" and journal.with_disk:
                journal.back()
            bodies = [
                row[5]
                for change, row in journal.unwritten().items()
                if change[0] == "items" and row is not None
            ]
            if not journal.with_disk:
                assert journal.bytes == sum(map(len, bodies))  # type: ignore[arg-type]  # bytes
        assert journal.unwritten() == {}
        kept = {
            **{("meta", (k,)): (v,) for k, v in values(db).items()},
            **{
                ("items", (number,)): _row("items", len(body))
                for number, body in db.execute("SELECT id, body FROM items")
            },
        }
        assert kept == {change: row for change, row in wanted.items() if row}


def _row(table: str, n: int | None) -> tuple[Any, ...] | None:
    if n is None:
        return None
    body = b"x" * n
    is_meta = table == "meta"
    return (n,) if is_meta else ("event", None, None, None, "t", body, 1.0, None)


async def test_mistake_in_what_follows_an_answer_ends_the_forwarder(
    state_path: Path,
) -> None:
    """Else no work would begin any more, and everybody would wait for ever."""

    def mistaken(_: object) -> None:
        raise LookupError("of the program")

    async with opened(state_path) as database:
        answers = [database.read(values, mistaken), database.read(values)]
        for answer in answers:
            with pytest.raises(OutboxThreadDiedError, match="of the program"):
                await answer
        with pytest.raises(OutboxThreadDiedError):
            await database.died()


async def test_mistake_in_what_is_told_ends_the_forwarder(state_path: Path) -> None:
    def mistaken(_: bool) -> None:  # noqa: FBT001 - a callback
        raise LookupError("of the program")

    async with opened(state_path) as database:
        database.put(named("a"), mistaken)
        with pytest.raises(OutboxThreadDiedError, match="of the program"):
            await database.died()
