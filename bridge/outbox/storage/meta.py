"""The table ``meta`` by SQL: named values."""

import sqlite3
from collections.abc import Mapping

from bridge.outbox.records import checksum_of_value, intact_value

AGAIN = "again:"  # + the EventId: its events are to be published again


def load(db: sqlite3.Connection, name: str) -> bytes | None:
    """Return the value of ``name``: None if there is none, b"" if it is damaged."""
    query = "SELECT value, checksum FROM meta WHERE key = ?"
    return intact_value(name, db.execute(query, (name,)).fetchone())


def save(db: sqlite3.Connection, values: Mapping[str, bytes]) -> None:
    """Write values under their names."""
    db.executemany(
        "INSERT OR REPLACE INTO meta (key, value, checksum) VALUES (?, ?, ?)",
        [(name, body, checksum_of_value(name, body)) for name, body in values.items()],
    )
