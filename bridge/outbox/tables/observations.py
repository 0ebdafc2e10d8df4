"""What was observed: the checkpoint, which EventIds were seen, what was published."""

import json
import sqlite3
from collections.abc import Sequence

from bridge.outbox.records import CHECKPOINT, Checkpoint
from bridge.outbox.tables.values import save

_AGAIN = "again:"


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


def publish_counts(db: sqlite3.Connection, causes: Sequence[str]) -> dict[str, int]:
    """Return how often events of each cause were published; absent = never."""
    query = """SELECT cause, max(times, 1) FROM told
        WHERE cause IN (SELECT value FROM json_each(?))"""
    return dict(db.execute(query, (json.dumps(list(causes)),)))


def publish_again(db: sqlite3.Connection, key: str) -> None:
    """Mark an EventId whose events are to be published again from the document."""
    save(db, {f"{_AGAIN}{key}": b""})


def to_publish_again(db: sqlite3.Connection) -> frozenset[str]:
    """Return the keys of the EventIds that ``publish_again`` marked."""
    query = "SELECT key FROM meta WHERE key GLOB ?"
    found = db.execute(query, (f"{_AGAIN}*",))
    return frozenset(name.removeprefix(_AGAIN) for (name,) in found)
