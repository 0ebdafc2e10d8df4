"""What ``sebridge outbox`` and ``sebridge events`` list and change.

A condition is SQL of ours and its parameters; it selects deliveries.
"""

import sqlite3
from collections.abc import Callable, Collection, Iterable
from itertools import islice

from bridge.outbox.records import REPLIES, Delivery

Condition = tuple[str, tuple[object, ...]]

# In the order of Delivery's fields.
_SELECT = """SELECT d.id, d.sink, i.kind, d.state, d.key, i.event_id, i.cloud_event_id,
    i.type, i.body, d.attempts, d.due, i.created, i.not_before, d.urgent_from,
    d.urgent_until, d.last_error, d.born
    FROM deliveries d JOIN items i ON i.id = d.item"""


def condition(
    *,
    sink: str | None,
    states: tuple[str, ...] | None,
    event_id: str | None,
    number: int | None,
) -> Condition:
    """Return the condition for deliveries that have these values; None = any.

    Replies are not events: without a sink's name they are left out.
    """
    shown = "d.sink <> ?" if sink is None else "d.sink = ?"
    parts, values = [shown], list[object]([sink or REPLIES])
    for column, value in (
        ("d.id = ?", number),
        ("i.key = ?", event_id and event_id.upper()),
    ):
        if value is not None:
            parts.append(column)
            values.append(value)
    if states is not None:
        parts.append(f"d.state IN ({','.join('?' * len(states))})")
        values += states
    return " AND ".join(parts), tuple(values)


def event_condition(
    *, event_id: str | None, since: float, state: str | None
) -> Condition:
    """Return the condition for events that have these values; None = any."""
    parts, values = ["created >= ?"], list[object]([since])
    if event_id is not None:
        parts.append("key = ?")
        values.append(event_id.upper())
    if state is not None:
        parts.append(
            "EXISTS (SELECT 1 FROM deliveries WHERE item = items.id AND state = ?)"
        )
        values.append(state)
    return " AND ".join(parts), tuple(values)


def select(
    db: sqlite3.Connection, condition: str, values: tuple[object, ...]
) -> list[Delivery]:
    """Return the deliveries for which ``condition`` (our own SQL) holds."""
    query = f"{_SELECT} WHERE {condition}"
    return [Delivery(*row) for row in db.execute(query, values)]


def find(db: sqlite3.Connection, chosen: Condition, limit: int = -1) -> list[Delivery]:
    """Return the selected deliveries, oldest first; -1 = all."""
    where, values = chosen
    return select(db, f"{where} ORDER BY d.id LIMIT ?", (*values, limit))


def newest(
    db: sqlite3.Connection, chosen: Condition, count: int, also: Collection[int]
) -> list[Delivery]:
    """Return the newest deliveries that are selected or in ``also``, oldest first."""
    where, values = chosen
    named = ",".join(map(str, also))
    either = f"({where}) OR d.id IN ({named}) ORDER BY d.id DESC LIMIT ?"
    return select(db, either, (*values, count))[::-1]


def published(
    db: sqlite3.Connection,
    chosen: Condition,
    *,
    after: int,
    newest: int,
    fits: Callable[[bytes], bool],
) -> list[tuple[int, bytes]]:
    """Return number and body of the selected events after ``after``, oldest first."""
    where, values = chosen
    rows = db.execute(
        f"""SELECT id, body FROM items WHERE kind = 'event' AND id > ? AND {where}
            ORDER BY id DESC""",  # noqa: S608 - our own conditions  # nosec B608
        (after, *values),
    )
    return [*islice((row for row in rows if fits(row[1])), newest)][::-1]


def of_item(db: sqlite3.Connection, number: int) -> tuple[Delivery, ...]:
    """Return the deliveries of an item, in order of the sinks' names."""
    return tuple(select(db, "d.item = ? ORDER BY d.sink", (number,)))


def event_ids(db: sqlite3.Connection, newest: int) -> list[str]:
    """Return the EventIds of published events, newest first."""
    query = """SELECT event_id, max(id) FROM items WHERE kind = 'event'
        AND event_id IS NOT NULL GROUP BY key ORDER BY 2 DESC LIMIT ?"""
    return [found for found, _ in db.execute(query, (newest,))]


def observed(db: sqlite3.Connection, start: str) -> list[str]:
    """Return the EventIds of documents that begin with ``start``, sorted."""
    query = """SELECT event_id, max(id) FROM items WHERE kind = 'event'
        AND type LIKE '%.scheduledevent.%' AND substr(key, 1, ?) = ?
        GROUP BY key ORDER BY key"""
    key = start.upper()
    return [found for found, _ in db.execute(query, (len(key), key))]


def last_delivered(
    db: sqlite3.Connection, found: list[Delivery]
) -> dict[tuple[str, str | None], int]:
    """Return the newest delivered id of each sink and key, with one query."""
    query = """SELECT sink, key, max(id) FROM deliveries NOT INDEXED
        WHERE id > ? AND state = 'delivered' AND key IS NOT NULL GROUP BY sink, key"""
    oldest = min((delivery.id for delivery in found), default=0)
    return {(sink, key): newest for sink, key, newest in db.execute(query, (oldest,))}


def make_due(db: sqlite3.Connection, chosen: Condition, now: float) -> int:
    """Make the selected later deliveries due now; return how many there were."""
    where, values = chosen
    changed = db.execute(
        f"""UPDATE deliveries SET due = ? WHERE id IN (
            SELECT d.id FROM deliveries d JOIN items i ON i.id = d.item
            WHERE {where} AND d.due > ?)""",  # noqa: S608 - our own conditions  # nosec B608
        (now, *values, now),
    )
    return changed.rowcount


def revive(db: sqlite3.Connection, chosen: Iterable[Delivery], now: float) -> None:
    """Make deliveries pending and due now, as if they were new."""
    db.executemany(
        """UPDATE deliveries SET state = 'pending', attempts = 0, due = ?,
           settled = NULL, waits_for_sink = 0, born = coalesce(
               (SELECT value FROM meta WHERE key = 'running:' || sink), 0.0)
           WHERE id = ?""",
        [(now, delivery.id) for delivery in chosen],
    )


def discard(db: sqlite3.Connection, chosen: Condition, now: float) -> list[Delivery]:
    """Discard the selected deliveries that are pending or dead; return them."""
    where, values = chosen
    found = find(db, (f"{where} AND d.state IN ('pending', 'dead')", values))
    db.executemany(
        "UPDATE deliveries SET state = 'discarded', settled = ? WHERE id = ?",
        [(now, delivery.id) for delivery in found],
    )
    return found
