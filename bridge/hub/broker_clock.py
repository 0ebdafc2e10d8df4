"""The time by the broker's clock, as far as the hub's sources show it.

All that the hub compares was stamped by other machines: EnqueuedTime by the broker. So
the hub corrects its own clock by the smallest lag seen, which is that of a message that
was received as soon as it was enqueued. Messages that have waited in a source have a
larger lag, which shows nothing.
"""

import asyncio
from datetime import UTC, datetime, timedelta

from bridge.foundation.clock import Clock

WRONG_SECONDS = 60.0  # a clock that is further off is alarmed
_WINDOW_SECONDS = 600.0  # so long the smallest lag is kept
_STEADY_SECONDS = 30.0  # a busy source is drained if its lag stays the same so long
_SAME_SECONDS = 2.0
_ZERO = datetime(1970, 1, 1, tzinfo=UTC)


class BrokerClock:
    """A clock that shows the broker's time.

    It runs by the monotonic clock from the last correction on, so it does not jump when
    the clock of this machine is set. Before the first message it shows that clock.

    Args:
        clock: the clock of this machine.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._began = clock.monotonic()
        self._bases: list[timedelta | None] = [None, None]
        self._last: timedelta | None = None
        self._steady: tuple[float, timedelta] | None = None

    @property
    def offset(self) -> float:
        """Seconds by which the clock of this machine is ahead of the broker's."""
        return (self._clock.now() - self.now()).total_seconds()

    @property
    def fault(self) -> str | None:
        """What is wrong with the clock of this machine; None = nothing."""
        offset = self.offset
        if abs(offset) <= WRONG_SECONDS:
            return None
        side = "ahead of" if offset > 0 else "behind"
        return f"the clock of this machine is {abs(offset):.0f} s {side} the broker's"

    def now(self) -> datetime:
        """Return the present time by the broker's clock, in UTC."""
        if self._last is None:
            return self._clock.now()
        return _ZERO + self._last + timedelta(seconds=self._clock.monotonic())

    def monotonic(self) -> float:
        """Return seconds since a fixed but unknown time."""
        return self._clock.monotonic()

    async def wait(
        self, event: asyncio.Event, seconds: float, *, slack: float = 0.0
    ) -> bool:
        """Wait until ``event`` is set (True) or ``seconds`` have passed (False)."""
        return await self._clock.wait(event, seconds, slack=slack)

    def note(self, enqueued: datetime, *, is_fresh: bool) -> None:
        """Learn from a message that was just received.

        Args:
            enqueued: when the broker enqueued it.
            is_fresh: whether it came while its source was empty: then it has not
                waited. A message that has waited shows only that the clock is not
                further ahead than its lag.
        """
        monotonic = self._clock.monotonic()
        base = enqueued - _ZERO - timedelta(seconds=monotonic)
        if monotonic - self._began > _WINDOW_SECONDS:
            self._began, self._bases = monotonic, [None, self._bases[0]]
        if is_fresh or self._is_steady(base, monotonic) or enqueued > self.now():
            known = self._bases[0]
            self._bases[0] = base if known is None else max(known, base)
            self._last = max(one for one in self._bases if one is not None)

    def _is_steady(self, base: timedelta, monotonic: float) -> bool:
        """Whether the lag has stayed the same for a while: no backlog does that."""
        same = timedelta(seconds=_SAME_SECONDS)
        if self._steady is None or abs(base - self._steady[1]) > same:
            self._steady = monotonic, base
        return monotonic - self._steady[0] >= _STEADY_SECONDS
