"""Keeps the state file small."""

import sqlite3

from msgspec import Struct

from bridge.outbox.facts import Facts
from bridge.outbox.storage.database import Database
from bridge.outbox.tables import clock_jumps, pruning
from bridge.outbox.tables.pruning import Pruned


class Pruning(Struct, frozen=True):
    """Deletes settled items: old ones, and the oldest if the file is too large."""

    database: Database
    facts: Facts

    async def prune(
        self, *, before: float, now: float, alive: frozenset[str], limit: int = 500
    ) -> int:
        """Delete items that were settled before ``before``; return their number.

        Args:
            before: seconds since the epoch.
            now: seconds since the epoch.
            alive: keys of the EventIds in the document: their records are kept, however
                far in the future these events are scheduled.
            limit: the most items to delete now, so that other jobs do not wait long.
        """

        def job(db: sqlite3.Connection) -> Pruned:
            pruning.recall_from_future(db, now)
            pruning.refresh(db, alive, now)
            clock_jumps.forget(db, before, now)
            written = clock_jumps.written_before(clock_jumps.noted(db), before)
            return pruning.prune(db, written, limit)

        pruned = await self.database.run(job, is_kept=False)
        self.facts.forget(pruned.causes, pruned.keys)
        return pruned.items

    async def shrink(self, *, most: int, limit: int = 500) -> tuple[int, int]:
        """Delete the oldest delivered items while the file is too large.

        Items with pending or dead deliveries are never deleted.

        Args:
            most: the allowed size in bytes.
            limit: the most items to delete now, so that other jobs do not wait long.

        Returns:
            How many items were deleted, and by how many bytes the file is still too
            large.
        """

        def job(db: sqlite3.Connection) -> tuple[int, int]:
            too_many = pruning.size(db) - most
            gone = pruning.drop_oldest(db, limit) if too_many > 0 else 0
            return gone, max(pruning.size(db) - most, 0)

        return await self.database.run(job, is_kept=False)

    async def follow_clock(self, *, by: float, now: float) -> None:
        """Correct the age of all rows after the wall clock was set.

        Args:
            by: how far forward, in seconds; negative = back.
            now: seconds since the epoch, by the clock as it is now.
        """
        await self.database.run(lambda db: clock_jumps.note(db, by, now))
