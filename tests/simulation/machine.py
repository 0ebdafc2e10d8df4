"""The machine of one life: a disk without a thread, and death at any moment."""

import asyncio
import sqlite3
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bridge.outbox.storage.database import Database
from bridge.outbox.storage.file import Connection, File, connect
from bridge.outbox.storage.journal import Done, Row, Rows, Timings
from bridge.outbox.storage.schema import TABLES
from tests.simulation.edges import Shown

if TYPE_CHECKING:
    from tests.simulation.life import Life


class CrashError(KeyboardInterrupt):
    """The process is killed: nothing of it may run any more.

    A KeyboardInterrupt, since the loop lets that alone pass at once.
    """


class InlineDriver:
    """Does the work on the disk in the loop, so that a seed replays exactly.

    Before and after each piece of work the process may die. A disk that hangs answers
    when it has room again; until then it is in doubt whether it has done the work.

    Attributes:
        is_mended: whether the disk has room from now on.
        held: gives the answer that the disk owes.
    """

    is_alive = True

    def __init__(self, life: "Life") -> None:
        self.life = life
        self.is_mended = False
        self.held: Callable[[], object] | None = None

    @property
    def is_full(self) -> bool:
        """Whether the disk has no room now."""
        return not self.is_mended and self.life.is_disk_full()

    def start(self, work: Callable[[], object], done: Done) -> None:
        """Do the work in the next turn of the loop."""
        self.life.moment("before a job")
        asyncio.get_running_loop().call_soon(self._do, work, done)

    def stop(self) -> None:
        """Do nothing: there is no thread."""

    def _do(self, work: Callable[[], object], done: Done) -> None:
        is_loaded = self.life.database.snapshot is not None
        if is_loaded and self.is_full and self.life.world.plan.hangs:
            self.held = partial(self._answer_late, work, done)
            return
        answer = _outcome(work)
        try:
            self.life.moment("after a job")
        except CrashError:
            if answer[1] is None:
                self.life.database.note_written()
            raise
        done(*answer)

    def _answer_late(self, work: Callable[[], object], done: Done) -> None:
        """Answer what hung: it was done, or it has failed."""
        plan, now = self.life.world.plan, self.life.now()
        if plan.chance("in doubt", now) < 0.5:
            done(*_outcome(work))
            return
        error = sqlite3.OperationalError("disk I/O error")
        error.sqlite_errorname = "SQLITE_IOERR_WRITE"
        done(None, error)

    def answer(self) -> None:
        """Give the answer that the disk owes."""
        held, self.held = self.held, None
        if held is not None:
            held()


def _outcome(work: Callable[[], object]) -> tuple[Any, Exception | None]:
    try:
        return work(), None
    except Exception as error:  # noqa: BLE001 - it is for the database
        return None, error


class InlineDatabase(Database):
    """The real database on the real file, which tells the judge what is committed."""

    life: "Life"
    driver: InlineDriver
    given: set[tuple[Any, ...]]  # items that came while the disk worked

    def put(self, rows: Rows, then: Callable[[bool], None] | None = None) -> None:
        if not self.is_degraded:
            self.given |= {key for table, key in rows if table == "items"}
        answered = partial(self._noted, self.life.imds.shown, rows, then, [])
        super().put(rows, answered)

    def _noted(
        self,
        shown: Shown | None,
        rows: Rows,
        then: Callable[[bool], None] | None,
        noted: list[bool],
        is_written: bool,  # noqa: FBT001 - a callback
    ) -> None:
        if then is not None:
            then(is_written)
        if not noted:
            self.life.commits.note(rows, shown, is_durable=is_written)
        noted.append(is_written)

    def note_written(self) -> None:
        """Show the judge what is on the disk, though nobody awaits it any more."""
        for commit in self.journal.with_disk:
            if isinstance(commit.then, partial) and not commit.is_late:
                self.life.commits.note(
                    commit.rows, commit.then.args[0], is_durable=True
                )

    async def heal(self) -> None:
        """Write everything that gathers, if there is room."""
        if not self.driver.is_full:
            self.driver.answer()
            await super().heal()

    async def finish(self) -> None:
        """Write everything and close, on a disk that works."""
        self.driver.is_mended = True
        self.driver.answer()
        await self._close()

    def rows_of(self, name: str) -> dict[tuple[Any, ...], Row]:
        """Return a table as the forwarder knows it: with what is not written yet."""
        table = TABLES[name]
        keys, columns = len(table.key), ", ".join((*table.key, *table.columns))
        found = {
            row[:keys]: row[keys:]
            for row in self._file.db.execute(f"SELECT {columns} FROM {name}")  # noqa: S608 - our own names
        }
        for (of, key), row in self.journal.unwritten().items():
            if of == name and row is None:
                found.pop(key, None)
            elif of == name and row is not None:
                found[key] = row
        return found

    def has_on_disk(self, query: str, key: str) -> bool:
        """Whether a query that counts rows of a key finds some on the disk."""
        (count,) = self._file.db.execute(query, (key,)).fetchone()
        return bool(count)

    def bury(self) -> None:
        """Close the file of a process that was killed."""
        self._file.close()


async def open_now(life: "Life") -> None:
    """Open the state file of a life; fast, since no power is lost here."""
    driver = InlineDriver(life)

    class OnFullDisk(Connection):
        def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
            if driver.is_full and sql.startswith("BEGIN"):
                full = sqlite3.OperationalError("database or disk is full")
                full.sqlite_errorname = "SQLITE_FULL"
                raise full
            return super().execute(sql, parameters)

    def opened(path: Path) -> Connection:
        file = connect(path, OnFullDisk)
        file.execute("PRAGMA synchronous = OFF")
        return file

    file = File(life.world.path, may_degrade=True, connect=opened)
    timings = Timings(quiet=float("inf"))
    life.database = database = InlineDatabase(file, timings, driver)
    database.life, database.driver, database.given = life, driver, set()
    await database._open()
