"""The table ``sink_memory``: the values that sinks save for later runs."""

import sqlite3


def all_of(db: sqlite3.Connection, sink: str) -> dict[str, bytes]:
    """Return all values of a sink by their keys."""
    query = "SELECT key, value FROM sink_memory WHERE sink = ?"
    return dict(db.execute(query, (sink,)))


def load(db: sqlite3.Connection, sink: str, key: str) -> bytes | None:
    """Return the value of ``key``; None = there is none."""
    query = "SELECT value FROM sink_memory WHERE sink = ? AND key = ?"
    row = db.execute(query, (sink, key)).fetchone()
    return None if row is None else row[0]


def save(db: sqlite3.Connection, sink: str, key: str, value: bytes, now: float) -> None:
    """Save a value, in place of an earlier one with the same key."""
    db.execute(
        """INSERT OR REPLACE INTO sink_memory (sink, key, value, at)
           VALUES (?, ?, ?, ?)""",
        (sink, key, value, now),
    )
