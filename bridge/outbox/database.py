"""One SQLite connection in one thread, with group commit.

Whatever the house wants of the state file is a job: a function of the connection.
Jobs that wait at the same time share one transaction, and so one fsync: under load
this is what makes synchronous=FULL affordable. A job is told to be done only after
its transaction has been committed. Each runs in a savepoint of its own, so one that
fails takes nothing else with it.
"""

import asyncio
import queue
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from bridge.errors import OutboxCorruptError, OutboxError
from bridge.outbox.schema import migrate

T = TypeVar("T")
Job = Callable[[sqlite3.Connection], T]
_GROUP = 256
_BUSY_TIMEOUT = 5.0


def connect(path: Path) -> sqlite3.Connection:
    """Open the file as this house wants it, and bring it to the present version.

    Raises:
        OutboxError: it cannot be opened or is no healthy database of ours.
    """
    try:
        connection = sqlite3.connect(
            path,
            timeout=_BUSY_TIMEOUT,
            isolation_level=None,
            check_same_thread=False,
        )
    except sqlite3.Error as error:
        raise OutboxError(f"the state file {path} cannot be opened: {error}") from error
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA cache_size = -2048")
        migrate(connection)
    except sqlite3.Error as error:
        connection.close()
        text = f"the state file {path} cannot be used: {error}"
        is_corrupt = not isinstance(error, sqlite3.OperationalError)
        raise (OutboxCorruptError if is_corrupt else OutboxError)(text) from error
    except BaseException:
        connection.close()
        raise
    return connection


@dataclass(frozen=True, slots=True)
class _Ticket:
    job: Job[Any]
    is_read: bool
    loop: asyncio.AbstractEventLoop
    future: "asyncio.Future[Any]"

    def settle(self, result: object, error: Exception | None) -> None:
        if self.future.done():
            return  # whoever asked was cancelled meanwhile
        if error is None:
            self.future.set_result(result)
        else:
            self.future.set_exception(error)


@dataclass(slots=True)
class Database:
    """The state file, off the event loop."""

    connection: sqlite3.Connection
    fault: str | None = None  # why the last transaction failed; None = it did not
    _is_closed: bool = False
    _tickets: "queue.SimpleQueue[_Ticket | None]" = field(
        default_factory=queue.SimpleQueue
    )

    @classmethod
    @asynccontextmanager
    async def open(cls, path: Path) -> AsyncIterator["Database"]:
        """Open the file and its thread; on leaving, finish every job and close.

        Raises:
            OutboxError: the file cannot be used.
        """
        connection = await asyncio.to_thread(connect, path)
        database = cls(connection)
        thread = threading.Thread(target=database._work, name="outbox", daemon=True)
        thread.start()
        try:
            yield database
        finally:
            database._is_closed = True
            database._tickets.put(None)
            await asyncio.to_thread(thread.join)

    async def run(self, job: Job[T]) -> T:
        """Run ``job`` in a transaction and return what it returned, once committed.

        Cancelling the caller does not undo the job.

        Raises:
            OutboxError: the job or the commit failed; nothing of it is kept.
        """
        return await self._queue(job, is_read=False)

    async def read(self, job: Job[T]) -> T:
        """Run a ``job`` that only reads; it asks for no lock and costs no commit.

        Raises:
            OutboxError: the job failed.
        """
        return await self._queue(job, is_read=True)

    async def _queue(self, job: Job[T], *, is_read: bool) -> T:
        if self._is_closed:
            raise OutboxError("the state file is closed")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._tickets.put(_Ticket(job, is_read, loop, future))
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

    def _work(self) -> None:
        while (ticket := self._tickets.get()) is not None:
            group = [ticket]
            is_last = False
            while len(group) < _GROUP and not self._tickets.empty():
                if (another := self._tickets.get()) is None:
                    is_last = True
                    break
                group.append(another)
            self._transact(group)
            if is_last:
                break
        self.connection.close()

    def _transact(self, group: list[_Ticket]) -> None:
        results: list[tuple[object, Exception | None]]
        if all(ticket.is_read for ticket in group):
            results = [self._look(ticket.job) for ticket in group]
            self._tell(group, results)
            return
        try:
            self.connection.execute("BEGIN IMMEDIATE")
            results = [self._attempt(ticket.job) for ticket in group]
            self.connection.execute("COMMIT")
        except sqlite3.Error as error:
            if self.connection.in_transaction:
                self.connection.execute("ROLLBACK")
            results = [(None, _translated(error))] * len(group)
            self.fault = str(error)
        else:
            self.fault = None
        self._tell(group, results)

    def _tell(
        self, group: list[_Ticket], results: list[tuple[object, Exception | None]]
    ) -> None:
        for ticket, (result, fault) in zip(group, results, strict=True):
            ticket.loop.call_soon_threadsafe(ticket.settle, result, fault)

    def _look(self, job: Job[object]) -> tuple[object, Exception | None]:
        try:
            return job(self.connection), None
        except Exception as error:  # noqa: BLE001 - handed to whoever asked
            is_foreign = isinstance(error, sqlite3.Error)
            return None, _translated(error) if is_foreign else error

    def _attempt(self, job: Job[object]) -> tuple[object, Exception | None]:
        self.connection.execute("SAVEPOINT job")
        try:
            result = job(self.connection)
        except Exception as error:
            if not self.connection.in_transaction:
                raise  # SQLite has rolled back everything: a full disk, say
            self.connection.execute("ROLLBACK TO job")
            self.connection.execute("RELEASE job")
            is_foreign = isinstance(error, sqlite3.Error)
            return None, _translated(error) if is_foreign else error
        self.connection.execute("RELEASE job")
        return result, None


_DAMAGED = {"SQLITE_CORRUPT", "SQLITE_NOTADB"}


def _translated(error: Exception) -> OutboxError:
    name = getattr(error, "sqlite_errorname", "")
    is_damaged = any(name.startswith(damage) for damage in _DAMAGED)
    kind = OutboxCorruptError if is_damaged else OutboxError
    fault = kind(f"the state file cannot be read or written: {error}")
    fault.__cause__ = error
    return fault
