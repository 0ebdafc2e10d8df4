"""What tests ask of an outbox that the product asks only within a transaction."""

from bridge.outbox.store import Outbox
from bridge.outbox.tables import observations


async def publish_counts(outbox: Outbox, *causes: str) -> dict[str, int]:
    """Return how often an event of each cause was published; absent = never."""
    return await outbox.database.read(
        lambda db: observations.published(db, causes, [])[0]
    )
