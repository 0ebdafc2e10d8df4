"""Keeps the state file small."""

import sqlite3

from msgspec import Struct

from bridge.outbox.storage.database import Database
from bridge.outbox.tables import clock_jumps, pruning


class Pruning(Struct, frozen=True):
    """Deletes what is settled: what is old, and what is too much."""

    database: Database

    async def prune(
        self, *, before: float, now: float, alive: frozenset[str], limit: int = 500
    ) -> int:
        """Delete what was settled before ``before``; return how many items that were.

        Args:
            before: seconds since the epoch.
            now: seconds since the epoch.
            alive: keys of the EventIds in the document: what is known of them is kept,
                however far ahead they are announced.
            limit: so many items at most, so that no other job waits long.
        """

        def job(db: sqlite3.Connection) -> int:
            pruning.recall_from_future(db, now)
            pruning.refresh(db, alive, now)
            clock_jumps.forget(db, before, now)
            written = clock_jumps.written_before(clock_jumps.noted(db), before)
            return pruning.prune(db, written, limit)

        return await self.database.run(job, is_kept=False)

    async def shrink(self, *, most: int, limit: int = 500) -> tuple[int, int]:
        """Delete the oldest delivered items while the file is too large.

        What is pending or dead is never deleted.

        Args:
            most: bytes.
            limit: so many items at most, so that no other job waits long.

        Returns:
            How many items were deleted, and how many bytes are still too many.
        """

        def job(db: sqlite3.Connection) -> tuple[int, int]:
            too_many = pruning.size(db) - most
            gone = pruning.drop_oldest(db, limit) if too_many > 0 else 0
            return gone, max(pruning.size(db) - most, 0)

        return await self.database.run(job, is_kept=False)

    async def follow_clock(self, *, by: float, now: float) -> None:
        """Keep the age of all rows after the wall clock was set.

        Args:
            by: how far forward, in seconds; negative = back.
            now: seconds since the epoch, by the clock as it is now.
        """
        await self.database.run(lambda db: clock_jumps.note(db, by, now))
