"""Copies the readable rows of a damaged SQLite file of a hub into a fresh one.

The damaged file is only read. What is read is a copy of it: SQLite puts the pages of
its log into their places, and a first page that is lost is replaced by that of the
fresh file, whose tables lie in the same places. Votes and decisions are copied first.

Source: https://sqlite.org/fileformat2.html
"""

import shutil
import sqlite3
import struct
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import orjson
from msgspec import Struct, field
from msgspec.structs import replace
from sqlalchemy import (
    Boolean,
    Engine,
    LargeBinary,
    String,
    Table,
    delete,
    func,
    select,
)

from bridge.foundation.errors import HubStoreError, UnreadableMessageError
from bridge.foundation.sqlite_files import READING, drop, text_of
from bridge.hub.facts import AZURE
from bridge.hub.store.engine import MAGIC, store_errors
from bridge.hub.store.intake import keep
from bridge.hub.store.kept_facts import Incoming
from bridge.hub.store.tables import (
    alarms,
    bridges,
    decisions,
    events,
    machines,
    messages,
    meta,
    metadata,
    notes,
    trail,
    unreadable,
    votes,
)

_FIRST = (votes, decisions, trail, meta, alarms, bridges, events)
_NO_JSON = {unreadable.c.body, decisions.c.message}  # all other bytes are JSON
_OF_PERSONS = {votes, decisions, trail}
_STAYS = _OF_PERSONS | {notes}  # what the messages of an event do not hold
_PAGE = 4096

Row = tuple[object, ...]


def tables() -> list[Table]:
    """Return all tables, with those first whose rows nobody sends again."""
    return [*_FIRST, *(t for t in metadata.sorted_tables if t not in _FIRST)]


def is_sound(table: Table, row: Sequence[object]) -> bool:
    """Whether the hub could have written a row."""
    return all(map(_is_value, table.columns, row))


def _is_value(column: Any, value: object) -> bool:
    if value is None:
        return bool(column.nullable)
    if isinstance(column.type, LargeBinary):
        return type(value) is bytes and (column in _NO_JSON or _is_json(value))
    if isinstance(column.type, String):
        return type(value) is str
    if isinstance(column.type, Boolean):
        return value in {0, 1}
    return type(value) is int


def _is_json(body: bytes) -> bool:
    try:
        orjson.loads(body.removeprefix(b"\xef\xbb\xbf"))  # as ``facts.object_in``
    except orjson.JSONDecodeError:
        return False
    return True


class Salvage(Struct):
    """How much was copied.

    Attributes:
        copied: the number of rows by table.
        unreadable: the number of rows or places that could not be read.
    """

    copied: dict[str, int] = field(default_factory=dict)
    unreadable: int = 0

    def add(self, table: str, count: int) -> None:
        """Count rows of a table that were copied."""
        self.copied[table] = self.copied.get(table, 0) + count


def rescue(damaged: Path, fresh: Path) -> Salvage:
    """Copy the readable rows of a damaged file into a fresh one, in one commit.

    Args:
        damaged: the file, which may be missing beside its log.
        fresh: a file with the schema of this version and no rows.

    Raises:
        sqlite3.Error: the fresh file cannot be written.
        OSError: there is no room for the copy that is read.
    """
    found, copy = Salvage(), Path(f"{fresh}.read")
    with closing(sqlite3.connect(fresh, isolation_level=None)) as target:
        target.execute("BEGIN IMMEDIATE")
        best = fresh.read_bytes()
        try:
            with suppress(*READING):
                _copy_of(damaged, copy, best)
                with closing(_opened(copy)) as source:
                    for table in tables():
                        _copy_table(source, target, table, found)
        finally:
            drop(copy)
        target.execute("COMMIT")
    return found


def _opened(path: Path) -> sqlite3.Connection:
    """Open a file for reading, even if its schema is damaged."""
    uri = f"{path.absolute().as_uri()}?mode=ro&immutable=1"
    source = sqlite3.connect(uri, uri=True, isolation_level=None)
    source.text_factory = text_of
    source.execute("PRAGMA writable_schema = ON")
    return source


# -- the copy that is read -----------------------------------------------------------


def _copy_of(damaged: Path, copy: Path, fresh: bytes) -> None:
    """Write what a damaged file and its log hold as one file, with a sound schema."""
    if damaged.is_file() and damaged.stat().st_size > 0:
        shutil.copyfile(damaged, copy)
    else:
        copy.write_bytes(fresh)  # SQLite would delete the log of an empty file
    pages = Path(f"{damaged}-wal")
    if pages.is_file():
        shutil.copyfile(pages, f"{copy}-wal")
        with suppress(*READING), closing(sqlite3.connect(copy)) as db:
            db.execute("SELECT 1 FROM sqlite_master")  # closing puts the log into it
    with copy.open("r+b") as target:
        head = target.read(_PAGE)
        if head[:16] == MAGIC and head[16:18] != b"\x10\x00":
            return  # pages of another size: not made by a hub
        _complete(target)
        if head[:16] != MAGIC or not _has_tables(copy):
            target.seek(0)
            _write_schema(target, fresh)
        _without_log(target)


def _complete(target: Any) -> None:
    """Let the last page end where a page ends."""
    size = target.seek(0, 2)
    target.write(bytes(-size % _PAGE))
    target.flush()


def _without_log(target: Any) -> None:
    """Let SQLite read a file without its log, and count its pages itself."""
    target.seek(18)
    target.write(b"\1\1")
    target.seek(92)
    target.write(bytes(4))
    target.flush()


def _has_tables(path: Path) -> bool:
    with suppress(*READING), closing(_opened(path)) as source:
        query = "SELECT name FROM sqlite_master WHERE type = 'table'"
        names = {name for (name,) in source.execute(query)}
        return {table.name for table in metadata.sorted_tables} <= names
    return False


def _write_schema(target: Any, fresh: bytes) -> None:
    """Put the pages with the schema of a fresh file into their places."""
    first = fresh[:_PAGE]
    numbers = [1]
    if first[100] == 5:  # an inner page: its leaves hold the schema
        count = int.from_bytes(first[103:105], "big")
        cells = struct.unpack_from(f">{count}H", first, 112)
        numbers += [struct.unpack_from(">I", first, at)[0] for at in (*cells, 108)]
    for number in numbers:
        target.seek((number - 1) * _PAGE)
        target.write(fresh[(number - 1) * _PAGE : number * _PAGE])
    target.flush()


# -- rows ----------------------------------------------------------------------------


def _copy_table(
    source: sqlite3.Connection, target: sqlite3.Connection, table: Table, found: Salvage
) -> None:
    names = ", ".join(f'"{column.name}"' for column in table.columns)
    marks = ", ".join("?" * len(table.columns))
    put = f'INSERT OR IGNORE INTO "{table.name}" ({names}) VALUES ({marks})'  # noqa: S608 - our own names  # nosec B608
    count = 0
    for row in _rows(source, table.name, names, found):
        if is_sound(table, row):
            count += target.execute(put, row).rowcount
        else:
            found.unreadable += 1
    found.add(table.name, count)


def _rows(
    source: sqlite3.Connection, table: str, names: str, found: Salvage
) -> Iterator[Row]:
    """Yield the readable rows of a table: from its start, its end, and in between."""
    ends = dict[str, int | None]()
    for direction in ("ASC", "DESC"):
        last: int | None = None
        query = f'SELECT rowid, {names} FROM "{table}" ORDER BY rowid {direction}'  # noqa: S608 - our own names  # nosec B608
        try:
            for number, *row in source.execute(query):
                last = number
                yield tuple(row)
        except READING:
            found.unreadable += 1
            ends[direction] = last
        else:
            return
    low, high = ends["ASC"], ends["DESC"]
    if low is not None and high is not None:
        yield from _between(source, table, names, (low, high))


def _between(
    source: sqlite3.Connection, table: str, names: str, ends: tuple[int, int]
) -> Iterator[Row]:
    """Yield rows between two damaged places; the step grows while nothing is found."""
    at, step = ends[0] + 1, 1
    query = (
        f'SELECT rowid, {names} FROM "{table}" WHERE rowid >= ? AND rowid < ? '  # noqa: S608 - our own names  # nosec B608
        "ORDER BY rowid"
    )
    while at < ends[1]:
        try:
            for number, *row in source.execute(query, (at, ends[1])):
                at, step = number, 1
                yield tuple(row)
        except READING:
            at, step = at + step, min(step * 2, 64)
        else:
            return


# -- events that are lost, but whose messages are there ------------------------------


def keep_again(database: Engine, found: Salvage) -> None:
    """Store the messages of events again whose own rows could not be read.

    Raises:
        HubStoreError: the fresh file cannot be written.
    """
    with database.begin() as connection:
        keys = {
            *connection.scalars(select(messages.c.event_key).distinct()),
        } - set(connection.scalars(select(events.c.event_key)))
        named = set(connection.scalars(select(machines.c.event_key)))
        is_open = select(events.c.event_key).where(events.c.is_open.is_(True))
        keys |= set(connection.scalars(is_open)) - named
    for key in sorted(keys):
        try:
            with store_errors(), database.begin() as connection:
                query = select(messages).where(messages.c.event_key == key)
                batch = [_incoming(row) for row in connection.execute(query).all()]
                if not batch:  # all that is left of the event is its own row
                    continue
                for table in metadata.sorted_tables:
                    if "event_key" in table.c and table not in _STAYS:
                        mine = table.c.event_key == key
                        connection.execute(delete(table).where(mine))
                keep(connection, batch)
        except (HubStoreError, UnreadableMessageError):
            found.unreadable += 1
    with database.begin() as connection:
        count = connection.scalar(select(func.count()).select_from(events))
        found.copied["events"] = count or 0


def _incoming(row: Any) -> Incoming:
    """Return a stored message with what it says of its event alone."""
    one = Incoming.of_row(row).with_content(is_azures=row.vm_id == AZURE)
    return replace(one, report=None, notes=())
