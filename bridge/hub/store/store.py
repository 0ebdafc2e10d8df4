"""The interface of the store for the rest of the hub; SQL runs in threads of its own.

SQLite       one thread writes; others read at the same time
PostgreSQL   four threads write, four threads read

A database that neither answers nor breaks the connection (it is frozen, or its disk
hangs) counts as away after ``longest`` seconds. Its transaction may still commit later,
so callers must be able to repeat it, as after a lost answer.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import ParamSpec, TypeVar

from sqlalchemy import Connection, Engine

from bridge.foundation.daemon_threads import Pool
from bridge.foundation.errors import (
    HubSchemaError,
    HubStoreAwayError,
    HubStoreError,
)
from bridge.hub.config import HubConfig
from bridge.hub.store import engine, sqlite_file
from bridge.hub.store.intake import Incoming, keep
from bridge.hub.store.migrate import migrate

log = logging.getLogger(__name__)

_THREADS = 4
_LONGEST = 20.0  # longer than the statement timeout of the database
_PATIENCE = 2.0  # seconds to wait for the threads when the store closes
_REFUSED = "the store refuses what it says"

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Store:
    """An open store. Created by ``open_store``.

    Attributes:
        longest: seconds until a database without an answer counts as away.
    """

    writer: Engine
    reader: Engine
    writing: Pool
    reading: Pool
    longest: float = field(default=_LONGEST, kw_only=True)

    @property
    def is_shared(self) -> bool:
        """Whether several hubs may use it."""
        return self.writer.dialect.name == "postgresql"

    async def write(self, work: Callable[[Connection], T]) -> T:
        """Run a function in one transaction; returns after the commit.

        Raises:
            HubStoreAwayError: it may succeed later; whether it was committed is not
                known.
            HubStoreError: it will never succeed.
        """
        return await self._patiently(self.writing, self.writer, work)

    async def read(self, work: Callable[[Connection], T]) -> T:
        """Run a function that only reads, in one transaction.

        Raises:
            HubStoreError: as ``write``.
        """
        return await self._patiently(self.reading, self.reader, work)

    async def _patiently(
        self, threads: Pool, database: Engine, work: Callable[[Connection], T]
    ) -> T:
        """Run a function in a thread, with a timeout.

        After a timeout, work that still waits for a thread is cancelled.
        """
        limit = asyncio.timeout(self.longest)
        try:
            async with limit:
                return await _in_thread(threads, database, work)
        except TimeoutError as error:
            if not limit.expired():
                raise
            words = f"the store is away (no answer for {self.longest:g} s)"
            raise HubStoreAwayError(words) from error

    async def keep(self, batch: Sequence[Incoming]) -> None:
        """Store a batch of messages; returns after all of them are committed.

        If the store refuses the batch, it is split in halves until the bad message is
        found; that message is stored as unreadable.

        Raises:
            HubStoreAwayError: no message of the batch counts as stored.
        """
        try:
            await self.write(lambda connection: keep(connection, batch))
        except HubStoreAwayError:
            raise
        except HubStoreError:
            await self._keep_halves(batch)

    async def _keep_halves(self, batch: Sequence[Incoming]) -> None:
        if len(batch) > 1:
            middle = len(batch) // 2
            await self.keep(batch[:middle])
            await self.keep(batch[middle:])
            return
        (one,) = batch
        if one.fault is not None:  # refused even as an unreadable message: give up
            log.error("message cannot be kept", extra={"source": one.origin})
            return
        await self.keep([replace(one, fact=None, report=None, fault=_REFUSED)])


@asynccontextmanager
async def open_store(
    config: HubConfig, longest: float = _LONGEST
) -> AsyncIterator[Store]:
    """Open the store, and update its schema.

    Args:
        config: the address of the store.
        longest: seconds until a database without an answer counts as away.

    Raises:
        HubStoreAwayError: the database cannot be reached now.
        HubStoreError: the database cannot be used.
    """
    writer, reader = _engines(config)
    count = 1 if writer is not reader else _THREADS
    writing, reading = Pool(count, "hub-writer"), Pool(_THREADS, "hub-reader")
    store = Store(writer, reader, writing, reading, longest=longest)
    try:
        await _migrate(config, writing, writer)
        yield store
    finally:
        for pool in (writing, reading):  # bounded: a hanging database must not block
            await asyncio.to_thread(pool.close, _PATIENCE)
        await asyncio.to_thread(_dispose, writer, reader)


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
        await asyncio.to_thread(sqlite_file.begin_anew, path, error.held)
        await _in_thread(threads, database, migrate)


async def glance(config: HubConfig, work: Callable[[Connection], T]) -> T:
    """Read once from an existing store, without a change of its schema.

    Raises:
        HubStoreError: the store cannot be reached, or does not exist yet.
    """
    path = config.sqlite_file
    if path is not None and not path.exists():
        raise HubStoreError(f"hub.store: there is no {path} yet: a hub makes it")
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
    both = engine.open_postgres(config.store.reveal())
    return both, both


def _dispose(*engines: Engine) -> None:
    for one in engines:
        one.dispose()
