"""Events that are numbered when they are written, in the same transaction."""

from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct, field

from bridge.events.build import OutgoingEvent
from bridge.outbox.storage.connection import Connection
from bridge.outbox.tables import observations


class Numbered(Struct, frozen=True):
    """Events whose ids depend on how often each was published before.

    They are made in the transaction that writes them. If that is done again, for
    example on the disk after it was done in memory, they are still the same.

    Attributes:
        causes: the hash of the cause of each event, in order.
        make: makes the events of how often each cause was published; absent = never.
    """

    causes: Sequence[str]
    make: Callable[[Mapping[str, int]], Sequence[OutgoingEvent]]
    _made: dict[str, Sequence[OutgoingEvent]] = field(default_factory=dict)

    def events(self, db: Connection) -> Sequence[OutgoingEvent]:
        """Return the events, in order."""
        if not self._made:  # two threads may be here, if a disk hangs: one wins
            counts = observations.publish_counts(db, self.causes)
            self._made.setdefault("events", self.make(counts))
        return self._made["events"]
