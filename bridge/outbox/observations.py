"""Reads and saves what was observed and published, and named values."""

from collections.abc import Mapping

from msgspec import Struct

from bridge.outbox.records import Checkpoint
from bridge.outbox.storage.database import Database
from bridge.outbox.tables import observations, values


class Observations(Struct):
    """What the bridge needs to know about its earlier runs.

    Attributes:
        again: keys of the EventIds whose events must be published again from the
            document, because one of these events was damaged before its delivery.
    """

    database: Database
    again: frozenset[str] = frozenset()

    async def load(self, name: str) -> bytes | None:
        """Return the value saved as ``name``; None = not found, b"" = damaged."""
        return await self.database.read(lambda db: values.load(db, name))

    async def save(self, named: Mapping[str, bytes]) -> None:
        """Save values under their names.

        Use it only for values that are saved again from time to time: values saved
        while the disk fails stay in memory, and are not written to the disk later.
        """
        await self.database.run(lambda db: values.save(db, named), is_kept=False)

    async def was_seen(self, key: str) -> bool:
        """Whether an EventId was in a document within the retention."""
        return await self.database.read(lambda db: observations.was_seen(db, key))

    async def load_again(self) -> None:
        """Add to ``again`` the keys that earlier runs have saved."""
        self.again |= await self.database.read(observations.to_publish_again)

    def note(self, checkpoint: Checkpoint) -> None:
        """Remove from ``again`` the keys that a checkpoint has published again."""
        self.again -= checkpoint.again
