"""The values that a sink saves in the state file for later runs."""

from collections.abc import Mapping

from msgspec import Struct

from bridge.foundation.clock import Clock
from bridge.outbox.storage.database import Database
from bridge.outbox.tables import sink_memory


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
        return await self.database.read(lambda db: sink_memory.all_of(db, self.sink))

    async def recall(self, key: str) -> bytes | None:
        """Return the value of ``key``; None = there is none.

        Raises:
            OutboxError: the state file cannot be read.
        """
        return await self.database.read(lambda db: sink_memory.load(db, self.sink, key))

    async def keep(self, key: str, value: bytes) -> None:
        """Save ``value`` under ``key``, in place of an earlier one.

        Raises:
            OutboxError: it cannot be saved.
        """
        now = self.clock.now().timestamp()
        await self.database.run(
            lambda db: sink_memory.save(db, self.sink, key, value, now)
        )
