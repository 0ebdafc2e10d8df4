"""The rows of alarms: adds them, and marks them as published.

An alarm is added in the same transaction as the change that it is about. Its id is a
hash of its content, so several hubs on one store add it only once. One of these hubs
publishes the alarms.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta

import orjson
from msgspec import Struct
from sqlalchemy import Connection, func, select, update

from bridge.events.alarm import BACK, CLOCK, REPORT, SILENT, SLOW, UNREPORTED
from bridge.events.build import rfc3339
from bridge.foundation.hashing import hash32
from bridge.hub.answers import EventRow
from bridge.hub.bridges import Liveness
from bridge.hub.store.bridge_intake import end_silence, keep_silence
from bridge.hub.store.current import bridge_rows
from bridge.hub.store.engine import Values, insert, lock
from bridge.hub.store.rows import add_alarms, alarm_of, micros, moment_of
from bridge.hub.store.tables import alarms, bridges, meta
from bridge.hub.view_rows import BridgeRow, Situation

_MOST = 20_000
_AT_ONCE = 500
_LEASE = "alarms-handed-by"
_OVER = {Liveness.ALIVE, Liveness.STOPPED, Liveness.GONE}


class AlarmRow(Struct, frozen=True, kw_only=True):
    """One stored alarm.

    Attributes:
        kind: hub.bridge-silent, hub.bridge-back, hub.unreported, hub.message-slow,
            hub.clock-wrong, hub.key-unknown, hub.report, hub.approval.STATE.
        data: the fields of the event about it.
    """

    id: str
    kind: str
    time: datetime
    data: dict[str, object]


def news_of(bridge: BridgeRow) -> str | None:
    """Return the alarm that a bridge needs: silent, or back; None = none.

    An unknown state causes no alarm: the hub does not receive its messages now.
    """
    if bridge.liveness is Liveness.SILENT:
        return None if bridge.was_silent else SILENT
    return BACK if bridge.was_silent and bridge.liveness in _OVER else None


def note_silence(
    connection: Connection, vm_ids: Sequence[str], situation: Situation
) -> int:
    """Add alarms about bridges that still need one; returns how many."""
    count = 0
    for start in range(0, len(vm_ids), _AT_ONCE):
        names = sorted(vm_ids[start : start + _AT_ONCE])
        lock(connection, names, "bridges")
        query = select(bridges).where(bridges.c.vm_id.in_(names))
        found = connection.execute(query).all()
        rows = bridge_rows(connection, found, situation)
        news = [(row, what) for row in rows if (what := news_of(row))]
        for what in (SILENT, BACK):
            mine = [row.vm_id for row, one in news if one == what]
            change = update(bridges).where(bridges.c.vm_id.in_(mine))
            connection.execute(change.values(was_silent=what == SILENT))
        add_alarms(
            connection, [_of_bridge(row, what, situation.now) for row, what in news]
        )
        for row, what in news:
            place = (row.machine.subscription, row.machine.group, row.machine.name)
            if what == SILENT:
                keep_silence(connection, row.vm_id, place, row.heard)
            else:
                end_silence(connection, place, situation.now)
        count += len(news)
    return count


def _of_bridge(row: BridgeRow, what: str, now: datetime) -> Values:
    heard, state = rfc3339(row.heard), row.liveness.value
    data = {
        "vmId": row.vm_id,
        "vmName": row.name,
        "resourceId": row.resource_id or "",
        "heard": heard,
        "state": state,
    }
    return alarm_of(what, [what, row.vm_id, heard, state], now, data)


def note_unreported(
    connection: Connection, found: Sequence[EventRow], now: datetime
) -> None:
    """Add alarms about events that no bridge has reported."""
    add_alarms(connection, [_of_event(row, now) for row in found])


def _of_event(row: EventRow, now: datetime) -> Values:
    same = [f"hub.{UNREPORTED}", row.key, row.occurrence]
    data = {
        "eventId": row.event_id,
        "eventType": row.event_type or "",
        "notBefore": rfc3339(row.not_before) if row.not_before else None,
        "machines": list(row.machines),
        "resourceGroup": row.resource_group or "",
    }
    return alarm_of(UNREPORTED, same, now, data)


def note_slow(
    connection: Connection, source: str, heard: datetime, digest: str
) -> None:
    """Add an alarm about a message that took too long to be stored."""
    data = {"source": source, "heard": rfc3339(heard)}
    same = [SLOW, source, rfc3339(heard), digest]
    add_alarms(connection, [alarm_of(SLOW, same, heard, data)])


def note_clock(connection: Connection, host: str, fault: str, now: datetime) -> None:
    """Add an alarm about the clock of a hub's machine; at most one a day for each."""
    same, data = [CLOCK, host, rfc3339(now)[:10]], {"host": host, "fault": fault}
    add_alarms(connection, [alarm_of(CLOCK, same, now, data)])


def has_report(connection: Connection, until: datetime) -> bool:
    """Whether there is an alarm with the report of the week before a time."""
    query = select(alarms.c.id).where(alarms.c.id == hash32([REPORT, rfc3339(until)]))
    return connection.scalar(query) is not None


def note_report(
    connection: Connection, since: datetime, until: datetime, lines: Sequence[str]
) -> None:
    """Add the report of a week, to be sent as the alarms are; once for all hubs.

    Args:
        connection: a connection within a transaction.
        since: the begin of the week.
        until: its end.
        lines: the report as text: the headline, and the lines below.
    """
    headline, *rest = lines
    period = {"from": rfc3339(since), "to": rfc3339(until)}
    data = {"headline": headline, "lines": rest, **period}
    same = [REPORT, rfc3339(until)]
    add_alarms(connection, [alarm_of(REPORT, same, until, data)])


def waiting(connection: Connection) -> list[AlarmRow]:
    """Return the alarms that are not published yet, the oldest first."""
    query = select(alarms).where(alarms.c.handed.is_(None))
    ordered = query.order_by(alarms.c.time, alarms.c.id).limit(_MOST)
    return [
        AlarmRow(
            id=row.id,
            kind=row.kind,
            time=moment_of(row.time),
            data=orjson.loads(row.data),
        )
        for row in connection.execute(ordered)
    ]


def mark_published(connection: Connection, ids: Sequence[str], now: datetime) -> None:
    """Mark alarms as published."""
    for start in range(0, len(ids), _AT_ONCE):
        portion = ids[start : start + _AT_ONCE]
        change = update(alarms).where(alarms.c.id.in_(portion))
        connection.execute(change.values(handed=micros(now)))


def count_silent(connection: Connection) -> int:
    """Return how many bridges are silent according to the alarms so far."""
    query = select(func.count()).where(bridges.c.was_silent.is_(True))
    return connection.scalar(query) or 0


def take_lease(
    connection: Connection, holder: str, now: datetime, seconds: float
) -> bool:
    """Take or renew the lease for publishing alarms; False = another hub has it.

    The lease expires, so another hub continues after a crash. If the clocks of two hubs
    differ by more than a lease, both publish: an alarm comes twice, with the same id. A
    clock that was set back does no harm: a lease that ends more than two durations from
    now counts as expired.
    """
    fresh = f"{micros(now + timedelta(seconds=seconds))} {holder}"
    made = insert(meta).values(name=_LEASE, value=fresh).on_conflict_do_nothing()
    if connection.execute(made).rowcount == 1:
        return True
    query = select(meta.c.value).where(meta.c.name == _LEASE).with_for_update()
    until, _, who = str(connection.scalar(query)).partition(" ")
    left = int(until) - micros(now)
    if who != holder and 0 < left <= 2 * seconds * 1e6:
        return False
    connection.execute(update(meta).where(meta.c.name == _LEASE).values(value=fresh))
    return True
