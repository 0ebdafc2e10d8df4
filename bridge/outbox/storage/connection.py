"""Connections to the state file: how it is opened, and what its errors mean.

A connection can record the statements that change something, so that the mirror in
memory (``bridge.outbox.storage.mirror``) can repeat them once they are committed.
"""

import asyncio
import sqlite3
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

from msgspec import Struct

from bridge.foundation.errors import (
    OutboxCorruptError,
    OutboxError,
    OutboxUnavailableError,
)
from bridge.foundation.privileges import enter, make_private, no_file
from bridge.outbox.storage.schema import migrate

# Seconds to wait for another process's lock: in a command (less than ``patience``), and
# in the forwarder, for which an event may be announced only 30 s ahead.
BUSY_SECONDS = 2.5
SHORT_BUSY_SECONDS = 1.0
_WAL_BYTES = 4 * 1024 * 1024  # after a large transaction, the log is cut to this

_UNWRITABLE = ("FULL", "IOERR", "READONLY", "BUSY", "LOCKED", "CANTOPEN", "PROTOCOL")
_DAMAGED = ("CORRUPT", "NOTADB")
_HARMLESS = ("SELECT", "PRAGMA", "BEGIN", "COMMIT", "SAVEPOINT", "RELEASE", "ROLLBACK")

# One damaged text must not prevent all other rows from being read.
readable = partial(str, encoding="utf-8", errors="replace")

Connect = Callable[[Path], "Connection"]
Statement = tuple[str, Any, bool]  # SQL, parameters, whether to run it for each row


class Room(Protocol):
    """Limits how many events are kept in memory."""

    def takes(self, *, is_urgent: bool) -> bool:
        """Reserve room for another event; return whether there was room."""
        ...


class Connection(sqlite3.Connection):
    """A connection to the state file or to its copy in memory.

    Attributes:
        is_durable: whether events are on the disk before they are sent.
        room: limits how many events are accepted; None = there is no limit.
        is_part: whether an item may be missing here although it is on the disk; False
            = a missing item is lost.
        unsaved: in memory: the commands (sink, key) whose success is not on the disk;
            None = this connection writes to the disk.
        changes: a list to which changing statements are appended; None = they are not
            recorded.
    """

    is_durable: bool = True
    room: Room | None = None
    is_part: bool = False
    unsaved: set[tuple[str, str]] | None = None
    changes: list[Statement] | None = None

    def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
        """Execute a statement, and record it if it may change something."""
        cursor = super().execute(sql, parameters)
        if self.changes is not None and _may_change(sql):
            self.changes.append((sql, parameters, False))
        return cursor

    def executemany(self, sql: str, parameters: Any, /) -> sqlite3.Cursor:
        """Execute a statement for each row, and record it."""
        rows = list(parameters)
        cursor = super().executemany(sql, rows)
        if self.changes is not None:
            self.changes.append((sql, rows, True))
        return cursor


@lru_cache(maxsize=32)
def _may_change(sql: str) -> bool:
    return not sql.lstrip()[:9].upper().startswith(_HARMLESS)


def connect(
    path: Path, factory: type[Connection] = Connection, busy: float | None = None
) -> Connection:
    """Open the file, and migrate it to the present schema.

    Args:
        path: the file.
        factory: the class of the connection.
        busy: seconds to wait for another process's lock; None = ``BUSY_SECONDS``.

    Raises:
        OutboxUnavailableError: it cannot be used now, or not by root.
        OutboxError: it is damaged, or not a state file.
    """
    connection = None
    enter(path)
    if (part := no_file(path)) is not None:
        raise OutboxUnavailableError(f"{part} is not a file: move it away")
    make_private(path)
    try:
        connection = sqlite3.connect(
            path,
            timeout=BUSY_SECONDS if busy is None else busy,
            isolation_level=None,
            check_same_thread=False,
            factory=factory,
        )
        connection.text_factory = readable
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA cache_size = -2048")
        connection.execute(f"PRAGMA journal_size_limit = {_WAL_BYTES}")
        migrate(connection)
    except BaseException as error:
        if connection is not None:
            connection.close()
        if isinstance(error, sqlite3.Error):
            raise translated(error, f"the state file {path} cannot be used") from error
        raise
    return connection


def is_unwritable(error: Exception) -> bool:
    """Whether the disk or another process caused the error, so that it may end."""
    if isinstance(error, OutboxError):
        return isinstance(error, OutboxUnavailableError)
    return _is_one_of(error, _UNWRITABLE)


def translated(error: Exception, text: str) -> OutboxError:
    """Convert an error to an OutboxError, with ``text`` before its own text."""
    kind = OutboxError
    if isinstance(error, sqlite3.Error) and is_unwritable(error):
        kind = OutboxUnavailableError
    elif _is_one_of(error, _DAMAGED):
        kind = OutboxCorruptError
    fault = kind(f"{text}: {error}")
    fault.__cause__ = error
    return fault


def _is_one_of(error: Exception, kinds: tuple[str, ...]) -> bool:
    name = getattr(error, "sqlite_errorname", "").removeprefix("SQLITE_")
    return name.startswith(kinds)


# -- Runs jobs on a connection: many in one transaction, each in its own savepoint -----


T = TypeVar("T")
Job = Callable[[Connection], T]
Result = tuple[object, Exception | None]

_TROUBLE = "the state file cannot be read or written"


class Ticket(Struct, frozen=True):
    """A job, and the future of its caller.

    Attributes:
        is_read: whether it only reads.
        is_kept: whether to repeat it on the disk later if it ran in memory.
        future: gets the result.
    """

    job: Job[Any]
    is_read: bool
    is_kept: bool
    future: asyncio.Future[Any]

    def settle(self, result: object, error: Exception | None) -> None:
        """Set the result or the error."""
        if self.future.done():
            return  # the caller was cancelled meanwhile
        if error is None:
            self.future.set_result(result)
        else:
            self.future.set_exception(error)


def only_reads(group: Sequence[Ticket]) -> bool:
    """Whether all jobs of a group only read."""
    return all(ticket.is_read for ticket in group)


def look(db: Connection, jobs: Sequence[Job[Any]]) -> list[Result]:
    """Run jobs that only read; they need no transaction.

    Raises:
        sqlite3.Error: the disk cannot be read.
    """
    return [_looked(db, job) for job in jobs]


def transact(
    db: Connection,
    jobs: Sequence[Job[Any]],
    before: Callable[[int], None] = lambda _: None,
    last: Callable[[], object] = lambda: None,
) -> list[Result]:
    """Run jobs in one transaction.

    Args:
        db: the connection.
        jobs: the jobs, in order.
        before: called in the transaction before each job, with the job's index.
        last: called in the transaction after the last job.

    Raises:
        sqlite3.Error: the disk has failed, and nothing was written.
    """
    db.execute("BEGIN IMMEDIATE")
    try:
        results = []
        for index, job in enumerate(jobs):
            before(index)
            results.append(_attempted(db, job))
        last()
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise
    return results


def as_outbox_error(error: Exception) -> Exception:
    """Return an error of SQLite as an OutboxError, any other unchanged."""
    return translated(error, _TROUBLE) if isinstance(error, sqlite3.Error) else error


def _looked(db: Connection, job: Job[object]) -> Result:
    try:
        return job(db), None
    except MemoryError:
        raise
    except Exception as error:
        if _is_disk(error):
            raise
        return None, as_outbox_error(error)


def _attempted(db: Connection, job: Job[object]) -> Result:
    db.execute("SAVEPOINT job")
    written = len(db.changes or ())
    try:
        result = job(db)
    except MemoryError:
        raise
    except Exception as error:
        if _is_disk(error) or not db.in_transaction:
            raise
        db.execute("ROLLBACK TO job")
        db.execute("RELEASE job")
        if db.changes is not None:
            del db.changes[written:]
        return None, as_outbox_error(error)
    db.execute("RELEASE job")
    return result, None


def _is_disk(error: Exception) -> bool:
    return isinstance(error, sqlite3.Error) and is_unwritable(error)
