"""The table ``meta`` by SQL: named values, and the requests of commands."""

import sqlite3
from collections.abc import Mapping

from bridge.outbox.records import checksum_of_value, intact_value

AGAIN = "again:"  # + the EventId: its events are to be published again
_RETRY = "retry:"


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


def request_retry(db: sqlite3.Connection, sink: str | None) -> None:
    """Count a user's request to try a sink at once; None = all sinks."""
    db.execute(
        """INSERT INTO meta (key, value) VALUES (?, 1)
           ON CONFLICT DO UPDATE SET value = value + 1""",
        (f"{_RETRY}{sink or ''}",),
    )


def retries(db: sqlite3.Connection) -> dict[str | None, int]:
    """Return the count of ``request_retry`` by sink; None = for all sinks."""
    query = "SELECT key, value FROM meta WHERE key GLOB ?"
    found = db.execute(query, (f"{_RETRY}*",))
    return {
        name.removeprefix(_RETRY) or None: count
        for name, count in found
        if isinstance(count, int)
    }
