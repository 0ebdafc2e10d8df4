"""Reads deliveries and what they contain, and detects damaged ones."""

import sqlite3
from collections.abc import Sequence
from typing import Any

import msgspec

from bridge.outbox.records import UNREADABLE, Content, Delivery, damage_of
from bridge.outbox.storage.connection import Connection

_TIMES = {int, float, type(None)}

# In the order of Delivery's fields.
_COLUMNS = """d.id, d.sink, i.kind, d.state, d.key, i.event_id, i.cloud_event_id,
    i.type, i.body, d.attempts, d.due, i.created, i.not_before, d.urgent_from,
    d.urgent_until, d.last_error, d.born"""
_FIRST_TIME, _AFTER_TIMES = 10, 15


_SOURCE = "FROM deliveries d JOIN items i ON i.id = d.item"


_CHECKED = f"{_COLUMNS}, i.id, i.key, i.checksum"
_HEAD = _CHECKED.replace("i.body", "length(i.body)")
_BODY = 8  # the index of both in a row


# Finds a delivery also if its item is missing.
_WITH_LOST = "FROM deliveries d LEFT JOIN items i ON i.id = d.item"


def select(
    db: sqlite3.Connection, condition: str, values: tuple[object, ...]
) -> list[Delivery]:
    """Return the deliveries for which ``condition`` (our own SQL) holds."""
    query = f"SELECT {_COLUMNS} {_SOURCE} WHERE {condition}"
    return [Delivery(*row) for row in db.execute(query, values)]


def select_checked(
    db: Connection, condition: str, values: tuple[object, ...]
) -> list[Delivery]:
    """Return deliveries as ``select`` does, with their ``damage``."""
    try:
        rows = _page(db, f"{_WITH_LOST} WHERE {condition}", values)
    except (sqlite3.Error, ValueError, TypeError):  # damage: read row by row
        query = f"SELECT {_CHECKED} {_WITH_LOST} WHERE {condition}"
        rows = db.execute(query, values).fetchall()
    return [_checked(row) for row in rows]


def _page(
    db: Connection, source: str, values: tuple[object, ...]
) -> Sequence[Sequence[Any]]:
    """Return the rows of ``select_checked``, which SQLite joins to a single row.

    This thread must take Python's lock (the GIL) for each row that SQLite returns.
    While the event loop is busy, that takes up to 5 ms for each row: a page would be
    complete only when the loop is idle. With a single row, the lock is taken once.

    Raises:
        sqlite3.Error, ValueError, TypeError: a value is damaged, or the disk fails.
    """
    query = f"""SELECT CAST('[' || coalesce(group_concat(head), '') || ']' AS BLOB),
        CAST(coalesce(group_concat(body, ''), '') AS BLOB)
        FROM (SELECT json_array({_HEAD}) AS head, i.body AS body {source})"""  # noqa: S608 - our own names  # nosec B608
    heads, bodies = db.execute(query, values).fetchone()
    rows, end = msgspec.json.decode(heads, type=list[list[Any]]), 0
    for row in rows:
        if (size := row[_BODY]) is not None:
            row[_BODY] = bodies[end : end + size]
            end += size
    if end != len(bodies):
        raise ValueError("a body is no BLOB")
    return rows


def _checked(row: Sequence[Any]) -> Delivery:
    """Return the delivery of a row that may be damaged."""
    *columns, item, key, checksum = row
    found = Delivery(*columns)
    damage = _damage_of_content(found, item, key, checksum) or _damage_of_numbers(
        found.attempts, *columns[_FIRST_TIME:_AFTER_TIMES]
    )
    return found if damage is None else _readable(found, damage)


def _damage_of_content(
    found: Delivery, item: object, key: str | None, checksum: object
) -> str | None:
    """Return what is wrong with the content of a delivery; None = nothing."""
    content = Content(
        found.kind,
        key,
        found.event_id,
        found.cloud_event_id,
        found.type,
        found.body,
    )
    damage = damage_of(item, content, checksum)
    if damage is None and found.kind == "event" and found.key != key:
        return "it names the content of another event in the state file"
    return damage


def _damage_of_numbers(attempts: object, *times: object) -> str | None:
    """Return what is wrong with the numbers of a row; None = nothing."""
    are_right = type(attempts) is int and _TIMES.issuperset(map(type, times))
    return None if are_right else "a number beside it cannot be read in the state file"


def _readable(found: Delivery, damage: str) -> Delivery:
    """Return a damaged row with placeholders for unreadable values, for the log."""

    def text(value: object) -> str | None:
        return value if isinstance(value, str) else None

    return Delivery(
        id=found.id,
        sink=found.sink,
        kind=found.kind if text(found.kind) else UNREADABLE,
        state=found.state,
        key=text(found.key),
        event_id=text(found.event_id),
        cloud_event_id=text(found.cloud_event_id),
        type=text(found.type) or UNREADABLE,
        body=b"",
        attempts=0,
        due=0.0,
        created=0.0,
        not_before=None,
        urgent_from=None,
        urgent_until=None,
        last_error=None,
        damage=damage,
    )
