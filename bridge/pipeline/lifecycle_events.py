"""The bridge's own life as events: started, IMDS lost and found, its heartbeats."""

import asyncio
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bridge.events.build import EventContext, OutgoingEvent, from_bridge
from bridge.foundation.clock import Clock
from bridge.imds.poller import Poller
from bridge.outbox.delivery import Delivery
from bridge.outbox.records import REPLIES
from bridge.outbox.store import Outbox
from bridge.pipeline.relay import Relay

_LOOK_EVERY = 5.0
_DISK_PATIENCE = 1.0


@dataclass(slots=True)
class LifecycleEvents:
    """Watches the bridge itself.

    Attributes:
        heartbeat: seconds between heartbeats; 0 = none.
        state_path: whose disk's free space a heartbeat tells.
    """

    outbox: Outbox
    poller: Poller
    relays: Sequence[Relay]
    event_context: EventContext
    clock: Clock
    heartbeat: float
    state_path: Path
    name: str = "vitals"
    _is_unreachable: bool = False
    _beat_at: float = 0.0

    async def run(self, stop: asyncio.Event) -> None:
        """Tell what there is to tell until asked to stop, and then that of the stop.

        The last one is the only event begun after the stop. It is tried once, by each
        relay when what it has in flight is done; otherwise the next life sends it.
        """
        await self.tell("started")
        if self.heartbeat:
            self._beat_at = self.clock.monotonic() + self.heartbeat
        while not stop.is_set():
            await self.step()
            await self.clock.wait(stop, self._wait())
        since = self.clock.now().timestamp()
        event = await self.tell("stopped")
        async with asyncio.TaskGroup() as calls:
            for relay in self.relays:
                calls.create_task(
                    relay.last_call(event, since), name=f"{relay.name}:last"
                )

    async def step(self) -> None:
        """Look once whether something has changed or a heartbeat is due."""
        is_unreachable = self.poller.is_unreachable()
        if is_unreachable != self._is_unreachable:
            self._is_unreachable = is_unreachable
            if is_unreachable:
                await self.tell("imds-unreachable", reason=self.poller.imds_state)
            else:
                await self.tell("imds-recovered")
        if self.heartbeat and self.clock.monotonic() >= self._beat_at:
            self._beat_at = self.clock.monotonic() + self.heartbeat
            await self._beat()

    async def tell(self, what: str, reason: str | None = None) -> str:
        """Put one of the bridge's own events into the outbox; returns its id."""
        now = self.clock.now()
        told = from_bridge(self.event_context, what, observed_at=now, reason=reason)
        await self.outbox.commit([told], now=now.timestamp())
        return told.event.id

    def _wait(self) -> float:
        if not self.heartbeat:
            return _LOOK_EVERY
        return min(_LOOK_EVERY, max(0.0, self._beat_at - self.clock.monotonic()))

    async def _beat(self) -> None:
        tallies = await self.outbox.tallies()
        told = from_bridge(
            self.event_context,
            "heartbeat",
            observed_at=self.clock.now(),
            more={
                "pending": sum(t.pending for n, t in tallies.items() if n != REPLIES),
                "dead": sum(t.dead for n, t in tallies.items() if n != REPLIES),
                **await _free_disk(self.state_path.parent),
            },
        )
        wanted = self.outbox.router.sinks(told.subject, frozenset())
        for relay in self.relays:
            if relay.sink in wanted:
                relay.offer(_unstored(told, relay.sink, self.clock.now().timestamp()))


async def _free_disk(directory: Path) -> dict[str, object]:
    """Return the room on the disk; nothing where it cannot be had just now."""
    try:
        async with asyncio.timeout(_DISK_PATIENCE):  # a disk may hang
            usage = await asyncio.to_thread(shutil.disk_usage, directory)
    except OSError:  # TimeoutError is one
        return {}
    return {"freeDiskBytes": usage.free}


def _unstored(told: OutgoingEvent, sink: str, now: float) -> Delivery:
    return Delivery(
        id=0,
        sink=sink,
        kind="event",
        state="pending",
        key=None,
        event_id=None,
        cloud_event_id=told.event.id,
        type=told.event.type,
        body=told.event.to_json(),
        attempts=0,
        due=now,
        created=now,
        not_before=None,
        urgent_from=None,
        urgent_until=None,
        last_error=None,
    )
