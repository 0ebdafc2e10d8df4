"""What was observed and published, and values that are kept under a name."""

from collections.abc import Mapping

from msgspec import Struct

from bridge.outbox.records import Checkpoint
from bridge.outbox.storage.database import Database
from bridge.outbox.tables import observations, values


class Observations(Struct):
    """What the bridge has to know of its earlier lives.

    Attributes:
        again: keys of the EventIds whose events are to be published again from the
            document, because an event of theirs was damaged before it was delivered.
    """

    database: Database
    again: frozenset[str] = frozenset()

    async def load(self, name: str) -> bytes | None:
        """Return the value kept under ``name``: None if none is, b"" if damaged."""
        return await self.database.read(lambda db: values.load(db, name))

    async def save(self, named: Mapping[str, bytes]) -> None:
        """Keep values under their names.

        It is for values that are renewed now and then: while the disk fails, they are
        kept in memory and not written later.
        """
        await self.database.run(lambda db: values.save(db, named), is_kept=False)

    async def was_seen(self, key: str) -> bool:
        """Whether an EventId was in a document within the retention."""
        return await self.database.read(lambda db: observations.was_seen(db, key))

    async def load_again(self) -> None:
        """Add to ``again`` what earlier lives have left."""
        self.again |= await self.database.read(observations.to_publish_again)

    def note(self, checkpoint: Checkpoint) -> None:
        """Remove from ``again`` what was published with a checkpoint."""
        self.again -= checkpoint.again
