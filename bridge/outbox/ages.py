"""The running time of each sink, by which its deliveries grow older."""

from collections.abc import Callable, Mapping

from msgspec import Struct, field

from bridge.outbox.storage.database import Database
from bridge.outbox.tables import ages


class Ages(Struct):
    """The running times, in seconds. What they are: ``bridge.outbox.tables.ages``.

    Attributes:
        clocks: return the running time of a sink now, by its name. A sink without one
            has the running time that was saved last.
    """

    database: Database
    clocks: dict[str, Callable[[], float]] = field(default_factory=dict)

    def now(self) -> Mapping[str, float]:
        """Return the running time of each sink that has a clock."""
        return {sink: seconds() for sink, seconds in self.clocks.items()}

    async def load(self, sink: str) -> float:
        """Return the running time of a sink as it was saved last."""
        return await self.database.read(lambda db: ages.load(db, sink))

    async def save(self, sink: str, seconds: float) -> None:
        """Save the running time of a sink."""
        await self.database.run(lambda db: ages.save(db, sink, seconds), is_kept=False)
