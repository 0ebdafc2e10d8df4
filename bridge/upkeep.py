"""Upkeep of the state file: old rows go, and changes by other processes are seen."""

import asyncio
import logging
import sqlite3
from dataclasses import dataclass

from bridge.clock import Clock
from bridge.errors import OutboxCorruptError, OutboxError
from bridge.outbox.store import Outbox
from bridge.poller import Poller

log = logging.getLogger(__name__)

_LOOK_EVERY = 2.0
_PRUNE_EVERY = 3600.0
_STEP = 500


@dataclass(slots=True)
class Upkeep:
    """Prunes once an hour; wakes the relays when ``sebridge outbox`` has acted.

    Attributes:
        retention: seconds.
    """

    outbox: Outbox
    poller: Poller
    clock: Clock
    retention: float
    name: str = "upkeep"
    _version: int | None = None
    _prune_at: float = float("-inf")
    _is_put_off: bool = False

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
        version = await self.outbox.database.read(_data_version)
        if self._version is not None and version != self._version:
            self.outbox.wake_all()
        self._version = version
        if self.clock.monotonic() >= self._prune_at:
            await self._prune()

    async def _prune(self) -> None:
        """Drop one step's worth of old rows; the rest at the next look."""
        now = self.clock.now().timestamp()
        gone = await self.outbox.prune(
            before=now - self.retention,
            now=now,
            alive=frozenset(self.poller.watch.known),
            limit=_STEP,
        )
        if gone < _STEP:
            self._prune_at = self.clock.monotonic() + _PRUNE_EVERY


def _data_version(db: sqlite3.Connection) -> int:
    """Return a number that changes when another process has written."""
    version: int = db.execute("PRAGMA data_version").fetchone()[0]
    return version
