"""The gate: decides whether this VM is in rotation, each time it is asked.

The probe, the announcer and the approvals ask the gate. It uses what is known at that
moment, so that no answer is older than the document.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace
from prometheus_client import Gauge

from bridge.events.build import EventContext, from_bridge
from bridge.events.cloudevent import rfc3339
from bridge.events.data import BridgeData
from bridge.events.document import ScheduledEvent
from bridge.events.identity import Identity
from bridge.events.watch import Moment, Watch
from bridge.foundation.clock import Clock
from bridge.foundation.workers import waking
from bridge.outbox.records import TRAFFIC
from bridge.outbox.store import Outbox
from bridge.traffic.config import TrafficConfig
from bridge.traffic.rotation import Sight, Standing, concerns, encode, next_look, stand


@dataclass(slots=True, kw_only=True)
class Gate:
    """Decides whether this VM is in rotation, and takes it out before an approval.

    Attributes:
        blind_after: after so many seconds without a valid document, IMDS counts as not
            answering.
        watch: returns what is known of the scheduled events.
        me: returns the identity of this VM, as far as known.
        changed: set when the standing has changed.
        standing: the result of the last look.
    """

    config: TrafficConfig
    clock: Clock
    blind_after: float
    watch: Callable[[], Watch]
    me: Callable[[], Identity]
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    standing: Standing = field(init=False)
    _ready: dict[str, tuple[datetime | None, float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.standing = Standing(since=self._now())

    def look(self) -> Standing:
        """Return whether this VM is in rotation now, and why."""
        before = self.standing
        self.standing = stand(before, self._sight(), self.config)
        if self.standing != before:
            self.changed.set()
        return self.standing

    def next_look(self) -> float:
        """Return after how many seconds the standing may change without any news."""
        return next_look(self.standing, self._sight(), self.config)

    def restore(self, standing: Standing | None) -> None:
        """Continue from the standing stored before the restart; None = none stored."""
        self.standing = standing or Standing(since=self._now())

    def leave(self, event: ScheduledEvent, *, settles: bool) -> float:
        """Take this VM out of rotation for an event that will be approved.

        Args:
            event: the event in the document.
            settles: whether the approval waits until the probe has said "out" for the
                time ``settle``.

        Returns:
            How many seconds the approval must still wait.
        """
        if not concerns(event, self.me(), self.config):
            return 0.0
        if event.key not in self.standing.approved:
            approved = (*self.standing.approved, event.key)
            self.standing = replace(self.standing, approved=approved)
        standing = self.look()
        return self._settling(event, standing) if settles else 0.0

    def stay(self, key: str) -> None:
        """Undo ``leave``: the event was not approved after all."""
        self._ready.pop(key, None)
        kept = tuple(one for one in self.standing.approved if one != key)
        self.standing = replace(self.standing, approved=kept)
        self.look()

    def shown(self) -> dict[str, object]:
        """Return the standing in the form that the status and the probe show."""
        standing = self.look()
        if standing.why is None:
            return {"traffic": "in"}
        return {
            "traffic": "out",
            "reason": standing.why.value,
            "eventId": standing.event_id,
            "since": rfc3339(standing.since.at),
        }

    def _settling(self, event: ScheduledEvent, standing: Standing) -> float:
        """Return how long an approval must still wait: at most half of the notice."""
        now, known = self._now(), self.watch().known
        self._ready = {key: one for key, one in self._ready.items() if key in known}
        not_before, until = self._ready.get(event.key, (None, None))
        if until is None or not_before != event.not_before:
            wait = max(0.0, self.config.settle - standing.since.least_elapsed(now))
            if event.not_before is not None:
                notice = (event.not_before - now.at).total_seconds()
                wait = min(wait, max(0.0, notice / 2))
            until = self.clock.monotonic() + wait
            self._ready[event.key] = (event.not_before, until)
        return max(0.0, until - self.clock.monotonic())

    def _sight(self) -> Sight:
        return Sight(
            watch=self.watch(),
            me=self.me(),
            now=self._now(),
            blind_after=self.blind_after,
        )

    def _now(self) -> Moment:
        return Moment(at=self.clock.now(), monotonic=self.clock.monotonic())


# -- The announcer: publishes each change of rotation, and stores the state ------------
#
# The event and the stored state are one commit: a crash leaves both or neither. A
# change that was not published is published after the restart.


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


class Announcer(Struct, kw_only=True):
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
    _kept: bytes | None = None

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
        event_id, context = standing.event_id, self.observer.event_context
        data = BridgeData(
            observed_at=rfc3339(now),
            reporter=context.reporter,
            reason=why and why.value,
            event_id=event_id,
            since=rfc3339(standing.since.at),
        )
        changed = from_bridge(context, f"traffic-{what}", data)
        await self.outbox.commit([changed], now=now.timestamp(), named={TRAFFIC: body})
        log.info(
            "rotation changed",
            extra={"traffic": what, "reason": why and why.value, "eventId": event_id},
        )
