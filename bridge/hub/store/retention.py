"""Deletes old rows, in portions small enough not to delay other transactions.

``forget`` deletes rows by their age. Whether a bridge is gone depends on more than the
store: ``fleet_monitor`` knows it, and calls ``forget_bridges``.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta

from sqlalchemy import ColumnElement, Connection, Table, and_, delete, or_, select

from bridge.hub.bridges import Liveness
from bridge.hub.store.fleet_view import bridge_rows
from bridge.hub.store.rows import lock, micros
from bridge.hub.store.tables import (
    addresses,
    alarms,
    bridges,
    decisions,
    details,
    events,
    machines,
    messages,
    notes,
    offers,
    runs,
    trail,
    unreadable,
    votes,
)
from bridge.hub.view_rows import BridgeRow, Situation

AT_ONCE = 200
_OF_EVENTS = (messages, addresses, details, machines, votes)


def forget(
    connection: Connection, now: datetime, *, retention: float, audit: float
) -> int:
    """Delete a portion of old rows; returns how many events and rows were deleted.

    Args:
        connection: a connection within a transaction.
        now: the present moment.
        retention: for how many seconds events are kept after their end.
        audit: for how many seconds decisions and their record are kept.
    """
    oldest = micros(now - timedelta(seconds=retention))
    oldest_decision = micros(now - timedelta(seconds=audit))
    return (
        _events(connection, oldest)
        + _rows(connection, decisions, "id", "time", oldest_decision)
        + _rows(connection, runs, "vm_id", "heard", oldest_decision)
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

    For an open event, the bridges of its machines and of its addresses decide where an
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
    """Return a condition: an open event names a bridge, or the bridge's machine."""
    of, is_open = machines.c, events.c.is_open.is_(True)
    is_its_machine = and_(
        of.name == bridges.c.name,
        of.subscription == bridges.c.subscription,
        of.group == bridges.c.group,
    )
    by_machine = select(of.event_key).where(
        is_its_machine, of.event_key == events.c.event_key, is_open
    )
    by_address = select(addresses.c.event_key).where(
        addresses.c.vm_id == bridges.c.vm_id,
        addresses.c.event_key == events.c.event_key,
        is_open,
    )
    return or_(by_machine.exists(), by_address.exists())
