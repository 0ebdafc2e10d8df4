"""Deletes old rows from the store, and records that the hub is running.

If no hub was running for longer than the subscription keeps messages, messages are
lost. Open events without a message since then have an unknown status.
"""

import asyncio
import logging
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from functools import partial

from msgspec import Struct, field
from sqlalchemy import ColumnElement, Connection, Table, delete, or_, select

from bridge.foundation.clock import Clock
from bridge.foundation.errors import HubStoreError
from bridge.hub import report
from bridge.hub.answers import BridgesAsked
from bridge.hub.bridges import Liveness
from bridge.hub.config import HubConfig
from bridge.hub.metrics import HubMetrics
from bridge.hub.sources import parsed
from bridge.hub.store.alarms import (
    has_report,
    news_of,
    note_clock,
    note_report,
    note_silence,
    note_unreported,
)
from bridge.hub.store.current import bridge_rows, is_at
from bridge.hub.store.engine import lock, note, noted
from bridge.hub.store.intake import end_said, slow
from bridge.hub.store.kept_facts import Incoming
from bridge.hub.store.lists import fleet
from bridge.hub.store.pin_rows import mark_pins
from bridge.hub.store.rows import micros, moment_of
from bridge.hub.store.store import Store
from bridge.hub.store.tables import (
    alarms,
    bridges,
    decisions,
    events,
    machines,
    messages,
    notes,
    offers,
    pins,
    runs,
    told_keys,
    trail,
    unreadable,
    votes,
)
from bridge.hub.view_rows import BridgeRow, Situation
from bridge.hub.views import open_without_bridge

# -- Looks twice a minute for silent bridges, and for events that no bridge has
#    reported
#
# It also lets the ends count that others alone have told, once their time has come.
#
# Each finding becomes an alarm, a row in the store; ``alarm_sinks`` publishes the
# alarms. Bridges that have been gone for longer than the retention are deleted.


_LOOK_EVERY = 30.0
_LOOKED_AT = 500  # events at once
_MOST_PORTIONS = 50


class FleetMonitor(Struct):
    """Checks the fleet until asked to stop.

    Attributes:
        retention: for how many seconds a bridge that is gone is kept after its last
            message.
        host: the name of this machine.
        weekly: the day of the digest; "" = none.
    """

    store: Store
    clock: Clock
    metrics: HubMetrics
    situation: Callable[[], Situation]
    retention: float
    host: str = field(default_factory=socket.gethostname)
    weekly: str = ""
    name: str = "watchman"

    async def run(self, stop: asyncio.Event) -> None:
        """Check the fleet twice a minute."""
        while not await self.clock.wait(stop, _LOOK_EVERY):
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
        await self._report(now.now)
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
        pins = self.store.pinned.now
        for _ in range(_MOST_PORTIONS):
            if not await self.store.write(partial(end_said, now=now.now, pins=pins)):
                return

    async def _find_unreported(self, situation: Situation) -> None:
        after, count, is_last = "", 0, False
        while not is_last:
            read = partial(open_without_bridge, situation=situation, after=after)
            found = await self.store.read(partial(read, limit=_LOOKED_AT))
            late = [row for row in found if row.unreported]
            if late:
                now = situation.now
                await self.store.write(partial(note_unreported, found=late, now=now))
            count, is_last = count + len(late), len(found) < _LOOKED_AT
            after = found[-1].key if found else after
        self.metrics.unreported.set(count)

    async def _report(self, now: datetime) -> None:
        """Make the digest of a week once it is due; of several hubs, one makes it."""
        until = report.due(self.weekly, now)
        if until is None or await self.store.read(lambda c: has_report(c, until)):
            return
        since = until - report.WEEK
        found = await self.store.read(lambda c: report.report_of(c, since, until, now))
        lines = report.digest(found)
        await self.store.write(lambda c: note_report(c, since, until, lines))

    async def _forget(self, found: Sequence[BridgeRow], situation: Situation) -> None:
        """Delete bridges that are gone for long; a scale set makes ever new ones."""
        rule = partial(is_outdated, situation=situation, retention=self.retention)
        old = [row.vm_id for row in found if rule(row)]
        for start in range(0, len(old), AT_ONCE):
            names = old[start : start + AT_ONCE]
            forget = partial(forget_bridges, vm_ids=names, situation=situation)
            await self.store.write(partial(forget, retention=self.retention))

    async def _fleet(self) -> list[BridgeRow]:
        rows, asked, situation = list[BridgeRow](), BridgesAsked(), self.situation()
        while True:
            read = partial(fleet, situation=situation, asked=asked)
            page, after = await self.store.read(read)
            rows += page
            if not after:
                return rows
            asked = BridgesAsked(cursor=after)


# -- Deletes old rows from the store, and records that the hub is running --------------


log = logging.getLogger(__name__)

_EVERY = 30.0
_WATCH_EVERY = 5.0
_RETRY_EVERY = 3600.0  # for messages that were too slow
_LONG_AWAY = timedelta(days=1)  # the TTL of the hub's subscription, as infra sets it
_LAST_ALIVE, _ABSENT = "lived", "absent-until"


class Housekeeping(Struct):
    """Deletes old rows until asked to stop."""

    store: Store
    config: HubConfig
    clock: Clock
    name: str = "keeper"

    async def begin(self) -> datetime | None:
        """Read the keys of bridges, and when a hub has read the sources last.

        Returns:
            When the last long absence of all hubs ended; None = never.

        Raises:
            HubStoreError: the store cannot be used.
        """
        now = self.clock.now()
        await look_at_keys(self.store, now)
        return await self.store.write(lambda c: _note_absence(c, now))

    async def run(self, stop: asyncio.Event) -> None:
        """Delete old rows twice a minute until asked to stop."""
        due = self.clock.monotonic() + _RETRY_EVERY
        while not await self.clock.wait(stop, _EVERY):
            try:
                await self.step(stop)
                if self.clock.monotonic() >= due:
                    due = self.clock.monotonic() + _RETRY_EVERY
                    await self.retry(stop)
            except HubStoreError as error:
                log.warning("store cannot be looked after", extra={"fault": str(error)})

    async def retry(self, stop: asyncio.Event) -> None:
        """Try again to store the messages that took too long.

        Raises:
            HubStoreAwayError: the store cannot be used now.
        """
        named = {source.name: source for source in self.config.sources}
        for row in await self.store.read(slow):
            if stop.is_set() or row.origin not in named:
                continue
            again = parsed(named[row.origin], Incoming.of_row(row))
            await self.store.retry(row.seq, again)

    async def step(self, stop: asyncio.Event) -> None:
        """Record that the hub is running, and delete old rows, portion by portion.

        Raises:
            HubStoreError: the store cannot be used now.
        """
        now, config = self.clock.now(), self.config
        await self.store.write(lambda c: note(c, _LAST_ALIVE, str(micros(now))))
        portion = 1
        while portion and not stop.is_set():
            portion = await self.store.write(lambda c: forget(c, now, config))


class StoreWatch(Struct):
    """Finds out that the store is away or back, also while nobody uses it."""

    store: Store
    clock: Clock
    metrics: HubMetrics
    name: str = "store watch"

    async def run(self, stop: asyncio.Event) -> None:
        """Check the store every 5 s until asked to stop."""
        while not await self.clock.wait(stop, _WATCH_EVERY):
            await self.step()

    async def step(self) -> None:
        """Check the store once; a fault is in its ``health``."""
        before = self.store.health.fault
        with suppress(HubStoreError):
            await self.store.check()
            await look_at_keys(self.store, self.clock.now())
        fault = self.store.health.fault
        self.metrics.store_away.set(fault is not None)
        if before is not None and fault is None:
            log.info("store is back")


async def look_at_keys(store: Store, now: datetime) -> None:
    """Read the keys of bridges again, from their file and from the store.

    Raises:
        HubStoreError: the store cannot be used now.
    """
    if store.pinned.source is None:
        await store.read(store.pinned.refresh)
    else:
        store.pinned.text = await store.write(partial(store.pinned.look, now=now))


def _note_absence(connection: Connection, now: datetime) -> datetime | None:
    lived, absent = noted(connection, _LAST_ALIVE), noted(connection, _ABSENT)
    if lived is not None and now - moment_of(int(lived)) > _LONG_AWAY:
        absent = str(micros(now))
        note(connection, _ABSENT, absent)
    note(connection, _LAST_ALIVE, str(micros(now)))
    return None if absent is None else moment_of(int(absent))


# -- Deletes old rows, in portions small enough not to delay other transactions --------
#
# ``forget`` deletes rows by their age. Whether a bridge is gone depends on more than
# the store: ``fleet_monitor`` knows it, and calls ``forget_bridges``.


AT_ONCE = 200
_OF_EVENTS = (messages, machines, votes)


def forget(connection: Connection, now: datetime, config: HubConfig) -> int:
    """Delete a portion of old rows; returns how many events and rows were deleted.

    A key that waits is deleted once its bridge has not told it for ``forget_after``.
    """
    times = (config.retention, config.audit_retention, config.forget_after)
    ends = (now - timedelta(seconds=one) for one in times)
    oldest, oldest_decision, oldest_key = map(micros, ends)
    return (
        _events(connection, oldest)
        + _rows(connection, decisions, "id", "time", oldest_decision)
        + _rows(connection, runs, "vm_id", "heard", oldest_decision)
        + _pins(connection, oldest_decision)
        + _rows(connection, told_keys, "id", "heard", oldest_key)
        + _rows(connection, trail, "seq", "time", oldest_decision)
        + _rows(connection, offers, "id", "heard", oldest)
        + _rows(connection, notes, "id", "time", oldest)
        + _rows(connection, unreadable, "seq", "heard", oldest)
        + _rows(connection, alarms, "id", "time", oldest)
    )


def _events(connection: Connection, oldest: int) -> int:
    is_over = events.c.is_open.is_(False) & (events.c.heard < oldest)
    query = select(events.c.event_key).where(is_over & (events.c.told < oldest))
    found = connection.scalars(query.order_by(events.c.told).limit(AT_ONCE)).all()
    if not found:
        return 0
    lock(connection, sorted(found), "events")
    keys = connection.scalars(query.where(events.c.event_key.in_(found))).all()
    for table in (*_OF_EVENTS, events):
        connection.execute(delete(table).where(table.c.event_key.in_(keys)))
    return len(keys)


def _pins(connection: Connection, oldest: int) -> int:
    if count := _rows(connection, pins, "id", "until", oldest):
        mark_pins(connection)
    return count


def _rows(
    connection: Connection, table: Table, key: str, time: str, oldest: int
) -> int:
    query = select(table.c[key]).where(table.c[time] < oldest).limit(AT_ONCE)
    keys = connection.scalars(query).all()
    if keys:
        connection.execute(delete(table).where(table.c[key].in_(keys)))
    return len(keys)


def is_outdated(bridge: BridgeRow, situation: Situation, *, retention: float) -> bool:
    """Whether a bridge is gone, and its last message is older than ``retention``.

    A bridge whose silence was alarmed needs the alarm about its end before.
    """
    oldest = situation.now - timedelta(seconds=retention)
    is_over = bridge.liveness is Liveness.GONE and not bridge.was_silent
    return is_over and bridge.heard < oldest


def forget_bridges(
    connection: Connection,
    vm_ids: Sequence[str],
    situation: Situation,
    *,
    retention: float,
) -> None:
    """Delete bridges that are still outdated, and that no open event refers to.

    For an open event, its reporters and the bridges of its machines decide where an
    approval is sent, and whether the event counts as unreported.

    Args:
        connection: a connection within a transaction.
        vm_ids: the bridges, at most ``AT_ONCE``.
        situation: the present moment, and which sources are connected.
        retention: for how many seconds a bridge is kept after its last message.
    """
    lock(connection, sorted(vm_ids), "bridges")
    query = select(bridges).where(bridges.c.vm_id.in_(vm_ids), ~_is_needed())
    rows = bridge_rows(connection, connection.execute(query).all(), situation)
    old = [row for row in rows if is_outdated(row, situation, retention=retention)]
    gone = bridges.c.vm_id.in_([row.vm_id for row in old])
    connection.execute(delete(bridges).where(gone))


def _is_needed() -> ColumnElement[bool]:
    """Return a condition: a bridge has reported an open event, or is named by it."""
    of, is_open = machines.c, events.c.is_open.is_(True)
    by_machine = select(of.event_key).where(
        is_at(of, bridges.c), of.event_key == events.c.event_key, is_open
    )
    by_message = select(messages.c.event_key).where(
        messages.c.vm_id == bridges.c.vm_id,
        messages.c.event_key == events.c.event_key,
        is_open,
    )
    return or_(by_machine.exists(), by_message.exists())
