"""Upkeep of the state file: old rows go, and what people do from outside is seen.

How old a row is, is told by the wall clock. When that is set while the bridge runs, the
jump is noted: else a clock that is put right would age all rows.
"""

import asyncio
import logging
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass, field

from bridge.foundation.clock import Clock
from bridge.foundation.errors import OutboxCorruptError, OutboxError
from bridge.foundation.workers import unless
from bridge.outbox.storage.database import Database
from bridge.outbox.store import Outbox
from bridge.pipeline.observer import Observer
from bridge.pipeline.relay import Relay
from bridge.telemetry.metrics import Metrics

log = logging.getLogger(__name__)

_LOOK_EVERY = 2.0
_ASK_EVERY = 30.0  # a file's time is not exact
_PRUNE_EVERY = 3600.0
_SHRINK_EVERY = 60.0
_SHRINK_STEP = 20  # items: no more is to go than has to
_STEP = 500
_JUMP = 60.0  # of the wall clock; less does not matter to what is kept for days


@dataclass(slots=True)
class _OutsideChanges:
    """Sees what other processes do to the deliveries, and tells the relays.

    Attributes:
        ask_at: monotonic seconds from which on the state file is asked in any case.
    """

    outbox: Outbox
    relays: Sequence[Relay]
    clock: Clock
    metrics: Metrics
    version: int | None = None
    stamp: tuple[int, int] | None = None
    ask_at: float = float("-inf")
    retries: dict[str | None, int] = field(default_factory=dict)
    discarded: dict[str, int] = field(default_factory=dict)

    async def look(self) -> None:
        """See what another process has done since the last look."""
        if not await self._may_be_there():
            return
        version = await self.outbox.database.read(_data_version)
        if version != self.version:
            await self._follow(is_first=self.version is None)
        self.version = version

    async def count(self) -> None:
        """Count what is discarded and not yet pruned: some of it has just gone."""
        tallies = await self.outbox.tallies()
        self.discarded = {sink: tally.discarded for sink, tally in tallies.items()}

    async def _may_be_there(self) -> bool:
        """Whether the state file has to be asked: its log tells most of the time."""
        stamp, now = await self.outbox.database.stamp(), self.clock.monotonic()
        if stamp is not None and stamp == self.stamp and now < self.ask_at:
            return False
        self.stamp, self.ask_at = stamp, now + _ASK_EVERY
        return True

    async def _follow(self, *, is_first: bool) -> None:
        before, retries = self.discarded, await self.outbox.retries()
        await self.count()
        if not is_first:
            self.outbox.wake_all()
            asked = {s for s, n in retries.items() if n != self.retries.get(s)}
            for relay in self.relays:
                if asked & {None, relay.sink}:
                    relay.resume()
                more = self.discarded.get(relay.sink, 0) - before.get(relay.sink, 0)
                counter = self.metrics.deliveries.labels(relay.sink, "discarded")
                counter.inc(max(more, 0))
        self.retries = retries


@dataclass(slots=True)
class _Pruning:
    """Drops what is old, or too much."""

    housekeeping: "Housekeeping"
    outside: _OutsideChanges
    prune_at: float = float("-inf")
    shrink_at: float = float("-inf")
    is_too_large: bool = False

    async def step(self) -> None:
        """Drop one step's worth of rows where it is time to."""
        if self.housekeeping.clock.monotonic() >= self.prune_at:
            await self._prune()
        if self.housekeeping.clock.monotonic() >= self.shrink_at:
            await self._shrink()

    async def _prune(self) -> None:
        """Drop one step's worth of old rows; the rest at the next look."""
        housekeeping = self.housekeeping
        now = housekeeping.clock.now().timestamp()
        gone = await housekeeping.outbox.prune(
            before=now - housekeeping.retention,
            now=now,
            alive=frozenset(housekeeping.observer.watch.known),
            limit=_STEP,
        )
        await self.outside.count()
        if gone < _STEP:
            self.prune_at = housekeeping.clock.monotonic() + _PRUNE_EVERY

    async def _shrink(self) -> None:
        """Drop one step's worth of delivered rows if the file is too large."""
        housekeeping = self.housekeeping
        gone, too_many = await housekeeping.outbox.shrink(
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


@dataclass(slots=True)
class Housekeeping:
    """Prunes once an hour; tells the relays when ``sebridge outbox`` has acted.

    Attributes:
        retention: seconds.
        max_size: bytes of the state file, beyond which what is delivered goes sooner.
    """

    outbox: Outbox
    observer: Observer
    relays: Sequence[Relay]
    clock: Clock
    metrics: Metrics
    retention: float
    max_size: int
    name: str = "upkeep"
    _outside: _OutsideChanges = field(init=False)
    _pruning: _Pruning = field(init=False)
    _offset: float | None = None  # of the wall clock to the monotonic one
    _is_put_off: bool = False

    def __post_init__(self) -> None:
        self._outside = _OutsideChanges(
            self.outbox, self.relays, self.clock, self.metrics
        )
        self._pruning = _Pruning(self, self._outside)

    async def run(self, stop: asyncio.Event) -> None:
        """Keep up until asked to stop."""
        while not stop.is_set():
            await self.step()
            await self.clock.wait(stop, _LOOK_EVERY)

    async def step(self) -> None:
        """Look once; what cannot be done now is done later.

        Raises:
            OutboxCorruptError: the state file is damaged.
        """
        try:
            await self._look()
        except OutboxCorruptError:
            raise
        except OutboxError as error:  # a full disk, another process's lock
            if not self._is_put_off:
                fault = {"fault": str(error)}
                log.warning("upkeep of the state file put off", extra=fault)
            self._is_put_off = True
        else:
            self._is_put_off = False

    async def _look(self) -> None:
        if self.outbox.database.is_degraded:
            await self.outbox.database.heal()
        await self._follow_clock()
        await self._outside.look()
        await self._pruning.step()

    async def _follow_clock(self) -> None:
        """Keep the age of all rows when the wall clock was set."""
        now = self.clock.now().timestamp()
        offset = now - self.clock.monotonic()
        by = 0.0 if self._offset is None else offset - self._offset
        if abs(by) > _JUMP:
            await self.outbox.follow_clock(by=by, now=now)
        self._offset = offset


@dataclass(frozen=True, slots=True)
class StateWatch:
    """Ends the forwarder when nobody works on the state file any more."""

    database: Database
    name: str = "state"

    async def run(self, stop: asyncio.Event) -> None:
        """Wait until asked to stop.

        Raises:
            OutboxThreadDiedError: the thread of the state file has died.
        """
        await unless(stop, self.database.died())


def _data_version(db: sqlite3.Connection) -> int:
    """Return a number that changes when another process has written."""
    version: int = db.execute("PRAGMA data_version").fetchone()[0]
    return version
