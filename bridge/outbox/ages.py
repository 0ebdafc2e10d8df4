"""Reads and saves the running time of each sink, the clock for delivery ages."""

from collections.abc import Callable, Mapping

from msgspec import Struct, field

from bridge.outbox.storage.database import Database
from bridge.outbox.tables import ages


class Ages(Struct):
    """The running times in seconds; ``bridge.outbox.tables.ages`` explains them.

    Attributes:
        clocks: by the sink's name, a function that returns its running time now. For a
            sink without a function, the saved running time counts.
    """

    database: Database
    clocks: dict[str, Callable[[], float]] = field(default_factory=dict)

    def now(self) -> Mapping[str, float]:
        """Return the running time now of each sink in ``clocks``."""
        return {sink: seconds() for sink, seconds in self.clocks.items()}

    async def load(self, sink: str) -> float:
        """Return the saved running time of a sink."""
        return await self.database.read(lambda db: ages.load(db, sink))

    async def save(self, sink: str, seconds: float) -> None:
        """Save the running time of a sink."""
        await self.database.run(lambda db: ages.save(db, sink, seconds), is_kept=False)
