"""What is known of the scheduled events from all documents read so far. Pure.

In the state file it is the checkpoint. Monotonic times are left out there: they mean
nothing after a restart.
"""

from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from bridge.events.document import ScheduledEvent


class Moment(Struct, frozen=True, kw_only=True):
    """A point in time.

    Attributes:
        at: the time of the wall clock, which may be set back or forward.
        monotonic: seconds of the monotonic clock; None if the moment was before the
            last restart of this process.
    """

    at: datetime
    monotonic: float | None

    def elapsed(self, now: "Moment") -> float | None:
        """Return the seconds up to ``now``: the larger value of the two clocks.

        None if the wall clock was set back and the monotonic one does not help.
        """
        wall = (now.at - self.at).total_seconds()
        if self.monotonic is not None and now.monotonic is not None:
            wall = max(wall, now.monotonic - self.monotonic)
        return wall if wall >= 0 else None

    def surely_elapsed(self, now: "Moment") -> float:
        """Return the seconds up to ``now``, by the monotonic clock if possible.

        A jump of the wall clock adds nothing to the monotonic one.
        """
        if self.monotonic is not None and now.monotonic is not None:
            return now.monotonic - self.monotonic
        return (now.at - self.at).total_seconds()

    def least_elapsed(self, now: "Moment") -> float:
        """Return the seconds up to ``now``: the smaller value of the two clocks."""
        wall = (now.at - self.at).total_seconds()
        return min(wall, self.surely_elapsed(now))

    def anchored(self, now: "Moment") -> "Moment":
        """Give a moment from before a restart a time of this process's monotonic clock.

        From ``now`` on, a jump of the wall clock no longer changes the elapsed time.
        """
        if self.monotonic is not None or now.monotonic is None:
            return self
        wall = (now.at - self.at).total_seconds()
        return replace(self, monotonic=now.monotonic - wall)

    def proven(self, now: "Moment") -> "Moment":
        """Return the moment without monotonic time, to be stored for after a restart.

        If the wall clock has jumped forward since, the jump is subtracted.
        """
        added = (now.at - self.at).total_seconds() - self.surely_elapsed(now)
        return Moment(at=self.at + timedelta(seconds=max(added, 0.0)), monotonic=None)

    def of_wall(self) -> "Moment":
        """Return the moment without monotonic time, as it is."""
        return replace(self, monotonic=None)


class Known(Struct, frozen=True, kw_only=True):
    """A scheduled event as it was last seen.

    Attributes:
        announced: True = this bridge saw it as Scheduled; False = this bridge saw it
            first as Started, and missed no document before that; None = not known.
        incarnation: that of the document in which the event was last seen.
        seen: when the event was last seen.
        since: when it was first seen with its present content; None = not known.
        had_started: whether its status is Started, or was before one that is not known.
    """

    event: ScheduledEvent
    announced: bool | None
    incarnation: int | None
    seen: Moment
    since: Moment | None = None
    had_started: bool = False

    def age(self, now: Moment) -> float:
        """Return for how many seconds, at least, the content has not changed."""
        return 0.0 if self.since is None else self.since.least_elapsed(now)


class Fall(Struct, frozen=True, kw_only=True):
    """The incarnation number went down: the VM moved or the service was off."""

    to: int
    seen: Moment


class Watch(Struct, frozen=True, kw_only=True):
    """All that has been observed so far: the content of the checkpoint.

    Attributes:
        incarnation: that of the last document with an incarnation. So a fall is noticed
            even if documents without one came in between.
        known: the events, by key.
        seen: when the last document was read; None = never.
        fall: the last fall of the incarnation, while it matters; else None.
        was_complete: whether every element of the last document was valid.
    """

    incarnation: int | None = None
    known: Mapping[str, Known] = field(default_factory=dict)
    seen: Moment | None = None
    fall: Fall | None = None
    was_complete: bool = True

    def to_json(self, now: Moment | None = None) -> bytes:
        """Write the watch for the state file.

        Args:
            now: the time of writing; None = the time at which the document was read. If
                the wall clock has jumped forward until then, the jump is subtracted, so
                that no event looks older after a restart.
        """
        last = now or self.seen
        plain = replace(
            self,
            seen=self.seen and self.seen.of_wall(),
            fall=self.fall and replace(self.fall, seen=self.fall.seen.of_wall()),
            known={
                key: replace(
                    known,
                    seen=known.seen.of_wall(),
                    since=known.since and known.since.proven(last or known.seen),
                )
                for key, known in self.known.items()
            },
        )
        return msgspec.json.encode(plain)

    @classmethod
    def from_json(cls, body: bytes) -> "Watch":
        """Parse what ``to_json`` wrote.

        Raises:
            msgspec.DecodeError: the bytes were not written by ``to_json``.
        """
        try:
            watch = msgspec.json.decode(body, type=cls)
        except (UnicodeDecodeError, RecursionError) as error:
            fault = "not JSON in UTF-8, or nested too deep"
            raise msgspec.DecodeError(fault) from error
        if any(moment.monotonic is not None for moment in _moments(watch)):
            raise msgspec.DecodeError("has a monotonic time, which is never stored")
        return watch


def _moments(watch: Watch) -> Iterator[Moment]:
    moments = [watch.seen, watch.fall.seen if watch.fall else None]
    for known in watch.known.values():
        moments += [known.seen, known.since]
    return (moment for moment in moments if moment is not None)


def joined(earlier: Watch, present: Watch) -> Watch:
    """Return what two runs know, of which the later one did not know the earlier.

    Whatever only the earlier one knew was last seen by it. So the next document shows
    that it is gone, or that the incarnation went down in between.
    """
    last, number = earlier.incarnation, present.incarnation
    is_lower = number is None or (last is not None and number < last)
    return Watch(
        incarnation=last if is_lower else number,
        known={**earlier.known, **present.known},
        seen=earlier.seen or present.seen,
        fall=present.fall or earlier.fall,
        was_complete=present.was_complete,
    )
