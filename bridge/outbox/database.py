"""One SQLite connection in one thread, with group commit, and memory for bad days.

Whatever the house wants of the state file is a job: a function of the connection.
Jobs that wait at the same time share one transaction, and so one fsync: under load
this is what makes synchronous=FULL affordable. A job is told to be done only after
its transaction has been committed. Each runs in a savepoint of its own, so one that
fails takes nothing else with it.

    on disk ──cannot be written──▶ in memory: a twin takes jobs, a journal keeps them
       ▲                               │
       └──────────── heal ─────────────┘  the journal is done on the disk, in order

A kill while in memory loses what is there: the checkpoint goes with it, so the next
life tells the same again with the same ids.
"""

import asyncio
import logging
import queue
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from bridge.errors import OutboxError, OutboxUnavailableError
from bridge.outbox.connection import (
    BUSY_SECONDS,
    Connection,
    connect,
    is_unwritable,
    translated,
    twin_of,
)

log = logging.getLogger(__name__)

T = TypeVar("T")
Job = Callable[[Connection], T]
Result = tuple[object, Exception | None]
_GROUP = 256
_HEAL_BUSY_SECONDS = 0.1  # others wait meanwhile
_TIDY_AFTER = 10  # commits: well before SQLite does it in the middle of one
_QUIET_SECONDS = 0.1
_TROUBLE = "the state file cannot be read or written"


@dataclass(frozen=True, slots=True)
class _Ticket:
    job: Job[Any]
    is_read: bool
    is_kept: bool
    future: "asyncio.Future[Any]"

    def settle(self, result: object, error: Exception | None) -> None:
        if self.future.done():
            return  # whoever asked was cancelled meanwhile
        if error is None:
            self.future.set_result(result)
        else:
            self.future.set_exception(error)


@dataclass(slots=True)
class _Memory:
    """What stands in for the disk: the twin, and what the disk has yet to be told."""

    twin: Connection
    journal: list[Job[Any]] = field(default_factory=list)


@dataclass(slots=True)
class Database:
    """The state file, off the event loop.

    Attributes:
        fault: why the disk cannot be written now; None = it can.
    """

    path: Path
    fault: str | None = None
    _file: Connection | None = None
    _memory: _Memory | None = None
    _may_degrade: bool = False
    _is_healing: bool = False
    _is_closed: bool = False
    _untidied: int = 0  # commits since the log was written back
    _tickets: "queue.SimpleQueue[_Ticket | None]" = field(
        default_factory=queue.SimpleQueue
    )

    @classmethod
    @asynccontextmanager
    async def open(
        cls, path: Path, *, may_degrade: bool = False
    ) -> AsyncIterator["Database"]:
        """Open the file and its thread; on leaving, finish every job and close.

        Args:
            path: the file.
            may_degrade: go on in memory while the disk cannot be written.

        Raises:
            OutboxError: the file cannot be used.
        """
        database = cls(path, _may_degrade=may_degrade)
        loop = asyncio.get_running_loop()
        opened, closed = loop.create_future(), loop.create_future()

        def live() -> None:
            try:
                database._start()
            except Exception as error:  # noqa: BLE001 - handed to whoever opens it
                loop.call_soon_threadsafe(opened.set_exception, error)
                return
            loop.call_soon_threadsafe(opened.set_result, None)
            database._work()
            loop.call_soon_threadsafe(closed.set_result, None)

        threading.Thread(target=live, name="outbox", daemon=True).start()
        await asyncio.shield(opened)
        try:
            yield database
        finally:
            database._is_closed = True
            database._tickets.put(None)
            await asyncio.shield(closed)

    @property
    def connection(self) -> Connection:
        """What jobs are done on: the file, or its twin."""
        connection = self._memory.twin if self._memory else self._file
        assert connection is not None, "the state file is open"  # noqa: S101 - for mypy
        return connection

    @property
    def is_degraded(self) -> bool:
        """Whether what is told now is in memory only."""
        return self._memory is not None

    async def run(self, job: Job[T], *, is_kept: bool = True) -> T:
        """Run ``job`` in a transaction and return what it returned, once committed.

        Cancelling the caller does not undo the job.

        Args:
            job: what is to be done.
            is_kept: whether it is to be done on the disk later, when it was done
                in memory; False for what will have passed by then.

        Raises:
            OutboxError: the job or the commit failed; nothing of it is kept.
        """
        return await self._queue(job, is_read=False, is_kept=is_kept)

    async def read(self, job: Job[T]) -> T:
        """Run a ``job`` that only reads; it asks for no lock and costs no commit.

        Raises:
            OutboxError: the job failed.
        """
        return await self._queue(job, is_read=True, is_kept=False)

    def stamp(self) -> tuple[int, int] | None:
        """Return what differs once anybody has written; None if that is not known."""
        try:
            found = Path(f"{self.path}-wal").stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size

    async def heal(self) -> None:
        """Try to write what is in memory only to the disk, and go on there."""
        self._is_healing = True
        await self.read(lambda _: None)

    async def _queue(self, job: Job[T], *, is_read: bool, is_kept: bool) -> T:
        if self._is_closed:
            raise OutboxError("the state file is closed")
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._tickets.put(_Ticket(job, is_read, is_kept, future))
        return await future

    async def owner(self) -> str | None:
        """Return the vmId of the VM that wrote the file; None if it never knew."""

        def job(db: sqlite3.Connection) -> str | None:
            query = "SELECT value FROM meta WHERE key = 'vm_id'"
            row = db.execute(query).fetchone()
            return None if row is None else bytes(row[0]).decode()

        return await self.run(job)

    async def own(self, vm_id: str) -> None:
        """Note whose file it is."""

        def job(db: sqlite3.Connection) -> None:
            query = "INSERT OR REPLACE INTO meta VALUES ('vm_id', ?)"
            db.execute(query, (vm_id.encode(),))

        await self.run(job)

    # -- in the thread -------------------------------------------------------

    def _start(self) -> None:
        try:
            self._file = connect(self.path)
        except OutboxUnavailableError as error:
            if not self._may_degrade or self.path.is_dir():
                raise
            self._degrade(error)

    def _work(self) -> None:
        while (ticket := self._next()) is not None:
            group = [ticket]
            is_last = False
            while len(group) < _GROUP and not self._tickets.empty():
                if (another := self._tickets.get()) is None:
                    is_last = True
                    break
                group.append(another)
            if self._is_healing:
                self._heal()
            self._serve(group)
            if is_last:
                break
        self._finish()

    def _next(self) -> _Ticket | None:
        """Return the next ticket; quiet moments are for what would hold one up."""
        if self._untidied >= _TIDY_AFTER:
            try:
                return self._tickets.get(timeout=_QUIET_SECONDS)
            except queue.Empty:
                self._tidy()
        return self._tickets.get()

    def _tidy(self) -> None:
        """Write back the log of SQLite, so that no commit has to."""
        self._untidied = 0
        if self._file is not None and self._memory is None:
            with suppress(sqlite3.Error):
                self._file.execute("PRAGMA wal_checkpoint(PASSIVE)")

    def _finish(self) -> None:
        self._heal()
        if self._memory is not None:
            log.error(
                "state file still cannot be written: the next start tells it again",
                extra={"changes": len(self._memory.journal)},
            )
            self._memory.twin.close()
        if self._file is not None:
            self._file.close()

    def _serve(self, group: list[_Ticket]) -> None:
        if all(ticket.is_read for ticket in group):
            results = [self._look(ticket.job) for ticket in group]
        else:
            results = self._transact(group)
        loop = group[0].future.get_loop()
        loop.call_soon_threadsafe(_settle, group, results)

    def _look(self, job: Job[object]) -> Result:
        try:
            return job(self.connection), None
        except Exception as error:  # noqa: BLE001 - handed to whoever asked
            return None, _told(error)

    def _transact(self, group: list[_Ticket]) -> list[Result]:
        jobs = [ticket.job for ticket in group]
        self._untidied += 1
        try:
            results = self._do(jobs)
        except (sqlite3.Error, OutboxError) as error:
            self.fault = str(error)
            return [(None, _told(error))] * len(group)
        if self._memory is None:
            self.fault = None
        else:
            kept = zip(group, results, strict=True)
            self._memory.journal += [t.job for t, (_, e) in kept if t.is_kept and not e]
        return results

    def _do(self, jobs: list[Job[Any]]) -> list[Result]:
        """Do jobs on the disk, or in memory where that fails."""
        try:
            return _done(self.connection, jobs)
        except sqlite3.Error as error:
            can_change = self._may_degrade and self._memory is None
            if not can_change or not is_unwritable(error):
                raise
            self._degrade(error)
            return _done(self.connection, jobs)

    def _degrade(self, error: Exception) -> None:
        self._memory = _Memory(twin_of(self.path))
        self.fault = str(error)
        log.error(
            "state file cannot be written: going on in memory",
            extra={"fault": self.fault},
        )

    def _heal(self) -> None:
        self._is_healing = False
        if self._memory is None:
            return
        try:
            self._file = self._file or connect(self.path)
            with _healing(self._file):
                self._catch_up(self._file, self._memory.journal)
        except (sqlite3.Error, OutboxError):
            return  # said once, when it began
        self._memory.twin.close()
        self._memory, self.fault = None, None
        log.info("state file can be written again")

    @staticmethod
    def _catch_up(file: Connection, journal: list[Job[Any]]) -> None:
        """Do on the disk what was done in memory; what is done is done."""
        _done(file, [_touch])
        while journal:
            part = journal[:_GROUP]
            for _, error in _done(file, part):
                if error is not None:
                    fault = {"fault": str(error)}
                    log.error("change lost on its way to disk", extra=fault)
            del journal[: len(part)]


def _settle(group: list[_Ticket], results: list[Result]) -> None:
    for ticket, (result, fault) in zip(group, results, strict=True):
        ticket.settle(result, fault)


@contextmanager
def _healing(file: Connection) -> Iterator[None]:
    """Let nobody wait long, and mark what was in memory first."""
    file.is_durable = False
    file.execute(f"PRAGMA busy_timeout = {int(_HEAL_BUSY_SECONDS * 1000)}")
    try:
        yield
    finally:
        file.is_durable = True
        file.execute(f"PRAGMA busy_timeout = {int(BUSY_SECONDS * 1000)}")


def _touch(db: sqlite3.Connection) -> None:
    """Write something: the only proof that the disk can be written."""
    db.execute("INSERT OR REPLACE INTO meta VALUES ('healed', 1)")


def _done(db: Connection, jobs: list[Job[Any]]) -> list[Result]:
    """Do jobs in one transaction.

    Raises:
        sqlite3.Error: nothing of it was done.
    """
    db.execute("BEGIN IMMEDIATE")
    try:
        results = [_attempted(db, job) for job in jobs]
        db.execute("COMMIT")
    except sqlite3.Error:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise
    return results


def _attempted(db: Connection, job: Job[object]) -> Result:
    db.execute("SAVEPOINT job")
    try:
        result = job(db)
    except Exception as error:
        is_disk = isinstance(error, sqlite3.Error) and is_unwritable(error)
        if is_disk or not db.in_transaction:
            raise
        db.execute("ROLLBACK TO job")
        db.execute("RELEASE job")
        return None, _told(error)
    db.execute("RELEASE job")
    return result, None


def _told(error: Exception) -> Exception:
    """Return an error as whoever asked knows it."""
    return translated(error, _TROUBLE) if isinstance(error, sqlite3.Error) else error
