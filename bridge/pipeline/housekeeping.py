"""Cares for the state file: deletes old rows, and notices if the file is gone.

The age of a row is measured by the wall clock. If the clock is set while the bridge
runs, the jump is recorded. Otherwise all rows would become older at once.
"""

import asyncio
import logging
from dataclasses import dataclass
from typing import Protocol

import msgspec

from bridge.events.watch import Watch
from bridge.foundation.clock import Clock, is_settled
from bridge.foundation.errors import OutboxCorruptError, OutboxError
from bridge.foundation.workers import unless
from bridge.outbox.storage.database import Database
from bridge.outbox.storage.lock import FileId, identity_of, lock_of
from bridge.outbox.store import Outbox

log = logging.getLogger(__name__)

_LOOK_EVERY, _SLACK = 2.5, 1.0  # about every 2 s, together with a poll of IMDS
_PRUNE_EVERY = 3600.0
_SHRINK_EVERY = 60.0
_SHRINK_STEP = 20  # rows at a time, so as not to delete too many
_STEP = 500
_JUMP = 60.0  # rows are kept for days: a smaller jump of the clock does not matter


class Watching(Protocol):
    """Knows which scheduled events are in the document now."""

    @property
    def watch(self) -> Watch:
        """What is known of the scheduled events."""
        ...


@dataclass(slots=True)
class Housekeeping:
    """Prunes once an hour; has a state file that was removed written anew.

    Attributes:
        retention: how long delivered rows are kept, in seconds.
        max_size: bytes. If the state file is larger, delivered rows are deleted sooner.
    """

    outbox: Outbox
    observer: Watching
    clock: Clock
    retention: float
    max_size: int
    name: str = "upkeep"
    _prune_at: float = float("-inf")
    _shrink_at: float = float("-inf")
    _is_too_large: bool = False
    _files: tuple[FileId | None, FileId | None] | None = None  # state file and lock
    _offset: float | None = None  # wall clock minus monotonic clock
    _has_failed: bool = False

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
        is_sure = is_settled(self.clock)  # else rows may look older than they are
        if is_sure:
            await self._follow_clock()
        await self._look_for_files()
        if is_sure and not self.outbox.database.is_degraded:
            if self.clock.monotonic() >= self._prune_at:
                await self._prune()
            if self.clock.monotonic() >= self._shrink_at:
                await self._shrink()

    async def _prune(self) -> None:
        """Delete some old rows. If there are more, the next step deletes them."""
        now = self.clock.now().timestamp()
        gone = await self.outbox.pruning.prune(
            before=now - self.retention,
            now=now,
            alive=frozenset(self.observer.watch.known),
            limit=_STEP,
        )
        if gone < _STEP:
            self._prune_at = self.clock.monotonic() + _PRUNE_EVERY

    async def _shrink(self) -> None:
        """Delete some delivered rows if the file is too large."""
        gone, too_many = await self.outbox.pruning.shrink(
            most=self.max_size, limit=_SHRINK_STEP
        )
        if gone and too_many:
            return
        self._shrink_at = self.clock.monotonic() + _SHRINK_EVERY
        if too_many and not self._is_too_large:
            log.warning(
                "state file is larger than state.max_size: what is left in it waits "
                "to be delivered",
                extra={"bytesTooMany": too_many},
            )
        self._is_too_large = too_many > 0

    async def _look_for_files(self) -> None:
        """Use the file once if it, or its lock, was removed: that is noticed then.

        Only then, because the thread of the state file costs an idle forwarder a third
        of the CPU of its poll. The attributes of open files are in memory.
        """
        database = self.outbox.database
        path = str(database.path)
        files = (identity_of(path), identity_of(lock_of(path)))
        if files != self._files and not database.is_degraded:
            await database.read(_nothing)
        self._files = files

    async def _follow_clock(self) -> None:
        """Correct the age of all rows if the wall clock was set."""
        now = self.clock.now().timestamp()
        offset = now - self.clock.monotonic()
        by = 0.0 if self._offset is None else offset - self._offset
        if abs(by) > _JUMP:
            await self.outbox.pruning.follow_clock(by=by, now=now)
        self._offset = offset


def _nothing(_: object) -> None:
    """Ask nothing of the file."""


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
