"""Events whose ids are made in the transaction that writes the events."""

from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct, field

from bridge.events.build import OutgoingEvent
from bridge.outbox.storage.connection import Connection
from bridge.outbox.tables import observations


class Numbered(Struct, frozen=True):
    """Events whose ids depend on how often each was published before.

    The transaction may be repeated, for example on the disk after it ran in memory. The
    events are made only the first time, so they stay the same.

    Attributes:
        causes: the hash of the cause of each event, in order.
        make: makes the events. Its argument says how often each cause was published; a
            cause that is absent was never published.
    """

    causes: Sequence[str]
    make: Callable[[Mapping[str, int]], Sequence[OutgoingEvent]]
    _made: dict[str, Sequence[OutgoingEvent]] = field(default_factory=dict)

    def events(self, db: Connection) -> Sequence[OutgoingEvent]:
        """Return the events, in order."""
        if not self._made:  # two threads may get here if a disk hangs: one wins
            counts = observations.publish_counts(db, self.causes)
            self._made.setdefault("events", self.make(counts))
        return self._made["events"]
