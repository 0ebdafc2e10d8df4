"""One SQLite connection in one thread, with group commit, and memory for bad days.

Whatever the house wants of the state file is a job: a function of the connection.
Jobs that wait at the same time share one transaction, and so one fsync: under load
this is what makes synchronous=FULL affordable. A job is told to be done only after
its transaction has been committed. Each runs in a savepoint of its own, so one that
fails takes nothing else with it.

    on disk ──cannot be written, or no answer for 3 s──▶ in memory: a mirror takes
       ▲                                                 jobs, a journal keeps them
       └──────────── heal ─────────────┘  the journal is done on the disk, in order

A thread that the disk does not answer is relieved: another one goes on in memory. When
the disk answers the first one after all, that answer decides whether its transaction
is done again. A kill while in memory loses what is there: the checkpoint goes with it,
so the next life tells the same again with the same ids.
"""

import asyncio
import logging
import math
import sqlite3
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from bridge.foundation.errors import OutboxError, OutboxThreadDiedError
from bridge.outbox.checksum import checksum_of_value, whole
from bridge.outbox.storage.connection import SHORT_BUSY_SECONDS, Connection, connect
from bridge.outbox.storage.disk import Place
from bridge.outbox.storage.front import End, Front, Heal, OnTrouble
from bridge.outbox.storage.keeper import Keeper
from bridge.outbox.storage.shift import Shift
from bridge.outbox.storage.transactions import Job, Result, Ticket

log = logging.getLogger(__name__)

T = TypeVar("T")
PATIENCE = 3.0
_CLOSING_SECONDS = 2.0
_SILENT_SECONDS = 10.0
_STANDSTILL_SECONDS = 1.0
_OWNER = "vm_id"


def _ignore(_: str) -> None:
    """Do without being told of trouble."""


@dataclass(slots=True)
class Database:
    """The state file, off the event loop.

    It is wide because all that may go wrong between the loop and the thread is decided
    here: who waits, how long, whether the thread lives, when it is closed.

    Attributes:
        patience: after how many seconds a disk that does not answer counts as failed.
        on_trouble: told of jobs that failed as none does on a sound file.
        silence: after how many seconds without any answer the thread counts as stuck.
        standstill: by how many seconds a look at the thread is late where the whole
            machine stood still, and the thread with it.
    """

    keeper: Keeper
    patience: float = math.inf
    silence: float = _SILENT_SECONDS
    standstill: float = _STANDSTILL_SECONDS
    on_trouble: OnTrouble = _ignore
    _shift: Shift = field(default_factory=Shift)
    _thread: threading.Thread | None = None
    _front: Front = field(init=False)
    _waiting: set[asyncio.Future[Any]] = field(default_factory=set)
    _answered_at: float = 0.0
    _timer: asyncio.TimerHandle | None = None
    _timer_at: float = 0.0
    _is_closed: bool = False
    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    _ended: asyncio.Event = field(default_factory=asyncio.Event)
    _death: OutboxThreadDiedError | None = None

    def __post_init__(self) -> None:
        self._front = Front(
            keeper=self.keeper,
            patience=self.patience,
            on_trouble=self.on_trouble,
            loop=self._loop,
            settle=self._settle,
            died=self._died,
            ended=self._ended.set,
        )

    @classmethod
    @asynccontextmanager
    async def open(  # noqa: PLR0913 - each is one thing that a caller knows
        cls,
        path: Path,
        *,
        may_degrade: bool = False,
        patience: float = PATIENCE,
        on_trouble: OnTrouble = _ignore,
        place: Place | None = None,
        busy: float = SHORT_BUSY_SECONDS,
    ) -> AsyncIterator["Database"]:
        """Open the file and its thread; on leaving, finish every job and close.

        Args:
            path: the file.
            may_degrade: go on in memory while the disk cannot be written.
            patience: after how many seconds without an answer it cannot be; infinite =
                a disk that hangs is waited for.
            on_trouble: told, in the thread, of each job that failed as none does on
                a sound file.
            place: knows whether the file is still where it was opened; None = nobody
                looks.
            busy: seconds for which another process's lock is waited for to open it,
                where it may degrade.

        Raises:
            OutboxError: the file cannot be used.
        """
        keeper = Keeper(
            path,
            may_degrade=may_degrade,
            connect=partial(connect, busy=busy) if may_degrade else connect,
            mirrors=patience != math.inf,
            place=place,
        )
        async with cls.serving(
            keeper, patience=patience, on_trouble=on_trouble
        ) as database:
            yield database

    @classmethod
    @asynccontextmanager
    async def serving(
        cls,
        keeper: Keeper,
        *,
        patience: float = PATIENCE,
        on_trouble: OnTrouble = _ignore,
    ) -> AsyncIterator["Database"]:
        """Do the same with a keeper that is made already."""
        patience = patience if keeper.may_degrade else math.inf
        database = cls(keeper, patience, on_trouble=on_trouble)
        opened = database._loop.create_future()

        def live() -> None:
            try:
                keeper.open()
            except Exception as error:  # noqa: BLE001 - handed to whoever opens it
                database._front.tell(opened.set_exception, error)
                return
            database._front.tell(opened.set_result, None)
            database._front.live(database._shift, None)

        database._begin(live)
        await asyncio.shield(opened)
        try:
            yield database
        finally:
            await database._close()

    @property
    def path(self) -> Path:
        """The state file."""
        return self.keeper.path

    @property
    def connection(self) -> Connection:
        """What jobs are done on: the file, or its mirror."""
        return self.keeper.connection

    @property
    def fault(self) -> str | None:
        """Why the disk cannot be written now; None = it can."""
        return self.keeper.fault

    @property
    def is_degraded(self) -> bool:
        """Whether what is told now is in memory only."""
        return self.keeper.memory is not None

    @property
    def is_answering(self) -> bool:
        """Whether whoever asks is answered: by the disk, or by memory."""
        if self._death is not None:
            return False
        silent = time.monotonic() - self._answered_at
        return not self._waiting or silent < self.silence

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

    async def stamp(self) -> tuple[int, int] | None:
        """Return what differs once anybody has written; None if that is not known."""
        return await self.read(self._stamp)

    def _stamp(self, db: Connection) -> tuple[int, int] | None:
        if not db.is_durable:
            return None  # the disk is not to be asked
        try:
            found = Path(f"{self.path}-wal").stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size

    async def heal(self) -> None:
        """Try to write what is in memory only to the disk, and go on there.

        Returns when that has worked or failed, or takes too long; then it goes on.

        Raises:
            OutboxThreadDiedError: nobody is there to do it.
        """
        if self._death is not None:
            raise self._death
        future: asyncio.Future[None] = self._loop.create_future()
        self._waiting.add(future)
        self._front.messages.put(Heal(future))
        wait = None if self.patience == math.inf else self.patience
        await asyncio.wait({future}, timeout=wait)
        self._waiting.discard(future)
        if future.done():
            future.result()

    async def died(self) -> None:
        """Wait until the thread has died.

        Raises:
            OutboxThreadDiedError: it has.
        """
        await self._ended.wait()
        if self._death is not None:
            raise self._death

    async def owner(self) -> str | None:
        """Return the vmId of the VM that wrote the file; None if that is not known."""

        def job(db: sqlite3.Connection) -> str | None:
            query = "SELECT value, checksum FROM meta WHERE key = 'vm_id'"
            owner = whole(_OWNER, db.execute(query).fetchone())
            return owner.decode(errors="replace") if owner else None

        return await self.read(job)

    async def own(self, vm_id: str) -> None:
        """Note whose file it is."""

        def job(db: sqlite3.Connection) -> None:
            owner = vm_id.encode()
            db.execute(
                "INSERT OR REPLACE INTO meta (key, value, checksum) VALUES (?, ?, ?)",
                (_OWNER, owner, checksum_of_value(_OWNER, owner)),
            )

        await self.run(job)

    # -- in the loop ---------------------------------------------------------

    async def _queue(self, job: Job[T], *, is_read: bool, is_kept: bool) -> T:
        if self._is_closed:
            raise OutboxError("the state file is closed")
        if self._death is not None:
            raise self._death
        future: asyncio.Future[T] = self._loop.create_future()
        if not self._waiting:
            self._answered_at = time.monotonic()
        if self._timer is None:
            self._watch_in(self.patience)
        self._waiting.add(future)
        self._front.messages.put(Ticket(job, is_read, is_kept, future))
        return await future

    def _settle(self, group: list[Ticket], results: list[Result]) -> None:
        for ticket, (result, fault) in zip(group, results, strict=True):
            ticket.settle(result, fault)
            self._waiting.discard(ticket.future)
        self._answered_at = time.monotonic()
        if not self._waiting and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _watch_in(self, seconds: float) -> None:
        """Look after so long whether who waits has been answered."""
        if self.patience != math.inf:
            self._timer_at = self._loop.time() + seconds
            self._timer = self._loop.call_at(self._timer_at, self._watch)

    def _watch(self) -> None:
        self._timer = None
        if not self._waiting:
            return
        if self._thread is not None and not self._thread.is_alive():
            self._died(None)
            return
        if self._loop.time() - self._timer_at > self.standstill:
            self._watch_in(self.patience)  # the disk had no time to answer either
            return
        if self._shift.relieve(self.patience):
            self._relieve(self._shift.group)
        waits = self._shift.waits_for() or 0.0
        self._watch_in(max(self.patience - waits, 0.01))

    def _relieve(self, group: list[Ticket]) -> None:
        """Let another thread go on in memory."""
        self._shift = shift = Shift()
        self._begin(lambda: self._front.live(shift, group))

    def _begin(self, live: Callable[[], None]) -> None:
        self._thread = threading.Thread(target=live, name="outbox", daemon=True)
        self._thread.start()

    def _died(self, error: BaseException | None) -> None:
        """Let everybody know that nobody will answer any more."""
        why = "it is gone" if error is None else f"{type(error).__name__}: {error}"
        self._death = OutboxThreadDiedError(
            f"the thread of the state file has died ({why.removesuffix(': ')})"
        )
        log.error("thread of the state file died", extra={"fault": why})
        for future in self._waiting:
            if not future.done():
                future.set_exception(self._death)
        self._waiting.clear()
        self._ended.set()

    async def _close(self) -> None:
        with suppress(OutboxError):
            await self.read(lambda _: None)  # when that is answered, all before it is
        self._is_closed = True
        self._front.messages.put(End())
        limit = None
        if self.patience != math.inf:
            limit = self.patience + _CLOSING_SECONDS
        with suppress(TimeoutError):  # the disk holds the thread; it is not waited for
            await asyncio.shield(asyncio.wait_for(self._ended.wait(), limit))
