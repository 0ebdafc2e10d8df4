"""The clock of the whole program: no other file reads the time."""

import asyncio
import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """Returns the time, and waits.

    ``now`` is the wall clock, which may be set back or forward. ``monotonic`` never
    goes back; only differences of its values mean something. Every wait in the
    forwarder uses ``wait``.
    """

    def now(self) -> datetime:
        """Return the present time in UTC, with its time zone."""
        ...

    def monotonic(self) -> float:
        """Return seconds since a fixed but unknown time."""
        ...

    async def wait(self, event: asyncio.Event, seconds: float) -> bool:
        """Wait until ``event`` is set (True) or ``seconds`` have passed (False)."""
        ...


class SystemClock:
    """The clock of this machine."""

    def now(self) -> datetime:
        """Return the present time in UTC, with its time zone."""
        return datetime.now(UTC)

    def monotonic(self) -> float:
        """Return seconds since a fixed but unknown time."""
        return time.monotonic()

    async def wait(self, event: asyncio.Event, seconds: float) -> bool:
        """Wait until ``event`` is set (True) or ``seconds`` have passed (False)."""
        try:
            async with asyncio.timeout(max(seconds, 0.0)):
                await event.wait()
        except TimeoutError:
            return event.is_set()
        return True
