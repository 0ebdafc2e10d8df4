"""The announcer: publishes each change of rotation, and stores the state.

The event and the stored state are one commit: a crash leaves both or neither. A change
that was not published is published after the restart.
"""

import asyncio
import logging
from dataclasses import dataclass, field
from typing import Protocol

from prometheus_client import Gauge

from bridge.events.build import EventContext, from_bridge, rfc3339
from bridge.foundation.clock import Clock
from bridge.foundation.workers import waking
from bridge.outbox.records import TRAFFIC
from bridge.outbox.store import Outbox
from bridge.traffic.gate import Gate
from bridge.traffic.rotation import Standing, encode

log = logging.getLogger(__name__)

_LOOK_EVERY = 5.0
_LEAST_WAIT = 0.01


class Observer(Protocol):
    """Knows the EventContext."""

    @property
    def event_context(self) -> EventContext:
        """Prefix, source and VM of the events, as far as known."""
        ...

    @property
    def is_waiting(self) -> bool:
        """Whether the identity of this VM is not yet known."""
        ...


@dataclass(slots=True, kw_only=True)
class Announcer:
    """Publishes each change of rotation.

    Attributes:
        gauge: 1 while this VM is in rotation.
        is_told_out: whether the last published state is "out"; before the first event,
            "in".
    """

    gate: Gate
    outbox: Outbox
    observer: Observer
    clock: Clock
    gauge: Gauge
    is_told_out: bool = False
    name: str = "traffic"
    _kept: bytes | None = field(default=None)

    async def run(self, stop: asyncio.Event) -> None:
        """Publish changes until ``stop`` is set."""
        async with waking(stop, self.gate.changed):
            while not stop.is_set():
                self.gate.changed.clear()
                await self.step()
                wait = max(_LEAST_WAIT, min(_LOOK_EVERY, self.gate.next_look()))
                await self.clock.wait(self.gate.changed, wait)

    async def step(self) -> None:
        """Check once, and publish and store a change."""
        standing = self.gate.look()
        self.gauge.set(not standing.is_out)
        is_news = standing.is_out != self.is_told_out and not self.observer.is_waiting
        is_told_out = standing.is_out if is_news else self.is_told_out
        body = encode(standing, is_told_out=is_told_out)
        if is_news:
            await self._publish(standing, body)
        elif body != self._kept:
            await self.outbox.observations.save({TRAFFIC: body})
        self._kept, self.is_told_out = body, is_told_out

    async def _publish(self, standing: Standing, body: bytes) -> None:
        now, why = self.clock.now(), standing.why
        what = "out" if standing.is_out else "in"
        event_id, since = standing.event_id, rfc3339(standing.since.at)
        changed = from_bridge(
            self.observer.event_context,
            f"traffic-{what}",
            observed_at=now,
            reason=why and why.value,
            more={"eventId": event_id, "since": since},
        )
        await self.outbox.commit([changed], now=now.timestamp(), named={TRAFFIC: body})
        log.info(
            "rotation changed",
            extra={"traffic": what, "reason": why and why.value, "eventId": event_id},
        )
