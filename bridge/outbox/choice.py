"""Chooses the sinks of events in the transaction that writes the events.

It depends on the sinks that got an earlier event of the same EventId, and another
commit may change these until the transaction begins. A choice made before would have to
be checked in the transaction, and made again. That would cost a further job for each
commit, to save the thread some ten microseconds for each event.
"""

from collections.abc import Set as AbstractSet

from msgspec import Struct, field

from bridge.events.routing import Router, Subject


class Choice(Struct, frozen=True):
    """The sinks of each event of one commit.

    The transaction may be repeated, for example on the disk after it ran in memory. The
    sinks are chosen only the first time. Otherwise a repetition could choose others,
    because the router was replaced meanwhile, or because memory did not know all
    followers. Then the rows would get other ids than in memory, and what was settled by
    its id in memory would settle another delivery on the disk.

    Attributes:
        router: the router at the time of the commit.
    """

    router: Router
    _chosen: dict[int, tuple[str, ...]] = field(default_factory=dict)

    def sinks(
        self, index: int, subject: Subject, following: AbstractSet[str]
    ) -> tuple[str, ...]:
        """Return the sinks of an event.

        Args:
            index: the index of the event in the commit.
            subject: the values of the event, by which the router decides.
            following: the sinks that got an earlier event of the same EventId.
        """
        if index not in self._chosen:  # two threads may get here if a disk hangs
            sinks = self.router.sinks(subject, following)
            self._chosen.setdefault(index, sinks)
        return self._chosen[index]
