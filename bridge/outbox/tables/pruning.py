"""Deletes old rows, and the oldest rows of a file that is too large."""

import sqlite3

from msgspec import Struct

from bridge.outbox.tables import successes

_BY_EVENT = (  # rows of these tables are kept as long as their EventId exists
    *("told", "sightings", "followers", "approvals", "sink_memory"),
    *("appearances", "command_successes"),
)


def refresh(db: sqlite3.Connection, alive: frozenset[str], now: float) -> None:
    """Renew the rows of EventIds in the document, so that they are not pruned."""
    for table in _BY_EVENT:
        db.executemany(
            f"UPDATE {table} SET at = ? WHERE key = ?",  # noqa: S608 - our own names  # nosec B608
            [(now, key) for key in alive],
        )


def recall_from_future(db: sqlite3.Connection, now: float) -> None:
    """Replace times in the future by the present time.

    The wall clock was ahead when these rows were written. Without this, they would be
    kept until the clock reaches their time.

    Args:
        db: the state file.
        now: seconds since the epoch.
    """
    for table in _BY_EVENT:
        db.execute(f"UPDATE {table} SET at = ? WHERE at > ?", (now, now))  # noqa: S608 - our own names  # nosec B608
    db.execute(
        """UPDATE deliveries SET settled = ? WHERE settled > ?
           AND item IN (SELECT id FROM items WHERE created > ?)""",
        (now, now, now),
    )
    db.execute("UPDATE items SET created = ? WHERE created > ?", (now, now))
    successes.recall_from_future(db, now)


class Pruned(Struct, frozen=True):
    """What was deleted.

    Attributes:
        items: how many items.
        causes: the causes that are no longer counted.
        keys: the EventIds whose followers are no longer known.
    """

    items: int
    causes: list[str]
    keys: list[str]


def prune(db: sqlite3.Connection, before: float, limit: int) -> Pruned:
    """Delete items that were settled before ``before``, and other old rows."""
    items = [
        (item,)
        for (item,) in db.execute(
            """SELECT id FROM items WHERE created < ? AND NOT EXISTS (
                   SELECT 1 FROM deliveries d WHERE d.item = items.id
                   AND (d.state IN ('pending', 'dead') OR d.settled >= ?))
               ORDER BY created LIMIT ?""",
            (before, before, limit),
        )
    ]
    _delete_items(db, items)
    causes, keys = (
        [name for (name,) in db.execute(query, (before,))]
        for query in (
            "SELECT cause FROM told WHERE at < ?",
            "SELECT DISTINCT key FROM followers WHERE at < ?",
        )
    )
    for table in _BY_EVENT:
        db.execute(f"DELETE FROM {table} WHERE at < ?", (before,))  # noqa: S608 - our own names  # nosec B608
    return Pruned(len(items), causes, keys)


def size(db: sqlite3.Connection) -> int:
    """Return how many bytes of the file are in use."""
    pages, free, bytes_each = (
        db.execute(f"PRAGMA {name}").fetchone()[0]
        for name in ("page_count", "freelist_count", "page_size")
    )
    return int((pages - free) * bytes_each)


def drop_oldest(db: sqlite3.Connection, limit: int) -> int:
    """Delete the oldest items with no pending or dead delivery; return their number."""
    items = db.execute(
        """SELECT id FROM items WHERE NOT EXISTS (
               SELECT 1 FROM deliveries d WHERE d.item = items.id
               AND d.state IN ('pending', 'dead'))
           ORDER BY id LIMIT ?""",
        (limit,),
    ).fetchall()
    _delete_items(db, items)
    return len(items)


def _delete_items(db: sqlite3.Connection, items: list[tuple[int]]) -> None:
    db.executemany("DELETE FROM deliveries WHERE item = ?", items)
    db.executemany("DELETE FROM items WHERE id = ?", items)
