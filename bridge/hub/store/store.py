"""The interface of the store for the rest of the hub; SQL runs in threads of its own.

SQLite       one thread writes; others read at the same time
PostgreSQL   four threads write, four threads read

A database that neither answers nor breaks the connection (it is frozen, or its disk
hangs) counts as away after ``longest`` seconds. Its transaction may still commit later,
so callers must be able to repeat it, as after a lost answer.
"""

import asyncio
import logging
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import Executor, Future
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from queue import SimpleQueue
from typing import Any, ParamSpec, TypeVar

from msgspec import Struct, field
from sqlalchemy import Connection, Engine, delete

from bridge.foundation.errors import (
    HubSchemaError,
    HubStoreAwayError,
    HubStoreDamagedError,
    HubStoreError,
    HubStoreSlowError,
)
from bridge.foundation.sqlite_files import BAD_LOG, LOG_ALONE, has_log, passed_over
from bridge.hub.config import HubConfig
from bridge.hub.store import engine, start
from bridge.hub.store.engine import Place, RemovedError
from bridge.hub.store.intake import keep, keep_slow, try_out
from bridge.hub.store.kept_facts import Incoming
from bridge.hub.store.pin_rows import KnownPins
from bridge.hub.store.start import migrate
from bridge.hub.store.tables import unreadable

log = logging.getLogger(__name__)

_THREADS = 4
_LONGEST = 20.0  # longer than the statement timeout of the database
_WORK_SECONDS = 5.0
_PATIENCE = 2.0  # seconds to wait for the threads when the store closes
_REFUSED = "the store refuses what it says"
_READ, _WRITE = "read", "write"

P = ParamSpec("P")
T = TypeVar("T")


class Health(Struct):
    """Whether the store can be used, by the last attempts to write and to read.

    Attributes:
        faults: why it cannot be written or read.
        failed: what was to be read when that failed last; None = it can be read.
    """

    faults: dict[str, str] = field(default_factory=dict)
    failed: Callable[[Connection], object] | None = None

    @property
    def fault(self) -> str | None:
        """Why the store cannot be used; None = it can."""
        return next(iter(self.faults.values()), None)

    @contextmanager
    def watched(
        self, what: str, work: Callable[[Connection], object] | None = None
    ) -> Iterator[None]:
        """Note whether an attempt shows that the store is away, or is back."""
        try:
            yield
        except HubStoreAwayError as error:
            self.faults[what] = str(error)
            self.failed = work or self.failed
            raise
        self.faults.pop(what, None)
        if what == _READ:
            self.failed = None


class Job(Struct, eq=False):
    """One transaction in a thread, and how long the thread has worked for it.

    Work is the time of the processor: to wait for the database is no work.

    Attributes:
        running: the jobs that run now in its group of threads.
        place: makes sure that the file is in its place; it raises HubStoreAwayError.
            None = there is no file.
    """

    running: set["Job"]
    place: Callable[[], None] | None = None
    _thread: int = 0
    _began: float = 0.0
    _seen: dict["Job", float] = field(default_factory=dict)

    def run(self, database: Engine, work: Callable[[Connection], T]) -> T:
        """Run a function in one transaction.

        Raises:
            HubStoreError: it failed.
        """
        self._thread, self._began = threading.get_ident(), time.thread_time()
        self.running.add(self)
        try:
            self._check_place()
            with engine.store_errors(), database.begin() as connection:
                found = work(connection)
            self._check_place()  # a file that was replaced meanwhile has not got it
        except HubStoreDamagedError:
            database.dispose()  # what was read may be outdated once it is repaired
            raise
        else:
            return found
        finally:
            self.running.discard(self)

    def _check_place(self) -> None:
        if self.place is not None:
            self.place()

    def seconds(self) -> float:
        """Return how long the thread has worked; 0 where the system does not say it."""
        if sys.platform == "win32":  # pragma: no cover - tests run on POSIX
            return 0.0
        if not hasattr(time, "pthread_getcpuclockid"):  # pragma: no cover - macOS
            return 0.0
        clock = time.pthread_getcpuclockid(self._thread)
        return time.clock_gettime(clock) - self._began

    def are_at_work(self, seconds: float) -> bool:
        """Whether the threads have worked for so long since this was asked last.

        Only the thread of this job counts, if it has one.
        """
        running = list(self.running)
        these = [self] if self in running else running
        now = {one: one.seconds() for one in these}
        before, self._seen = self._seen, now
        return any(now[one] - before.get(one, 0.0) >= seconds for one in now)


class Pool(Executor):
    """A group of threads that make calls in the order of ``submit``.

    The process can end while one of them hangs, as with the disk below it.

    Attributes:
        running: the jobs that run now.

    Args:
        count: the number of threads; they are started with the first calls.
        name: the name of the threads.
    """

    def __init__(self, count: int, name: str) -> None:
        self.running = set[Job]()
        self._count, self._name = count, name
        self._calls = SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None]()
        self._threads = list[threading.Thread]()

    def submit(
        self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs
    ) -> Future[T]:
        """Let one of the threads make a call. Only one thread may use this method."""
        future: Future[T] = Future()
        self._calls.put((future, partial(fn, *args, **kwargs)))
        if len(self._threads) < self._count:
            thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._threads.append(thread)
            thread.start()
        return future

    def _run(self) -> None:
        while (waiting := self._calls.get()) is not None:
            future, call = waiting
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(call())
            except Exception as error:  # noqa: BLE001 - passed to the caller
                future.set_exception(error)

    def close(self, patience: float) -> None:
        """End the threads after all waiting calls; do not wait for a call that hangs.

        Args:
            patience: seconds to wait for each thread.
        """
        for _ in self._threads:
            self._calls.put(None)
        for thread in self._threads:
            thread.join(patience)
            if thread.is_alive():
                return


class Store(Struct, frozen=True, kw_only=True):
    """An open store. Created by ``open_store``.

    Attributes:
        longest: seconds until a database without an answer counts as away.
        work_seconds: how long a message may take to be stored, without waiting.
        health: whether it can be used.
        place: of the SQLite file; None = PostgreSQL.
        pinned: the keys of bridges.
    """

    writer: Engine
    reader: Engine
    writing: Pool
    reading: Pool
    longest: float = _LONGEST
    work_seconds: float = _WORK_SECONDS
    health: Health = field(default_factory=Health)
    place: Place | None = None
    pinned: KnownPins = field(default_factory=KnownPins)

    @property
    def is_shared(self) -> bool:
        """Whether several hubs may use it."""
        return self.writer.dialect.name == "postgresql"

    async def write(self, work: Callable[[Connection], T]) -> T:
        """Run a function in one transaction; returns after the commit.

        Raises:
            HubStoreAwayError: it may succeed later; whether it was committed is not
                known.
            HubStoreSlowError: it takes too long; it may be committed later.
            HubStoreError: it will never succeed.
        """
        with self.health.watched(_WRITE):
            return await self._patiently(self.writing, self.writer, work)

    async def read(self, work: Callable[[Connection], T]) -> T:
        """Run a function that only reads, in one transaction.

        Raises:
            HubStoreError: as ``write``.
        """
        with self.health.watched(_READ, work):
            try:
                return await self._patiently(self.reading, self.reader, work)
            except RemovedError:
                await self.write(lambda _: None)  # writes the file again
                return await self._patiently(self.reading, self.reader, work)

    async def _patiently(
        self, threads: Pool, database: Engine, work: Callable[[Connection], T]
    ) -> T:
        """Run a function in a thread, with a timeout.

        After a timeout, work that still waits for a thread is cancelled. It waits on
        while the threads work; if they wait for the database, it is away.
        """
        place = None if self.place is None else self._in_place(database)
        job, loop = Job(threads.running, place), asyncio.get_running_loop()
        future = loop.run_in_executor(threads, job.run, database, work)
        try:
            while not (await asyncio.wait({future}, timeout=self.longest))[0]:
                self._check(job)
            return future.result()
        finally:
            future.cancel()

    def _in_place(self, database: Engine) -> Callable[[], None]:
        """Return what makes sure that the file of a database is in its place."""
        assert self.place is not None, "it is a file"  # noqa: S101 - for mypy  # nosec B101
        if database is self.reader:
            return self.place.check
        return partial(self.place.ensure, self.writer, self.reader)

    def _check(self, job: Job) -> None:
        """Find out whether a job may go on, after each ``longest`` seconds.

        Raises:
            HubStoreSlowError: it is at work itself, for too long.
            HubStoreAwayError: it waits for the database, or for others who do.
        """
        if job in job.running and job.seconds() > self.work_seconds:
            words = f"the store is slow (no answer after {self.longest:g} s)"
            raise HubStoreSlowError(words)
        if not job.are_at_work(self.longest / 10):
            words = f"the store is away (no answer for {self.longest:g} s)"
            raise HubStoreAwayError(words)

    async def check(self) -> None:
        """Find out whether the store is back, if it was away.

        Raises:
            HubStoreError: it is not.
        """
        if _WRITE in self.health.faults:
            await self._prove()
        if (work := self.health.failed) is not None:
            await self.read(work)

    async def keep(self, batch: Sequence[Incoming]) -> None:
        """Store a batch of messages; returns after all of them are committed.

        A batch that is refused or takes too long is split in halves, if the store
        accepts other messages meanwhile. A single message that is refused, or slow
        twice, is put aside.

        Raises:
            HubStoreAwayError: not every message of the batch counts as stored.
        """
        try:
            await self._keep(batch)
        except HubStoreAwayError:
            raise
        except HubStoreError as error:
            await self._prove()
            await self._keep_halves(batch, error)

    async def retry(self, number: int, one: Incoming) -> None:
        """Store a message that was put aside; leave it there if it cannot be stored.

        Args:
            number: of its row in ``unreadable``.
            one: the message.

        Raises:
            HubStoreAwayError: the store is away.
        """

        def work(connection: Connection) -> None:
            self._kept_in_time(connection, [one])
            connection.execute(delete(unreadable).where(unreadable.c.seq == number))

        try:
            await self.write(work)
        except HubStoreAwayError:
            raise
        except HubStoreError as error:
            log.warning("message is put aside still", extra={"fault": str(error)})

    async def _keep(self, batch: Sequence[Incoming]) -> None:
        await self.write(lambda connection: self._kept_in_time(connection, batch))

    def _kept_in_time(self, connection: Connection, batch: Sequence[Incoming]) -> None:
        """Store a batch, unless that takes more work than ``work_seconds``.

        Raises:
            HubStoreSlowError: it does.
        """
        began = time.thread_time()
        keep(connection, batch, self.pinned.refresh(connection))
        if time.thread_time() - began > self.work_seconds:
            words = f"it takes more than {self.work_seconds:g} s of work"
            raise HubStoreSlowError(words)

    async def _prove(self) -> None:
        """Store and remove a message that is known to be good, and commit a value.

        Raises:
            HubStoreAwayError: the store does not accept it.
        """
        try:
            await self.write(try_out)
        except HubStoreAwayError:
            raise
        except HubStoreError as error:
            with self.health.watched(_WRITE):
                raise HubStoreAwayError(f"the store is away ({error})") from error

    async def _keep_halves(self, batch: Sequence[Incoming], why: HubStoreError) -> None:
        if len(batch) > 1:
            middle = len(batch) // 2
            await self.keep(batch[:middle])
            await self.keep(batch[middle:])
            return
        (one,) = batch
        if one.fault is not None:  # refused even as an unreadable message: give up
            log.error("message cannot be kept", extra={"source": one.origin})
        elif not isinstance(why, HubStoreSlowError):
            await self.keep([one.put_aside(_REFUSED)])
        else:
            try:
                await self._keep(batch)
            except HubStoreSlowError:
                log.error(  # noqa: TRY400 - the traceback says nothing more
                    "message is too slow", extra={"source": one.origin}
                )
                await self.write(lambda connection: keep_slow(connection, one))


@asynccontextmanager
async def open_store(
    config: HubConfig,
    longest: float = _LONGEST,
    work_seconds: float = _WORK_SECONDS,
) -> AsyncIterator[Store]:
    """Open the store, and update its schema.

    Args:
        config: the address of the store.
        longest: seconds until a database without an answer counts as away.
        work_seconds: how long a message may take to be stored, without waiting.

    Raises:
        HubStoreAwayError: the database cannot be reached now.
        HubStoreError: the database cannot be used.
    """
    if (path := config.sqlite_file) is not None:
        await asyncio.to_thread(start.examine, path)
    writer, reader = _engines(config)
    count = 1 if writer is not reader else _THREADS
    writing, reading = Pool(count, "hub-writer"), Pool(_THREADS, "hub-reader")
    store = Store(
        writer=writer,
        reader=reader,
        writing=writing,
        reading=reading,
        longest=longest,
        work_seconds=work_seconds,
        place=None if path is None else Place(path),
        pinned=KnownPins(config.keys, config.require_signed),
    )
    try:
        await _migrate(config, writing, writer)
        if store.place is not None:
            await asyncio.to_thread(store.place.hold)
        yield store
    finally:
        for pool in (writing, reading):  # bounded: a hanging database must not block
            await asyncio.to_thread(pool.close, _PATIENCE)
        await asyncio.to_thread(_dispose, writer, reader)
        if store.place is not None:
            await asyncio.to_thread(store.place.release)


async def _migrate(config: HubConfig, threads: Pool, database: Engine) -> None:
    """Update the schema, without a timeout; a file of an older schema is moved aside.

    Raises:
        HubStoreError: the database cannot be used.
    """
    try:
        await _in_thread(threads, database, migrate)
    except HubSchemaError as error:
        path = config.sqlite_file
        if path is None:
            raise
        await asyncio.to_thread(database.dispose)
        await asyncio.to_thread(start.begin_anew, path, error.held)
        await _in_thread(threads, database, migrate)


async def glance(config: HubConfig, work: Callable[[Connection], T]) -> T:
    """Read once from an existing store, without a change of its schema.

    Raises:
        HubStoreError: the store cannot be reached, or does not exist yet.
    """
    path = config.sqlite_file
    if path is not None and not (path.exists() or has_log(path)):
        start.reach(path)
        raise HubStoreError(f"hub.store: there is no {path} yet: a hub makes it")
    if path is not None and (odd := passed_over(path)) in {BAD_LOG, LOG_ALONE}:
        cure = "a hub that starts moves it aside, and keeps what can be read"
        raise HubStoreError(f"hub.store: {path}: {odd}: {cure}")
    writer, reader = _engines(config)
    reading = Pool(1, "hub-glance")
    try:
        return await _in_thread(reading, reader, work)
    finally:
        await asyncio.to_thread(reading.close, _PATIENCE)
        await asyncio.to_thread(_dispose, writer, reader)


async def _in_thread(
    threads: Pool, database: Engine, work: Callable[[Connection], T]
) -> T:
    def run() -> T:
        with engine.store_errors(), database.begin() as connection:
            return work(connection)

    return await asyncio.get_running_loop().run_in_executor(threads, run)


def _engines(config: HubConfig) -> tuple[Engine, Engine]:
    if (path := config.sqlite_file) is not None:
        return (
            engine.open_sqlite(path, writes=True),
            engine.open_sqlite(path, writes=False),
        )
    both = engine.open_postgres(config.store.reveal(), start.tokens_of(config))
    return both, both


def _dispose(*engines: Engine) -> None:
    for one in engines:
        one.dispose()
