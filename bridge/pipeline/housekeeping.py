"""Cares for the state file: deletes old rows, notices changes by other processes.

The age of a row is measured by the wall clock. If the clock is set while the bridge
runs, the jump is recorded. Otherwise all rows would become older at once.
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from bridge.events.watch import Watch
from bridge.foundation.clock import Clock, is_settled
from bridge.foundation.errors import OutboxCorruptError, OutboxError
from bridge.foundation.workers import unless
from bridge.outbox.other_processes import Stamp
from bridge.outbox.storage.database import Database
from bridge.outbox.store import Outbox
from bridge.pipeline.relay import Relay
from bridge.telemetry.metrics import Metrics

log = logging.getLogger(__name__)

_LOOK_EVERY, _SLACK = 2.5, 1.0  # about every 2 s, together with a poll of IMDS
_ASK_EVERY = 10.0  # because the modification time of a file is not exact
_PRUNE_EVERY = 3600.0
_SHRINK_EVERY = 60.0
_SHRINK_STEP = 20  # rows at a time, so as not to delete too many
_STEP = 500
_JUMP = 60.0  # rows are kept for days: a smaller jump of the clock does not matter


class _OutsideChanges(msgspec.Struct):
    """Notices what other processes did to the deliveries, and wakes the relays.

    Attributes:
        version: SQLite's data_version at the last look.
        stamp: the stamp of the state file at the last look.
        ask_at: from this time on, read data_version even if the stamp is the same;
            monotonic seconds.
        retries: how often a person has asked for a retry, by sink; None = all sinks.
        discarded: the number of discarded deliveries, by sink.
    """

    outbox: Outbox
    relays: Sequence[Relay]
    clock: Clock
    metrics: Metrics
    version: int | None = None
    stamp: Stamp | None = None
    ask_at: float = float("-inf")
    retries: dict[str | None, int] = msgspec.field(default_factory=dict)
    discarded: dict[str, int] = msgspec.field(default_factory=dict)

    async def look(self) -> None:
        """Check whether another process has changed something since the last look."""
        is_doubtful = self.outbox.image.is_doubtful
        if not self._may_have_changed() and not is_doubtful:
            return
        version = await self.outbox.other_processes.data_version()
        if version != self.version or is_doubtful:
            await self._follow(is_first=self.version is None)
        self.version = version

    async def count(self) -> None:
        """Count the discarded deliveries again, after some rows were deleted."""
        tallies = await self.outbox.deliveries.tallies()
        self.discarded = {sink: tally.discarded for sink, tally in tallies.items()}

    def _may_have_changed(self) -> bool:
        """Return whether to read data_version: the stamp has changed, or is old."""
        stamp, now = self.outbox.other_processes.stamp(), self.clock.monotonic()
        if stamp is not None and stamp == self.stamp and now < self.ask_at:
            return False
        self.stamp, self.ask_at = stamp, now + _ASK_EVERY
        return True

    async def _follow(self, *, is_first: bool) -> None:
        before, retries = self.discarded, await self.outbox.other_processes.retries()
        if not is_first:
            await self.outbox.database.compare()
        await self.count()
        if not is_first:
            self.outbox.wakeups.wake_all()
            asked = {s for s, n in retries.items() if n != self.retries.get(s)}
            for relay in self.relays:
                if asked & {None, relay.sink}:
                    relay.resume()
                more = self.discarded.get(relay.sink, 0) - before.get(relay.sink, 0)
                counter = self.metrics.deliveries.labels(relay.sink, "discarded")
                counter.inc(max(more, 0))
        self.retries = retries


class _Pruning(msgspec.Struct):
    """Deletes old rows, and delivered rows of a file that is too large."""

    housekeeping: "Housekeeping"
    outside: _OutsideChanges
    prune_at: float = float("-inf")
    shrink_at: float = float("-inf")
    is_too_large: bool = False

    async def step(self) -> None:
        """Delete some rows, if a deletion is due."""
        if self.housekeeping.clock.monotonic() >= self.prune_at:
            await self._prune()
        if self.housekeeping.clock.monotonic() >= self.shrink_at:
            await self._shrink()

    async def _prune(self) -> None:
        """Delete some old rows. If there are more, the next step deletes them."""
        housekeeping = self.housekeeping
        now = housekeeping.clock.now().timestamp()
        gone = await housekeeping.outbox.pruning.prune(
            before=now - housekeeping.retention,
            now=now,
            alive=frozenset(housekeeping.observer.watch.known),
            limit=_STEP,
        )
        await self.outside.count()
        if gone < _STEP:
            self.prune_at = housekeeping.clock.monotonic() + _PRUNE_EVERY

    async def _shrink(self) -> None:
        """Delete some delivered rows if the file is too large."""
        housekeeping = self.housekeeping
        gone, too_many = await housekeeping.outbox.pruning.shrink(
            most=housekeeping.max_size, limit=_SHRINK_STEP
        )
        if gone and too_many:
            return
        self.shrink_at = housekeeping.clock.monotonic() + _SHRINK_EVERY
        if too_many and not self.is_too_large:
            log.warning(
                "state file is larger than state.max_size: what is left in it waits "
                "to be delivered",
                extra={"bytesTooMany": too_many},
            )
        self.is_too_large = too_many > 0


class Watching(Protocol):
    """Knows which scheduled events are in the document now."""

    @property
    def watch(self) -> Watch:
        """What is known of the scheduled events."""
        ...


@dataclass(slots=True)
class Housekeeping:
    """Prunes once an hour; wakes the relays after ``sebridge outbox`` has acted.

    Attributes:
        retention: how long delivered rows are kept, in seconds.
        max_size: bytes. If the state file is larger, delivered rows are deleted sooner.
    """

    outbox: Outbox
    observer: Watching
    relays: Sequence[Relay]
    clock: Clock
    metrics: Metrics
    retention: float
    max_size: int
    name: str = "upkeep"
    _outside: _OutsideChanges = field(init=False)
    _pruning: _Pruning = field(init=False)
    _offset: float | None = None  # wall clock minus monotonic clock
    _has_failed: bool = False

    def __post_init__(self) -> None:
        self._outside = _OutsideChanges(
            self.outbox, self.relays, self.clock, self.metrics
        )
        self._pruning = _Pruning(self, self._outside)

    async def run(self, stop: asyncio.Event) -> None:
        """Keep the state file in order until ``stop`` is set."""
        while not stop.is_set():
            await self.step()
            await self.clock.wait(stop, _LOOK_EVERY, slack=_SLACK)

    async def step(self) -> None:
        """Do all work that is due; after an error, the next step tries again.

        Raises:
            OutboxCorruptError: the state file is damaged.
        """
        try:
            await self._look()
        except OutboxCorruptError:
            raise
        except OutboxError as error:  # a full disk, or a lock of another process
            if not self._has_failed:
                fault = {"fault": str(error)}
                log.warning("housekeeping of the state file failed", extra=fault)
            self._has_failed = True
        else:
            self._has_failed = False

    async def _look(self) -> None:
        if self.outbox.database.is_degraded:
            await self.outbox.database.heal()
        if is_settled(self.clock):  # else rows may look older than they are
            await self._follow_clock()
        await self._outside.look()
        if is_settled(self.clock) and not self.outbox.database.is_degraded:
            await self._pruning.step()

    async def _follow_clock(self) -> None:
        """Correct the age of all rows if the wall clock was set."""
        now = self.clock.now().timestamp()
        offset = now - self.clock.monotonic()
        by = 0.0 if self._offset is None else offset - self._offset
        if abs(by) > _JUMP:
            await self.outbox.pruning.follow_clock(by=by, now=now)
        self._offset = offset


class StateWatch(msgspec.Struct, frozen=True):
    """Ends the forwarder when the thread of the state file has died."""

    database: Database
    name: str = "state"

    async def run(self, stop: asyncio.Event) -> None:
        """Wait until ``stop`` is set.

        Raises:
            OutboxThreadDiedError: the thread of the state file has died.
        """
        await unless(stop, self.database.died())
