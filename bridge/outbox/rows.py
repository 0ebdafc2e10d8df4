"""The statements on deliveries: insert, head of each key, due, settle.

The head of a key is the first of its pending deliveries; only heads are ever due,
which keeps the order per sink and EventId without holding up other EventIds. What looks
at one key names its index: left to choose, SQLite walks through all that is pending.
"""

import json
import sqlite3
from collections.abc import Iterable, Sequence

import msgspec

_URGENT_BEFORE = 900.0  # a NotBefore within 15 minutes
_URGENT_AFTER_START = 300.0


class Delivery(msgspec.Struct, frozen=True):
    """One item on its way to one sink: a row, made at each look, so it is cheap.

    Attributes:
        kind: ``event`` or ``reply``.
        body: what ``CloudEvent.to_json`` or the reply room wrote.
        attempts: how many were made.
        created, not_before: seconds since the epoch.
    """

    id: int
    sink: str
    kind: str
    state: str
    key: str | None
    event_id: str | None
    cloud_event_id: str | None
    type: str
    body: bytes
    attempts: int
    due: float
    created: float
    not_before: float | None
    urgent_from: float | None
    urgent_until: float | None
    last_error: str | None


# In the order of Delivery's fields.
_COLUMNS = """d.id, d.sink, i.kind, d.state, d.key, i.event_id, i.cloud_event_id,
    i.type, i.body, d.attempts, d.due, i.created, i.not_before, d.urgent_from,
    d.urgent_until, d.last_error FROM deliveries d JOIN items i ON i.id = d.item"""


def select(
    db: sqlite3.Connection, condition: str, values: tuple[object, ...]
) -> list[Delivery]:
    """Return the deliveries for which ``condition`` (SQL of ours) holds."""
    query = f"SELECT {_COLUMNS} WHERE {condition}"
    return [Delivery(*row) for row in db.execute(query, values)]


def urgency(
    *, not_before: float | None, is_started: bool, created: float
) -> tuple[float | None, float | None]:
    """Return from when and until when something goes before everything else."""
    if is_started:
        return created, created + _URGENT_AFTER_START
    if not_before is not None:
        return not_before - _URGENT_BEFORE, not_before
    return None, None


def insert(  # noqa: PLR0913 - one per column
    db: sqlite3.Connection,
    *,
    item: int,
    sink: str,
    key: str | None,
    now: float,
    window: tuple[float | None, float | None],
) -> None:
    """Add a delivery behind those of its key, and lend those its urgency."""
    (is_head,) = db.execute(
        """SELECT NOT EXISTS (
               SELECT 1 FROM deliveries INDEXED BY deliveries_key
               WHERE sink = ? AND key = ? AND state = 'pending')""",
        (sink, key),
    ).fetchone()
    db.execute(
        """INSERT INTO deliveries
           (item, sink, key, state, is_head, due, urgent_from, urgent_until)
           VALUES (?, ?, ?, 'pending', ?, ?, ?, ?)""",
        (item, sink, key, is_head, now, *window),
    )
    if window[1] is not None and not is_head:
        db.execute(
            """UPDATE deliveries INDEXED BY deliveries_key SET
               urgent_from = min(coalesce(urgent_from, ?1), ?1),
               urgent_until = max(coalesce(urgent_until, ?2), ?2)
               WHERE sink = ?3 AND key = ?4 AND state = 'pending'""",
            (*window, sink, key),
        )


def behead(db: sqlite3.Connection, sink: str, key: str | None) -> None:
    """Make the first pending delivery of a key its head, and no other."""
    if key is None:
        return
    db.execute(
        """UPDATE deliveries INDEXED BY deliveries_key SET is_head = (id = (
               SELECT min(id) FROM deliveries INDEXED BY deliveries_key
               WHERE sink = ?1 AND key = ?2 AND state = 'pending'))
           WHERE sink = ?1 AND key = ?2 AND state = 'pending'""",
        (sink, key),
    )


def due(
    db: sqlite3.Connection,
    sink: str,
    now: float,
    limit: int,
    but: Iterable[int] = (),
) -> list[Delivery]:
    """Return what is due for a sink, urgent ones first and then by age.

    Args:
        db: the state file.
        sink: whose.
        now: seconds since the epoch.
        limit: so many at most.
        but: ids that are left out.
    """
    left_out = json.dumps(list(but))
    found = select(
        db,
        """d.sink = ? AND d.state = 'pending' AND d.is_head
           AND d.urgent_until > ? AND d.urgent_from <= ? AND d.due <= ?
           AND d.id NOT IN (SELECT value FROM json_each(?))
           ORDER BY d.urgent_until LIMIT ?""",
        (sink, now, now, now, left_out, limit),
    )
    if len(found) >= limit:
        return found
    rest = select(
        db,
        """d.sink = ? AND d.state = 'pending' AND d.is_head AND d.due <= ?
           AND d.id NOT IN (SELECT value FROM json_each(?))
           ORDER BY d.due, d.id LIMIT ?""",
        (sink, now, left_out, limit),
    )
    urgent = {d.id for d in found}
    return [*found, *(d for d in rest if d.id not in urgent)][:limit]


def next_due(db: sqlite3.Connection, sink: str, now: float) -> float | None:
    """Return when the next delivery of a sink is due that is not due yet."""
    row: tuple[float | None] = db.execute(
        """SELECT min(due) FROM deliveries
           WHERE sink = ? AND state = 'pending' AND is_head AND due > ?""",
        (sink, now),
    ).fetchone()
    return row[0]


def delivered(
    db: sqlite3.Connection, deliveries: Sequence[Delivery], now: float
) -> bool:
    """Move deliveries of one sink to their good end, with one statement for all.

    Returns:
        Whether any is followed by another that waits.
    """
    ids = [delivery.id for delivery in deliveries]
    db.execute(
        """UPDATE deliveries SET state = 'delivered', is_head = 0, settled = ?,
           attempts = attempts + 1, last_error = NULL, reason = NULL
           WHERE id IN (SELECT value FROM json_each(?)) AND state = 'pending'""",
        (now, json.dumps(ids)),
    )
    keys = {delivery.key for delivery in deliveries if delivery.key is not None}
    if not keys:
        return False
    following = db.execute(
        """UPDATE deliveries INDEXED BY deliveries_key SET is_head = (id = (
               SELECT min(first.id) FROM deliveries first INDEXED BY deliveries_key
               WHERE first.sink = ?1 AND first.key = deliveries.key
               AND first.state = 'pending'))
           WHERE sink = ?1 AND key IN (SELECT value FROM json_each(?2))
           AND state = 'pending'""",
        (deliveries[0].sink, json.dumps(sorted(keys))),
    )
    return following.rowcount > 0


def settle(
    db: sqlite3.Connection,
    delivery: Delivery,
    state: str,
    *,
    now: float,
    error: tuple[str, str] | None = None,
) -> bool:
    """Move a delivery to a final state; False if somebody else had moved it."""
    text, reason = error or (None, None)
    moved = db.execute(
        """UPDATE deliveries SET state = ?, is_head = 0, settled = ?,
           attempts = attempts + 1, last_error = ?, reason = ?
           WHERE id = ? AND state = 'pending'""",
        (state, now, text, reason, delivery.id),
    ).rowcount
    behead(db, delivery.sink, delivery.key)
    return moved > 0
