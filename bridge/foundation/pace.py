"""When something may begin, and when it may begin again after a failure.

Pure: times and random numbers are passed in. Times are seconds of the monotonic clock.
"""

from msgspec import Struct

LONGEST_WISH = 3600.0  # a wrong Retry-After must not stop a sink for days
_SLACK = 0.05
_PROBE_EVERY = 1.0


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


class Pause(Struct):
    """A time in which the other side takes nothing: it is full, busy, or throttles.

    Meanwhile an attempt begins once a second at most, to find out whether it is over.
    Several users of one receiver may share a pause.

    Attributes:
        since: when the other side said so last; None = there is no pause.
        opens_at: when the next attempt may begin.
    """

    since: float | None = None
    opens_at: float = 0.0

    def begin(self, now: float) -> None:
        """Record that the other side takes nothing now."""
        self.since = now
        self.opens_at = max(self.opens_at, now + _PROBE_EVERY)

    def take(self, now: float) -> None:
        """Record that an attempt begins."""
        if self.since is not None:
            self.opens_at = now + _PROBE_EVERY

    def holds(self, began: float) -> bool:
        """Return whether an attempt that began then was not meant as a probe."""
        return self.since is not None and began <= self.since

    def end(self, began: float) -> None:
        """End the pause: an attempt that began then was taken.

        The success of an attempt that began before the pause does not end it.
        """
        if self.since is None or began > self.since:
            self.since, self.opens_at = None, 0.0


class RetryPolicy(Struct, frozen=True, kw_only=True):
    """Exponential backoff with full jitter.

    Attributes:
        first: seconds, the upper bound of the wait after the first failure.
        max_backoff: seconds, the upper bound of any wait.

    Source: AWS Architecture Blog, "Exponential Backoff And Jitter" (full jitter).
    """

    first: float = 1.0
    max_backoff: float = 60.0

    def delay(
        self, attempt: int, *, unit: float, retry_after: float | None = None
    ) -> float:
        """Return the seconds to wait after a failed attempt.

        Args:
            attempt: number of the attempt that failed, from 1.
            unit: a random number in [0, 1); passed in so that tests choose it.
            retry_after: the seconds that the other side asks for; used if longer.
        """
        ceiling = min(self.max_backoff, self.first * 2.0 ** min(attempt - 1, 32))
        return max(unit * ceiling, retry_after or 0.0)
