"""Deletes old rows, and the oldest rows of a file that is too large."""

import sqlite3
from collections import Counter
from typing import Any

from msgspec import Struct

_BY_EVENT = {  # rows are kept as long as their EventId exists: the columns of the key
    "told": "cause",
    "sightings": "key",
    "followers": "key, sink",
    "approvals": "message, key",
    "sink_memory": "sink, key",
    "appearances": "key",
    "command_successes": "sink, key",
}


class Pruned(Struct, frozen=True):
    """What was deleted.

    Attributes:
        items: how many items.
        counts: how many of their deliveries, by sink and state.
        left: by how many bytes the file is still too large.
        gone: the keys of other rows that were deleted, by table.
    """

    items: int
    counts: dict[tuple[str, str], int]
    left: int = 0
    gone: dict[str, list[Any]] = {}


def prune(
    db: sqlite3.Connection,
    *,
    now: float,
    alive: frozenset[str],
    before: float,
    limit: int,
) -> Pruned:
    """Delete items that were settled before ``before``, and other old rows.

    Args:
        db: the state file.
        now: seconds since the epoch.
        alive: keys of the EventIds in the document: their rows are renewed.
        before: by the clock as it was set when the rows were written.
        limit: the most items to delete.
    """
    _recall_from_future(db, now)
    for table in _BY_EVENT:
        db.executemany(
            f"UPDATE {table} SET at = ? WHERE key = ?",  # noqa: S608 - our own names  # nosec B608
            [(now, key) for key in alive],
        )
    items = db.execute(
        """SELECT id FROM items WHERE created < ? AND NOT EXISTS (
               SELECT 1 FROM deliveries d WHERE d.item = items.id
               AND (d.state IN ('pending', 'dead') OR d.settled >= ?))
           ORDER BY created LIMIT ?""",
        (before, before, limit),
    ).fetchall()
    counts = _delete_items(db, items)
    gone = {table: _deleted(db, table, key, before) for table, key in _BY_EVENT.items()}
    return Pruned(len(items), counts, gone=gone)


def _deleted(db: sqlite3.Connection, table: str, key: str, before: float) -> list[Any]:
    query = f"DELETE FROM {table} WHERE at < ? RETURNING {key}"  # noqa: S608 - our own names  # nosec B608
    rows = db.execute(query, (before,)).fetchall()
    return rows if "," in key else [name for (name,) in rows]


def _recall_from_future(db: sqlite3.Connection, now: float) -> None:
    """Replace times in the future by the present time.

    The wall clock was ahead when these rows were written. Without this, they would be
    kept until the clock reaches their time.
    """
    for table in _BY_EVENT:
        db.execute(f"UPDATE {table} SET at = ? WHERE at > ?", (now, now))  # noqa: S608 - our own names  # nosec B608
    db.execute(
        """UPDATE deliveries SET settled = ? WHERE settled > ?
           AND item IN (SELECT id FROM items WHERE created > ?)""",
        (now, now, now),
    )
    db.execute("UPDATE items SET created = ? WHERE created > ?", (now, now))


def size(db: sqlite3.Connection) -> int:
    """Return how many bytes of the file are in use."""
    pages, free, bytes_each = (
        db.execute(f"PRAGMA {name}").fetchone()[0]
        for name in ("page_count", "freelist_count", "page_size")
    )
    return int((pages - free) * bytes_each)


def shrink(db: sqlite3.Connection, *, most: int, limit: int) -> Pruned:
    """Delete the oldest items with no pending or dead delivery from a large file.

    Args:
        db: the state file.
        most: the allowed size in bytes.
        limit: the most items to delete.
    """
    items = list[tuple[int]]()
    if size(db) > most:
        items = db.execute(
            """SELECT id FROM items WHERE NOT EXISTS (
                   SELECT 1 FROM deliveries d WHERE d.item = items.id
                   AND d.state IN ('pending', 'dead'))
               ORDER BY id LIMIT ?""",
            (limit,),
        ).fetchall()
    counts = _delete_items(db, items)
    return Pruned(len(items), counts, left=max(size(db) - most, 0))


def _delete_items(
    db: sqlite3.Connection, items: list[tuple[int]]
) -> dict[tuple[str, str], int]:
    """Delete items and their deliveries; count these by sink and state."""
    query = "DELETE FROM deliveries WHERE item = ? RETURNING sink, state"
    counts = Counter[tuple[str, str]]()
    for item in items:
        counts.update(db.execute(query, item).fetchall())
    db.executemany("DELETE FROM items WHERE id = ?", items)
    return counts
