"""Limits how often something may begin. Pure: the time is passed in."""

from msgspec import Struct

_SLACK = 0.05


class Pace(Struct):
    """A rate limit that spreads the beginnings evenly over each second.

    Above twenty a second, the gap after a late beginning may be shorter: timers are not
    exact enough for such short gaps.

    Attributes:
        most: beginnings per second, as configured; None = no limit.
        granted: beginnings per second, as the other side allows; None = no limit. The
            lower of both holds.
        opens_at: when the next one may begin, in seconds of the monotonic clock.
    """

    most: float | None = None
    granted: float | None = None
    opens_at: float = 0.0

    @property
    def rate(self) -> float | None:
        """Beginnings per second; None = no limit."""
        if self.most is None or self.granted is None:
            return self.granted if self.most is None else self.most
        return min(self.most, self.granted)

    def grant(self, rate: float | None, now: float) -> None:
        """Record the rate that the other side allows. Something has just begun.

        Args:
            rate: beginnings per second; None = any number.
            now: monotonic seconds.
        """
        self.granted = rate
        if rate is not None:
            self.opens_at = max(self.opens_at, now + 1 / rate)

    def take(self, now: float) -> None:
        """Record that something begins at ``now``, in monotonic seconds."""
        if (rate := self.rate) is None:
            return
        gap = 1 / rate
        late = _SLACK if gap < _SLACK else 0.0
        self.opens_at = max(self.opens_at, now - late) + gap
