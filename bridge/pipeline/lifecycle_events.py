"""Publishes bridge.* events: started, stopped, IMDS unreachable or back, heartbeats."""

import asyncio
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from bridge.events.build import EventContext, from_bridge
from bridge.events.cloudevent import rfc3339
from bridge.events.data import BridgeData
from bridge.foundation.clock import Clock, ReferenceClock
from bridge.imds.poller import Poller
from bridge.outbox.records import REPLIES
from bridge.outbox.store import Outbox
from bridge.pipeline.relay import Relay
from bridge.signing.own_key import EventSigner

_LOOK_EVERY, _SLACK = 5.5, 1.0  # about every 5 s, together with a poll of IMDS
_TERMS_EVERY = 86400.0  # so a hub that begins later learns the offer
_DISK_PATIENCE = 1.0


class LifecycleEvents(Struct):
    """Publishes the events about the bridge itself.

    Attributes:
        heartbeat: seconds between heartbeats; 0 = none.
        state_path: the state file; a heartbeat reports the free space of its disk.
        offer: where this bridge takes approvals, and by which rules it approves; None =
            it takes none.
        signer: signs the events; None = they are not signed.
    """

    outbox: Outbox
    poller: Poller
    relays: Sequence[Relay]
    event_context: EventContext
    clock: Clock
    heartbeat: float
    state_path: Path
    offer: Mapping[str, object] | None = None
    signer: EventSigner | None = None
    name: str = "vitals"
    _is_unreachable: bool = False
    _beat_at: float = 0.0
    _terms_at: float = 0.0
    _told: float = 0.0  # the pauses that events have told of, in seconds

    async def run(self, stop: asyncio.Event) -> None:
        """Publish bridge.* events until ``stop`` is set, and then bridge.stopped.

        bridge.stopped is the only event whose attempt begins after the stop. Each relay
        tries it once, after its attempts in flight have ended. If that fails, it is
        sent after the next start.
        """
        self._terms_at = self.clock.monotonic() + _TERMS_EVERY
        await self._publish("started", self._with_terms(self._data()))
        if self.heartbeat:
            self._beat_at = self.clock.monotonic() + self.heartbeat
        while not stop.is_set():
            await self.step()
            await self._pause(stop)
        since = self.clock.now().timestamp()
        event = await self.publish("stopped")
        async with asyncio.TaskGroup() as calls:
            for relay in self.relays:
                calls.create_task(
                    relay.last_call(event, since), name=f"{relay.name}:last"
                )

    async def step(self) -> None:
        """Check once whether IMDS was lost or is back, or a heartbeat is due."""
        is_unreachable = self.poller.is_unreachable()
        if is_unreachable != self._is_unreachable:
            self._is_unreachable = is_unreachable
            what = "imds-unreachable" if is_unreachable else "imds-recovered"
            reason = self.poller.imds_state if is_unreachable else None
            await self.publish(what, reason)
        if self.heartbeat and self.clock.monotonic() >= self._beat_at:
            self._beat_at = self.clock.monotonic() + self.heartbeat
            await self._beat()

    async def publish(self, what: str, reason: str | None = None) -> str:
        """Commit a bridge.* event to the outbox, and return its id."""
        return await self._publish(what, self._data(reason))

    async def _publish(self, what: str, data: BridgeData) -> str:
        outgoing = from_bridge(self.event_context, what, data)
        await self.outbox.commit([outgoing], now=self.clock.now().timestamp())
        return outgoing.event.id

    def _data(self, reason: str | None = None) -> BridgeData:
        """Return what every event has: also how long this VM stood still before."""
        pauses = self.poller.pauses
        seconds, self._told = pauses.since(self._told), pauses.total
        return BridgeData(
            observed_at=rfc3339(self.clock.now()),
            reporter=self.event_context.reporter,
            reason=reason,
            paused_seconds=round(seconds) if seconds else UNSET,
        )

    def _with_terms(self, data: BridgeData) -> BridgeData:
        """Add the interval of heartbeats, and how approvals are accepted."""
        ahead = self.clock.ahead if isinstance(self.clock, ReferenceClock) else None
        return replace(
            data,
            interval_seconds=float(self.heartbeat),
            approvals=self.offer,
            signing=self.signer.terms if self.signer else UNSET,
            clock_offset_seconds=UNSET if ahead is None else round(ahead),
        )

    def _with_beat_terms(self, data: BridgeData) -> BridgeData:
        """Add the terms, once a day with the whole offer, else its digest alone."""
        full = self._with_terms(data)
        if self.clock.monotonic() >= self._terms_at:
            self._terms_at = self.clock.monotonic() + _TERMS_EVERY
            return full
        return replace(
            full,
            approvals=self.offer and {"digest": self.offer["digest"]},
            signing={"n": self.signer.last} if self.signer else UNSET,
        )

    async def _pause(self, stop: asyncio.Event) -> None:
        """Wait for the next look, or exactly until the next heartbeat."""
        if self.heartbeat:
            left = max(0.0, self._beat_at - self.clock.monotonic())
            if left < _LOOK_EVERY:
                await self.clock.wait(stop, left)
                return
        await self.clock.wait(stop, _LOOK_EVERY, slack=_SLACK)

    async def _beat(self) -> None:
        tallies = await self.outbox.deliveries.tallies()
        data = replace(
            self._with_beat_terms(self._data()),
            pending=sum(t.pending for n, t in tallies.items() if n != REPLIES),
            dead=sum(t.dead for n, t in tallies.items() if n != REPLIES),
            free_disk_bytes=await _free_disk(self.state_path.parent),
        )
        outgoing = from_bridge(self.event_context, "heartbeat", data)
        wanted = self.outbox.router.sinks(outgoing.subject, frozenset())
        event, sign = outgoing.event, self.outbox.sign
        if sign is not None:
            event = sign(event, None)
        for relay in self.relays:
            if relay.sink in wanted:
                relay.offer(event)


async def _free_disk(directory: Path) -> int | UnsetType:
    """Return the free bytes of the disk; UNSET if they cannot be read in time."""
    try:
        async with asyncio.timeout(_DISK_PATIENCE):  # a disk may hang
            usage = await asyncio.to_thread(shutil.disk_usage, directory)
    except OSError:  # TimeoutError is one
        return UNSET
    return usage.free
