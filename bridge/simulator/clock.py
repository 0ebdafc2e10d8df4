"""The clock of IMDS, inbox and Azure Resource Manager; tests pass another one.

The broker under servicebus/ takes a plain callable instead: it never waits.
"""

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    """Returns the time and waits; tests pass a clock that they control."""

    def now(self) -> float:
        """Return seconds since the epoch."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait for ``seconds``."""
        ...


class SystemClock:
    """The clock of this machine."""

    def now(self) -> float:
        """Return seconds since the epoch."""
        return time.time()

    async def sleep(self, seconds: float) -> None:
        """Wait for ``seconds``."""
        await asyncio.sleep(seconds)
