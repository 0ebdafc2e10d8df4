"""Runs jobs on a connection: many in one transaction, each in its own savepoint."""

import asyncio
import sqlite3
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from msgspec import Struct

from bridge.outbox.storage.connection import Connection, is_unwritable, translated

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
