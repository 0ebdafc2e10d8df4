"""What was observed: the checkpoint, which EventIds were seen, what was published."""

import json
import sqlite3
from collections.abc import Iterable, Mapping, Sequence

from bridge.outbox.records import (
    CHECKPOINT,
    Checkpoint,
    checksum_of_value,
    intact_value,
)

NEWEST = 5000  # rows of each table that are kept in memory
_AGAIN = "again:"

Published = tuple[dict[str, int], dict[str, frozenset[str]]]


def save_checkpoint(db: sqlite3.Connection, checkpoint: Checkpoint, now: float) -> None:
    """Save what is known of the document."""
    save(db, {CHECKPOINT: checkpoint.body})
    names = [(f"{_AGAIN}{key}",) for key in checkpoint.again]
    db.executemany("DELETE FROM meta WHERE key = ?", names)
    db.executemany(
        "INSERT OR REPLACE INTO sightings (key, at) VALUES (?, ?)",
        [(key, now) for key in checkpoint.sightings],
    )


def was_seen(db: sqlite3.Connection, key: str) -> bool:
    """Whether an EventId was in a document within the retention."""
    query = "SELECT 1 FROM sightings WHERE key = ?"
    return db.execute(query, (key,)).fetchone() is not None


def published(
    db: sqlite3.Connection, causes: Sequence[str], keys: Sequence[str]
) -> Published:
    """Return how often causes were published, and the followers of EventIds."""
    query = """SELECT cause, max(times, 1) FROM told
        WHERE cause IN (SELECT value FROM json_each(?))"""
    counts = dict(db.execute(query, (json.dumps(causes),)))
    query = """SELECT key, sink FROM followers
        WHERE key IN (SELECT value FROM json_each(?))"""
    return counts, _by_key(db.execute(query, (json.dumps(keys),)))


def newest(
    db: sqlite3.Connection,
) -> tuple[dict[str, int], dict[str, frozenset[str]], bool]:
    """Return what ``published`` does of the newest rows, and whether these are all."""
    query = "SELECT cause, max(times, 1) FROM told ORDER BY at DESC LIMIT ?"
    counts = dict(db.execute(query, (NEWEST,)))
    query = "SELECT key, sink FROM followers ORDER BY at DESC LIMIT ?"
    rows = db.execute(query, (NEWEST,)).fetchall()
    is_whole = max(len(counts), len(rows)) < NEWEST
    return counts, _by_key(rows) if is_whole else {}, is_whole


def _by_key(rows: Iterable[tuple[str, str]]) -> dict[str, frozenset[str]]:
    found: dict[str, set[str]] = {}
    for key, sink in rows:
        found.setdefault(key, set()).add(sink)
    return {key: frozenset(sinks) for key, sinks in found.items()}


def publish_again(db: sqlite3.Connection, key: str) -> None:
    """Mark an EventId whose events are to be published again from the document."""
    save(db, {f"{_AGAIN}{key}": b""})


def to_publish_again(db: sqlite3.Connection) -> frozenset[str]:
    """Return the keys of the EventIds that ``publish_again`` marked."""
    query = "SELECT key FROM meta WHERE key GLOB ?"
    found = db.execute(query, (f"{_AGAIN}*",))
    return frozenset(name.removeprefix(_AGAIN) for (name,) in found)


# -- The table ``meta``: named values, and a few counters ------------------------------


_RETRY = "retry:"


def load(db: sqlite3.Connection, name: str) -> bytes | None:
    """Return the value of ``name``: None if there is none, b"" if it is damaged."""
    # ``SELECT *``: a file that was not migrated yet has no column ``checksum``.
    row = db.execute("SELECT * FROM meta WHERE key = ?", (name,)).fetchone()
    return None if row is None else intact_value(name, row[1:])


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
