"""Notices what other processes do to the state file, such as ``sebridge outbox``."""

import os
import sqlite3

from msgspec import Struct

from bridge.outbox.lock import FileId, identity_of, lock_of
from bridge.outbox.storage.database import Database
from bridge.outbox.tables import values

Stamp = tuple[int, int, FileId | None, FileId | None]


class OtherProcesses(Struct, frozen=True):
    """Answers whether another process has written, and what it asks for."""

    database: Database

    def stamp(self) -> Stamp | None:
        """Return what changes with each write, and when a file is removed or replaced.

        It is asked for without the thread of the state file, which would cost an idle
        forwarder a third of the CPU of its poll. The disk is not read for it: the
        operating system keeps in memory what it says of open files.

        Returns:
            Time and size of SQLite's log, and which files the state file and its lock
            are. None = not known: there is no log, or the disk fails.
        """
        if self.database.is_degraded:
            return None
        path = str(self.database.keeper.path)
        try:
            log = os.stat(f"{path}-wal")  # noqa: PTH116 - a Path costs ten calls
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
        """Return how often a person asked to try a sink at once; None = all sinks."""
        return await self.database.read(values.retries)


def _data_version(db: sqlite3.Connection) -> int:
    version: int = db.execute("PRAGMA data_version").fetchone()[0]
    return version
