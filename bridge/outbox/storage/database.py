"""One SQLite connection in one thread, with group commit; in memory if the disk fails.

Other packages use the state file through jobs: functions of the connection. Jobs that
wait at the same time share one transaction, and so one fsync: this makes
synchronous=FULL affordable under load. The caller of a job gets its result after the
transaction has been committed. Each job runs in a savepoint of its own, so a job that
fails does not undo the others.

    on disk ──cannot be written, or no answer for 3 s──▶ in memory: a mirror takes
       ▲                                                 jobs, a journal keeps them
       └──────────── heal ─────────────┘  the journal is done on the disk, in order

A thread that hangs on the disk is replaced: another thread goes on in memory. If the
disk answers the first thread later, its answer decides whether its transaction must be
repeated. A kill in this state loses all changes in memory, also the checkpoint. So the
next start publishes the same events again, with the same ids.
"""

import asyncio
import logging
import math
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from msgspec import Struct, field

from bridge.foundation.errors import OutboxError, OutboxThreadDiedError
from bridge.outbox.storage.connection import (
    SHORT_BUSY_SECONDS,
    Job,
    Result,
    Ticket,
    connect,
)
from bridge.outbox.storage.front import End, Front, Heal, OnTrouble, Shift, Timings
from bridge.outbox.storage.keeper import Keeper, Place

log = logging.getLogger(__name__)

T = TypeVar("T")


def _ignore(_: str) -> None:
    """Do nothing about trouble."""


class Database:
    """The state file, off the event loop.

    Attributes:
        keeper: the file, its mirror, and the stand-in for the disk.
        timings: limits of the thread. If the keeper has no ``may_degrade``, jobs wait
            for a hanging disk without a limit.
        on_trouble: called in the thread with the fault of each failed job, if an intact
            file would not cause this fault.
        watch: watches whether the thread answers.
    """

    def __init__(
        self,
        keeper: Keeper,
        timings: Timings | None = None,
        on_trouble: OnTrouble = _ignore,
    ) -> None:
        self.keeper = keeper
        self.timings = timings or Timings()
        self.on_trouble = on_trouble
        self._is_closed = False
        self._loop = asyncio.get_running_loop()
        self._ended = asyncio.Event()
        self._death: OutboxThreadDiedError | None = None
        self.watch = Watch(self.timings, self._look, self._loop)
        front = Front(
            keeper=self.keeper,
            timings=self.timings,
            on_trouble=self.on_trouble,
            loop=self._loop,
            settle=self.watch.settle,
            died=self._died,
            ended=self._ended.set,
        )
        self._threads = Threads(front)

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        path: Path,
        *,
        may_degrade: bool = False,
        timings: Timings | None = None,
        on_trouble: OnTrouble = _ignore,
        place: Place | None = None,
    ) -> AsyncIterator["Database"]:
        """Open the file and start its thread; at the end, finish every job and close.

        Args:
            path: the file.
            may_degrade: go on in memory while the disk cannot be written or hangs.
            timings: limits of the thread; None = the defaults.
            on_trouble: see the class.
            place: checks whether the file is still where it was opened; None = no such
                check.

        Raises:
            OutboxError: the file cannot be used.
        """
        timings = timings or Timings()
        briefly = partial(connect, busy=SHORT_BUSY_SECONDS)
        keeper = Keeper(
            path,
            may_degrade=may_degrade,
            connect=briefly if may_degrade else connect,
            mirrors=timings.patience != math.inf,
            place=place,
        )
        serving = cls.serving(keeper, timings=timings, on_trouble=on_trouble)
        async with serving as database:
            yield database

    @classmethod
    @asynccontextmanager
    async def serving(
        cls,
        keeper: Keeper,
        *,
        timings: Timings | None = None,
        on_trouble: OnTrouble = _ignore,
    ) -> AsyncIterator["Database"]:
        """Open the file of a keeper as ``open`` does."""
        timings = timings or Timings()
        if not keeper.may_degrade:
            timings = timings.without_patience()
        database = cls(keeper, timings, on_trouble=on_trouble)
        opened = database._loop.create_future()
        database._threads.start(opened)
        await asyncio.shield(opened)
        try:
            yield database
        finally:
            await database._close()

    @property
    def fault(self) -> str | None:
        """Why the disk cannot be written now; None = it can be written."""
        return self.keeper.fault

    @property
    def is_degraded(self) -> bool:
        """Whether new rows are in memory only."""
        return self.keeper.memory is not None

    @property
    def is_answering(self) -> bool:
        """Whether jobs are answered, from the disk or from memory."""
        return self._death is None and self.watch.is_answering

    async def run(self, job: Job[T], *, is_kept: bool = True) -> T:
        """Run ``job`` in a transaction; return its result after the commit.

        Cancelling the caller does not undo the job.

        Args:
            job: the function to run.
            is_kept: whether a job that ran in memory is repeated on the disk later.
                Use False for a job that would be out of date by then.

        Raises:
            OutboxError: the job or the commit failed, and nothing was written.
        """
        return await self.submit(job, is_kept=is_kept)

    async def read(self, job: Job[T]) -> T:
        """Run a ``job`` that only reads; it needs no lock and no commit.

        Raises:
            OutboxError: the job failed.
        """
        return await self.submit(job, is_read=True, is_kept=False)

    def submit(
        self, job: Job[T], *, is_read: bool = False, is_kept: bool = True
    ) -> "asyncio.Future[T]":
        """Put a job in line, as ``run`` or ``read``; the future gets its result."""
        future: asyncio.Future[T] = self._promised()
        self._threads.front.messages.put(Ticket(job, is_read, is_kept, future))
        return future

    async def heal(self) -> None:
        """Try to write the changes in memory to the disk, and to use the disk again.

        Returns when this has succeeded or failed; it fails at once while the disk has
        not answered an earlier transaction. If an attempt runs already, its end counts.
        After ``patience`` it returns, too, and the attempt goes on in the background.

        Raises:
            OutboxThreadDiedError: the thread has died.
            OutboxError: the state file is closed.
        """
        future = self._promised()
        self._threads.front.messages.put(Heal(future))
        patience = self.watch.timings.patience
        wait = None if patience == math.inf else patience
        try:
            await asyncio.wait({future}, timeout=wait)
            if future.done():
                future.result()
        finally:
            self.watch.discard(future)
            future.cancel()  # so that the thread forgets it

    async def died(self) -> None:
        """Wait until the thread has ended.

        Raises:
            OutboxThreadDiedError: it has died.
        """
        await self._ended.wait()
        if self._death is not None:
            raise self._death

    def _promised(self) -> "asyncio.Future[Any]":
        """Return a future that the thread must set, and watch it.

        Raises:
            OutboxError: there is no thread that could set it.
        """
        if self._is_closed:
            raise OutboxError("the state file is closed")
        if self._death is not None:
            raise self._death
        future = self._loop.create_future()
        self.watch.add(future)
        return future

    def _look(self) -> float | None:
        """Find out why jobs are not answered; see ``Watch.look``."""
        if not self._threads.is_alive:
            self._died(None)
            return None
        return self._threads.replace_if_hung(self.watch.timings.patience)

    def _died(self, error: BaseException | None) -> None:
        """Fail all waiting jobs, and all later ones, with an error."""
        why = "it is gone" if error is None else f"{type(error).__name__}: {error}"
        self._death = OutboxThreadDiedError(
            f"the thread of the state file has died ({why.removesuffix(': ')})"
        )
        log.error("thread of the state file died", extra={"fault": why})
        self.watch.fail(self._death)
        self._ended.set()

    async def _close(self) -> None:
        with suppress(OutboxError):
            await self.read(lambda _: None)  # jobs are in order: earlier ones are done
        self._is_closed = True
        self._threads.front.messages.put(End())
        timings = self.watch.timings
        is_endless = timings.patience == math.inf
        limit = None if is_endless else timings.patience + timings.closing
        with suppress(TimeoutError):  # the thread hangs on the disk
            await asyncio.shield(asyncio.wait_for(self._ended.wait(), limit))


# -- The thread that works on the state file, and its replacement when the disk hangs --


class Threads(Struct):
    """Runs the work of ``Front``, in one thread at a time.

    Attributes:
        front: the messages to the thread, and the work on them.
    """

    front: Front
    _shift: Shift = field(default_factory=Shift)
    _thread: threading.Thread | None = None

    @property
    def is_alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread is not None and self._thread.is_alive()

    def start(self, opened: asyncio.Future[None]) -> None:
        """Start the thread.

        Args:
            opened: gets its result when the thread has opened the file, or the error.
        """

        def work() -> None:
            try:
                self.front.keeper.open()
            except Exception as error:  # noqa: BLE001 - passed to the caller of serving
                self.front.call_in_loop(opened.set_exception, error)
                return
            self.front.call_in_loop(opened.set_result, None)
            self.front.run(self._shift, None)

        self._begin(work)

    def replace_if_hung(self, patience: float) -> float | None:
        """Start another thread, in memory, if the disk is silent for ``patience``.

        Returns:
            For how many seconds the disk has not answered; None = it has nothing to do.
        """
        if self._shift.relieve(patience):
            group = self._shift.group
            self._shift = shift = Shift()
            self._begin(lambda: self.front.run(shift, group))
        return self._shift.waits_for()

    def _begin(self, work: Callable[[], None]) -> None:
        self._thread = threading.Thread(target=work, name="outbox", daemon=True)
        self._thread.start()


# -- Watches whether the jobs of the state file are answered ---------------------------


_LEAST_WAIT = 0.01


class Watch(Struct):
    """The futures of all waiting jobs, and a timer while there are any.

    Attributes:
        timings: the limits; may be replaced while jobs wait.
        look: called when no answer has come for ``patience``; returns for how many
            seconds the disk has not answered, or None if it has nothing to do.
        loop: where the timer runs.
    """

    timings: Timings
    look: Callable[[], float | None]
    loop: asyncio.AbstractEventLoop
    _waiting: set[asyncio.Future[Any]] = field(default_factory=set)
    _answered_at: float = 0.0  # monotonic
    _timer: asyncio.TimerHandle | None = None
    _timer_at: float = 0.0  # by the loop's clock

    @property
    def is_answering(self) -> bool:
        """Whether no job waits, or some job was answered within ``silence``."""
        silent = time.monotonic() - self._answered_at
        return not self._waiting or silent < self.timings.silence

    def add(self, future: asyncio.Future[Any]) -> None:
        """Watch a future until it has its result."""
        if not self._waiting:
            self._answered_at = time.monotonic()
        if self._timer is None:
            self._look_in(self.timings.patience)
        self._waiting.add(future)

    def discard(self, future: asyncio.Future[Any]) -> None:
        """Watch a future no longer."""
        self._waiting.discard(future)

    def settle(self, group: list[Ticket], results: list[Result]) -> None:
        """Set the results of jobs in the futures of their callers."""
        for ticket, (result, fault) in zip(group, results, strict=True):
            ticket.settle(result, fault)
            self._waiting.discard(ticket.future)
        self._answered_at = time.monotonic()
        if not self._waiting and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def fail(self, error: Exception) -> None:
        """Fail all waiting jobs with an error."""
        for future in self._waiting:
            if not future.done():
                future.set_exception(error)
        self._waiting.clear()

    def _look_in(self, seconds: float) -> None:
        if self.timings.patience != math.inf:
            self._timer_at = self.loop.time() + seconds
            self._timer = self.loop.call_at(self._timer_at, self._look)

    def _look(self) -> None:
        self._timer = None
        if not self._waiting:
            return
        patience = self.timings.patience
        if self.loop.time() - self._timer_at > self.timings.standstill:
            self._look_in(patience)
            return
        waits = self.look() or 0.0
        self._look_in(max(patience - waits, _LEAST_WAIT))
