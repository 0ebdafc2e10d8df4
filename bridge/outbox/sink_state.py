"""The values that a sink saves in the state file for later runs."""

import sqlite3
from collections.abc import Mapping

from msgspec import Struct

from bridge.foundation.clock import Clock
from bridge.outbox.storage.database import Database


class SinkMemory(Struct, frozen=True):
    """The values of one sink; see ``bridge.sinks.base.Memory``.

    Attributes:
        database: the state file.
        sink: the sink's name.
        clock: gives the time of saving, by which a value is pruned later.
    """

    database: Database
    sink: str
    clock: Clock

    async def all(self) -> Mapping[str, bytes]:
        """Return all values by their keys.

        Raises:
            OutboxError: the state file cannot be read.
        """

        def job(db: sqlite3.Connection) -> dict[str, bytes]:
            query = "SELECT key, value FROM sink_memory WHERE sink = ?"
            return dict(db.execute(query, (self.sink,)))

        return await self.database.read(job)

    async def recall(self, key: str) -> bytes | None:
        """Return the value of ``key``; None = there is none.

        Raises:
            OutboxError: the state file cannot be read.
        """

        def job(db: sqlite3.Connection) -> bytes | None:
            query = "SELECT value FROM sink_memory WHERE sink = ? AND key = ?"
            row = db.execute(query, (self.sink, key)).fetchone()
            return None if row is None else row[0]

        return await self.database.read(job)

    async def keep(self, key: str, value: bytes) -> None:
        """Save ``value`` under ``key``, in place of an earlier one.

        Raises:
            OutboxError: it cannot be saved.
        """
        row = (self.sink, key, value, self.clock.now().timestamp())

        def job(db: sqlite3.Connection) -> None:
            db.execute(
                """INSERT OR REPLACE INTO sink_memory (sink, key, value, at)
                   VALUES (?, ?, ?, ?)""",
                row,
            )

        await self.database.run(job)
