"""The statements of the outbox beside those on deliveries: each a part of a job."""

import sqlite3
from collections.abc import Mapping
from dataclasses import replace

from bridge.events.build import OutgoingEvent
from bridge.events.cloudevent import CloudEvent
from bridge.events.routing import Router
from bridge.foundation.errors import OutboxFullError
from bridge.outbox import deliveries as rows
from bridge.outbox import successes
from bridge.outbox.checksum import Content, checksum_of_value, whole
from bridge.outbox.records import (
    CHECKPOINT,
    REPLIES,
    Checkpoint,
    Reply,
    Tally,
)
from bridge.outbox.storage.connection import Connection

RETRY = "retry:"
AGAIN = "again:"
_MEMORY = (
    *("told", "sightings", "followers", "approvals", "sink_memory"),
    *("appearances", "command_successes"),
)


def load(db: sqlite3.Connection, name: str) -> bytes | None:
    """Return what is kept under ``name``: b"" where it is damaged, None = nothing."""
    # An older file has no checksums: who looks at it has not brought it up to date.
    row = db.execute("SELECT * FROM meta WHERE key = ?", (name,)).fetchone()
    return None if row is None else whole(name, row[1:])


def save(db: sqlite3.Connection, values: Mapping[str, bytes]) -> None:
    """Keep values under their names."""
    db.executemany(
        "INSERT OR REPLACE INTO meta (key, value, checksum) VALUES (?, ?, ?)",
        [(name, body, checksum_of_value(name, body)) for name, body in values.items()],
    )


def ask_to_retry(db: sqlite3.Connection, sink: str | None) -> None:
    """Note that a person wants a sink, or all, to be tried at once."""
    db.execute(
        """INSERT INTO meta (key, value) VALUES (?, 1)
           ON CONFLICT DO UPDATE SET value = value + 1""",
        (f"{RETRY}{sink or ''}",),
    )


def ask_again(db: sqlite3.Connection, key: str) -> None:
    """Note that an event is to be told again from the document."""
    save(db, {f"{AGAIN}{key}": b""})


def asked_again(db: sqlite3.Connection) -> frozenset[str]:
    """Return the keys of the events that are to be told again."""
    query = "SELECT key FROM meta WHERE key GLOB ?"
    found = db.execute(query, (f"{AGAIN}*",))
    return frozenset(name.removeprefix(AGAIN) for (name,) in found)


def told_again(db: sqlite3.Connection, keys: frozenset[str]) -> None:
    """Note that events have been told again, or are gone."""
    names = [(f"{AGAIN}{key}",) for key in keys]
    db.executemany("DELETE FROM meta WHERE key = ?", names)


def keep(db: sqlite3.Connection, checkpoint: Checkpoint, now: float) -> None:
    """Keep what is known of the document."""
    save(db, {CHECKPOINT: checkpoint.body})
    told_again(db, checkpoint.again)
    db.executemany(
        "INSERT OR REPLACE INTO sightings (key, at) VALUES (?, ?)",
        [(key, now) for key in checkpoint.sightings],
    )


def refresh(db: sqlite3.Connection, alive: frozenset[str], now: float) -> None:
    """Note that these EventIds still live: what is known of them is kept."""
    for table in _MEMORY:
        db.executemany(
            f"UPDATE {table} SET at = ? WHERE key = ?",  # noqa: S608 - our own names  # nosec B608
            [(now, key) for key in alive],
        )


def append(
    db: Connection,
    router: Router,
    told: OutgoingEvent,
    now: float,
    running: Mapping[str, float],
) -> tuple[str, ...]:
    """Put an event into the outbox; returns the sinks that are told.

    Args:
        db: the state file.
        router: says who is told.
        told: the event.
        now: seconds since the epoch.
        running: by how much the deliveries of each sink have grown older.

    Raises:
        OutboxFullError: there is no room for it in memory, and no disk.
    """
    not_before = told.not_before.timestamp() if told.not_before else None
    window = rows.urgency(
        not_before=not_before, is_started=told.is_started, created=now
    )
    event = _marked(told.event, db, is_urgent=rows.is_within(window, now))
    key = told.key
    db.execute(
        """INSERT INTO told (cause, times, at, key) VALUES (?, 1, ?, ?)
           ON CONFLICT DO UPDATE SET times = times + 1, at = excluded.at""",
        (told.cause, now, key),
    )
    item = rows.add(
        db,
        Content(
            kind="event",
            key=key,
            event_id=event.text("correlationid"),
            cloud_event_id=event.id,
            type=event.type,
            body=event.to_json(),
        ),
        created=now,
        not_before=not_before,
    )
    query = "SELECT sink FROM followers WHERE key = ?"
    following = {sink for (sink,) in db.execute(query, (key,))}
    sinks = router.sinks(told.subject, following)
    for sink in sinks:
        rows.insert(
            db,
            item=item,
            sink=sink,
            key=key,
            now=now,
            window=window,
            running=running.get(sink),
        )
        if key is not None and told.subject.transition is not None:
            db.execute(
                """INSERT OR REPLACE INTO followers (key, sink, at)
                   VALUES (?, ?, ?)""",
                (key, sink, now),
            )
    if told.is_last and key is not None:
        db.execute("DELETE FROM followers WHERE key = ?", (key,))
        successes.gone(db, key, now)
    return sinks


def _marked(event: CloudEvent, db: Connection, *, is_urgent: bool) -> CloudEvent:
    """Return the event as it is told while there is room for it."""
    if db.room is not None and not db.room.takes(is_urgent=is_urgent):
        raise OutboxFullError("neither disk nor memory has room for another event")
    if db.is_durable:
        return event
    return replace(event, data={**event.data, "durable": False})


def append_reply(
    db: sqlite3.Connection, reply: Reply, now: float, running: Mapping[str, float]
) -> None:
    """Put a reply into the outbox; arguments as those of ``append``."""
    content = Content("reply", reply.key, None, None, "reply", reply.body)
    rows.insert(
        db,
        item=rows.add(db, content, created=now),
        sink=REPLIES,
        key=None,
        now=now,
        window=(None, None),
        running=running.get(REPLIES),
    )


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


def recall_from_future(db: sqlite3.Connection, now: float) -> None:
    """Have what a clock that was ahead has left be of now: it would be kept for ever.

    Args:
        db: the state file.
        now: seconds since the epoch.
    """
    for table in _MEMORY:
        db.execute(f"UPDATE {table} SET at = ? WHERE at > ?", (now, now))  # noqa: S608 - our own names  # nosec B608
    db.execute(
        """UPDATE deliveries SET settled = ? WHERE settled > ?
           AND item IN (SELECT id FROM items WHERE created > ?)""",
        (now, now, now),
    )
    db.execute("UPDATE items SET created = ? WHERE created > ?", (now, now))
    successes.recall_from_future(db, now)


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
    for table in _MEMORY:
        db.execute(f"DELETE FROM {table} WHERE at < ?", (before,))  # noqa: S608 - our own names  # nosec B608
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
