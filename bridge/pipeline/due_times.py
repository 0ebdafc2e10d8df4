"""Keeps right, for one sink, when deliveries are due and how old they are."""

from dataclasses import dataclass

from bridge.foundation.clock import Clock
from bridge.outbox.store import Outbox
from bridge.pipeline.circuit import Circuit, RunningTime

_JUMP = 1.0
_KEEP_EVERY = 60.0  # what a crash may take off the age of what is pending


@dataclass(slots=True)
class DueTimes:
    """Follows the clocks on behalf of what is pending for a sink.

    Attributes:
        max_backoff: nothing is due later than that after a start.
        has_pending: whether there is anything that grows older.
    """

    sink: str
    outbox: Outbox
    clock: Clock
    circuit: Circuit
    max_backoff: float
    has_pending: bool = False
    _offset: float | None = None  # of the wall clock to the monotonic one
    _kept_at: float = 0.0

    @property
    def running(self) -> float:
        """The seconds by which deliveries of the sink grow older."""
        return self.circuit.running.at(self.clock.monotonic())

    async def follow(self) -> None:
        """Keep due times right when the wall clock was set back.

        One that was set forward only makes things due sooner; and what was put into
        the outbox after it must not be moved into the future.
        """
        now = self.clock.now().timestamp()
        offset = now - self.clock.monotonic()
        if self._offset is None:
            await self._begin(now)
        elif (back := self._offset - offset) > _JUMP:
            await self.outbox.bring_forward(self.sink, back)
        self._offset = offset

    async def _begin(self, now: float) -> None:
        """Go on where an earlier life ended, whatever the clock was in it."""
        await self.outbox.hasten(self.sink, beyond=now + self.max_backoff, now=now)
        self.circuit.owe_release()  # the sink may be back by now
        seconds = await self.outbox.running(self.sink)
        self.circuit.running = RunningTime(seconds)
        self.circuit.running.run(self.clock.monotonic())
        self._kept_at = self.clock.monotonic()
        self.outbox.ageing[self.sink] = lambda: self.running

    async def keep(self, *, is_last: bool = False) -> None:
        """Keep how long deliveries have grown older: once a minute, and at the end."""
        now = self.clock.monotonic()
        if self.has_pending and (is_last or now >= self._kept_at + _KEEP_EVERY):
            self._kept_at = now
            await self.outbox.keep_running(self.sink, self.running)
