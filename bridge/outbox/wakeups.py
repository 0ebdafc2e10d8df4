"""Wakes the relays, and the rules, when there may be work for them."""

import asyncio

from msgspec import Struct, field

from bridge.foundation.clock import Bell


class Wakeups(Struct, frozen=True):
    """One asyncio.Event for each sink; the sink's relay waits for it and clears it.

    Attributes:
        rules: set when a rule may come to a new decision: the document has changed, or
            a command has ended. The auto-approver clears it.
    """

    rules: Bell = field(default_factory=Bell)
    _events: dict[str, asyncio.Event] = field(default_factory=dict)

    def of(self, sink: str) -> asyncio.Event:
        """Return the event that is set when there may be work for ``sink``."""
        return self._events.setdefault(sink, asyncio.Event())

    def wake_all(self) -> None:
        """Wake all relays and the rules: another process has changed something."""
        self.rules.set()
        for event in self._events.values():
            event.set()
