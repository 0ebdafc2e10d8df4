"""The statements on deliveries: insert, head of each key, due, settle.

The head of a key is the first of its pending deliveries; only heads are ever due,
which keeps the order per sink and EventId without holding up other EventIds. What looks
at one key names its index: left to choose, SQLite walks through all that is pending.
"""

import json
import sqlite3
from collections.abc import Iterable, Sequence

from bridge.outbox.checksum import Content, checksum_of
from bridge.outbox.delivery import Delivery, select, select_checked
from bridge.outbox.storage.connection import Connection

_URGENT_BEFORE = 900.0  # a NotBefore within 15 minutes
_URGENT_AFTER_START = 300.0
_RUNNING = "running:"


def urgency(
    *, not_before: float | None, is_started: bool, created: float
) -> tuple[float | None, float | None]:
    """Return from when and until when something goes before everything else."""
    if is_started:
        return created, created + _URGENT_AFTER_START
    if not_before is not None:
        return not_before - _URGENT_BEFORE, not_before
    return None, None


def add(
    db: sqlite3.Connection,
    content: Content,
    *,
    created: float,
    not_before: float | None = None,
) -> int:
    """Add what is to be sent; returns the number of its row.

    The number is chosen here, as SQLite would, since the checksum is over it too.
    """
    (number,) = db.execute(
        """SELECT 1 + max(
               coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'items'), 0),
               coalesce((SELECT max(id) FROM items), 0))"""
    ).fetchone()
    db.execute(
        """INSERT INTO items (id, kind, key, event_id, cloud_event_id, type, body,
           checksum, created, not_before) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)""",
        (number, *content, checksum_of(number, content), created, not_before),
    )
    return int(number)


def is_within(window: tuple[float | None, float | None], now: float) -> bool:
    """Whether something with such a window goes before everything else now."""
    since, until = window
    return since is not None and until is not None and since <= now < until


def insert(  # noqa: PLR0913 - one per column
    db: sqlite3.Connection,
    *,
    item: int,
    sink: str,
    key: str | None,
    now: float,
    window: tuple[float | None, float | None],
    running: float | None = None,
) -> None:
    """Add a delivery behind those of its key, and lend those its urgency.

    Args:
        db: the state file.
        item: what is delivered.
        sink: where to.
        key: among equal ones order is kept.
        now: seconds since the epoch.
        window: from when and until when it is urgent.
        running: by how much the deliveries of the sink have grown older; None: as
            much as is kept.
    """
    if running is None:
        running = load_running(db, sink)
    else:
        save_running(db, sink, running)
    (is_head,) = db.execute(
        """SELECT NOT EXISTS (
               SELECT 1 FROM deliveries INDEXED BY deliveries_key
               WHERE sink = ? AND key = ? AND state = 'pending')""",
        (sink, key),
    ).fetchone()
    db.execute(
        """INSERT INTO deliveries
           (item, sink, key, state, is_head, due, urgent_from, urgent_until, born)
           VALUES (?, ?, ?, 'pending', ?, ?, ?, ?, ?)""",
        (item, sink, key, is_head, now, *window, running),
    )
    if window[1] is not None and not is_head:
        db.execute(
            """UPDATE deliveries INDEXED BY deliveries_key SET
               urgent_from = min(coalesce(urgent_from, ?1), ?1),
               urgent_until = max(coalesce(urgent_until, ?2), ?2)
               WHERE sink = ?3 AND key = ?4 AND state = 'pending'""",
            (*window, sink, key),
        )


def load_running(db: sqlite3.Connection, sink: str) -> float:
    """Return by how much the deliveries of a sink had grown older when last kept."""
    query = "SELECT value FROM meta WHERE key = ?"
    row = db.execute(query, (f"{_RUNNING}{sink}",)).fetchone()
    is_known = row is not None and isinstance(row[0], int | float)
    return float(row[0]) if is_known else 0.0  # damaged: as for a new state file


def save_running(db: sqlite3.Connection, sink: str, seconds: float) -> None:
    """Keep by how much the deliveries of a sink have grown older."""
    row = (f"{_RUNNING}{sink}", seconds)
    db.execute("INSERT OR REPLACE INTO meta (key, value) VALUES (?, ?)", row)


def postpone(  # noqa: PLR0913 - one per column
    db: sqlite3.Connection,
    delivery: Delivery,
    *,
    due: float,
    error: tuple[str, str],
    waits_for_sink: bool,
    running: float | None,
) -> None:
    """Make a delivery due later."""
    db.execute(
        """UPDATE deliveries SET due = ?, attempts = attempts + 1, last_error = ?,
           reason = ?, waits_for_sink = ? WHERE id = ? AND state = 'pending'""",
        (due, *error, waits_for_sink, delivery.id),
    )
    if running is not None:
        save_running(db, delivery.sink, running)


def release(db: sqlite3.Connection, sink: str, now: float, limit: int) -> int:
    """Make due what failed for the sink's sake: the sink is back.

    Returns:
        How many were made due.
    """
    return db.execute(
        """UPDATE deliveries SET due = ?1 WHERE id IN (
               SELECT id FROM deliveries WHERE sink = ?2 AND state = 'pending'
               AND is_head AND due > ?1 AND waits_for_sink ORDER BY due LIMIT ?3)""",
        (now, sink, limit),
    ).rowcount


def waiting_for(
    db: sqlite3.Connection, sink: str, now: float, limit: int, but: Iterable[int]
) -> list[Delivery]:
    """Return what would be due if the sink were back, urgent ones first."""
    return select(
        db,
        """d.sink = ? AND d.state = 'pending' AND d.is_head AND d.due > ?
           AND d.waits_for_sink AND d.id NOT IN (SELECT value FROM json_each(?))
           ORDER BY d.urgent_until IS NULL, d.urgent_until, d.due LIMIT ?""",
        (sink, now, json.dumps(list(but)), limit),
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
    db: Connection,
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
    found = select_checked(
        db,
        """d.sink = ? AND d.state = 'pending' AND d.is_head
           AND d.urgent_until > ? AND d.urgent_from <= ? AND d.due <= ?
           AND d.id NOT IN (SELECT value FROM json_each(?))
           ORDER BY d.urgent_until LIMIT ?""",
        (sink, now, now, now, left_out, limit),
    )
    if len(found) >= limit:
        return found
    rest = select_checked(
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
