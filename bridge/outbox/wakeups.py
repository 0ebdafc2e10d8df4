"""Wakes the relays when there may be work for them."""

import asyncio

from msgspec import Struct, field


class Wakeups(Struct, frozen=True):
    """One event for each sink; its relay waits for it and clears it."""

    _events: dict[str, asyncio.Event] = field(default_factory=dict)

    def of(self, sink: str) -> asyncio.Event:
        """Return the event that is set when there may be work for ``sink``."""
        return self._events.setdefault(sink, asyncio.Event())

    def wake_all(self) -> None:
        """Wake all relays: another process has changed something."""
        for event in self._events.values():
            event.set()
