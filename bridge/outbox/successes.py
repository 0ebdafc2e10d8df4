"""The statements on successes of commands: what others may rely on. Parts of a job."""

import sqlite3
from collections.abc import Iterable

from bridge.outbox.records import CommandStanding, Success

_COLUMNS = ("sink", "key", "appearance", "content", "at")
_WHEN = "CASE WHEN succeeded > 0 THEN succeeded ELSE at END"  # an older program's


def gone(db: sqlite3.Connection, key: str, now: float) -> None:
    """Note that an EventId has gone: no success counts if it comes back."""
    db.execute("DELETE FROM command_successes WHERE key = ?", (key,))
    db.execute(
        """INSERT INTO appearances (key, n, at) VALUES (?, 1, ?)
           ON CONFLICT DO UPDATE SET n = n + 1, at = excluded.at""",
        (key, now),
    )


def appearance(db: sqlite3.Connection, key: str) -> int:
    """Return how often an EventId has gone."""
    query = "SELECT n FROM appearances WHERE key = ?"
    row = db.execute(query, (key,)).fetchone()
    return 0 if row is None else int(row[0])


def keep(db: sqlite3.Connection, success: Success) -> None:
    """Keep a success, unless the event has gone while the command ran."""
    if appearance(db, success.key) != success.appearance:
        return
    db.execute(
        """INSERT OR REPLACE INTO command_successes
           (sink, key, appearance, content, at, succeeded)
           VALUES (?, ?, ?, ?, ?, ?)""",
        (*(getattr(success, name) for name in _COLUMNS), success.at),
    )


def void(db: sqlite3.Connection, sink: str, key: str) -> None:
    """Forget the success of a command for an EventId."""
    query = "DELETE FROM command_successes WHERE sink = ? AND key = ?"
    db.execute(query, (sink, key))


def of_event(db: sqlite3.Connection, key: str) -> list[Success]:
    """Return the successes for an EventId that still count, by sink."""
    query = f"""SELECT sink, key, appearance, content, {_WHEN}
        FROM command_successes WHERE key = ? ORDER BY sink"""  # noqa: S608 - our own names  # nosec B608
    now = appearance(db, key)
    rows = db.execute(query, (key,)).fetchall()
    found = [Success(**dict(zip(_COLUMNS, row, strict=True))) for row in rows]
    return [success for success in found if success.appearance == now]


def grow_younger(db: sqlite3.Connection, by: float, now: float) -> None:
    """Keep successes as old as they were before the clock was set forward ``by``."""
    query = """UPDATE command_successes SET succeeded = min(succeeded + ?, ?)
        WHERE succeeded > 0"""
    db.execute(query, (by, now))


def recall_from_future(db: sqlite3.Connection, now: float) -> None:
    """Have a success that a clock was ahead for be of now: no delay runs for ever."""
    query = "UPDATE command_successes SET succeeded = ? WHERE succeeded > ?"
    db.execute(query, (now, now))


def standings(
    db: sqlite3.Connection, key: str, sinks: Iterable[str]
) -> dict[str, CommandStanding]:
    """Return how far each of these commands has come for an EventId, by sink."""
    found = {success.sink: success for success in of_event(db, key)}
    return {
        sink: CommandStanding(
            success=found.get(sink),
            is_pending=_is_pending(db, sink, key),
            last=_last(db, sink, key),
        )
        for sink in sinks
    }


def _is_pending(db: sqlite3.Connection, sink: str, key: str) -> bool:
    query = """SELECT 1 FROM deliveries
        WHERE sink = ? AND key = ? AND state = 'pending' LIMIT 1"""
    return db.execute(query, (sink, key)).fetchone() is not None


def _last(db: sqlite3.Connection, sink: str, key: str) -> str | None:
    query = """SELECT state FROM deliveries WHERE sink = ? AND key = ?
        AND state IN ('delivered', 'dead', 'skipped', 'discarded')
        ORDER BY id DESC LIMIT 1"""
    row = db.execute(query, (sink, key)).fetchone()
    return None if row is None else str(row[0])
