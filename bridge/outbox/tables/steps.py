"""The steps of an EventId for a sink that acts: the deliveries to it, in order.

A discarded delivery is no step.
"""

import sqlite3

from bridge.outbox.delivery import Delivery
from bridge.outbox.storage.connection import Connection
from bridge.outbox.tables.reading import select_checked


def pending(db: Connection, sink: str, limit: int) -> list[Delivery]:
    """Return the pending deliveries of a sink, oldest first."""
    condition = "d.sink = ? AND d.state = 'pending' ORDER BY d.id LIMIT ?"
    return select_checked(db, condition, (sink, limit))


def body(db: sqlite3.Connection, number: int | None) -> bytes | None:
    """Return the body of a delivery."""
    query = "SELECT i.body FROM deliveries d JOIN items i ON i.id = d.item WHERE d.id=?"
    row = db.execute(query, (number,)).fetchone()
    return None if row is None else row[0]


def previous(db: sqlite3.Connection, delivery: Delivery) -> int | None:
    """Return the id of the step of the same EventId before a delivery."""
    query = """SELECT max(id) FROM deliveries WHERE sink = ? AND key = ? AND id < ?
        AND state IN ('pending', 'delivered', 'dead', 'skipped')"""
    place = (delivery.sink, delivery.key, delivery.id)
    found: int | None
    (found,) = db.execute(query, place).fetchone()
    return found


def newest(db: sqlite3.Connection, sink: str) -> dict[str, int]:
    """Return the id of the newest step of each key."""
    query = """SELECT key, max(id) FROM deliveries WHERE sink = ? AND key IS NOT NULL
        AND state IN ('pending', 'delivered', 'dead', 'skipped') GROUP BY key"""
    return dict(db.execute(query, (sink,)))
