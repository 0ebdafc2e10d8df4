"""The tables ``items`` and ``deliveries``: insert, read due deliveries, settle.

The head of a key is the first of its pending deliveries. Only heads are ever due: this
keeps the order per sink and EventId, and no EventId delays another. Queries for one key
name their index, because SQLite would otherwise scan all pending deliveries.
"""

import json
import sqlite3
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from bridge.outbox.records import Content, Delivery, DeliveryState, Tally, checksum_of
from bridge.outbox.storage.connection import Connection
from bridge.outbox.tables import clock_jumps
from bridge.outbox.tables.reading import select, select_checked

_URGENT_BEFORE = 900.0  # a NotBefore within 15 minutes
_URGENT_AFTER_START = 300.0


def urgency(
    *, not_before: float | None, is_started: bool, created: float
) -> tuple[float | None, float | None]:
    """Return the times between which an event is delivered before all others."""
    if is_started:
        return created, created + _URGENT_AFTER_START
    if not_before is not None:
        return not_before - _URGENT_BEFORE, not_before
    return None, None


def add(
    db: sqlite3.Connection,
    content: Content,
    *,
    created: float,
    not_before: float | None = None,
) -> int:
    """Insert an item; return its id.

    The id is chosen here as SQLite would choose it, because the checksum includes it.
    """
    (number,) = db.execute(
        """SELECT 1 + max(
               coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'items'), 0),
               coalesce((SELECT max(id) FROM items), 0))"""
    ).fetchone()
    db.execute(
        """INSERT INTO items (id, kind, key, event_id, cloud_event_id, type, body,
           checksum, created, not_before) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)""",
        (number, *content, checksum_of(number, content), created, not_before),
    )
    return int(number)


def is_within(window: tuple[float | None, float | None], now: float) -> bool:
    """Whether ``now`` is within the times of ``urgency``."""
    since, until = window
    return since is not None and until is not None and since <= now < until


def insert(  # noqa: PLR0913 - one per column
    db: sqlite3.Connection,
    *,
    item: int,
    sink: str,
    key: str | None,
    now: float,
    window: tuple[float | None, float | None],
    running: float,
) -> None:
    """Insert a delivery after the earlier ones of its key.

    If it is urgent, they become urgent too, because it must wait for them.

    Args:
        db: the state file.
        item: the id of the item to deliver.
        sink: the name of the sink.
        key: deliveries with the same key keep their order; None = no order.
        now: seconds since the epoch.
        window: the times between which it is urgent.
        running: the running time of the sink, see ``RunningTimes``.
    """
    (is_head,) = db.execute(
        """SELECT NOT EXISTS (
               SELECT 1 FROM deliveries INDEXED BY deliveries_key
               WHERE sink = ? AND key = ? AND state = 'pending')""",
        (sink, key),
    ).fetchone()
    db.execute(
        """INSERT INTO deliveries
           (item, sink, key, state, is_head, due, urgent_from, urgent_until, born)
           VALUES (?, ?, ?, 'pending', ?, ?, ?, ?, ?)""",
        (item, sink, key, is_head, now, *window, running),
    )
    if window[1] is not None and not is_head:
        db.execute(
            """UPDATE deliveries INDEXED BY deliveries_key SET
               urgent_from = min(coalesce(urgent_from, ?), ?),
               urgent_until = max(coalesce(urgent_until, ?), ?)
               WHERE sink = ? AND key = ? AND state = 'pending'""",
            (window[0], window[0], window[1], window[1], sink, key),
        )


def postpone(  # noqa: PLR0913 - one per column
    db: sqlite3.Connection,
    delivery: Delivery,
    *,
    due: float,
    error: tuple[str, str],
    waits_for_sink: bool,
    running: float | None,
) -> None:
    """Make a delivery due later, and count the attempt that failed."""
    db.execute(
        """UPDATE deliveries SET due = ?, attempts = attempts + 1, last_error = ?,
           reason = ?, waits_for_sink = ? WHERE id = ? AND state = 'pending'""",
        (due, *error, waits_for_sink, delivery.id),
    )
    if running is not None:
        save_running_time(db, delivery.sink, running)


def release(db: sqlite3.Connection, sink: str, now: float, limit: int) -> int:
    """Make deliveries that wait until the sink answers due now; return how many.

    Args:
        db: the state file.
        sink: the name of the sink.
        now: seconds since the epoch.
        limit: the most deliveries to change.
    """
    return db.execute(
        """UPDATE deliveries SET due = ? WHERE id IN (
               SELECT id FROM deliveries WHERE sink = ? AND state = 'pending'
               AND is_head AND due > ? AND waits_for_sink ORDER BY due LIMIT ?)""",
        (now, sink, now, limit),
    ).rowcount


def make_due(db: sqlite3.Connection, sink: str, beyond: float, now: float) -> None:
    """Make deliveries that are due later than ``beyond`` due now."""
    db.execute(
        """UPDATE deliveries SET due = ?
           WHERE sink = ? AND state = 'pending' AND due > ?""",
        (now, sink, beyond),
    )


def make_earlier(db: sqlite3.Connection, sink: str, seconds: float) -> None:
    """Make all pending deliveries due so many seconds earlier."""
    db.execute(
        "UPDATE deliveries SET due = due - ? WHERE sink = ? AND state = 'pending'",
        (seconds, sink),
    )


def of_cloud_event(
    db: Connection, sink: str, cloud_event_id: str, since: float
) -> list[Delivery]:
    """Return the pending deliveries of one CloudEvent that came after ``since``."""
    condition = """d.sink = ? AND d.state = 'pending' AND d.item IN (
        SELECT id FROM items INDEXED BY items_created
        WHERE created >= ? AND cloud_event_id = ?)"""
    found = select_checked(db, condition, (sink, since, cloud_event_id))
    return [delivery for delivery in found if delivery.damage is None]


def waiting_for_sink(
    db: sqlite3.Connection, sink: str, now: float, limit: int, but: Iterable[int]
) -> list[Delivery]:
    """Return deliveries that wait until the sink answers, urgent ones first."""
    return select(
        db,
        """d.sink = ? AND d.state = 'pending' AND d.is_head AND d.due > ?
           AND d.waits_for_sink AND d.id NOT IN (SELECT value FROM json_each(?))
           ORDER BY d.urgent_until IS NULL, d.urgent_until, d.due LIMIT ?""",
        (sink, now, json.dumps(list(but)), limit),
    )


def renew_head(db: sqlite3.Connection, sink: str, key: str | None) -> None:
    """Make the first pending delivery of a key its only head."""
    if key is None:
        return
    db.execute(
        """UPDATE deliveries INDEXED BY deliveries_key SET is_head = (id = (
               SELECT min(id) FROM deliveries INDEXED BY deliveries_key
               WHERE sink = ? AND key = ? AND state = 'pending'))
           WHERE sink = ? AND key = ? AND state = 'pending'""",
        (sink, key, sink, key),
    )


def due(
    db: Connection,
    sink: str,
    now: float,
    limit: int,
    but: Iterable[int] = (),
) -> list[Delivery]:
    """Return the due deliveries of a sink: urgent ones first, then the oldest.

    Args:
        db: the state file.
        sink: the name of the sink.
        now: seconds since the epoch.
        limit: the most deliveries to return.
        but: ids of deliveries to leave out.
    """
    left_out = json.dumps(list(but))
    found = select_checked(
        db,
        """d.sink = ? AND d.state = 'pending' AND d.is_head
           AND d.urgent_until > ? AND d.urgent_from <= ? AND d.due <= ?
           AND d.id NOT IN (SELECT value FROM json_each(?))
           ORDER BY d.urgent_until LIMIT ?""",
        (sink, now, now, now, left_out, limit),
    )
    if len(found) >= limit:
        return found
    rest = select_checked(
        db,
        """d.sink = ? AND d.state = 'pending' AND d.is_head AND d.due <= ?
           AND d.id NOT IN (SELECT value FROM json_each(?))
           ORDER BY d.due, d.id LIMIT ?""",
        (sink, now, left_out, limit),
    )
    urgent = {d.id for d in found}
    return [*found, *(d for d in rest if d.id not in urgent)][:limit]


def has_urgent(db: sqlite3.Connection, sink: str, now: float) -> bool:
    """Return whether any delivery is urgent now, also if it is not due or in flight."""
    (has_one,) = db.execute(
        """SELECT EXISTS (SELECT 1 FROM deliveries WHERE sink = ?
           AND state = 'pending' AND is_head
           AND urgent_until > ? AND urgent_from <= ?)""",
        (sink, now, now),
    ).fetchone()
    return bool(has_one)


def next_due(db: sqlite3.Connection, sink: str, now: float) -> float | None:
    """Return when the next delivery that is not due yet will be due."""
    row: tuple[float | None] = db.execute(
        """SELECT min(due) FROM deliveries
           WHERE sink = ? AND state = 'pending' AND is_head AND due > ?""",
        (sink, now),
    ).fetchone()
    return row[0]


def delivered(
    db: sqlite3.Connection, deliveries: Sequence[Delivery], now: float
) -> bool:
    """Mark deliveries of one sink as delivered, with one statement for all.

    Returns:
        Whether another delivery with the same key waits behind one of them.
    """
    ids = [delivery.id for delivery in deliveries]
    db.execute(
        """UPDATE deliveries SET state = 'delivered', is_head = 0, settled = ?,
           attempts = attempts + 1, last_error = NULL, reason = NULL
           WHERE id IN (SELECT value FROM json_each(?)) AND state = 'pending'""",
        (now, json.dumps(ids)),
    )
    keys = {delivery.key for delivery in deliveries if delivery.key is not None}
    if not keys:
        return False
    following = db.execute(
        """UPDATE deliveries INDEXED BY deliveries_key SET is_head = (id = (
               SELECT min(first.id) FROM deliveries first INDEXED BY deliveries_key
               WHERE first.sink = ? AND first.key = deliveries.key
               AND first.state = 'pending'))
           WHERE sink = ? AND key IN (SELECT value FROM json_each(?))
           AND state = 'pending'""",
        (deliveries[0].sink, deliveries[0].sink, json.dumps(sorted(keys))),
    )
    return following.rowcount > 0


def settle(
    db: sqlite3.Connection,
    delivery: Delivery,
    state: DeliveryState,
    *,
    now: float,
    error: tuple[str, str] | None = None,
) -> bool:
    """Move a delivery to a final state; return False if it was not pending."""
    text, reason = error or (None, None)
    moved = db.execute(
        """UPDATE deliveries SET state = ?, is_head = 0, settled = ?,
           attempts = attempts + 1, last_error = ?, reason = ?
           WHERE id = ? AND state = 'pending'""",
        (state, now, text, reason, delivery.id),
    ).rowcount
    renew_head(db, delivery.sink, delivery.key)
    return moved > 0


# -- The steps of an EventId for a sink that acts: the deliveries to it, in order ------
#
# A discarded delivery is no step.


def pending(db: Connection, sink: str, limit: int) -> list[Delivery]:
    """Return the pending deliveries of a sink, oldest first."""
    condition = "d.sink = ? AND d.state = 'pending' ORDER BY d.id LIMIT ?"
    return select_checked(db, condition, (sink, limit))


def body(db: sqlite3.Connection, number: int | None) -> bytes | None:
    """Return the body of a delivery."""
    query = "SELECT i.body FROM deliveries d JOIN items i ON i.id = d.item WHERE d.id=?"
    row = db.execute(query, (number,)).fetchone()
    return None if row is None else row[0]


def previous(db: sqlite3.Connection, delivery: Delivery) -> int | None:
    """Return the id of the step of the same EventId before a delivery."""
    query = """SELECT max(id) FROM deliveries WHERE sink = ? AND key = ? AND id < ?
        AND state IN ('pending', 'delivered', 'dead', 'skipped')"""
    place = (delivery.sink, delivery.key, delivery.id)
    found: int | None
    (found,) = db.execute(query, place).fetchone()
    return found


def newest(db: sqlite3.Connection, sink: str) -> dict[str, int]:
    """Return the id of the newest step of each key."""
    query = """SELECT key, max(id) FROM deliveries WHERE sink = ? AND key IS NOT NULL
        AND state IN ('pending', 'delivered', 'dead', 'skipped') GROUP BY key"""
    return dict(db.execute(query, (sink,)))


# -- How many deliveries of each sink are in which state -------------------------------


def tallies(db: sqlite3.Connection) -> dict[str, Tally]:
    """Return the tally of each sink that ever had a delivery."""
    counts: dict[str, dict[str, int]] = {}
    for sink, state, n in db.execute("SELECT sink, state, n FROM tallies"):
        counts.setdefault(sink, {})[state] = n
    jumps = clock_jumps.noted(db)
    return {
        sink: _aged(_tally(db, sink, states), jumps) for sink, states in counts.items()
    }


def _aged(tally: Tally, jumps: clock_jumps.Jumps) -> Tally:
    """Convert the time of a tally to the wall clock as it is set now."""
    if tally.oldest is None:
        return tally
    return replace(tally, oldest=clock_jumps.as_set_now(jumps, tally.oldest))


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


# -- The running time of each sink, the clock for the age of its deliveries ------------
#
# It is the number of seconds for which the forwarder has run and the sink was not
# parked. Each delivery stores the running time of its insertion (``born``). The
# difference to the present running time is its age, which does not depend on the wall
# clock.


_RUNNING = "running:"


def running_time(db: sqlite3.Connection, sink: str) -> float:
    """Return the saved running time of a sink, in seconds."""
    query = "SELECT value FROM meta WHERE key = ?"
    row = db.execute(query, (f"{_RUNNING}{sink}",)).fetchone()
    is_known = row is not None and isinstance(row[0], int | float)
    return float(row[0]) if is_known else 0.0  # if damaged: 0, as in a new state file


def save_running_time(db: sqlite3.Connection, sink: str, seconds: float) -> None:
    """Save the running time of a sink."""
    row = (f"{_RUNNING}{sink}", seconds)
    db.execute("INSERT OR REPLACE INTO meta (key, value) VALUES (?, ?)", row)


class RunningTimes(Struct, frozen=True):
    """The running times during one commit; each is read or written once.

    More accesses would be slow, because SQLite reads the whole checkpoint whenever it
    searches for another row of ``meta``.

    Attributes:
        db: the state file.
        now: running times that are newer than those in the file. They are saved.
    """

    db: sqlite3.Connection
    now: Mapping[str, float]
    _known: dict[str, float] = field(default_factory=dict)

    def of(self, sink: str) -> float:
        """Return the running time of a sink."""
        if sink not in self._known:
            seconds = self.now.get(sink)
            if seconds is None:
                seconds = running_time(self.db, sink)
            else:
                save_running_time(self.db, sink, seconds)
            self._known[sink] = seconds
        return self._known[sink]
