"""Time, as the rest of the house sees it: the only file that reads a clock."""

import asyncio
import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """Says what time it is and waits.

    ``now`` is wall time: it may jump. ``monotonic`` never goes back, and its
    zero means nothing. Every wait in the forwarder goes through ``wait``.
    """

    def now(self) -> datetime:
        """Return the present moment, aware, in UTC."""
        ...

    def monotonic(self) -> float:
        """Return seconds since some fixed moment of this process."""
        ...

    async def wait(self, event: asyncio.Event, seconds: float) -> bool:
        """Wait until ``event`` is set (True) or ``seconds`` have passed (False)."""
        ...


class SystemClock:
    """The clock of this machine."""

    def now(self) -> datetime:
        """Return the present moment, aware, in UTC."""
        return datetime.now(UTC)

    def monotonic(self) -> float:
        """Return seconds since some fixed moment of this process."""
        return time.monotonic()

    async def wait(self, event: asyncio.Event, seconds: float) -> bool:
        """Wait until ``event`` is set (True) or ``seconds`` have passed (False)."""
        try:
            async with asyncio.timeout(max(seconds, 0.0)):
                await event.wait()
        except TimeoutError:
            return event.is_set()
        return True
