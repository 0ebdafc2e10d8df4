"""The machine of one life: a state file without a thread, and death at any moment."""

import asyncio
import sqlite3
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar, cast

from bridge.foundation.errors import OutboxError
from bridge.outbox.storage.connection import Job, Ticket
from bridge.outbox.storage.database import Database
from bridge.outbox.storage.front import RelievedError
from bridge.outbox.storage.keeper import Keeper
from bridge.outbox.storage.standin import Limits

if TYPE_CHECKING:
    from tests.simulation.life import Life

_MOST_PARTS = 100  # of what was done in memory, for the disk
T = TypeVar("T")
U = TypeVar("U")


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
    is_gone: bool = False  # its process was killed
    was_done: bool = False  # what the disk will answer when it hangs no more

    def submit(
        self, job: Job[T], *, is_read: bool = False, is_kept: bool = True
    ) -> "asyncio.Future[T]":
        return asyncio.ensure_future(self._serve(job, is_read=is_read, is_kept=is_kept))

    async def _serve(self, job: Job[T], *, is_read: bool, is_kept: bool) -> T:
        self.life.moment("before a job")
        loop = asyncio.get_running_loop()
        await asyncio.sleep(0)
        if self.is_gone:
            raise OutboxError("the state file is closed")
        future: asyncio.Future[T] = loop.create_future()
        ticket = Ticket(job, is_read, is_kept, future)
        try:
            ((result, error),) = self.keeper.serve([ticket], self._on_disk)
            self.keeper.follow(self._on_disk)
        except RelievedError:
            ((result, error),) = self.keeper.relieve([ticket], "it hangs")
        if not is_read:
            self.life.committed()
        self.life.moment("after a job")
        await asyncio.sleep(0)
        if error is not None:
            raise error
        return cast("T", result)

    async def heal(self) -> None:
        """Write everything at once."""
        if not self.life.is_disk_full():
            self.heal_now()

    def heal_now(self) -> None:
        """Write what is in memory only to the disk."""
        keeper = self.keeper
        if keeper.memory is not None and keeper.memory.with_disk is not None:
            keeper.answered(is_done=self.was_done)
        for _ in range(_MOST_PARTS):
            if keeper.memory is None:
                return
            is_done = keeper.write(keeper.memory.part())
            if not keeper.answered(is_done=is_done):
                if is_done:
                    keeper.return_to_disk()
                    keeper.reload(self._on_disk)
                return
        self.life.world.blame("what was done in memory is written again and again")
        self.life.is_done = True
        raise CrashError("there is no end to it")

    def _on_disk(self, work: Callable[[], U], group: list[Ticket], /) -> U:
        if group and self.life.is_disk_full():
            if self.life.world.plan.hangs:
                self._hang(work)
            full = sqlite3.OperationalError("database or disk is full")
            full.sqlite_errorname = "SQLITE_FULL"
            raise full
        return work()

    def _hang(self, work: Callable[[], object]) -> None:
        """Leave in doubt whether the disk has done it."""
        self.was_done = self.life.world.plan.chance("in doubt", self.life.now()) < 0.5
        if self.was_done:
            work()
        raise RelievedError(None)


def open_now(life: "Life") -> InlineDatabase:
    """Open the state file of a life; fast, since no power is lost here."""
    limits = Limits(events=life.world.plan.room)
    keeper = Keeper(life.world.path, may_degrade=True, limits=limits)
    database = InlineDatabase(keeper)
    database.life = life
    keeper.open()
    database.keeper.connection.execute("PRAGMA synchronous = OFF")
    return database
