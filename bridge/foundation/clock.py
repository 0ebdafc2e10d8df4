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

    async def wait(
        self, event: asyncio.Event, seconds: float, *, slack: float = 0.0
    ) -> bool:
        """Wait until ``event`` is set (True) or ``seconds`` have passed (False).

        Args:
            event: ends the wait.
            seconds: the longest wait.
            slack: how many seconds earlier the wait may end, together with another
                one: each time that the process need not wake up saves CPU.
        """
        ...


class SystemClock:
    """The clock of this machine."""

    def __init__(self) -> None:
        self._patient: dict[asyncio.Timeout, float] = {}  # from when on they may end

    def now(self) -> datetime:
        """Return the present time in UTC, with its time zone."""
        return datetime.now(UTC)

    def monotonic(self) -> float:
        """Return seconds since a fixed but unknown time."""
        return time.monotonic()

    async def wait(
        self, event: asyncio.Event, seconds: float, *, slack: float = 0.0
    ) -> bool:
        """Wait until ``event`` is set (True) or ``seconds`` have passed (False).

        Waits with ``slack`` end as soon as a wait without it has ended by its time.
        """
        try:
            async with asyncio.timeout(max(seconds, 0.0)) as limit:
                if slack:
                    self._patient[limit] = time.monotonic() + seconds - slack
                await event.wait()
        except TimeoutError:
            if not slack:
                self._end_patient()
            return event.is_set()
        finally:
            self._patient.pop(limit, None)
        return True

    def _end_patient(self) -> None:
        """End the waits that may end now."""
        now = time.monotonic()
        for limit, earliest in self._patient.items():
            if earliest <= now:
                limit.reschedule(0.0)
