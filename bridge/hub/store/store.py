"""The store, as the rest of the hub uses it: everything blocks in threads of its own.

SQLite       one thread writes, one after the other; others read meanwhile
PostgreSQL   a few threads do either

A database that neither answers nor breaks the connection (it is frozen, or its disk
hangs) counts as away after a while. What it was asked may still be kept later: whoever
asks has to bear that, as after an answer that was lost.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import ParamSpec, TypeVar

from sqlalchemy import Connection, Engine

from bridge.foundation.daemon_threads import Pool
from bridge.foundation.errors import HubStoreAwayError, HubStoreError
from bridge.hub.config import HubConfig
from bridge.hub.store import engine
from bridge.hub.store.intake import Incoming, keep
from bridge.hub.store.migrate import migrate

log = logging.getLogger(__name__)

_THREADS = 4
_LONGEST = 20.0  # longer than the database itself lets a statement take
_PATIENCE = 2.0  # at the end
_REFUSED = "the store refuses what it says"

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Store:
    """What is kept. Made by ``open_store``.

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
        """Do something in one transaction, and return once it is committed.

        Raises:
            HubStoreAwayError: it may work later; whether it was kept is not known.
            HubStoreError: it never will.
        """
        return await self._patiently(self.writing, self.writer, work)

    async def read(self, work: Callable[[Connection], T]) -> T:
        """Read, all of it as it was at one moment.

        Raises:
            HubStoreError: as ``write``.
        """
        return await self._patiently(self.reading, self.reader, work)

    async def _patiently(
        self, threads: Pool, database: Engine, work: Callable[[Connection], T]
    ) -> T:
        """Do something in a thread; what nobody waits for any more is not begun."""
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
        """Keep what messages say; return once all of it is committed.

        What the store will never take is found by halves, and kept as unreadable.

        Raises:
            HubStoreAwayError: nothing of it may count as kept.
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
        if one.fault is not None:  # not even as such: there is nothing left to do
            log.error("message cannot be kept", extra={"source": one.origin})
            return
        await self.keep([replace(one, fact=None, report=None, fault=_REFUSED)])


@asynccontextmanager
async def open_store(
    config: HubConfig, longest: float = _LONGEST
) -> AsyncIterator[Store]:
    """Open the store, and bring its schema up to date.

    Args:
        config: where it is.
        longest: seconds until a database without an answer counts as away.

    Raises:
        HubStoreAwayError: it cannot be reached now.
        HubStoreError: it cannot be used.
    """
    writer, reader = _engines(config)
    count = 1 if writer is not reader else _THREADS
    writing, reading = Pool(count, "hub-writer"), Pool(_THREADS, "hub-reader")
    store = Store(writer, reader, writing, reading, longest=longest)
    try:
        await _in_thread(writing, writer, migrate)  # takes as long as it takes
        yield store
    finally:
        for pool in (writing, reading):  # a database that hangs keeps nobody
            await asyncio.to_thread(pool.close, _PATIENCE)
        await asyncio.to_thread(_dispose, writer, reader)


async def glance(config: HubConfig, work: Callable[[Connection], T]) -> T:
    """Read once from a store that a hub has made; its schema is left as it is.

    Raises:
        HubStoreError: it cannot be reached, or it is not there yet.
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
