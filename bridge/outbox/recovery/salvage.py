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
from typing import Any, get_args

import msgspec

from bridge.events import checkpoint
from bridge.foundation.clock import Clock
from bridge.foundation.errors import Reason
from bridge.outbox.records import (
    BROKEN,
    CHECKPOINT,
    UNREADABLE,
    Content,
    DeliveryState,
    damage_of,
)
from bridge.outbox.recovery.soundness import (
    KEYED,
    Column,
    columns_of,
    is_sound,
    limited,
    text_of,
)
from bridge.outbox.storage.connection import connect
from bridge.outbox.tables.observations import publish_again

_STATES = get_args(DeliveryState)
_WAITING = ("pending", "dead")
_LOST = "it could not be read in a damaged state file"
# Errors that may occur when a damaged file is read.
_READING = (sqlite3.Error, UnicodeDecodeError, MemoryError, OverflowError)

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
        except _READING:
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
    _items: dict[int, Content | None] = field(default_factory=dict)  # None = damaged
    _shared: dict[str, list[Column]] = field(default_factory=dict)

    def run(self) -> None:
        """Copy the most important tables first: there may be no time for all."""
        for table in KEYED[:1]:
            self._copy(table)
        self._copy_deliveries()
        for table in KEYED[1:]:
            self._copy(table)
        self._continue_ids()
        for key in self.lost | (self.known if self.is_any_lost else set()):
            publish_again(self.target, key)

    # -- tables with keys ----------------------------------------------------

    def _copy(self, table: str) -> None:
        columns = self._columns(table)
        for row in self._rows(table):
            if table == "meta" and row["key"] == "schema":
                continue  # the fresh file has its own
            is_kept = is_sound(columns, tuple(row.values()))
            if is_kept and table == "meta":
                is_kept = self._is_decodable(row["key"], row["value"])
            if is_kept:
                self._insert(table, row, or_else="IGNORE")
            else:
                self.found.unreadable += 1

    def _is_decodable(self, key: str, value: object) -> bool:
        """Whether a value can be decoded; note the EventIds of the checkpoint."""
        if key == CHECKPOINT:
            try:
                self.known = frozenset(checkpoint.decode(_bytes(value)).known)
            except msgspec.DecodeError:
                self.is_any_lost = True
                return False
        return True

    # -- deliveries ----------------------------------------------------------

    def _copy_deliveries(self) -> None:
        """Copy pending, dead and unreadable deliveries, in their order."""
        heads = set[tuple[str, str | None]]()
        for row in sorted(self._waiting(), key=lambda row: int(row["id"])):
            place = (row["sink"], row["key"])
            is_first = place not in heads or row["key"] is None
            row["is_head"] = int(is_first and row["state"] == "pending")
            if row["is_head"]:
                heads.add(place)
            self._insert("deliveries", row, or_else="IGNORE")

    def _waiting(self) -> Iterator[Row]:
        columns, seen = self._columns("deliveries"), set[int]()
        for row in self._rows("deliveries"):
            number = row["id"]
            if number in seen:
                continue
            seen.add(number)
            if not is_sound(columns, tuple(row.values())):
                yield self._as_dead_letter(_made_sound(columns, row, self.now))
            elif row["state"] in _WAITING:
                is_intact = self._item(row["item"], row["key"]) is not None
                is_kept = is_intact or row["state"] == "dead"
                yield row if is_kept else self._as_dead_letter(row)
            elif row["state"] not in _STATES:
                yield self._as_dead_letter(row)
        if self.is_any_lost:
            yield from self._indexed(seen)

    def _indexed(self, seen: set[int]) -> Iterator[Row]:
        """Yield damaged deliveries that only an index still contains."""
        query = "SELECT id, sink, state FROM deliveries INDEXED BY deliveries_state"
        columns = columns_of(self.target, "deliveries")
        try:
            for number, sink, state in self.source.execute(query):
                if state in _WAITING and number not in seen:
                    row = {"id": number, "sink": sink, "item": -number}
                    yield self._as_dead_letter(_made_sound(columns, row, self.now))
        except _READING as error:
            self._note(error)

    def _as_dead_letter(self, row: Row) -> Row:
        """Return a delivery changed to a dead letter, and note its event as lost."""
        self.found.unreadable += 1
        content = self._item(row["item"], row["key"])
        is_reply = content is not None and content.kind == "reply"
        key = row["key"] or (content and content.key)
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

    def _item(self, number: int, key: str | None) -> Content | None:
        """Copy an item; if it is damaged, insert a placeholder and return None."""
        if number not in self._items:
            row = self._read_item(number)
            if row and is_sound(self._columns("items"), tuple(row.values())):
                self._items[number] = _intact_content(row)
            if self._items.setdefault(number, None) is None:
                columns = columns_of(self.target, "items")
                row = _made_sound(columns, {**row, "id": number}, self.now)
                row = {**row, "key": row["key"] or key, "checksum": BROKEN}
            self._insert("items", row, or_else="REPLACE")
        return self._items[number]

    def _read_item(self, number: int) -> Row:
        names = [column.name for column in self._columns("items")]
        if not names:
            return {}
        try:
            query = f"SELECT {', '.join(names)} FROM items WHERE id = ?"  # noqa: S608 - our own names  # nosec B608
            found = self.source.execute(query, (number,)).fetchone()
        except _READING as error:
            self._note(error)
            return {}
        return {} if found is None else dict(zip(names, found, strict=True))

    # -- helpers -------------------------------------------------------------

    def _rows(self, table: str) -> Iterator[Row]:
        """Yield the readable rows of a table; after an error, some of them twice."""
        columns = self._columns(table)
        if not columns:
            self.is_any_lost |= table == "deliveries"
            return
        names = [column.name for column in columns]
        keys = [c.name for c in sorted(columns, key=lambda c: c.place) if c.place]
        for direction in ("ASC", "DESC"):
            order = ", ".join(f"{key} {direction}" for key in keys)
            query = f"SELECT {', '.join(names)} FROM {table} ORDER BY {order}"  # noqa: S608 - our own names  # nosec B608
            try:
                for row in self.source.execute(query):
                    yield dict(zip(names, row, strict=True))
            except _READING as error:
                self._note(error)
                self.is_any_lost |= table == "deliveries"
            else:
                return

    def _columns(self, table: str) -> list[Column]:
        """Return the common columns of both files; none if a required one is missing.

        An older file lacks columns that were added later; these have defaults.
        """
        if table not in self._shared:
            try:
                there = {column.name for column in columns_of(self.source, table)}
            except _READING as error:
                self._note(error)
                there = set()
            columns = columns_of(self.target, table)
            missing = [c for c in columns if c.name not in there]
            is_whole = all(c.has_default or not c.is_required for c in missing)
            shared = [c for c in columns if c.name in there]
            self._shared[table] = shared if is_whole else []
            self.found.unreadable += not is_whole
        return self._shared[table]

    def _insert(self, table: str, row: Mapping[str, object], *, or_else: str) -> None:
        names, marks = ", ".join(row), ", ".join("?" * len(row))
        query = f"INSERT OR {or_else} INTO {table} ({names}) VALUES ({marks})"  # noqa: S608 - our own names  # nosec B608
        self.found.copied += self.target.execute(query, tuple(row.values())).rowcount

    def _continue_ids(self) -> None:
        """Continue the ids of the damaged file, so that no id is used twice."""
        try:
            found = self.source.execute("SELECT name, seq FROM sqlite_sequence")
            counts = [(n, s) for n, s in found if isinstance(s, int)]
        except _READING as error:
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


def _intact_content(row: Row) -> Content | None:
    """Return the content of an item; None if its checksum is wrong."""
    content = Content(**{name: row[name] for name in Content._fields})
    damage = damage_of(row["id"], content, row.get("checksum"))
    return content if damage is None else None


def _made_sound(columns: list[Column], row: Row, now: float) -> Row:
    """Return a row with a placeholder for each value that cannot be read."""
    placeholders: Row = {"TEXT": UNREADABLE, "INTEGER": 0, "REAL": now, "BLOB": b""}
    found = Row()
    for column in columns:
        value = row.get(column.name)
        if not column.is_sound(value):
            value = placeholders[column.kind] if column.is_required else None
        found[column.name] = value
    return found


def _bytes(value: object) -> bytes:
    return value if isinstance(value, bytes) else b""
