"""Publishes bridge.* events: started, stopped, IMDS unreachable or back, heartbeats."""

import asyncio
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from bridge.events.build import EventContext, from_bridge, paused_for
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
        await self.publish("started", more=self._terms())
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
            if is_unreachable:
                await self.publish("imds-unreachable", reason=self.poller.imds_state)
            else:
                await self.publish("imds-recovered")
        if self.heartbeat and self.clock.monotonic() >= self._beat_at:
            self._beat_at = self.clock.monotonic() + self.heartbeat
            await self._beat()

    async def publish(
        self,
        what: str,
        reason: str | None = None,
        more: Mapping[str, object] | None = None,
    ) -> str:
        """Commit a bridge.* event to the outbox, and return its id."""
        now = self.clock.now()
        outgoing = from_bridge(
            self.event_context,
            what,
            observed_at=now,
            reason=reason,
            more={**(more or {}), **self._paused()},
        )
        await self.outbox.commit([outgoing], now=now.timestamp())
        return outgoing.event.id

    def _terms(self) -> dict[str, object]:
        """Return the interval of heartbeats, and how approvals are accepted."""
        return {
            "intervalSeconds": float(self.heartbeat),
            "approvals": self.offer,
            **({"signing": self.signer.terms} if self.signer else {}),
            **self._clock_offset(),
        }

    def _beat_terms(self) -> dict[str, object]:
        """Return the terms, once a day with the whole offer, else its digest alone."""
        if self.clock.monotonic() >= self._terms_at:
            self._terms_at = self.clock.monotonic() + _TERMS_EVERY
            return self._terms()
        digest = self.offer and {"digest": self.offer["digest"]}
        last = {"signing": {"n": self.signer.last}} if self.signer else {}
        return {**self._terms(), "approvals": digest, **last}

    def _clock_offset(self) -> dict[str, object]:
        """Return how far this VM's clock is ahead of IMDS's; empty if not known."""
        ahead = self.clock.ahead if isinstance(self.clock, ReferenceClock) else None
        return {} if ahead is None else {"clockOffsetSeconds": round(ahead)}

    def _paused(self) -> dict[str, object]:
        """Return how long this VM stood still since the last event; empty = not."""
        pauses = self.poller.pauses
        seconds, self._told = pauses.since(self._told), pauses.total
        return paused_for(seconds)

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
        outgoing = from_bridge(
            self.event_context,
            "heartbeat",
            observed_at=self.clock.now(),
            more={
                "pending": sum(t.pending for n, t in tallies.items() if n != REPLIES),
                "dead": sum(t.dead for n, t in tallies.items() if n != REPLIES),
                **self._beat_terms(),
                **self._paused(),
                **await _free_disk(self.state_path.parent),
            },
        )
        wanted = self.outbox.router.sinks(outgoing.subject, frozenset())
        event, sign = outgoing.event, self.outbox.sign
        if sign is not None:
            event = sign(event, None)
        for relay in self.relays:
            if relay.sink in wanted:
                relay.offer(event)


async def _free_disk(directory: Path) -> dict[str, object]:
    """Return the free space of the disk; empty if it cannot be read in time."""
    try:
        async with asyncio.timeout(_DISK_PATIENCE):  # a disk may hang
            usage = await asyncio.to_thread(shutil.disk_usage, directory)
    except OSError:  # TimeoutError is one
        return {}
    return {"freeDiskBytes": usage.free}
