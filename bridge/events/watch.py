"""What is known of the document, from all looks at it so far. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from bridge.events.document import ScheduledEvent


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """When something was seen.

    Attributes:
        at: wall time, which may jump.
        monotonic: seconds; None when it was in an earlier life of this process.
    """

    at: datetime
    monotonic: float | None

    def elapsed(self, now: "Moment") -> float | None:
        """Return the seconds up to ``now`` by the longer clock; None = not known."""
        wall = (now.at - self.at).total_seconds()
        if self.monotonic is not None and now.monotonic is not None:
            wall = max(wall, now.monotonic - self.monotonic)
        return wall if wall >= 0 else None

    def surely_elapsed(self, now: "Moment") -> float:
        """Return the seconds up to ``now`` that no jump of the clock has added."""
        if self.monotonic is not None and now.monotonic is not None:
            return now.monotonic - self.monotonic
        return (now.at - self.at).total_seconds()

    def least_elapsed(self, now: "Moment") -> float:
        """Return the seconds up to ``now`` by the shorter clock."""
        wall = (now.at - self.at).total_seconds()
        return min(wall, self.surely_elapsed(now))

    def anchored(self, now: "Moment") -> "Moment":
        """Return a moment of an earlier life with the monotonic time of this one.

        From ``now`` on no jump of the clock adds to what has elapsed since.
        """
        if self.monotonic is not None or now.monotonic is None:
            return self
        wall = (now.at - self.at).total_seconds()
        return replace(self, monotonic=now.monotonic - wall)

    def proven(self, now: "Moment") -> "Moment":
        """Return a moment for a later life, which has only the wall clock to go by.

        What a jump of the clock has added up to ``now`` is taken off.
        """
        added = (now.at - self.at).total_seconds() - self.least_elapsed(now)
        return Moment(at=self.at + timedelta(seconds=added), monotonic=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """An event as it was last seen.

    Attributes:
        announced: True = seen Scheduled here; False = first seen Started without
            a gap; None = not known.
        incarnation: of the document it was last seen in.
        since: when it was first seen as it is now; None = not known.
    """

    event: ScheduledEvent
    announced: bool | None
    incarnation: int | None
    seen: Moment
    since: Moment | None = None

    def age(self, now: Moment) -> float:
        """Return the seconds for which it has surely been as it is now."""
        return 0.0 if self.since is None else self.since.least_elapsed(now)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fall:
    """The incarnation number fell: the VM moved or the service was off."""

    to: int
    seen: Moment


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """All that has been observed so far: what the checkpoint holds.

    Attributes:
        incarnation: the last one that a document had, so that a fall is noticed
            also across documents without one.
    """

    incarnation: int | None = None
    known: Mapping[str, Known] = field(default_factory=dict)
    seen: Moment | None = None
    fall: Fall | None = None
    was_complete: bool = True
