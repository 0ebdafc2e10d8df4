"""The state file off the event loop: rows are put, and one worker writes them.

What is put meanwhile gathers and shares one transaction, and so one fsync: this makes
synchronous=FULL affordable under load.

    working ──the disk refuses, or no answer for 3 s──▶ degraded: rows gather, nobody
       ▲                                                waits for the disk any more
       └── heal, or the disk's late answer; all is written ──┘

A kill while it is degraded loses what gathers, also the checkpoint. So the next start
publishes the same events again, with the same ids.
"""

import asyncio
import logging
import math
import sqlite3
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any, TypeVar, overload

from msgspec.structs import replace

from bridge.foundation.errors import (
    OutboxClosedError,
    OutboxError,
    OutboxLockedError,
    OutboxThreadDiedError,
    OutboxUnavailableError,
)
from bridge.foundation.sqlite_files import as_outbox_error, is_damage, is_unwritable
from bridge.outbox.storage.file import NOT_OURS, Connection, File
from bridge.outbox.storage.journal import (
    Ask,
    Done,
    Driver,
    Journal,
    Rows,
    ThreadDriver,
    Timings,
)
from bridge.outbox.storage.schema import empty

log = logging.getLogger(__name__)

T = TypeVar("T")
U = TypeVar("U")

_TIDY_AFTER = 10  # commits: well before SQLite would tidy up during a commit
_LAST_WAIT = 1.0  # seconds, for a disk that hangs at the stop
_TOUCH: Rows = {("meta", ("healed",)): (1,)}  # proves that the disk can be written


class Database:
    """The state file.

    Attributes:
        path: of the file.
        timings: the limits.
        journal: what is not on the disk yet.
        is_hanging: whether the present work was given up; its end still counts.
        fault: why the disk cannot be written now; None = it can be written.
        is_blank: whether reads are answered from an empty file, because the real one
            could not be read since the start.
        snapshot: reads what ``adopt`` needs; called on the worker.
        adopt: takes that in the loop, when the file was opened again.
        healed: called when the disk works again: what waits there can be read.
    """

    def __init__(self, file: File, timings: Timings, driver: Driver) -> None:
        self.is_blank = False
        self.snapshot: Callable[[Connection], Any] | None = None
        self.adopt: Callable[[Any], object] | None = None
        self.healed: Callable[[], object] = lambda: None
        self.path, self._file = file.path, file
        self._driver, self.timings = driver, timings
        self._loop = asyncio.get_running_loop()
        self.is_hanging = False
        self._finish: Done | None = None  # of the work that is being done
        self._began = 0.0
        self._stood = -math.inf  # when a standstill of the machine ended
        self._timer: asyncio.TimerHandle | None = None
        self.journal = Journal()
        self._asks = deque[Ask]()
        self._asking: Ask | None = None  # the question that the worker asks now
        self.fault: str | None = None
        self._death: OutboxThreadDiedError | OutboxError | None = None
        self._ended = asyncio.Event()
        self._is_closed = False
        self._is_due = False  # ``_next`` will be called soon
        self._is_writing_back = False
        self._healing: asyncio.Future[None] | None = None
        self._idle = asyncio.Event()
        self._untidied = 0
        self._blank: Connection | None = None

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        file: File,
        *,
        timings: Timings | None = None,
        driver: Driver | None = None,
    ) -> AsyncIterator["Database"]:
        """Open the file; at the end, write what gathers, and close it.

        Args:
            file: the file.
            timings: the limits; None = the defaults.
            driver: does the work; None = a thread.

        Raises:
            OutboxError: the file cannot be used.
        """
        timings = timings or Timings()
        if not file.may_degrade:
            timings = replace(timings, patience=math.inf)
        database = cls(file, timings, driver or ThreadDriver())
        try:
            await database._open()
            yield database
        finally:
            await database._close()

    @property
    def is_degraded(self) -> bool:
        """Whether new rows are in memory only."""
        return self.fault is not None

    @property
    def is_answering(self) -> bool:
        """Whether questions are answered; a disk that fails does not matter."""
        return self._death is None

    @property
    def lost(self) -> str | None:
        """What was lost or moved aside when the file was examined; None = nothing."""
        return self._file.lost

    @property
    def is_busy(self) -> bool:
        """Whether a piece of work is being done."""
        return self._finish is not None

    # -- rows ----------------------------------------------------------------

    def put(self, rows: Rows, then: Callable[[bool], None] | None = None) -> None:
        """Take rows, which are written together with what else gathers.

        Args:
            rows: the rows.
            then: called in the loop: with True when they are on the disk, and before
                with False after ``patience``, or if the disk refuses them. After that
                they are written later, unless they alone were refused.

        Raises:
            OutboxClosedError: the file is closed.
            OutboxError: its worker has died.
        """
        self._demand_life()
        commit = self.journal.put(rows, self._loop.time(), then)
        if self.fault is None:
            self._next_soon()
        elif then is not None:
            self._loop.call_soon(partial(commit.tell, is_written=False))

    # -- questions -----------------------------------------------------------

    @overload
    def read(self, job: Callable[[Connection], T]) -> asyncio.Future[T]: ...

    @overload
    def read(
        self, job: Callable[[Connection], T], then: Callable[[T], U]
    ) -> asyncio.Future[U]: ...

    def read(
        self, job: Callable[[Connection], T], then: Callable[[T], Any] | None = None
    ) -> asyncio.Future[Any]:
        """Run a job that only reads, after all that was put before is written.

        While the disk refuses, it reads what the file has.

        Args:
            job: runs on the worker.
            then: runs in the loop with the result, before any later commit is told that
                it is written; what it returns is returned. None = the result is.

        Raises:
            OutboxUnavailableError: the disk has not answered for ``patience``.
            OutboxError: the job failed.
        """
        then = then or _same
        if self.is_blank:
            self._demand_life()
            self._blank = self._blank or empty()
            found = self._loop.create_future()
            found.set_result(then(job(self._blank)))
            return found

        def taken(read: tuple[T, str | None]) -> Any:
            result, fault = read
            if fault is not None and self.fault is None and self._file.may_degrade:
                self._degrade(fault)
            return then(result)

        return self._ask(partial(self._file.read, job), taken)

    async def run(self, job: Callable[[Connection], T]) -> T:
        """Run a job in a transaction of its own, after all that was put before.

        Args:
            job: runs on the worker; it changes nothing that memory has.

        Raises:
            OutboxUnavailableError: the disk fails.
            OutboxError: the job or the commit failed, and nothing was written.
        """
        self._demand_life()
        if self.fault is not None:
            text = f"the state file cannot be written: {self.fault}"
            raise OutboxUnavailableError(text)

        found: T = await self._ask(partial(self._file.run, job), _same, is_read=False)
        return found

    def _ask(
        self,
        work: Callable[[], Any],
        then: Callable[[Any], Any],
        *,
        is_read: bool = True,
    ) -> asyncio.Future[Any]:
        self._demand_life()
        if self.is_hanging:
            raise OutboxUnavailableError(f"the state file hangs: {self.fault}")
        future = self._loop.create_future()
        last, now = self.journal.last, self._loop.time()
        self._asks.append(Ask(work, last, now, future, then, is_read))
        self._next_soon()
        return future

    def _demand_life(self) -> None:
        if self._death is not None:
            raise self._death
        if self._is_closed:
            raise OutboxClosedError("the state file is closed")

    # -- the next piece of work ----------------------------------------------

    def _next_soon(self) -> None:
        """Choose the next work when all that is put in this turn has gathered."""
        if not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._next)

    def _next(self) -> None:
        """Begin the next piece of work, if none is being done."""
        self._is_due = False
        if self._finish or self._is_closed or self._death is not None:
            return
        gathering = self.journal.gathering
        ask = self._asks[0] if self._asks else None
        may_write = self.fault is None or self._is_writing_back
        if self._healing is not None and not self._is_writing_back:
            self._start(self._regain, self._regained)
        elif (
            gathering
            and may_write
            and (ask is None or ask.after >= gathering[0].number)
        ):
            commits, is_again = self.journal.take(), self._is_writing_back
            work = partial(self._file.write, commits, is_again=is_again)
            self._start(work, self._answered)
        elif ask is not None:
            self._asking = self._asks.popleft()
            self._start(ask.work, self._asked)
        else:
            self._idle.set()
            if self._untidied >= _TIDY_AFTER and self.timings.quiet != math.inf:
                self._untidied = 0
                self._loop.call_later(self.timings.quiet, self._tidy)

    def _start(self, work: Callable[[], object], finish: Done) -> None:
        """Begin a piece of work; ``finish`` gets its outcome, also if it is late."""
        self._idle.clear()
        self._finish, self._began = finish, self._loop.time()
        if self._timer is None:
            self._look_in(self.timings.patience)
        self._driver.start(work, self._done)

    def _done(self, result: Any, error: BaseException | None) -> None:
        """Go on after a piece of work, also if it had been given up."""
        finish, self._finish = self._finish, None
        was_hanging, self.is_hanging = self.is_hanging, False
        if self._death is None and finish is not None:
            try:
                finish(result, error)
            except Exception as fault:  # noqa: BLE001 - a bug: no work would ever begin again
                self._died(fault)
        is_late = was_hanging and error is None and self.fault is not None
        if is_late and self._healing is None and not self._is_writing_back:
            self._healing = self._loop.create_future()
        self._next()

    def _answered(
        self, refused: dict[int, Exception], error: BaseException | None
    ) -> None:
        """Tell the commits that they are written, or gather them again."""
        if error is not None:
            self.journal.back()
            self._end_healing()
            self._failed(error)
            return
        for index, commit in enumerate(self.journal.done()):
            if (fault := refused.get(index)) is not None:
                fields = {"fault": str(as_outbox_error(fault))}
                log.error("change lost on its way to disk", extra=fields)
            commit.tell(is_written=fault is None)
            self._untidied += 1
        if self.fault is not None:
            self._is_writing_back = bool(self.journal.gathering)
            if not self._is_writing_back:
                self._return_to_disk()

    def _asked(self, result: Any, error: BaseException | None) -> None:
        """Answer a question."""
        ask = self._asking
        is_read = ask is None or ask.is_read
        is_of_disk = is_read and error is not None and is_unwritable(error)
        is_end = isinstance(error, MemoryError) or not isinstance(
            error, Exception | None
        )
        if error is not None and (is_end or (is_of_disk and self._file.may_degrade)):
            self._failed(error)
        if ask is not None:
            ask.answer(result, self._death or as_outbox_error(error))
        self._asking = None

    def _failed(self, error: BaseException) -> None:
        """Go on in memory if the disk may work again; else end."""
        if is_unwritable(error):
            self._degrade(str(error))
        else:
            self._died(error)

    # -- a disk that fails ---------------------------------------------------

    def _look_in(self, seconds: float) -> None:
        if seconds != math.inf:
            planned = self._loop.time() + seconds
            self._timer = self._loop.call_at(planned, self._look, planned)

    def _look(self, planned: float) -> None:
        """Notice work that is not answered, and a worker that is dead."""
        self._timer = None
        if self._finish is None or self._is_closed:
            return
        if not self._driver.is_alive:
            self._died(None)
            return
        now, patience = self._loop.time(), self.timings.patience
        if now - planned > self.timings.standstill:
            self._stood = now
        left = max(min(self._began, self._waits_since()), self._stood) + patience - now
        if left <= 0 and not self.is_hanging:
            self._hangs(f"the disk has not answered for {patience:g} s")
        self._look_in(left if left > 0 else patience)

    def _waits_since(self) -> float:
        """Return when the oldest wait for the disk began, by the loop's clock."""
        since = [one.since for one in self.journal.waiting()[:1]]
        since += [self._asks[0].since] if self._asks else []
        return math.inf if self.fault is not None else min(since, default=math.inf)

    def _hangs(self, fault: str) -> None:
        """Wait no longer for the work that is being done; its answer still counts."""
        self.is_hanging = True
        self._degrade(fault)
        error = OutboxUnavailableError(f"the state file hangs: {fault}")
        if (ask := self._asking) is not None:
            is_opening, self._asking = ask.work == self._open_file, None
            self.is_blank = self.is_blank or is_opening
            ask.answer(None, None if is_opening else error)
        while self._asks:
            self._asks.popleft().answer(None, error)

    def _degrade(self, fault: str) -> None:
        if self.fault is None:
            fields = {"fault": fault}
            log.error("state file cannot be written: going on in memory", extra=fields)
        self.fault, self._is_writing_back = fault, False
        for commit in self.journal.waiting():
            commit.tell(is_written=False)

    async def heal(self) -> None:
        """Try to write what gathers, and to use the disk again.

        Returns when this has succeeded or failed; at once while the disk has not
        answered. After ``patience`` it returns, too, and the attempt goes on.

        Raises:
            OutboxThreadDiedError: the worker has died.
            OutboxClosedError: the state file is closed.
        """
        self._demand_life()
        if self.fault is None or self.is_hanging:
            return
        if self._healing is None:
            self._healing = self._loop.create_future()
            self._next_soon()
        patience = self.timings.patience
        limit = None if patience == math.inf else patience
        await asyncio.wait({self._healing}, timeout=limit)

    def _regain(self) -> tuple[bool, Any]:
        """Return whether the file was opened again, and what ``adopt`` needs then."""
        is_new = self._file.regain() or self.is_blank
        snapshot = self.snapshot if is_new else None
        return is_new, snapshot and snapshot(self._file.db)

    def _regained(self, found: tuple[bool, Any], error: BaseException | None) -> None:
        if error is not None:
            self.fault = str(error)
            self._end_healing()
            is_theirs = self.is_blank and isinstance(error, OutboxLockedError)
            is_passing = isinstance(error, sqlite3.Error | OutboxError)
            if is_theirs or is_damage(error) or not is_passing:
                self._died(error)
            return
        is_new, snapshot = found
        if is_new:
            if self.adopt and self.snapshot:
                self.adopt(snapshot)
            self.is_blank = False
        if not self.journal.gathering:
            self.journal.put(_TOUCH, self._loop.time())
        self._is_writing_back = True

    def _return_to_disk(self) -> None:
        self.fault = None
        self._end_healing()
        log.info("state file can be written again")
        self.healed()

    def _end_healing(self) -> None:
        healing, self._healing = self._healing, None
        if healing is not None and not healing.done():
            healing.set_result(None)

    def _tidy(self) -> None:
        is_over = self._is_closed or self._death is not None
        if not self._finish and self.fault is None and not is_over:
            self._start(self._file.tidy, lambda *_: None)

    # -- its beginning and its end -------------------------------------------

    async def _open(self) -> None:
        """Open the file, or what stands in for it.

        Raises:
            OutboxError: it cannot be used.
        """
        opened = self._loop.create_future()
        self._asking = Ask(self._open_file, 0, self._loop.time(), opened, _same)
        self._start(self._open_file, self._opened)
        await opened

    def _open_file(self) -> tuple[str | None, bool]:
        """Open the file, or what can be read of it.

        Returns:
            Why it could not be opened for writing, and whether it cannot be read.
        """
        try:
            self._file.open()
        except OutboxUnavailableError as error:
            if not self._file.may_degrade:
                raise
            return str(error), self._file.open_copy()
        return None, False

    def _opened(
        self, found: tuple[str | None, bool], error: BaseException | None
    ) -> None:
        ask, self._asking = self._asking, None
        if error is None and found[0] is not None:
            self.is_blank = self.is_blank or found[1]
            self._degrade(found[0])
        if ask is not None:
            ask.answer(None, as_outbox_error(error))
        elif error is not None:
            self._died(error)

    async def died(self) -> None:
        """Wait until the worker has ended.

        Raises:
            OutboxThreadDiedError: it has died.
        """
        await self._ended.wait()
        if self._death is not None:
            raise self._death

    def _died(self, error: BaseException | None) -> None:
        """Fail all questions, and all later ones, with an error."""
        if isinstance(error, NOT_OURS):
            self._death = error
        else:
            why = "it is gone" if error is None else f"{type(error).__name__}: {error}"
            self._death = OutboxThreadDiedError(
                f"the thread of the state file has died ({why.removesuffix(': ')})"
            )
            log.error("thread of the state file died", extra={"fault": why})
        for commit in self.journal.waiting():
            commit.tell(is_written=False)
        for ask in (self._asking, *self._asks):
            if ask is not None:
                ask.answer(None, self._death)
        self._asking = None
        self._asks.clear()
        self._end_healing()
        self._idle.set()
        self._ended.set()

    async def _close(self) -> None:
        limit = self.timings.patience + self.timings.closing
        limit = _LAST_WAIT if self.is_hanging else limit
        with suppress(TimeoutError, OutboxError):
            async with asyncio.timeout(None if limit == math.inf else limit):
                if self.fault is not None:
                    await self.heal()
                if self._death is None:
                    self._next_soon()
                    self._idle.clear()
                    await self._idle.wait()
        self._is_closed = True
        if waiting := self.journal.waiting():
            log.error(
                "state file still cannot be written: the next start publishes the "
                "changes again",
                extra={"changes": len(waiting)},
            )
        if not self._finish and self._death is None:
            self._start(self._file.close, lambda *_: self._ended.set())
            with suppress(TimeoutError):
                async with asyncio.timeout(self.timings.closing):
                    await self._ended.wait()
        if self._timer is not None:
            self._timer.cancel()
        self._driver.stop()
        self._ended.set()


def _same(result: Any) -> Any:
    return result
