"""The statements of the outbox beside those on deliveries: each a part of a job."""

import sqlite3
from collections.abc import Mapping
from dataclasses import replace

from bridge.cloudevent import CloudEvent
from bridge.errors import OutboxFullError
from bridge.events import Told
from bridge.outbox import rows
from bridge.outbox.connection import Connection
from bridge.outbox.records import (
    CHECKPOINT,
    REPLIES,
    Checkpoint,
    Decision,
    Reply,
    Tally,
)
from bridge.routing import Router

RETRY = "retry:"


def load(db: sqlite3.Connection, name: str) -> bytes | None:
    """Return what is kept under ``name``."""
    row = db.execute("SELECT value FROM meta WHERE key = ?", (name,)).fetchone()
    return None if row is None else row[0]


def save(db: sqlite3.Connection, values: Mapping[str, bytes]) -> None:
    """Keep values under their names."""
    db.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", list(values.items()))


def ask_to_retry(db: sqlite3.Connection, sink: str | None) -> None:
    """Note that a person wants a sink, or all, to be tried at once."""
    db.execute(
        """INSERT INTO meta VALUES (?, 1)
           ON CONFLICT DO UPDATE SET value = value + 1""",
        (f"{RETRY}{sink or ''}",),
    )


def keep(db: sqlite3.Connection, checkpoint: Checkpoint, now: float) -> None:
    """Keep what is known of the document."""
    save(db, {CHECKPOINT: checkpoint.body})
    db.executemany(
        "INSERT OR REPLACE INTO sightings VALUES (?, ?)",
        [(key, now) for key in checkpoint.sightings],
    )


def refresh(db: sqlite3.Connection, alive: frozenset[str], now: float) -> None:
    """Note that these EventIds still live: what is known of them is kept."""
    for table in ("told", "sightings", "followers", "approvals", "sink_memory"):
        db.executemany(
            f"UPDATE {table} SET at = ? WHERE key = ?",  # noqa: S608 - our own names  # nosec B608
            [(now, key) for key in alive],
        )


def append(db: Connection, router: Router, told: Told, now: float) -> tuple[str, ...]:
    """Put an event into the outbox; returns the sinks that are told.

    Raises:
        OutboxFullError: there is no room for it in memory, and no disk.
    """
    event, key = _marked(told.event, db), told.key
    db.execute(
        """INSERT INTO told (cause, times, at, key) VALUES (?, 1, ?, ?)
           ON CONFLICT DO UPDATE SET times = times + 1, at = excluded.at""",
        (told.cause, now, key),
    )
    not_before = told.not_before.timestamp() if told.not_before else None
    item = db.execute(
        """INSERT INTO items
           (kind, key, event_id, cloud_event_id, type, body, created, not_before)
           VALUES ('event', ?, ?, ?, ?, ?, ?, ?)""",
        (
            key,
            event.text("correlationid"),
            event.id,
            event.type,
            event.to_json(),
            now,
            not_before,
        ),
    ).lastrowid
    query = "SELECT sink FROM followers WHERE key = ?"
    following = {sink for (sink,) in db.execute(query, (key,))}
    sinks = router.sinks(told.subject, following)
    window = rows.urgency(
        not_before=not_before, is_started=told.is_started, created=now
    )
    for sink in sinks:
        rows.insert(db, item=item or 0, sink=sink, key=key, now=now, window=window)
        if key is not None and told.subject.transition is not None:
            db.execute(
                "INSERT OR REPLACE INTO followers VALUES (?, ?, ?)", (key, sink, now)
            )
    if told.is_last:
        db.execute("DELETE FROM followers WHERE key = ?", (key,))
    return sinks


def _marked(event: CloudEvent, db: Connection) -> CloudEvent:
    """Return the event as it is told while there is room for it."""
    if db.room is not None:
        if db.room <= 0:
            raise OutboxFullError("neither disk nor memory has room for another event")
        db.room -= 1
    if db.is_durable:
        return event
    return replace(event, data={**event.data, "durable": False})


def append_reply(db: sqlite3.Connection, reply: Reply, now: float) -> None:
    """Put a reply into the outbox."""
    item = db.execute(
        """INSERT INTO items (kind, key, type, body, created)
           VALUES ('reply', ?, 'reply', ?, ?)""",
        (reply.key, reply.body, now),
    ).lastrowid
    rows.insert(
        db, item=item or 0, sink=REPLIES, key=None, now=now, window=(None, None)
    )


def decide(db: sqlite3.Connection, decision: Decision, now: float) -> None:
    """Keep what became of an EventId of an approval; what was posted stays so."""
    db.execute(
        """INSERT INTO approvals VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
           ON CONFLICT DO UPDATE SET sequence = excluded.sequence,
           state = excluded.state, posted = max(posted, excluded.posted),
           data = coalesce(excluded.data, data), at = excluded.at,
           rule = excluded.rule""",
        (
            decision.message,
            decision.key,
            decision.event_id,
            decision.sequence,
            decision.state,
            decision.posted,
            decision.data,
            now,
            decision.rule,
        ),
    )


def decisions(
    db: sqlite3.Connection, condition: str, values: tuple[object, ...] = ()
) -> list[Decision]:
    """Return the decisions for which ``condition`` (SQL of ours) holds."""
    query = f"""SELECT message, key, event_id, sequence, state, posted, data, rule
        FROM approvals WHERE {condition}"""  # noqa: S608 - conditions of ours  # nosec B608
    names = (
        "message",
        "key",
        "event_id",
        "sequence",
        "state",
        "posted",
        "data",
        "rule",
    )
    found = [dict(zip(names, row, strict=True)) for row in db.execute(query, values)]
    return [Decision(**{**row, "posted": bool(row["posted"])}) for row in found]


def tallies(db: sqlite3.Connection) -> dict[str, Tally]:
    """Return how each sink stands that ever had a delivery."""
    counts: dict[str, dict[str, int]] = {}
    for sink, state, n in db.execute("SELECT sink, state, n FROM tallies"):
        counts.setdefault(sink, {})[state] = n
    return {sink: _tally(db, sink, states) for sink, states in counts.items()}


def _tally(db: sqlite3.Connection, sink: str, states: dict[str, int]) -> Tally:
    oldest = db.execute(
        """SELECT i.created, d.last_error FROM deliveries d
           JOIN items i ON i.id = d.item
           WHERE d.sink = ? AND d.state = 'pending' ORDER BY d.id LIMIT 1""",
        (sink,),
    ).fetchone() or (None, None)
    dead = db.execute(
        """SELECT last_error FROM deliveries
           WHERE sink = ? AND state = 'dead' ORDER BY id DESC LIMIT 1""",
        (sink,),
    ).fetchone() or (None,)
    return Tally(
        pending=states.get("pending", 0),
        dead=states.get("dead", 0),
        delivered=states.get("delivered", 0),
        discarded=states.get("discarded", 0),
        oldest=oldest[0],
        last_error=oldest[1] or dead[0],
    )


def prune(db: sqlite3.Connection, before: float, limit: int) -> int:
    """Drop what was settled before ``before``; returns how many items went."""
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
    db.executemany("DELETE FROM deliveries WHERE item = ?", items)
    db.executemany("DELETE FROM items WHERE id = ?", items)
    db.execute("DELETE FROM told WHERE at < ?", (before,))
    db.execute("DELETE FROM sightings WHERE at < ?", (before,))
    db.execute("DELETE FROM followers WHERE at < ?", (before,))
    db.execute("DELETE FROM approvals WHERE at < ?", (before,))
    db.execute("DELETE FROM sink_memory WHERE at < ?", (before,))
    return len(items)


def size(db: sqlite3.Connection) -> int:
    """Return how many bytes of the file hold something."""
    pages, free, bytes_each = (
        db.execute(f"PRAGMA {name}").fetchone()[0]
        for name in ("page_count", "freelist_count", "page_size")
    )
    return int((pages - free) * bytes_each)


def drop_oldest(db: sqlite3.Connection, limit: int) -> int:
    """Drop the oldest items that wait for nobody; returns how many went."""
    items = db.execute(
        """SELECT id FROM items WHERE NOT EXISTS (
               SELECT 1 FROM deliveries d WHERE d.item = items.id
               AND d.state IN ('pending', 'dead'))
           ORDER BY id LIMIT ?""",
        (limit,),
    ).fetchall()
    db.executemany("DELETE FROM deliveries WHERE item = ?", items)
    db.executemany("DELETE FROM items WHERE id = ?", items)
    return len(items)
