"""The tables ``command_successes`` and ``appearances``.

A success counts until the EventId has gone. An EventId that returns is another event.
"""

import sqlite3
from collections.abc import Iterable

from bridge.outbox.records import CommandStanding, DeliveryState, Success, value_of
from bridge.outbox.storage.connection import Connection

_LAST_ITEMS = 2000
_COLUMNS = ("sink", "key", "appearance", "content", "at")
# 0: the row was written by an older version, which had no such column.
_WHEN = "CASE WHEN succeeded > 0 THEN succeeded ELSE at END"


def note_gone(db: sqlite3.Connection, key: str, now: float) -> None:
    """Note that an EventId has gone: its successes no longer count."""
    db.execute("DELETE FROM command_successes WHERE key = ?", (key,))
    db.execute(
        """INSERT INTO appearances (key, n, at) VALUES (?, 1, ?)
           ON CONFLICT DO UPDATE SET n = n + 1, at = excluded.at""",
        (key, now),
    )


def appearance(db: sqlite3.Connection, key: str) -> int:
    """Return how often an EventId has gone, from 0."""
    query = "SELECT n FROM appearances WHERE key = ?"
    row = db.execute(query, (key,)).fetchone()
    return 0 if row is None else int(row[0])


def save(db: Connection, success: Success) -> None:
    """Save a success, unless the event has gone while the command ran."""
    if appearance(db, success.key) != success.appearance:
        return
    if db.unsaved is not None:
        db.unsaved.add((success.sink, success.key))
    db.execute(
        """INSERT OR REPLACE INTO command_successes
           (sink, key, appearance, content, at, succeeded)
           VALUES (?, ?, ?, ?, ?, ?)""",
        (*(getattr(success, name) for name in _COLUMNS), success.at),
    )


def void(db: sqlite3.Connection, sink: str, key: str) -> None:
    """Delete the success of a command for an EventId."""
    query = "DELETE FROM command_successes WHERE sink = ? AND key = ?"
    db.execute(query, (sink, key))


def of_event(db: sqlite3.Connection, key: str) -> list[Success]:
    """Return the successes for an EventId that still count, in order of sinks."""
    query = f"""SELECT sink, key, appearance, content, {_WHEN}
        FROM command_successes WHERE key = ? ORDER BY sink"""  # noqa: S608 - our own names  # nosec B608
    now = appearance(db, key)
    rows = db.execute(query, (key,)).fetchall()
    found = [Success(**dict(zip(_COLUMNS, row, strict=True))) for row in rows]
    return [success for success in found if success.appearance == now]


def grow_younger(db: sqlite3.Connection, by: float, now: float) -> None:
    """Keep the age of successes after the clock was set forward by ``by`` seconds."""
    query = """UPDATE command_successes SET succeeded = min(succeeded + ?, ?)
        WHERE succeeded > 0"""
    db.execute(query, (by, now))


def recall_from_future(db: sqlite3.Connection, now: float) -> None:
    """Replace times of successes in the future by the present time.

    The wall clock was ahead when they were saved. Without this, a rule's delay after a
    success would last until the clock reaches that time.
    """
    query = "UPDATE command_successes SET succeeded = ? WHERE succeeded > ?"
    db.execute(query, (now, now))


def standings(
    db: Connection, key: str, sinks: Iterable[str]
) -> dict[str, CommandStanding]:
    """Return how far each of these commands has come for an EventId, by sink.

    A success that is only in memory is pending: after a kill nothing would show that
    the command has run, so no rule may approve the event yet.
    """
    unsaved = {sink for sink, of in db.unsaved or () if of == key}
    found = {success.sink: success for success in of_event(db, key)}
    return {
        sink: CommandStanding(
            success=None if sink in unsaved else found.get(sink),
            is_pending=sink in unsaved or _is_pending(db, sink, key),
            last=_last(db, sink, key),
        )
        for sink in sinks
    }


def _is_pending(db: sqlite3.Connection, sink: str, key: str) -> bool:
    query = """SELECT 1 FROM deliveries
        WHERE sink = ? AND key = ? AND state = 'pending' LIMIT 1"""
    return db.execute(query, (sink, key)).fetchone() is not None


def _last(db: sqlite3.Connection, sink: str, key: str) -> DeliveryState | None:
    query = """SELECT state FROM deliveries WHERE sink = ? AND key = ?
        AND state IN ('delivered', 'dead', 'skipped', 'discarded')
        ORDER BY id DESC LIMIT 1"""
    row = db.execute(query, (sink, key)).fetchone()
    state: DeliveryState | None = None if row is None else row[0]
    return state


def recent_results(db: sqlite3.Connection, limit: int) -> list[dict[str, object]]:
    """Return the last events about commands, newest first.

    Only the last events are searched, because there is no index for it.
    """
    query = """SELECT body FROM items
        WHERE id > (SELECT coalesce(max(id), 0) FROM items) - ?
        AND kind = 'event' AND type LIKE '%.command.%' ORDER BY id DESC LIMIT ?"""
    found = (value_of(body) for (body,) in db.execute(query, (_LAST_ITEMS, limit)))
    return [event for event in found if event is not None]
