"""How often something may begin. Pure: the time is passed in."""

from dataclasses import dataclass

_SLACK = 0.05


@dataclass(slots=True)
class Pace:
    """Beginnings spread evenly over each second.

    One that comes late is caught up with only where more than twenty a second are
    allowed: clocks do not wake anybody more finely than that.

    Attributes:
        most: beginnings a second, as configured; None = no limit.
        granted: the same, as the other side allows it; the lower one holds.
        opens_at: monotonic seconds from which on the next one may begin.
    """

    most: float | None = None
    granted: float | None = None
    opens_at: float = 0.0

    @property
    def rate(self) -> float | None:
        """Beginnings a second; None = no limit."""
        rates = [rate for rate in (self.most, self.granted) if rate is not None]
        return min(rates, default=None)

    def grant(self, rate: float | None, now: float) -> None:
        """Note what the other side allows, when something has just begun.

        Args:
            rate: beginnings a second; None = any number.
            now: monotonic seconds.
        """
        self.granted = rate
        if rate is not None:
            self.opens_at = max(self.opens_at, now + 1 / rate)

    def take(self, now: float) -> None:
        """Note that something begins at ``now``, in monotonic seconds."""
        if (rate := self.rate) is None:
            return
        gap = 1 / rate
        late = _SLACK if gap < _SLACK else 0.0
        self.opens_at = max(self.opens_at, now - late) + gap
