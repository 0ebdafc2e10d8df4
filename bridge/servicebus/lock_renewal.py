"""Keeps what must be renewed to stay ours: the locks of messages, or of a session.

Own work, because the SDK's renewer ends without a word when its receiver dies. Each
lock is renewed thrice in its life as it was when it was taken, by a clock that does
not jump. How long that is, only the broker's end of it tells: a machine whose own
clock is wrong renews more often than it needs to.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime

from bridge.foundation.clock import Clock
from bridge.servicebus.errors import failures, is_lock_lost

RENEW_SECONDS = 5.0  # for one renewal
_AT_ONCE = 20  # renewals before whoever wants to settle may go
_LEAST_RENEW_SECONDS = 2.0  # the first one opens a link
_SHORTEST_PERIOD, _LONGEST_PERIOD = 0.5, 20.0
_SHORTEST_LIFE, _LONGEST_LIFE = 5.0, 300.0  # what Service Bus lets be configured
_UNKNOWN_LIFE = 20.0  # a try costs a connection, and too late a try an approval

Renew = Callable[[], Awaitable[object]]


@dataclass(slots=True)
class LockTime:
    """How long a session of one entity stays locked: the same for all of them.

    Attributes:
        seconds: None until a session of the entity was had.
    """

    seconds: float | None = None

    @property
    def quarter(self) -> float:
        """Seconds until a session that is held elsewhere is asked for again."""
        return (self.seconds or _UNKNOWN_LIFE) / 4


@dataclass(slots=True)
class _Lock:
    renew: Renew
    life: float
    period: float
    renewed: float

    @property
    def due(self) -> float:
        return self.renewed + self.period


class Locks:
    """Locks by name, and when each is to be renewed."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._locks: dict[str, _Lock] = {}

    def keep(self, name: str, renew: Renew, until: datetime | None) -> float:
        """Renew a lock that ends at ``until`` from now on; return its seconds."""
        life = (until - self._clock.now()).total_seconds() if until else 0.0
        if not 0 < life <= _LONGEST_LIFE:
            life = _SHORTEST_LIFE
        period = min(max(life / 3, _SHORTEST_PERIOD), _LONGEST_PERIOD)
        self._locks[name] = _Lock(renew, life, period, self._clock.monotonic())
        return life

    def repeat(self, name: str, renew: Renew, period: float) -> None:
        """Call ``renew`` every ``period`` seconds from now on."""
        self._locks[name] = _Lock(renew, math.inf, period, self._clock.monotonic())

    def has_lapsed(self, name: str) -> bool:
        """Whether a lock was not renewed for longer than it lasts."""
        lock = self._locks.get(name)
        return lock is not None and self._clock.monotonic() > lock.renewed + lock.life

    def drop(self, name: str) -> None:
        """Renew a lock no more."""
        self._locks.pop(name, None)

    def clear(self) -> None:
        """Renew nothing any more."""
        self._locks.clear()

    @property
    def are_due(self) -> bool:
        """Whether a lock is to be renewed now."""
        now = self._clock.monotonic()
        return any(lock.due <= now for lock in self._locks.values())

    async def renew_due(self) -> list[str]:
        """Renew some of what is due, what is due longest first.

        Returns:
            The messages whose lock turned out to be lost.

        Raises:
            Exception: one of ``failures()``: the receiver is of no use any more.
        """
        lost = []
        now = self._clock.monotonic()
        due = [item for item in self._locks.items() if item[1].due <= now]
        due.sort(key=lambda item: item[1].due)
        for name, lock in due[:_AT_ONCE]:
            try:
                async with asyncio.timeout(_patience(lock)):
                    await lock.renew()
            except failures() as error:
                if not is_lock_lost(error):
                    raise
                self.drop(name)
                lost.append(name)
            lock.renewed = self._clock.monotonic()
        return lost


def _patience(lock: _Lock) -> float:
    """Return the seconds for one renewal: a short lock leaves time for few."""
    return min(RENEW_SECONDS, max(lock.period, _LEAST_RENEW_SECONDS))
