"""What memory asks of the file: what waits, contents, what is known of events."""

import json
import sqlite3
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import chain, islice
from operator import itemgetter
from typing import Any

from msgspec import Struct

from bridge.outbox.line import Waiting
from bridge.outbox.records import (
    STATES,
    UNREADABLE,
    DeliveryState,
    Item,
    message_of,
)
from bridge.outbox.storage.journal import (
    checksum_of_decision,
    damage_of,
    intact_value,
    log_damage,
)
from bridge.outbox.storage.schema import TABLES

NEWEST = 5000  # rows of each table that are kept in memory
PAGE = 256  # contents that are read at a time
_LAST_ITEMS = 2000
RECENT = 50  # outcomes, and events about commands

# -- What waits ------------------------------------------------------------------------


class Snapshot(Struct):
    """What the file has of deliveries.

    Attributes:
        waiting: all that wait, in the order of their ids.
        counts: how many there are of each other state, by sink.
        dead_errors: the error of the newest dead letter, by sink.
        last_item, last_delivery: the last ids.
        meta: all named values.
        contents: those that are sent first, by their ids.
    """

    waiting: list[Waiting]
    counts: dict[str, dict[str, int]]
    dead_errors: dict[str, str | None]
    last_item: int
    last_delivery: int
    meta: dict[str, bytes | float]
    contents: dict[int, Item]


_DELIVERIES = """SELECT d.id, d.item, d.sink, d.key, d.due, coalesce(i.created, 0.0),
    d.attempts, d.urgent_from, d.urgent_until, d.last_error, d.reason, d.born,
    d.waits_for_sink, d.state FROM deliveries d LEFT JOIN items i ON i.id = d.item"""


def records(
    db: sqlite3.Connection, column: str, numbers: Iterable[int]
) -> list[tuple[Waiting, DeliveryState]]:
    """Return deliveries and their states, in the order of their ids.

    Args:
        db: the state file.
        column: ``id`` or ``item``.
        numbers: the values of this column.
    """
    query = f"""{_DELIVERIES} WHERE d.{column} IN (SELECT value FROM json_each(?))
        ORDER BY d.id"""  # noqa: S608 - our own text  # nosec B608
    rows = db.execute(query, (json.dumps(list(numbers)),))
    return [
        (_waiting(row, {}), row[-1] if row[-1] in STATES else "dead") for row in rows
    ]


def snapshot(db: sqlite3.Connection) -> Snapshot:
    """Return what the file has of deliveries."""
    pending = f"{_DELIVERIES} WHERE d.state = 'pending' ORDER BY d.id"
    same = dict[Any, Any]()  # equal times are one object: that saves a third
    every = [_waiting(row, same) for row in db.execute(pending)]
    counts: dict[str, dict[str, int]] = {}
    query = "SELECT sink, state, count(*) FROM deliveries GROUP BY sink, state"
    for sink, state, n in db.execute(query):
        if state != "pending":
            counts.setdefault(sink, {})[state] = n
    numbers = dict(db.execute("SELECT name, seq FROM sqlite_sequence"))
    return Snapshot(
        waiting=every,
        counts=counts,
        dead_errors={
            sink: _dead_error(db, sink) for sink, n in counts.items() if n.get("dead")
        },
        last_item=max(numbers.get("items", 0), _last(db, "items")),
        last_delivery=max(numbers.get("deliveries", 0), _last(db, "deliveries")),
        meta=meta(db),
        contents=items(db, _first(every)),
    )


def _first(waiting: Sequence[Waiting]) -> list[int]:
    """Return the items that are sent first: urgent ones, then the oldest."""
    urgent = (one.item for one in waiting if one.urgent_from is not None)
    every = (one.item for one in waiting)
    return list(islice(dict.fromkeys(chain(urgent, every)), PAGE))


def undelivered(db: sqlite3.Connection) -> dict[str, int]:
    """Return how many deliveries of a file of any version are pending, and dead."""
    query = """SELECT state, count(*) FROM deliveries
        WHERE state IN ('pending', 'dead') GROUP BY state"""
    return dict(db.execute(query))


_TIMES = (4, 7, 8, 11)  # due, urgent_from, urgent_until, born


def _waiting(row: Sequence[Any], same: dict[Any, Any]) -> Waiting:
    """Return the record of a row; numbers that are damaged make it due at once."""
    values = [
        same.setdefault(value, value) if isinstance(value, float) else value
        for value in row[:-1]
    ]
    is_right = type(values[6]) is int and all(
        isinstance(values[place], int | float) or values[place] is None
        for place in _TIMES
    )
    if not is_right or not isinstance(values[5], int | float):
        values[4:9] = [0.0, 0.0, UNREADABLE_ATTEMPTS, None, None]
        values[11] = 0.0
    values[12] = bool(values[12])
    return Waiting(*values)


UNREADABLE_ATTEMPTS = -1  # of a row whose numbers are damaged: it must not be sent


def _last(db: sqlite3.Connection, table: str) -> int:
    query = f"SELECT coalesce(max(id), 0) FROM {table}"  # noqa: S608 - our own names  # nosec B608
    (number,) = db.execute(query).fetchone()
    return int(number)


def _dead_error(db: sqlite3.Connection, sink: str) -> str | None:
    query = """SELECT last_error FROM deliveries
        WHERE sink = ? AND state = 'dead' ORDER BY id DESC LIMIT 1"""
    row = db.execute(query, (sink,)).fetchone()
    return None if row is None else row[0]


# -- Contents --------------------------------------------------------------------------


_SEVERAL = 16  # items in one row, since each row waits for the GIL
_COLUMNS = (
    *("id", "kind", "key", "event_id", "cloud_event_id", "type", "body"),
    *("created", "not_before", "checksum"),
)
_NAMES = ", ".join(f"i{n}.{name}" for n in range(_SEVERAL) for name in _COLUMNS)
_JOINS = " ".join(f"LEFT JOIN items i{n} ON i{n}.id = ?" for n in range(_SEVERAL))
_ITEMS = f"SELECT {_NAMES} FROM (SELECT 1) {_JOINS}"  # noqa: S608 - our own names  # nosec B608


def items(db: sqlite3.Connection, numbers: Sequence[int]) -> dict[int, Item]:
    """Return items by their ids; one that is damaged says so."""
    found, width = dict[int, Item](), len(_COLUMNS)
    for start in range(0, len(numbers), _SEVERAL):
        some = numbers[start : start + _SEVERAL]
        asked = (*some, *[None] * (_SEVERAL - len(some)))
        row = db.execute(_ITEMS, asked).fetchone()
        for place in range(0, width * len(some), width):
            if row[place] is not None:
                found[row[place]] = _item(row[place : place + width])
    return found


def _item(row: Sequence[Any]) -> Item:
    *columns, checksum = row
    item = Item(*columns)
    damage = damage_of(item, checksum)
    times = (item.created, item.not_before)
    if damage is None and not all(isinstance(t, int | float | None) for t in times):
        damage = "a number beside it cannot be read in the state file"
    if damage is None:
        return item
    texts = [value if isinstance(value, str) else None for value in item[1:6]]
    texts[0], texts[4] = texts[0] or UNREADABLE, texts[4] or UNREADABLE
    lost: tuple[Any, ...] = (item.id, *texts, b"", 0.0, None, damage)
    return Item(*lost)


LOST = Item(  # in place of a content that the file does not have
    *(0, UNREADABLE, None, None, None, UNREADABLE, b""),
    damage="the content of this delivery is missing in the state file",
)

# -- Named values ----------------------------------------------------------------------


def meta(db: sqlite3.Connection) -> dict[str, bytes | float]:
    """Return all named values; b"" = it is damaged."""
    found: dict[str, bytes | float] = {}
    for name, *row in db.execute("SELECT key, value, checksum FROM meta"):
        if isinstance(row[0], int | float):
            found[name] = row[0]
        elif (value := intact_value(name, row)) is not None:
            found[name] = value
    return found


# -- What is known of events -----------------------------------------------------------

Key = tuple[Any, ...]
Row = tuple[Any, ...]  # the other columns, in the order of ``Table.columns``
Groups = dict[str, dict[Key, Row]]  # rows by cause, EventId or message, and key
Known = dict[str, Groups]  # by their table
Asked = Mapping[str, Collection[str]]  # groups by the column of ``ASKED_BY``

# The tables that say something of EventIds, and the column by which each is asked. The
# messages ``hash`` and ``hash#number`` of approvals are one group.
ASKED_BY = {
    "told": "cause",
    "followers": "key",
    "sightings": "key",
    "appearances": "key",
    "command_successes": "key",
    "sink_memory": "key",
    "approvals": "message",
}
TABLES_OF = {
    column: frozenset(name for name, of in ASKED_BY.items() if of == column)
    for column in ASKED_BY.values()
}


# By its table: returns the cause, EventId or message that the row with a key is of.
GROUP_OF: dict[str, Callable[[Key], str]] = {
    name: itemgetter(TABLES[name].key.index(of)) for name, of in ASKED_BY.items()
}
GROUP_OF["approvals"] = message_of


class Part(Struct):
    """Some rows of each table that says something of EventIds.

    Attributes:
        groups: of these all rows are there.
        whole: the tables of which these are all rows.
        results: the last events about commands, oldest first.
    """

    rows: Known
    groups: Asked
    whole: frozenset[str]
    results: list[bytes]


def newest(db: sqlite3.Connection) -> Part:
    """Return the newest rows, all open intents, and all records of a POST."""
    rows, whole = Known(), set[str]()
    for name in ASKED_BY:
        query = f"SELECT {_columns(name)} FROM {name} t ORDER BY at DESC LIMIT {NEWEST}"  # noqa: S608 - our own names  # nosec B608
        found = db.execute(query).fetchall()
        rows[name] = _grouped(name, reversed(found))
        if len(found) < NEWEST:
            whole.add(name)
        elif name == "approvals":
            query = "SELECT message FROM approvals WHERE posted OR state = 'intent'"
            also = dict.fromkeys(map(message_of, db.execute(query)))
            rows |= of(db, {"message": also | dict.fromkeys(rows[name])})
        elif len(TABLES[name].key) > 1:
            rows[name] = {}  # some rows of an EventId may be missing
    groups = {
        column: dict.fromkeys(group for name in sorted(names) for group in rows[name])
        for column, names in TABLES_OF.items()
        if names <= whole or len(names) == 1
    }
    return Part(rows, groups, frozenset(whole), results(db, RECENT))


def of(db: sqlite3.Connection, asked: Asked) -> Known:
    """Return all rows of these causes, EventIds and messages."""
    return {
        name: _grouped(name, _rows(db, name, asked[column]))
        for name, column in ASKED_BY.items()
        if column in asked
    }


def _rows(db: sqlite3.Connection, name: str, groups: Collection[str]) -> sqlite3.Cursor:
    last = "g.value || '#:'" if name == "approvals" else "g.value"
    query = f"""SELECT {_columns(name)} FROM json_each(?) g CROSS JOIN {name} t
        ON t.{ASKED_BY[name]} BETWEEN g.value AND {last}"""  # noqa: S608 - our own names  # nosec B608
    return db.execute(query, (json.dumps(list(groups)),))


def _columns(name: str) -> str:
    """Return the columns of a table; what was published once has no smaller count."""
    names = [f"t.{column.name}" for column in TABLES[name].typed]
    return ", ".join("max(t.times, 1)" if n == "t.times" else n for n in names)


def _grouped(name: str, found: Iterable[Row]) -> Groups:
    groups, width, end = Groups(), len(TABLES[name].key), None
    if name == "approvals":
        found, end = filter(_is_intact, found), -1  # the checksum is not kept
    group_of = GROUP_OF[name]
    for row in found:
        key = row[:width]
        groups.setdefault(group_of(key), {})[key] = row[width:end]
    return groups


def _is_intact(row: Row) -> bool:
    """Whether a decision is intact; else its ``posted`` might be wrong."""
    _, *columns, _, checksum = row
    if checksum is None or checksum == checksum_of_decision(*columns):
        return True
    log_damage("approval")
    return False


def memory(db: sqlite3.Connection, sink: str) -> dict[str, bytes]:
    """Return all values that a sink has saved, by their keys."""
    query = "SELECT key, value FROM sink_memory WHERE sink = ?"
    return dict(db.execute(query, (sink,)))


# -- History ---------------------------------------------------------------------------


def results(db: sqlite3.Connection, limit: int) -> list[bytes]:
    """Return the last events about commands, oldest first.

    Only the last events are searched, because there is no index for it.
    """
    query = """SELECT body FROM items
        WHERE id > (SELECT coalesce(max(id), 0) FROM items) - ?
        AND kind = 'event' AND type LIKE '%.command.%' ORDER BY id DESC LIMIT ?"""
    return [body for (body,) in db.execute(query, (_LAST_ITEMS, limit))][::-1]


Step = tuple[str, bytes | None]  # the state, and the CloudEvent


def steps(
    db: sqlite3.Connection, sink: str, keys: Sequence[str]
) -> dict[str, dict[int, Step]]:
    """Return the steps of EventIds for a sink: its deliveries, by their ids."""
    query = """SELECT d.key, d.id, d.state, i.body FROM deliveries d
        LEFT JOIN items i ON i.id = d.item
        WHERE d.sink = ? AND d.key IN (SELECT value FROM json_each(?))"""
    found: dict[str, dict[int, Step]] = {key: {} for key in keys}
    for key, number, state, body in db.execute(query, (sink, json.dumps(keys))):
        found[key][number] = (state, body)
    return found
