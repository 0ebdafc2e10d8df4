"""The store, as the rest of the hub uses it: everything blocks in threads of its own.

SQLite       one thread writes, one after the other; others read meanwhile
PostgreSQL   a few threads do either
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from typing import ParamSpec, TypeVar

from sqlalchemy import Connection, Engine

from bridge.foundation.errors import HubStoreAwayError, HubStoreError
from bridge.hub.config import HubConfig
from bridge.hub.store import engine
from bridge.hub.store.intake import Incoming, keep
from bridge.hub.store.migrate import migrate

log = logging.getLogger(__name__)

_THREADS = 4
_PATIENCE = 2.0  # at the end
_REFUSED = "the store refuses what it says"

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Store:
    """What is kept. Made by ``open_store``."""

    writer: Engine
    reader: Engine
    writing: ThreadPoolExecutor
    reading: ThreadPoolExecutor

    @property
    def is_shared(self) -> bool:
        """Whether several hubs may use it."""
        return self.writer.dialect.name == "postgresql"

    async def write(self, work: Callable[[Connection], T]) -> T:
        """Do something in one transaction, and return once it is committed.

        Raises:
            HubStoreAwayError: it may work later; nothing was kept.
            HubStoreError: it never will.
        """

        def run() -> T:
            with engine.store_errors(), self.writer.begin() as connection:
                return work(connection)

        return await asyncio.get_running_loop().run_in_executor(self.writing, run)

    async def read(self, work: Callable[[Connection], T]) -> T:
        """Read, all of it as it was at one moment.

        Raises:
            HubStoreError: as ``write``.
        """

        def run() -> T:
            with engine.store_errors(), self.reader.begin() as connection:
                return work(connection)

        return await asyncio.get_running_loop().run_in_executor(self.reading, run)

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
        await self.keep([replace(one, fact=None, word=None, fault=_REFUSED)])


@asynccontextmanager
async def open_store(config: HubConfig) -> AsyncIterator[Store]:
    """Open the store, and bring its schema up to date.

    Raises:
        HubStoreAwayError: it cannot be reached now.
        HubStoreError: it cannot be used.
    """
    writer, reader = _engines(config)
    count = 1 if writer is not reader else _THREADS
    writing = ThreadPoolExecutor(count, thread_name_prefix="hub-writer")
    reading = ThreadPoolExecutor(_THREADS, thread_name_prefix="hub-reader")
    store = Store(writer, reader, writing, reading)
    try:
        await store.write(migrate)
        yield store
    finally:
        for executor in (writing, reading):
            executor.shutdown(wait=False, cancel_futures=True)
        with suppress(TimeoutError):  # a database that hangs keeps nobody
            async with asyncio.timeout(_PATIENCE):
                await asyncio.to_thread(_finish, writing, reading)
        await asyncio.to_thread(_dispose, writer, reader)


def _engines(config: HubConfig) -> tuple[Engine, Engine]:
    if (path := config.sqlite_file) is not None:
        return (
            engine.open_sqlite(path, writes=True),
            engine.open_sqlite(path, writes=False),
        )
    both = engine.open_postgres(config.store.reveal())
    return both, both


def _finish(*executors: ThreadPoolExecutor) -> None:
    """Wait until what is being done is done: its connection is closed after it."""
    for executor in executors:
        executor.shutdown(wait=True)


def _dispose(*engines: Engine) -> None:
    for one in engines:
        one.dispose()
