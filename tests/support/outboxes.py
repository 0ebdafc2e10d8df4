"""What tests ask of an outbox that the product asks only within a commit."""

from bridge.outbox.store import Outbox


async def publish_counts(outbox: Outbox, *causes: str) -> dict[str, int]:
    """Return how often an event of each cause was published; absent = never."""
    counts = await outbox.observations.counts(causes)
    return {cause: counts[cause] for cause in causes if counts.get(cause)}
