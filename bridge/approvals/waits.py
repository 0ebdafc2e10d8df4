"""Waits until an event may be approved; all requests for an EventId share a wait."""

import asyncio
from dataclasses import dataclass, field

from bridge.events.document import ScheduledEvent
from bridge.events.look import Watcher
from bridge.foundation.clock import Clock

_LOOK_AGAIN = 1.0
_LONGEST_WAIT = 60.0  # then decide again: the approval may have expired


@dataclass(frozen=True, slots=True)
class _Wait:
    end: float
    over: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(slots=True)
class Waits:
    """The present waits, by EventId."""

    watcher: Watcher
    clock: Clock
    _running: dict[str, _Wait] = field(default_factory=dict)

    async def wait(self, key: str, seconds: float, stop: asyncio.Event) -> None:
        """Wait for some seconds, but only as long as the event does not change.

        If a wait for the same event is running and ends no later, join it.
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
