"""Jobs on a connection: many in one transaction, each in a savepoint of its own."""

import asyncio
import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from bridge.outbox.storage.connection import Connection, is_unwritable, translated

T = TypeVar("T")
Job = Callable[[Connection], T]
Result = tuple[object, Exception | None]

_TROUBLE = "the state file cannot be read or written"


@dataclass(frozen=True, slots=True)
class Ticket:
    """A job that somebody waits for.

    Attributes:
        is_read: whether it only reads.
        is_kept: whether it is to be done on the disk later, when it was done in memory.
    """

    job: Job[Any]
    is_read: bool
    is_kept: bool
    future: asyncio.Future[Any]

    def settle(self, result: object, error: Exception | None) -> None:
        """Hand over what came of it."""
        if self.future.done():
            return  # whoever asked was cancelled meanwhile
        if error is None:
            self.future.set_result(result)
        else:
            self.future.set_exception(error)


def look(db: Connection, jobs: Sequence[Job[Any]]) -> list[Result]:
    """Do jobs that only read; they need no transaction.

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
    """Do jobs in one transaction.

    Args:
        db: where.
        jobs: what.
        before: called within it before each job, with the job's place.
        last: called within it after the last job.

    Raises:
        sqlite3.Error: nothing of it was done.
    """
    db.execute("BEGIN IMMEDIATE")
    try:
        results = []
        for place, job in enumerate(jobs):
            before(place)
            results.append(_attempted(db, job))
        last()
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise
    return results


def told(error: Exception) -> Exception:
    """Return an error as whoever asked knows it."""
    return translated(error, _TROUBLE) if isinstance(error, sqlite3.Error) else error


def _looked(db: Connection, job: Job[object]) -> Result:
    try:
        return job(db), None
    except MemoryError:
        raise
    except Exception as error:
        if _is_disk(error):
            raise
        return None, told(error)


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
        return None, told(error)
    db.execute("RELEASE job")
    return result, None


def _is_disk(error: Exception) -> bool:
    return isinstance(error, sqlite3.Error) and is_unwritable(error)
