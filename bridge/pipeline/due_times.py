"""Corrects due times and ages of a sink's deliveries when the clock is set."""

from msgspec import Struct

from bridge.foundation.clock import Clock
from bridge.outbox.store import Outbox
from bridge.pipeline.circuit import Circuit, RunningTime

_JUMP = 1.0
_KEEP_EVERY = 60.0  # after a crash, ages may be too low by this many seconds


class DueTimes(Struct):
    """Follows the clocks for the pending deliveries of a sink.

    Attributes:
        max_backoff: after a start, every delivery is due within so many seconds.
        has_pending: whether any delivery is pending.
    """

    sink: str
    outbox: Outbox
    clock: Clock
    circuit: Circuit
    max_backoff: float
    has_pending: bool = False
    _offset: float | None = None  # wall clock minus monotonic clock
    _kept_at: float = 0.0

    @property
    def running(self) -> float:
        """The running time of the sink in seconds, by which ages are counted."""
        return self.circuit.running.at(self.clock.monotonic())

    async def follow(self) -> None:
        """Move due times back if the wall clock was set back.

        A clock set forward needs no correction: deliveries are only due sooner. Newer
        deliveries must not be moved into the future.
        """
        now = self.clock.now().timestamp()
        offset = now - self.clock.monotonic()
        if self._offset is None:
            await self._begin(now)
        elif (back := self._offset - offset) > _JUMP:
            await self.outbox.deliveries.make_earlier(self.sink, back)
        self._offset = offset

    async def _begin(self, now: float) -> None:
        """Continue after a restart, even if the clock was set in between."""
        await self.outbox.deliveries.make_due(
            self.sink, beyond=now + self.max_backoff, now=now
        )
        self.circuit.owe_release()  # the sink may be back by now
        seconds = await self.outbox.ages.load(self.sink)
        self.circuit.running = RunningTime(seconds)
        self.circuit.running.run(self.clock.monotonic())
        self._kept_at = self.clock.monotonic()
        self.outbox.ages.clocks[self.sink] = lambda: self.running

    async def keep(self, *, is_last: bool = False) -> None:
        """Store the running time: once a minute, and at the end."""
        now = self.clock.monotonic()
        if self.has_pending and (is_last or now >= self._kept_at + _KEEP_EVERY):
            self._kept_at = now
            await self.outbox.ages.save(self.sink, self.running)
