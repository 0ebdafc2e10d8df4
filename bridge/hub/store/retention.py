"""Deletes old rows, in portions small enough not to delay other transactions."""

from datetime import datetime, timedelta

from sqlalchemy import Connection, Table, delete, select

from bridge.hub.store.rows import micros
from bridge.hub.store.statements import lock
from bridge.hub.store.tables import (
    addresses,
    alarms,
    decisions,
    events,
    machines,
    messages,
    trail,
    unreadable,
    votes,
)

_AT_ONCE = 200
_OF_EVENTS = (messages, addresses, machines, votes)


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
        + _rows(connection, trail, "seq", "time", oldest_decision)
        + _rows(connection, unreadable, "seq", "heard", oldest)
        + _rows(connection, alarms, "id", "time", oldest)
    )


def _events(connection: Connection, oldest: int) -> int:
    is_over = events.c.is_open.is_(False) & (events.c.heard < oldest)
    query = select(events.c.event_key).where(is_over & (events.c.told < oldest))
    found = connection.scalars(query.order_by(events.c.told).limit(_AT_ONCE)).all()
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
    query = select(table.c[key]).where(table.c[time] < oldest).limit(_AT_ONCE)
    keys = connection.scalars(query).all()
    if keys:
        connection.execute(delete(table).where(table.c[key].in_(keys)))
    return len(keys)
