"""Notices what other processes do to the state file, such as ``sebridge outbox``."""

import os
import sqlite3

from msgspec import Struct

from bridge.outbox.lock import FileId, identity_of, lock_of
from bridge.outbox.storage import meta
from bridge.outbox.storage.database import Database

Stamp = tuple[int, int, FileId | None, FileId | None]


class OtherProcesses(Struct, frozen=True):
    """Detects writes and retry requests of other processes."""

    database: Database

    def stamp(self) -> Stamp | None:
        """Return a value that differs after a write, or after a file was replaced.

        This does not use the thread of the state file: that would cost an idle
        forwarder a third of the CPU of its poll. It does not read the disk either: the
        operating system keeps the attributes of open files in memory.

        Returns:
            Time and size of SQLite's log, and the identities of the state file and of
            its lock file. None = unknown: there is no log, or the disk fails.
        """
        if self.database.is_degraded:
            return None
        path = str(self.database.path)
        try:
            log = os.stat(f"{path}-wal")  # noqa: PTH116 - a Path needs ten calls
        except OSError:
            return None
        return (
            log.st_mtime_ns,
            log.st_size,
            identity_of(path),
            identity_of(lock_of(path)),
        )

    async def data_version(self) -> int:
        """Return a number that changes when another process has written."""
        return await self.database.read(_data_version)

    async def retries(self) -> dict[str | None, int]:
        """Return the number of requested retries by sink; None = for all sinks."""
        return await self.database.read(meta.retries)


def _data_version(db: sqlite3.Connection) -> int:
    version: int = db.execute("PRAGMA data_version").fetchone()[0]
    return version
