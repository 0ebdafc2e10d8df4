"""The machine of one life: a state file without a thread, and death at any moment."""

import asyncio
import sqlite3
from typing import TYPE_CHECKING, Any, TypeVar, cast

from bridge.errors import OutboxError
from bridge.outbox.database import Database, Job, _Ticket

if TYPE_CHECKING:
    from tests.simulation.world import Life

T = TypeVar("T")


class CrashError(KeyboardInterrupt):
    """The process is killed: nothing of it may run any more.

    A KeyboardInterrupt, since the loop lets that alone pass at once.
    """


class InlineDatabase(Database):
    """The real database on the real file, its jobs done at once and in order.

    What the thread would do is done by the loop, so that a seed replays exactly; and
    before and after each commit the process may die.
    """

    life: "Life"

    async def _queue(self, job: Job[T], *, is_read: bool, is_kept: bool) -> T:
        self.life.moment("before a job")
        loop = asyncio.get_running_loop()
        await asyncio.sleep(0)
        if self._is_closed:
            raise OutboxError("the state file is closed")
        if self._is_healing and self.life.is_disk_full():
            self._is_healing = False
        if self._is_healing:
            self._heal()
        future: asyncio.Future[T] = loop.create_future()
        ticket = _Ticket(job, is_read, is_kept, future)
        if is_read:
            result, error = self._look(job)
        else:
            ((result, error),) = self._transact([ticket])
            self.life.committed()
        self.life.moment("after a job")
        await asyncio.sleep(0)
        if error is not None:
            raise error
        return cast("T", result)

    def _do(self, jobs: list[Job[Any]]) -> list[tuple[object, Exception | None]]:
        if self.life.is_disk_full() and self._memory is None:
            full = sqlite3.OperationalError("database or disk is full")
            full.sqlite_errorname = "SQLITE_FULL"
            self._degrade(full)
        return super()._do(jobs)


def open_now(life: "Life") -> InlineDatabase:
    """Open the state file of a life; fast, since no power is lost here."""
    database = InlineDatabase(life.world.path, _may_degrade=True)
    database.life = life
    database._start()
    database.connection.execute("PRAGMA synchronous = OFF")
    return database
