"""The heartbeats of one relay: the only deliveries that are not stored.

A heartbeat says that the bridge is alive now. So only the newest one waits, and a
heartbeat that fails is not tried again.
"""

import asyncio

from msgspec import Struct

from bridge.events.cloudevent import CloudEvent
from bridge.foundation.clock import Clock
from bridge.foundation.rate_limit import Pace
from bridge.outbox.delivery import Delivery, not_stored
from bridge.pipeline.attempt import Trying
from bridge.pipeline.in_flight import Attempt


class HeartbeatSlot(Struct):
    """Holds the latest heartbeat until no stored delivery is more important.

    Attributes:
        sink: the sink's name.
        waiting: the heartbeat; None after its attempt has begun.
    """

    sink: str
    trying: Trying
    pace: Pace
    clock: Clock
    waiting: Delivery | None = None
    _is_in_flight: bool = False

    def offer(self, heartbeat: CloudEvent) -> None:
        """Replace the waiting heartbeat by a newer one."""
        now = self.clock.now().timestamp()
        self.waiting = not_stored(
            self.sink, heartbeat.id, heartbeat.type, heartbeat.to_json(), now
        )

    def begin(self, *, is_idle: bool, is_alone: bool) -> Attempt | None:
        """Begin the attempt at the heartbeat, unless a stored delivery comes first.

        Args:
            is_idle: whether nothing is due and nothing is in flight.
            is_alone: whether, in addition, no delivery is due later.

        Returns:
            The attempt, which the caller passes to ``make``; None if none has begun.
        """
        attempts, circuit = self.trying.attempts, self.trying.circuit
        if self.waiting is None or attempts.taken >= attempts.slots:
            return None
        opens_at = max(circuit.hold_until, self.pace.opens_at)
        if self._is_in_flight or self.clock.monotonic() < opens_at:
            return None
        is_in_trouble = circuit.last_error is not None
        is_first = is_alone if is_in_trouble else is_idle
        if (is_in_trouble or self.pace.rate is not None) and not is_first:
            return None
        beat, self.waiting = attempts.begin(self.waiting), None
        self._is_in_flight = True
        return beat

    async def make(self, beat: Attempt, tasks: asyncio.TaskGroup) -> None:
        """Make the attempt; if it was not sent, it waits again."""
        try:
            await self.trying.beat(beat, tasks)
        finally:
            self._is_in_flight = False
        if beat.is_void and self.waiting is None:
            self.waiting = beat.delivery
