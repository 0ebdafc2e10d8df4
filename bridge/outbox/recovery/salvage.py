"""Copies the readable rows of a damaged state file into a fresh one.

It reads row by row, and from both ends if the middle is damaged. Rows keep their ids.
Deliveries that are over (delivered, discarded or skipped) are not copied. A delivery
that cannot be read becomes a dead letter that says so, and its event is published again
from the document. Damaged content gets an impossible checksum, so it is never sent.
"""

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from bridge.events.watch import Watch
from bridge.foundation.clock import Clock
from bridge.foundation.errors import Reason
from bridge.foundation.sqlite_files import READING, limited, text_of
from bridge.outbox.records import AGAIN, CHECKPOINT, STATES, UNREADABLE, Item
from bridge.outbox.storage.file import connect
from bridge.outbox.storage.journal import BROKEN, damage_of, write
from bridge.outbox.storage.schema import TABLES, Table

_ITEMS, _DELIVERIES = TABLES["items"], TABLES["deliveries"]
_WAITING = ("pending", "dead")
_LOST = "it could not be read in a damaged state file"
Row = dict[str, Any]


@dataclass(slots=True)
class Salvage:
    """How much was copied.

    Attributes:
        copied: number of rows.
        unreadable: number of rows that could not be read, as far as known.
        is_whole: whether there was time to copy everything.
    """

    copied: int = 0
    unreadable: int = 0
    is_whole: bool = True


def rescue(damaged: Path, fresh: Path, *, seconds: float, clock: Clock) -> Salvage:
    """Copy the readable rows of a damaged file into a fresh one, in one commit.

    Args:
        damaged: the file; it is only read.
        fresh: the path of the new file; no file exists there yet.
        seconds: how long it may take to read whole tables; pending deliveries come
            first, and their content is always copied.
        clock: measures these seconds.

    Raises:
        OutboxError: the fresh file cannot be created.
        sqlite3.Error: the fresh file cannot be written.
    """
    with closing(connect(fresh)) as target:
        target.execute("BEGIN IMMEDIATE")
        found = Salvage()
        if (source := _opened(damaged)) is not None:
            with closing(source), limited(source, seconds, clock):
                now = clock.now().timestamp()
                _Rescue(source, target, now, found).run()
        target.execute("COMMIT")
    return found


def _opened(path: Path) -> sqlite3.Connection | None:
    """Open a file for reading, with its log if possible; None if it cannot be read."""
    without_log = "mode=ro&immutable=1"  # creates no file beside it
    has_log = Path(f"{path}-wal").exists()
    for how in ("mode=ro", without_log) if has_log else (without_log,):
        source = sqlite3.connect(
            f"{path.absolute().as_uri()}?{how}", uri=True, isolation_level=None
        )
        try:
            source.text_factory = text_of
            # With this, a damaged schema is no error.
            source.execute("PRAGMA writable_schema = ON")
            source.execute("SELECT count(*) FROM sqlite_master").fetchone()
        except READING:
            source.close()
        else:
            return source
    return None


@dataclass(slots=True)
class _Rescue:
    """Copies one file into another.

    Attributes:
        source: the damaged file.
        target: the fresh file.
        now: seconds since the epoch.
        found: how much was copied so far.
        known: keys of the EventIds in the checkpoint.
        lost: keys of the EventIds with a lost event.
        is_any_lost: whether events with unknown EventIds were lost.
    """

    source: sqlite3.Connection
    target: sqlite3.Connection
    now: float
    found: Salvage
    known: frozenset[str] = frozenset()
    lost: set[str] = field(default_factory=set)
    is_any_lost: bool = False
    _items: dict[int, Item | None] = field(default_factory=dict)  # None = damaged

    def run(self) -> None:
        """Copy the most important tables first: there may be no time for all."""
        for table in TABLES.values():
            if table is _DELIVERIES:
                self._copy_deliveries()
            elif table is not _ITEMS:  # they are copied with their deliveries
                self._copy(table)
        self._continue_ids()
        lost = self.lost | (self.known if self.is_any_lost else set())
        write(self.target, [{("meta", (f"{AGAIN}{key}",)): (b"",) for key in lost}])

    # -- tables with keys ----------------------------------------------------

    def _copy(self, table: Table) -> None:
        for row in self._rows(table):
            is_kept = table.is_sound(tuple(row.values()))
            if is_kept and table.name == "meta":
                is_kept = self._is_decodable(row["key"], row["value"])
            if is_kept:
                self._insert(table, row, or_else="IGNORE")
            else:
                self.found.unreadable += 1

    def _is_decodable(self, key: str, value: object) -> bool:
        """Whether a value can be decoded; note the EventIds of the checkpoint."""
        if key == CHECKPOINT:
            try:
                self.known = frozenset(Watch.from_json(_bytes(value)).known)
            except msgspec.DecodeError:
                self.is_any_lost = True
                return False
        return True

    # -- deliveries ----------------------------------------------------------

    def _copy_deliveries(self) -> None:
        """Copy pending, dead and unreadable deliveries, in their order."""
        for row in sorted(self._waiting(), key=lambda row: int(row["id"])):
            self._insert(_DELIVERIES, row, or_else="IGNORE")

    def _waiting(self) -> Iterator[Row]:
        seen = set[int]()
        for row in self._rows(_DELIVERIES):
            number = row["id"]
            if number in seen:
                continue
            seen.add(number)
            if not _DELIVERIES.is_sound(tuple(row.values())):
                yield self._as_dead_letter(_made_sound(_DELIVERIES, row, self.now))
            elif row["state"] in _WAITING:
                is_intact = self._item(row["item"], row["key"]) is not None
                is_kept = is_intact or row["state"] == "dead"
                yield row if is_kept else self._as_dead_letter(row)
            elif row["state"] not in STATES:
                yield self._as_dead_letter(row)
        if self.is_any_lost:
            yield from self._indexed(seen)

    def _indexed(self, seen: set[int]) -> Iterator[Row]:
        """Yield damaged deliveries that only an index still contains."""
        query = "SELECT id, sink, state FROM deliveries INDEXED BY deliveries_state"
        try:
            for number, sink, state in self.source.execute(query):
                if state in _WAITING and number not in seen:
                    row = {"id": number, "sink": sink, "item": -number}
                    yield self._as_dead_letter(_made_sound(_DELIVERIES, row, self.now))
        except READING as error:
            self._note(error)

    def _as_dead_letter(self, row: Row) -> Row:
        """Return a delivery changed to a dead letter, and note its event as lost."""
        self.found.unreadable += 1
        item = self._item(row["item"], row["key"])
        is_reply = item is not None and item.kind == "reply"
        key = row["key"] or (item and item.key)
        if key is not None and not is_reply:
            self.lost.add(key)
        self.is_any_lost |= key is None
        return {
            **row,
            "state": "dead",
            "last_error": _LOST,
            "reason": Reason.DAMAGED.value,
            "settled": self.now,
        }

    def _item(self, number: int, key: str | None) -> Item | None:
        """Copy an item; if it is damaged, insert a placeholder and return None."""
        if number not in self._items:
            row = self._read_item(number)
            if row and _ITEMS.is_sound(tuple(row.values())):
                self._items[number] = _intact(row)
            if self._items.setdefault(number, None) is None:
                row = _made_sound(_ITEMS, {**row, "id": number}, self.now)
                row = {**row, "key": row["key"] or key, "checksum": BROKEN}
            self._insert(_ITEMS, row, or_else="REPLACE")
        return self._items[number]

    def _read_item(self, number: int) -> Row:
        names = [column.name for column in _ITEMS.typed]
        try:
            query = f"SELECT {', '.join(names)} FROM items WHERE id = ?"  # noqa: S608 - our own names  # nosec B608
            found = self.source.execute(query, (number,)).fetchone()
        except READING as error:
            self._note(error)
            return {}
        return {} if found is None else dict(zip(names, found, strict=True))

    # -- helpers -------------------------------------------------------------

    def _rows(self, table: Table) -> Iterator[Row]:
        """Yield the readable rows of a table; after an error, some of them twice."""
        names = [column.name for column in table.typed]
        for direction in ("ASC", "DESC"):
            order = ", ".join(f"{key} {direction}" for key in table.key)
            query = f"SELECT {', '.join(names)} FROM {table.name} ORDER BY {order}"  # noqa: S608 - our own names  # nosec B608
            try:
                for row in self.source.execute(query):
                    yield dict(zip(names, row, strict=True))
            except READING as error:
                self._note(error)
                self.is_any_lost |= table is _DELIVERIES
            else:
                return

    def _insert(self, table: Table, row: Mapping[str, object], *, or_else: str) -> None:
        names, marks = ", ".join(row), ", ".join("?" * len(row))
        query = f"INSERT OR {or_else} INTO {table.name} ({names}) VALUES ({marks})"  # noqa: S608 - our own names  # nosec B608
        self.found.copied += self.target.execute(query, tuple(row.values())).rowcount

    def _continue_ids(self) -> None:
        """Continue the ids of the damaged file, so that no id is used twice."""
        try:
            found = self.source.execute("SELECT name, seq FROM sqlite_sequence")
            counts = [(n, s) for n, s in found if isinstance(s, int)]
        except READING as error:
            self._note(error)
            return
        for name, number in counts:
            self.target.execute(
                """UPDATE sqlite_sequence SET seq = max(seq, ?)
                   WHERE name = ? AND ? BETWEEN seq AND seq + 1000000000""",
                (number, name, number),
            )

    def _note(self, error: BaseException) -> None:
        if getattr(error, "sqlite_errorname", "") == "SQLITE_INTERRUPT":
            self.found.is_whole = False
        self.found.unreadable += 1


def _intact(row: Row) -> Item | None:
    """Return an item; None if its checksum is wrong."""
    item = Item(**{name: row[name] for name in Item._fields[:-1]})
    return item if damage_of(item, row["checksum"]) is None else None


def _made_sound(table: Table, row: Row, now: float) -> Row:
    """Return a row with a placeholder for each value that cannot be read."""
    placeholders: Row = {"TEXT": UNREADABLE, "INTEGER": 0, "REAL": now, "BLOB": b""}
    found = Row()
    for column in table.typed:
        value = row.get(column.name)
        if not column.is_sound(value):
            value = placeholders[column.kind] if column.is_required else None
        found[column.name] = value
    return found


def _bytes(value: object) -> bytes:
    return value if isinstance(value, bytes) else b""
