"""Waits for the time of an event: one wait for all approvals of one EventId."""

import asyncio
from dataclasses import dataclass, field

from bridge.events.document import ScheduledEvent
from bridge.events.look import Watcher
from bridge.foundation.clock import Clock

_LOOK_AGAIN = 1.0
_LONGEST_WAIT = 60.0  # so that what expires meanwhile is told in time


@dataclass(frozen=True, slots=True)
class _Wait:
    end: float
    over: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(slots=True)
class Waits:
    """The waits that run now, by EventId."""

    watcher: Watcher
    clock: Clock
    _running: dict[str, _Wait] = field(default_factory=dict)

    async def wait(self, key: str, seconds: float, stop: asyncio.Event) -> None:
        """Wait; but no longer than the event is known as it was just now.

        Whoever waits for the same event already is joined, if that wait is no longer.
        """
        end = self.clock.monotonic() + min(seconds, _LONGEST_WAIT)
        running = self._running.get(key)
        if running is not None and running.end <= end:
            await running.over.wait()
            return
        own = self._running[key] = _Wait(end)
        try:
            await self._until(own.end, key, stop)
        finally:
            if self._running.get(key) is own:
                del self._running[key]
            own.over.set()

    async def _until(self, end: float, key: str, stop: asyncio.Event) -> None:
        shown = self._shown(key)
        while (left := end - self.clock.monotonic()) > 0 and self._shown(key) == shown:
            if await self.clock.wait(stop, min(left, _LOOK_AGAIN)):
                return

    def _shown(self, key: str) -> ScheduledEvent | None:
        known = self.watcher.watch.known.get(key)
        return known.event if known else None
