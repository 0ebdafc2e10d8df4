"""A delivery as it is read: what is damaged is told from what is not."""

import sqlite3
from typing import Any

import msgspec

from bridge.outbox.checksum import Content, damage_of
from bridge.outbox.storage.connection import Connection

UNREADABLE = "unreadable"  # stands where a damaged row says nothing


class Delivery(msgspec.Struct, frozen=True):
    """One item on its way to one sink: a row, made at each look, so it is cheap.

    Attributes:
        kind: ``event`` or ``reply``.
        body: what ``CloudEvent.to_json`` or the reply room wrote.
        attempts: how many were made.
        created, not_before: seconds since the epoch.
        born: by how much the deliveries of the sink had grown older when it came.
        damage: what is wrong with the row, so that it must not be sent.
    """

    id: int
    sink: str
    kind: str
    state: str
    key: str | None
    event_id: str | None
    cloud_event_id: str | None
    type: str
    body: bytes
    attempts: int
    due: float
    created: float
    not_before: float | None
    urgent_from: float | None
    urgent_until: float | None
    last_error: str | None
    born: float = 0.0
    damage: str | None = None


# In the order of Delivery's fields.
_COLUMNS = """d.id, d.sink, i.kind, d.state, d.key, i.event_id, i.cloud_event_id,
    i.type, i.body, d.attempts, d.due, i.created, i.not_before, d.urgent_from,
    d.urgent_until, d.last_error, d.born"""


_SOURCE = "FROM deliveries d JOIN items i ON i.id = d.item"


_CHECKED = f"{_COLUMNS}, i.id, i.key, i.checksum"


# What is to be sent is looked at closely, and so is what has lost its content.
_WITH_LOST = "FROM deliveries d LEFT JOIN items i ON i.id = d.item"


def select(
    db: sqlite3.Connection, condition: str, values: tuple[object, ...]
) -> list[Delivery]:
    """Return the deliveries for which ``condition`` (SQL of ours) holds."""
    query = f"SELECT {_COLUMNS} {_SOURCE} WHERE {condition}"
    return [Delivery(*row) for row in db.execute(query, values)]


def select_checked(
    db: Connection, condition: str, values: tuple[object, ...]
) -> list[Delivery]:
    """Return deliveries as ``select`` does; what is damaged says so."""
    source = _SOURCE if db.is_part else _WITH_LOST
    query = f"SELECT {_CHECKED} {source} WHERE {condition}"
    return [_checked(row) for row in db.execute(query, values)]


def _checked(row: tuple[Any, ...]) -> Delivery:
    """Make a delivery of a row of which nothing is certain."""
    *columns, item, key, checksum = row
    found = Delivery(*columns)
    content = Content(
        kind=found.kind,
        key=key,
        event_id=found.event_id,
        cloud_event_id=found.cloud_event_id,
        type=found.type,
        body=found.body,
    )
    times = (found.due, found.created, found.not_before)
    window = (found.urgent_from, found.urgent_until)
    damage = damage_of(item, content, checksum)
    if damage is None and found.kind == "event" and found.key != key:
        damage = "it names the content of another event in the state file"
    damage = damage or _damage_of_numbers(found.attempts, *times, *window)
    return found if damage is None else _readable(found, damage)


def _damage_of_numbers(attempts: object, *times: object) -> str | None:
    """Return what is wrong with numbers as they were read; None = nothing."""
    are_right = isinstance(attempts, int) and all(
        time is None or isinstance(time, int | float) for time in times
    )
    return None if are_right else "a number beside it cannot be read in the state file"


def _readable(found: Delivery, damage: str) -> Delivery:
    """Return what a log line can say of a damaged row."""

    def text(value: object) -> str | None:
        return value if isinstance(value, str) else None

    return Delivery(
        id=found.id,
        sink=found.sink,
        kind=text(found.kind) or UNREADABLE,
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
