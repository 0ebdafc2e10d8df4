"""Deletes old rows, and the oldest rows of a file that is too large."""

import asyncio
import sqlite3
from collections import Counter
from collections.abc import Callable
from functools import partial

from msgspec import Struct

from bridge.outbox import clock_jumps
from bridge.outbox.facts import Facts
from bridge.outbox.state import State
from bridge.outbox.storage.journal import Rows

_BY_EVENT = {  # rows are kept as long as their EventId exists: the columns of the key
    "told": "cause",
    "sightings": "key",
    "followers": "key, sink",
    "approvals": "message, key",
    "sink_memory": "sink, key",
    "appearances": "key",
    "command_successes": "sink, key",
}


class Pruning(Struct, frozen=True):
    """Deletes settled items: old ones, and the oldest if the file is too large."""

    state: State

    async def prune(
        self, *, before: float, now: float, alive: frozenset[str], limit: int = 500
    ) -> int:
        """Delete items that were settled before ``before``; return their number.

        Args:
            before: seconds since the epoch.
            now: seconds since the epoch.
            alive: keys of the EventIds in the document: their records are kept, however
                far in the future these events are scheduled.
            limit: the most items to delete now, so that other jobs do not wait long.

        Raises:
            OutboxError: the state file cannot be written now.
        """
        rows = Rows()
        facts = self.state.facts
        jumps = clock_jumps.noted(facts.value)
        left = clock_jumps.needed(jumps, before, now)
        if left != jumps:
            facts.name(clock_jumps.saved(left), rows)
        _move_successes(facts, lambda at: min(at, now), rows)
        if rows:
            self.state.database.put(rows)
        written = clock_jumps.written_before(left, before)
        pruned = await self.state.database.run(
            partial(_prune, now=now, alive=alive, before=written, limit=limit)
        )
        facts.forget(pruned.gone)
        self.state.image.forget(pruned.counts)
        return pruned.items

    async def shrink(self, *, most: int, limit: int = 500) -> tuple[int, int]:
        """Delete the oldest delivered items while the file is too large.

        Items with pending or dead deliveries are never deleted.

        Args:
            most: the allowed size in bytes.
            limit: the most items to delete now, so that other jobs do not wait long.

        Returns:
            How many items were deleted, and by how many bytes the file is still too
            large.

        Raises:
            OutboxError: the state file cannot be written now.
        """
        too_many = await self.state.database.read(lambda db: size(db) - most)
        if too_many <= 0:
            return 0, 0
        shrunk = await self.state.database.run(partial(_shrink, most=most, limit=limit))
        self.state.image.forget(shrunk.counts)
        return shrunk.items, shrunk.left

    async def follow_clock(self, *, by: float, now: float) -> None:
        """Correct the age of all rows after the wall clock was set.

        Args:
            by: how far forward, in seconds; negative = back.
            now: seconds since the epoch, by the clock as it is now.
        """
        rows = Rows()
        facts = self.state.facts
        jumps = clock_jumps.after(clock_jumps.noted(facts.value), by, now)
        facts.name(clock_jumps.saved(jumps), rows)
        if by > 0:
            _move_successes(facts, lambda at: min(at + by, now), rows)
        await asyncio.shield(self.state.write(rows))


def _move_successes(facts: Facts, when: Callable[[float], float], rows: Rows) -> None:
    """Give the successes of commands other times, because the clock was set."""
    for place, (*row, ended) in facts.every("command_successes"):
        if (at := when(ended)) != ended:
            facts.put("command_successes", place, (*row, at), rows)


# -- in the file ---------------------------------------------------------------------


class _Pruned(Struct, frozen=True):
    """What was deleted.

    Attributes:
        items: how many items.
        counts: how many of their deliveries, by sink and state.
        left: by how many bytes the file is still too large.
        gone: the keys of other rows that were deleted, by table.
    """

    items: int
    counts: dict[tuple[str, str], int]
    left: int = 0
    gone: dict[str, list[tuple[str, ...]]] = {}


def _prune(
    db: sqlite3.Connection,
    *,
    now: float,
    alive: frozenset[str],
    before: float,
    limit: int,
) -> _Pruned:
    """Delete what was settled ``before``, by the clock as it was set then."""
    _recall_from_future(db, now)
    for table in _BY_EVENT:
        db.executemany(
            f"UPDATE {table} SET at = ? WHERE key = ?",  # noqa: S608 - our own names  # nosec B608
            [(now, key) for key in alive],
        )
    items = db.execute(
        """SELECT id FROM items WHERE created < ? AND NOT EXISTS (
               SELECT 1 FROM deliveries d WHERE d.item = items.id
               AND (d.state IN ('pending', 'dead') OR d.settled >= ?))
           ORDER BY created LIMIT ?""",
        (before, before, limit),
    ).fetchall()
    counts = _delete_items(db, items)
    gone = {table: _deleted(db, table, key, before) for table, key in _BY_EVENT.items()}
    return _Pruned(len(items), counts, gone=gone)


def _deleted(
    db: sqlite3.Connection, table: str, key: str, before: float
) -> list[tuple[str, ...]]:
    query = f"DELETE FROM {table} WHERE at < ? RETURNING {key}"  # noqa: S608 - our own names  # nosec B608
    return db.execute(query, (before,)).fetchall()


def _recall_from_future(db: sqlite3.Connection, now: float) -> None:
    """Replace times in the future by the present time.

    The wall clock was ahead when these rows were written. Without this, they would be
    kept until the clock reaches their time.
    """
    for table in _BY_EVENT:
        db.execute(f"UPDATE {table} SET at = ? WHERE at > ?", (now, now))  # noqa: S608 - our own names  # nosec B608
    db.execute(
        """UPDATE deliveries SET settled = ? WHERE settled > ?
           AND item IN (SELECT id FROM items WHERE created > ?)""",
        (now, now, now),
    )
    db.execute("UPDATE items SET created = ? WHERE created > ?", (now, now))


def size(db: sqlite3.Connection) -> int:
    """Return how many bytes of the file are in use."""
    pages, free, bytes_each = (
        db.execute(f"PRAGMA {name}").fetchone()[0]
        for name in ("page_count", "freelist_count", "page_size")
    )
    return int((pages - free) * bytes_each)


def _shrink(db: sqlite3.Connection, *, most: int, limit: int) -> _Pruned:
    items = list[tuple[int]]()
    if size(db) > most:
        items = db.execute(
            """SELECT id FROM items WHERE NOT EXISTS (
                   SELECT 1 FROM deliveries d WHERE d.item = items.id
                   AND d.state IN ('pending', 'dead'))
               ORDER BY id LIMIT ?""",
            (limit,),
        ).fetchall()
    counts = _delete_items(db, items)
    return _Pruned(len(items), counts, left=max(size(db) - most, 0))


def _delete_items(
    db: sqlite3.Connection, items: list[tuple[int]]
) -> dict[tuple[str, str], int]:
    """Delete items and their deliveries; count these by sink and state."""
    query = "DELETE FROM deliveries WHERE item = ? RETURNING sink, state"
    counts = Counter[tuple[str, str]]()
    for item in items:
        counts.update(db.execute(query, item).fetchall())
    db.executemany("DELETE FROM items WHERE id = ?", items)
    return counts
