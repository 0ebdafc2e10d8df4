"""Looks twice a minute for silent bridges, and for events that no bridge has reported.

It also lets the ends count that others alone have told, once their time has come.

Each finding becomes an alarm, a row in the store; ``alarm_sinks`` publishes the alarms.
Bridges that have been gone for longer than the retention are deleted.
"""

import asyncio
import logging
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from bridge.foundation.clock import Clock
from bridge.foundation.errors import HubStoreError
from bridge.hub.metrics import HubMetrics
from bridge.hub.store.alarms import (
    news_of,
    note_clock,
    note_silence,
    note_unreported,
)
from bridge.hub.store.fleet_view import fleet
from bridge.hub.store.intake import end_said
from bridge.hub.store.retention import AT_ONCE, forget_bridges, is_outdated
from bridge.hub.store.store import Store
from bridge.hub.view_rows import PAGE, BridgeRow, Situation
from bridge.hub.views import open_without_bridge

log = logging.getLogger(__name__)

_EVERY = 30.0
_AT_ONCE = 500
_MOST_PORTIONS = 50


@dataclass(slots=True)
class FleetMonitor:
    """Checks the fleet until asked to stop.

    Attributes:
        retention: for how many seconds a bridge that is gone is kept after its last
            message.
        host: the name of this machine.
    """

    store: Store
    clock: Clock
    metrics: HubMetrics
    situation: Callable[[], Situation]
    retention: float
    host: str = field(default_factory=socket.gethostname)
    name: str = "watchman"

    async def run(self, stop: asyncio.Event) -> None:
        """Check the fleet twice a minute."""
        while not await self.clock.wait(stop, _EVERY):
            try:
                await self.step()
            except HubStoreError as error:
                log.warning("fleet cannot be looked at", extra={"fault": str(error)})

    async def step(self) -> None:
        """Check the whole fleet once, and store new alarms.

        Raises:
            HubStoreError: the store cannot be used now.
        """
        found = await self._fleet()
        await self._look_at_time(self.situation())
        news = [row.vm_id for row in found if news_of(row)]
        now = self.situation()
        if news:
            await self.store.write(lambda c: note_silence(c, news, now))
        if now.missing_after is not None and now.drained is not None:
            await self._find_unreported(now)
        await self._forget(found, now)
        counts = dict.fromkeys(self.metrics.liveness, 0)
        for row in found:
            counts[row.liveness.value] += 1
        for state, count in counts.items():
            self.metrics.bridges.labels(state).set(count)

    async def _look_at_time(self, now: Situation) -> None:
        """Alarm a wrong clock, and let the ends count whose time has come."""
        if (fault := now.clock_fault) is not None:
            log.warning("clock is wrong", extra={"fault": fault})
            await self.store.write(lambda c: note_clock(c, self.host, fault, now.now))
        for _ in range(_MOST_PORTIONS):
            if not await self.store.write(lambda c: end_said(c, now.now)):
                return

    async def _find_unreported(self, situation: Situation) -> None:
        after, count, is_last = "", 0, False
        while not is_last:
            found = await self.store.read(
                lambda c, after=after: open_without_bridge(  # type: ignore[misc]  # a default binds it
                    c, situation, after=after, limit=_AT_ONCE
                )
            )
            late = [row for row in found if row.is_unreported]
            if late:
                await self.store.write(
                    lambda c, late=late: note_unreported(c, late, situation.now)  # type: ignore[misc]  # as above
                )
            count, is_last = count + len(late), len(found) < _AT_ONCE
            after = found[-1].key if found else after
        self.metrics.unreported.set(count)

    async def _forget(self, found: Sequence[BridgeRow], situation: Situation) -> None:
        """Delete bridges that are gone for long; a scale set makes ever new ones."""
        kept = self.retention
        old = [
            row.vm_id for row in found if is_outdated(row, situation, retention=kept)
        ]
        for start in range(0, len(old), AT_ONCE):
            names = old[start : start + AT_ONCE]
            await self.store.write(
                lambda c, names=names: forget_bridges(  # type: ignore[misc]  # a default binds it
                    c, names, situation, retention=kept
                )
            )

    async def _fleet(self) -> list[BridgeRow]:
        rows, after, situation = list[BridgeRow](), "", self.situation()
        while True:
            page = await self.store.read(
                lambda c, after=after: fleet(c, situation, after=after)  # type: ignore[misc]  # a default binds it
            )
            rows += page
            if len(page) < PAGE:
                return rows
            after = page[-1].vm_id
