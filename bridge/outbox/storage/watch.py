"""Watches whether the jobs of the state file are answered."""

import asyncio
import math
import time
from collections.abc import Callable
from typing import Any

from msgspec import Struct, field

from bridge.outbox.storage.timings import Timings
from bridge.outbox.storage.transactions import Result, Ticket

_LEAST_WAIT = 0.01


class Watch(Struct):
    """The futures of all waiting jobs, and a timer while there are any.

    Attributes:
        timings: the limits; may be replaced while jobs wait.
        look: called when no answer has come for ``patience``; returns for how many
            seconds the disk has not answered, or None if it has nothing to do.
        loop: where the timer runs.
    """

    timings: Timings
    look: Callable[[], float | None]
    loop: asyncio.AbstractEventLoop
    _waiting: set[asyncio.Future[Any]] = field(default_factory=set)
    _answered_at: float = 0.0  # monotonic
    _timer: asyncio.TimerHandle | None = None
    _timer_at: float = 0.0  # by the loop's clock

    @property
    def is_answering(self) -> bool:
        """Whether no job waits, or some job was answered within ``silence``."""
        silent = time.monotonic() - self._answered_at
        return not self._waiting or silent < self.timings.silence

    def add(self, future: asyncio.Future[Any]) -> None:
        """Watch a future until it has its result."""
        if not self._waiting:
            self._answered_at = time.monotonic()
        if self._timer is None:
            self._look_in(self.timings.patience)
        self._waiting.add(future)

    def discard(self, future: asyncio.Future[Any]) -> None:
        """Watch a future no longer."""
        self._waiting.discard(future)

    def settle(self, group: list[Ticket], results: list[Result]) -> None:
        """Set the results of jobs in the futures of their callers."""
        for ticket, (result, fault) in zip(group, results, strict=True):
            ticket.settle(result, fault)
            self._waiting.discard(ticket.future)
        self._answered_at = time.monotonic()
        if not self._waiting and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def fail(self, error: Exception) -> None:
        """Fail all waiting jobs with an error."""
        for future in self._waiting:
            if not future.done():
                future.set_exception(error)
        self._waiting.clear()

    def _look_in(self, seconds: float) -> None:
        if self.timings.patience != math.inf:
            self._timer_at = self.loop.time() + seconds
            self._timer = self.loop.call_at(self._timer_at, self._look)

    def _look(self) -> None:
        self._timer = None
        if not self._waiting:
            return
        patience = self.timings.patience
        if self.loop.time() - self._timer_at > self.timings.standstill:
            self._look_in(patience)
            return
        waits = self.look() or 0.0
        self._look_in(max(patience - waits, _LEAST_WAIT))
