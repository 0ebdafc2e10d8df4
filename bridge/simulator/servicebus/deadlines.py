"""Plan actions for a later time, without a timer for each of them.

Pure: the owner asks when the next action is due, and runs the due actions. So a broker
needs only one timer of the event loop, and a test needs none.
"""

import heapq
from collections.abc import Callable
from itertools import count

_COMPACT_ABOVE = 256


class Deadline:
    """One planned action, which can be cancelled."""

    __slots__ = ("_owner", "action", "at")

    def __init__(
        self, owner: "Deadlines", at: float, action: Callable[[], None]
    ) -> None:
        self._owner = owner
        self.at = at
        self.action: Callable[[], None] | None = action

    def cancel(self) -> None:
        """Cancel the action."""
        if self.action is not None:
            self.action = None
            self._owner.forget()


class Deadlines:
    """A heap of deadlines."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Deadline]] = []
        self._serial = count()
        self._cancelled = 0

    def add(self, at: float, action: Callable[[], None]) -> Deadline:
        """Plan an action for the given time."""
        deadline = Deadline(self, at, action)
        heapq.heappush(self._heap, (at, next(self._serial), deadline))
        return deadline

    def next_deadline(self) -> float | None:
        """Return when the next action is due, or None when there is none."""
        while self._heap and self._heap[0][2].action is None:
            heapq.heappop(self._heap)
            self._cancelled -= 1
        return self._heap[0][0] if self._heap else None

    def run_due(self, now: float) -> None:
        """Run all actions due by now, in order of time."""
        while (at := self.next_deadline()) is not None and at <= now:
            deadline = heapq.heappop(self._heap)[2]
            action, deadline.action = deadline.action, None
            if action is not None:
                action()

    def forget(self) -> None:
        """Count a cancelled deadline; remove all of them when they are the majority."""
        self._cancelled += 1
        # When a message is settled, the cancelled deadline of its lock would stay here
        # for the rest of the lock duration, e.g. a minute.
        if self._cancelled > max(_COMPACT_ABOVE, len(self._heap) // 2):
            self._heap = [entry for entry in self._heap if entry[2].action is not None]
            heapq.heapify(self._heap)
            self._cancelled = 0
