"""Keeps what must be renewed to stay ours: the locks of messages, or of a session.

Own work, because the SDK's renewer ends without a word when its receiver dies. Each
lock is renewed thrice in its life as it was when it was taken, by a clock that does
not jump.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime

from bridge.clock import Clock
from bridge.namespace_errors import failures, is_lock_lost

RENEW_SECONDS = 5.0  # for one renewal
_SHORTEST_PERIOD, _LONGEST_PERIOD = 0.5, 20.0

Renew = Callable[[], Awaitable[object]]


@dataclass(slots=True)
class _Lock:
    renew: Renew
    period: float
    due: float


class Locks:
    """Locks by name, and when each is to be renewed."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._locks: dict[str, _Lock] = {}

    def keep(self, name: str, renew: Renew, until: datetime | None) -> None:
        """Renew a lock that ends at ``until`` from now on."""
        life = (until - self._clock.now()).total_seconds() if until else 0.0
        period = min(max(life / 3, _SHORTEST_PERIOD), _LONGEST_PERIOD)
        self.repeat(name, renew, period)

    def repeat(self, name: str, renew: Renew, period: float) -> None:
        """Call ``renew`` every ``period`` seconds from now on."""
        self._locks[name] = _Lock(renew, period, self._clock.monotonic() + period)

    def drop(self, name: str) -> None:
        """Renew a lock no more."""
        self._locks.pop(name, None)

    def clear(self) -> None:
        """Renew nothing any more."""
        self._locks.clear()

    async def renew_due(self) -> list[str]:
        """Renew what is due; return the messages whose lock turned out to be lost.

        Raises:
            Exception: one of ``failures()``: the receiver is of no use any more.
        """
        lost = []
        now = self._clock.monotonic()
        for name, lock in [*self._locks.items()]:
            if lock.due > now:
                continue
            try:
                async with asyncio.timeout(RENEW_SECONDS):
                    await lock.renew()
            except failures() as error:
                if not is_lock_lost(error):
                    raise
                self.drop(name)
                lost.append(name)
            lock.due = self._clock.monotonic() + lock.period
        return lost
