"""Time, as the simulator sees it: the only file here that reads a clock.

The broker under servicebus/ takes a bare callable instead: it never waits.
"""

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    """Says what time it is and waits; tests pass one that does neither."""

    def now(self) -> float:
        """Return seconds since the epoch."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Return when so much time has passed."""
        ...


class SystemClock:
    """The clock of this machine."""

    def now(self) -> float:
        """Return seconds since the epoch."""
        return time.time()

    async def sleep(self, seconds: float) -> None:
        """Return when so much time has passed."""
        await asyncio.sleep(seconds)
