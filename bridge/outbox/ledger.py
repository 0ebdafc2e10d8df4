"""The queries of what commands ask: each reads a page, by an index, or a range of ids.

So none keeps the state file's thread for long, however much history there is.
"""

import json
import sqlite3
from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple

from bridge.outbox.records import REPLIES, UNREADABLE, Delivery, value_of

PAGE = 200  # rows of an answer
_BYTES = 1024 * 1024  # of the bodies of an answer; one may be larger
_SPAN = 5000  # ids that are looked at for an answer
_STATES = ("pending", "dead", "delivered", "discarded", "skipped")

# In the order of Delivery's fields.
_SELECT = """SELECT d.id, d.sink, i.kind, d.state, d.key, i.event_id, i.cloud_event_id,
    i.type, {body}, d.attempts, d.due, i.created, i.not_before, d.urgent_from,
    d.urgent_until, d.last_error, d.born
    FROM deliveries d JOIN items i ON i.id = d.item"""
_WHOLE, _WITHOUT_BODY = _SELECT.format(body="i.body"), _SELECT.format(body="x''")


class Condition(NamedTuple):
    """Selects deliveries; None = any, but without a sink's name no replies.

    Attributes:
        key: the EventId in capitals.
        number: the id of the delivery.
    """

    sink: str | None
    states: Sequence[str] | None
    key: str | None
    number: int | None

    def admits(self, found: Delivery) -> bool:
        """Whether it selects a delivery."""
        return (
            (found.sink != REPLIES if self.sink is None else found.sink == self.sink)
            and (self.states is None or found.state in self.states)
            and (self.key is None or found.key == self.key)
            and (self.number is None or found.id == self.number)
        )


# -- deliveries ------------------------------------------------------------------------


def find(
    db: sqlite3.Connection, asked: Condition, at: int, most: int
) -> tuple[list[Delivery], int | None]:
    """Return selected deliveries with an id above ``at``, oldest first.

    Returns:
        The deliveries, and the ``at`` of the next page; None = that was all.
    """
    numbers = sorted(_ids(db, asked, f"> {at:d}", "ASC", most))[:most]
    found, size = list[Delivery](), 0
    for delivery in _selected(db, _WHOLE, numbers):
        size += len(delivery.body)
        if found and size > _BYTES:
            return found, found[-1].id
        if asked.admits(delivery):
            found.append(delivery)
    return found, numbers[-1] if len(numbers) == most else None


def newest(
    db: sqlite3.Connection, asked: Condition, count: int, also: Collection[int]
) -> list[Delivery]:
    """Return the newest deliveries that are selected or in ``also``, oldest first."""
    numbers = {*_ids(db, asked, "> 0", "DESC", count), *also}
    last = sorted(numbers)[-count:] if count else []
    return list(_selected(db, _WHOLE, last))


def _ids(
    db: sqlite3.Connection, asked: Condition, where: str, order: str, most: int
) -> set[int]:
    """Return ids of selected deliveries: the first ``most``, and some that follow.

    Each query reads the first rows of one part of an index.
    """
    if asked.number is not None:
        query = f"SELECT id FROM deliveries WHERE id = ? AND id {where}"  # noqa: S608 - our own text  # nosec B608
        return {n for (n,) in db.execute(query, (asked.number,))}
    known = "SELECT DISTINCT sink FROM tallies WHERE sink <> ?"
    sinks = (
        [sink for (sink,) in db.execute(known, (REPLIES,))]
        if asked.sink is None
        else [asked.sink]
    )
    column = "state = ?" if asked.key is None else "key = ? AND state = ?"
    query = f"""SELECT id FROM deliveries WHERE sink = ? AND {column} AND id {where}
        ORDER BY id {order} LIMIT ?"""  # noqa: S608 - our own text  # nosec B608
    key = () if asked.key is None else (asked.key,)
    return {
        number
        for sink in sinks
        for state in (_STATES if asked.states is None else asked.states)
        for (number,) in db.execute(query, (sink, *key, state, most))
    }


def _selected(
    db: sqlite3.Connection, select: str, numbers: Iterable[int]
) -> Iterable[Delivery]:
    query = f"""{select} WHERE d.id IN (SELECT value FROM json_each(?))
        ORDER BY d.id"""  # noqa: S608 - our own text  # nosec B608
    return map(_delivery, db.execute(query, (json.dumps(list(numbers)),)))


def _delivery(row: Sequence[Any]) -> Delivery:
    """Return the delivery of a row; what is damaged in it has a value of its type."""
    values = list(row)
    for place, (kind, otherwise) in enumerate(_FIELDS):
        if not isinstance(values[place], kind):
            values[place] = otherwise
    values[2] = values[2] if values[2] in {"event", "reply"} else UNREADABLE
    values[3] = values[3] if values[3] in _STATES else "dead"
    return Delivery(*values)


_NUMBER = int | float
_FIELDS: tuple[tuple[Any, object], ...] = (
    (int, 0),
    *((str, UNREADABLE),) * 3,
    *((str | None, None),) * 3,
    (str, UNREADABLE),
    (bytes, b""),
    (int, 0),
    *((_NUMBER, 0.0),) * 2,
    *((_NUMBER | None, None),) * 3,
    (str | None, None),
    (_NUMBER, 0.0),
)


def of_item(db: sqlite3.Connection, number: int) -> tuple[Delivery, ...]:
    """Return the deliveries of an item, in order of the sinks' names, without body."""
    query = f"{_WITHOUT_BODY} WHERE d.item = ? ORDER BY d.sink"
    return tuple(map(_delivery, db.execute(query, (number,))))


def last_delivered(
    db: sqlite3.Connection, found: Iterable[Delivery]
) -> dict[tuple[str, str | None], int]:
    """Return the newest delivered id of each sink and key that is above these."""
    first = dict[tuple[str, str], int]()
    for one in found:
        if one.key is not None:
            first.setdefault((one.sink, one.key), one.id)
    query = """SELECT id FROM deliveries WHERE sink = ? AND key = ? AND id > ?
        AND state = 'delivered' ORDER BY id DESC LIMIT 1"""
    return {
        place: number
        for place, at in first.items()
        for (number,) in db.execute(query, (*place, at))
    }


# -- events ----------------------------------------------------------------------------

EventCondition = tuple[str, tuple[object, ...]]  # our own SQL, and its parameters


def event_condition(
    *, event_id: str | None, since: float, state: str | None, is_step: bool
) -> EventCondition:
    """Return the condition for events that have these values; None = any."""
    parts, values = ["kind = 'event'", "created >= ?"], list[object]([since])
    if event_id is not None:
        parts.append("key = ?")
        values.append(event_id.upper())
    if state is not None:
        parts.append(
            "EXISTS (SELECT 1 FROM deliveries WHERE item = items.id AND state = ?)"
        )
        values.append(state)
    if is_step:
        parts.append("type LIKE '%.scheduledevent.%'")
    return " AND ".join(parts), tuple(values)


def published(  # noqa: PLR0913 - what is asked
    db: sqlite3.Connection,
    asked: EventCondition,
    *,
    after: int,
    before: int,
    newest: int,
    kinds: Collection[str],
) -> tuple[list[tuple[int, bytes]], int | None]:
    """Return number and body of selected events between two numbers, newest first.

    Returns:
        The events, and the ``before`` of the next page; None = that was all.
    """
    where, values = asked
    before = min(before, _last(db) + 1)
    start = max(after, before - _SPAN)
    rows = db.execute(
        f"""SELECT id, body FROM items WHERE id > ? AND id < ? AND {where}
            ORDER BY id DESC""",  # noqa: S608 - our own conditions  # nosec B608
        (start, before, *values),
    )
    found, size = list[tuple[int, bytes]](), 0
    for number, stored in rows:
        body = stored if isinstance(stored, bytes) else b""  # it is damaged
        if fits(kinds, body):
            found.append((number, body))
        size += len(body)
        if len(found) == newest:
            return found, None
        if size > _BYTES or len(found) == PAGE:
            return found, number
    return found, start + 1 if start > after else None


def fits(kinds: Collection[str], body: bytes) -> bool:
    """Whether an event is of one of these kinds; any, if none is named."""
    if not kinds:
        return True
    event = value_of(body) or {}
    kind, data = event.get("type"), event.get("data")
    scheduled = data.get("event") if isinstance(data, dict) else None
    event_type = scheduled.get("EventType") if isinstance(scheduled, dict) else None
    found = {kind, step_of(kind) if isinstance(kind, str) else None, event_type}
    known = {one.lower() for one in found if isinstance(one, str)}
    return not known.isdisjoint(one.lower() for one in kinds)


def step_of(kind: str) -> str:
    """Return the part of a CloudEvent's type that names the step.

    For example ``started`` for a scheduled event, ``bridge.started`` for the bridge.
    """
    parts = kind.split(".")[-3:-1]
    return ".".join(parts).removeprefix("scheduledevent.") or kind or "-"


def event_ids(db: sqlite3.Connection, newest: int) -> list[str]:
    """Return the EventIds of the last events, newest first."""
    query = """SELECT event_id, max(id) FROM items WHERE kind = 'event' AND id > ?
        AND event_id IS NOT NULL GROUP BY key ORDER BY 2 DESC LIMIT ?"""
    return [found for found, _ in db.execute(query, (_last(db) - _SPAN, newest))]


def observed(
    db: sqlite3.Connection, start: str, at: int
) -> tuple[list[str], int | None]:
    """Return EventIds of documents that begin with ``start``; ``at`` as in ``find``."""
    query = """SELECT event_id, max(id) FROM items WHERE kind = 'event' AND id > ?
        AND id <= ? AND type LIKE '%.scheduledevent.%' AND substr(key, 1, ?) = ?
        GROUP BY key ORDER BY 2"""
    key, end = start.upper(), at + _SPAN
    found = [one for one, _ in db.execute(query, (at, end, len(key), key))]
    return found, end if end < _last(db) else None


def _last(db: sqlite3.Connection) -> int:
    (number,) = db.execute("SELECT coalesce(max(id), 0) FROM items").fetchone()
    return int(number)
