"""The announcer: tells of each change of rotation, and keeps it in the state file.

The event and what is kept of it are one commit: a crash leaves both or neither, and the
next life tells what was not told.
"""

import asyncio
import logging
from dataclasses import dataclass, field
from typing import Protocol

from bridge.events.build import EventContext, from_bridge, rfc3339
from bridge.foundation.clock import Clock
from bridge.foundation.workers import waking
from bridge.outbox.records import TRAFFIC
from bridge.outbox.store import Outbox
from bridge.telemetry.counters import Level
from bridge.traffic.gate import Gate
from bridge.traffic.rotation import Standing, encode

log = logging.getLogger(__name__)

_LOOK_EVERY = 5.0
_LEAST_WAIT = 0.01


class Observer(Protocol):
    """Whoever knows who tells."""

    @property
    def event_context(self) -> EventContext:
        """Who tells, as far as it is known."""
        ...

    @property
    def is_waiting(self) -> bool:
        """Whether it is not known yet who this VM is."""
        ...


@dataclass(slots=True, kw_only=True)
class Announcer:
    """Tells of each change.

    Attributes:
        gauge: 1 while this VM is in rotation.
        is_told_out: whether the last thing told, or the silence before, is that it is
            out.
    """

    gate: Gate
    outbox: Outbox
    observer: Observer
    clock: Clock
    gauge: Level
    is_told_out: bool = False
    name: str = "traffic"
    _kept: bytes | None = field(default=None)

    async def run(self, stop: asyncio.Event) -> None:
        """Tell of changes until asked to stop."""
        async with waking(stop, self.gate.changed):
            while not stop.is_set():
                self.gate.changed.clear()
                await self.step()
                wait = max(_LEAST_WAIT, min(_LOOK_EVERY, self.gate.next_look()))
                await self.clock.wait(self.gate.changed, wait)

    async def step(self) -> None:
        """Look once, and tell and keep what has changed."""
        standing = self.gate.look()
        self.gauge.set(not standing.is_out)
        is_news = standing.is_out != self.is_told_out and not self.observer.is_waiting
        is_told_out = standing.is_out if is_news else self.is_told_out
        body = encode(standing, is_told_out=is_told_out)
        if is_news:
            await self._tell(standing, body)
        elif body != self._kept:
            await self.outbox.save({TRAFFIC: body})
        self._kept, self.is_told_out = body, is_told_out

    async def _tell(self, standing: Standing, body: bytes) -> None:
        now, why = self.clock.now(), standing.why
        what = "out" if standing.is_out else "in"
        event_id, since = standing.event_id, rfc3339(standing.since.at)
        told = from_bridge(
            self.observer.event_context,
            f"traffic-{what}",
            observed_at=now,
            reason=why and why.value,
            more={"eventId": event_id, "since": since},
        )
        await self.outbox.commit([told], now=now.timestamp(), values={TRAFFIC: body})
        log.info(
            "rotation changed",
            extra={"traffic": what, "reason": why and why.value, "eventId": event_id},
        )
