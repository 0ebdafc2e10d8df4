"""Notices what other processes do to the state file, such as ``sebridge outbox``."""

import sqlite3
from dataclasses import dataclass
from pathlib import Path

from bridge.outbox.storage.connection import Connection
from bridge.outbox.storage.database import Database
from bridge.outbox.tables import values


@dataclass(frozen=True, slots=True)
class OtherProcesses:
    """Answers whether another process has written, and what it asks for."""

    database: Database

    async def stamp(self) -> tuple[int, int] | None:
        """Return the time and size of SQLite's log, which change with each write.

        It costs no query. None = not known: the file is not there, or the disk fails.
        """
        return await self.database.read(self._stamp)

    def _stamp(self, db: Connection) -> tuple[int, int] | None:
        if not db.is_durable:
            return None  # the disk does not answer; it is not asked
        try:
            found = Path(f"{self.database.keeper.path}-wal").stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size

    async def data_version(self) -> int:
        """Return a number that changes when another process has written."""
        return await self.database.read(_data_version)

    async def retries(self) -> dict[str | None, int]:
        """Return how often a person asked to try a sink at once; None = all sinks."""
        return await self.database.read(values.retries)


def _data_version(db: sqlite3.Connection) -> int:
    version: int = db.execute("PRAGMA data_version").fetchone()[0]
    return version
