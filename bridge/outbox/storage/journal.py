"""What is to be written to the state file: what the disk has, and what gathers.

    put ──▶ gathers ──take──▶ with the disk ──done──▶ written
               ▲                   │ back: below what gathered meanwhile
               └───────────────────┘

A newer state of a row replaces an older one that still gathers. The rows of an event
and of its deliveries stay with the commit that made them; any other row moves to the
newer commit, so that it is written with what it belongs to. What gathers while the disk
hangs becomes one transaction. A row says what will hold afterwards, so it may be
written twice.
"""

import asyncio
import logging
import queue
import sqlite3
import threading
import zlib
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import chain
from typing import Any, Protocol

import msgspec
from msgspec import Struct, field

from bridge.outbox.records import OWNER, Item
from bridge.outbox.storage.schema import SEVERAL, TABLES

Value = str | bytes | int | float | None
Change = tuple[str, tuple[Value, ...]]  # the table, and the primary key
Row = tuple[Value, ...]  # in the order of ``Table.columns``
Rows = dict[Change, Row | None]  # None = the row is deleted

log = logging.getLogger(__name__)

_STAY = ("items", "deliveries")
_BODY = 5  # of a row of items
# The allowed pairs of index in Item and type. SQLite returns no subclasses.
_KINDS_READ = {
    (0, int),
    *((place, str) for place in range(1, 6)),
    *((place, type(None)) for place in (2, 3, 4)),
    (6, bytes),
}
_ENCODER = msgspec.json.Encoder()
BROKEN = -1  # never a valid checksum: a row with this value is never sent


class Commit(Struct, eq=False):
    """Rows that are written together.

    Attributes:
        number: the number of the commit, from 1.
        since: when it was put, by the loop's clock.
        rows: the rows that are still to be written with it.
        then: see ``put``.
        is_late: whether ``then`` was called with False.
    """

    number: int
    since: float
    rows: dict[Change, Row | None]
    then: Callable[[bool], None] | None
    is_late: bool = False

    def tell(self, *, is_written: bool) -> None:
        """Call ``then``; of several times that it is not written, only once."""
        was_late, self.is_late = self.is_late, not is_written
        if self.then is not None and (is_written or not was_late):
            self.then(is_written)


class Journal(Struct):
    """The commits that are not on the disk yet, oldest first.

    Attributes:
        with_disk: the disk was given these, and has not answered.
        gathering: these came later.
        last: the number of the last commit.
        bytes: the length of the bodies of all events and replies.
    """

    with_disk: list[Commit] = field(default_factory=list)
    gathering: list[Commit] = field(default_factory=list)
    last: int = 0
    bytes: int = 0
    _given: int = 0  # the last commit that the disk was given
    _where: dict[Change, Commit] = field(default_factory=dict)  # the newest state

    def put(
        self, rows: Rows, now: float, then: Callable[[bool], None] | None = None
    ) -> Commit:
        """Add a commit.

        Args:
            rows: its rows.
            now: the time of the loop's clock.
            then: called with True when they are on the disk, and before with False if
                the disk refuses them, or does not answer; None = nobody waits.
        """
        self.last += 1
        commit = Commit(self.last, now, {}, then)
        self._place(commit, rows)
        return commit

    def _place(self, commit: Commit, rows: Rows) -> None:
        where = self._where
        for change, row in rows.items():
            of, earlier = commit, where.get(change)
            if change[0] == "items":
                self.bytes += _length(row)
            if earlier is not None and earlier.number > self._given:
                if change[0] == "items":
                    self.bytes -= _length(earlier.rows[change])
                if change[0] in _STAY:
                    of = earlier
                elif earlier is not commit:
                    del earlier.rows[change]
            of.rows[change] = row
            where[change] = of
        self.gathering.append(commit)

    def take(self) -> list[Commit]:
        """Give all that gathers to the disk."""
        self.with_disk, self.gathering = self.gathering, []
        self._given = self.last
        return self.with_disk

    def done(self) -> list[Commit]:
        """Note that the disk has what it was given; return it."""
        done, self.with_disk = self.with_disk, []
        where = self._where
        for commit in done:
            for change, row in commit.rows.items():
                if change[0] == "items":
                    self.bytes -= _length(row)
                if where.get(change) is commit:
                    del where[change]
        return done

    def back(self) -> None:
        """Note that the disk has refused what it was given: it gathers again."""
        every = self.waiting()
        self.with_disk, self.gathering = [], []
        self._where, self._given, self.bytes = {}, 0, 0
        for commit in every:
            rows, commit.rows = commit.rows, {}
            self._place(commit, rows)

    def waiting(self) -> list[Commit]:
        """Return all commits that are not on the disk yet, oldest first."""
        return [*self.with_disk, *self.gathering]

    def has(self, change: Change) -> bool:
        """Whether a state of a row is not on the disk yet."""
        return change in self._where

    def unwritten(self) -> dict[Change, Row | None]:
        """Return the newest state of each row that is not on the disk yet."""
        return {change: commit.rows[change] for change, commit in self._where.items()}


def _length(row: Row | None) -> int:
    body = None if row is None else row[_BODY]
    return len(body) if isinstance(body, bytes) else 0


# -- Writes rows to the state file, each with its checksum -----------------------------


def write(db: sqlite3.Connection, commits: Iterable[Rows]) -> int:
    """Write the rows of commits in the transaction that is open; each row occurs once.

    Returns:
        How many rows they are.

    Raises:
        sqlite3.Error: a row was refused, or the disk has failed.
    """
    gone, kept = dict[str, list[Row]](), dict[str, list[Row]]()
    for rows in commits:
        for (name, key), row in rows.items():
            if row is None:
                gone.setdefault(name, []).append(key)
            elif TABLES[name].has_checksum:
                one = (*key, *row, _checksum(name, key, row))
                kept.setdefault(name, []).append(one)
            else:
                kept.setdefault(name, []).append((*key, *row))
    for name, keys in gone.items():
        db.executemany(TABLES[name].drop, keys)
    for name, found in kept.items():
        table, end = TABLES[name], len(found) - len(found) % SEVERAL
        for start in range(0, end, SEVERAL):  # each statement waits for the GIL
            several = chain(*found[start : start + SEVERAL])
            db.execute(table.put_several, tuple(several))
        db.executemany(table.put, found[end:])
    return sum(map(len, (*gone.values(), *kept.values())))


def _checksum(name: str, key: Row, row: Row) -> int | None:
    if name == "meta":
        (value,) = row
        return checksum_of_value(str(key[0]), value) if type(value) is bytes else None
    if name == "items":
        return checksum_of((*key, *row))
    return checksum_of_decision(key[1], *row[:-1])


# -- Checksums of rows -----------------------------------------------------------------
#
# Damaged content must not be sent with the id of an intact event.
#
# CRC-32 is enough, because it guards against a failing disk and not against an
# attacker: it detects every run of up to 32 wrong bits. Other damage escapes it in one
# of four billion cases. It is stored in the row as a number, and costs less than a
# microsecond per kilobyte.


def checksum_of(item: Sequence[Any]) -> int:
    """Return the checksum of a row of ``items``, of its first columns to the body."""
    return zlib.crc32(item[_BODY + 1], zlib.crc32(_ENCODER.encode(item[: _BODY + 1])))


def checksum_of_value(name: str, value: bytes) -> int:
    """Return the checksum of a named value."""
    return zlib.crc32(value, zlib.crc32(name.encode()))


def intact_value(name: str, row: Sequence[object] | None) -> bytes | None:
    """Return the value of a row; if it is damaged, log that and return b"".

    Args:
        name: the name of the value.
        row: value and checksum, without checksum in an older file; None = no row.
    """
    if row is None or not isinstance(value := row[0], bytes):
        return None
    checksum = row[1] if len(row) > 1 else None
    if checksum is None or checksum == checksum_of_value(name, value):
        return value
    log_damage(name)
    return b""


def checksum_of_decision(*columns: object) -> int:
    """Return the checksum of a decision on an approval."""
    return zlib.crc32(repr(columns).encode("utf-8", "surrogatepass"))


def log_damage(what: str) -> None:
    """Log that a damaged value of the state file is ignored."""
    log.error("stored value is damaged: going on without it", extra={"what": what})


def damage_of(item: Item, checksum: object) -> str | None:
    """Return what is wrong with a row; None = nothing.

    Args:
        item: as it was read: any field may have a wrong type.
        checksum: as it was read; None = the row was written without one.
    """
    if type(item.body) is bytes and checksum == checksum_of(item):
        return None  # the usual case: a wrong type would have another checksum
    if not _KINDS_READ.issuperset(enumerate(map(type, item[: _BODY + 2]))):
        return "the content of this delivery cannot be read in the state file"
    if checksum is None:
        return None
    return "the content of this delivery is damaged in the state file"


def load(db: sqlite3.Connection, name: str) -> bytes | None:
    """Return the value of ``name``: None if there is none, b"" if it is damaged."""
    query = "SELECT value, checksum FROM meta WHERE key = ?"
    return intact_value(name, db.execute(query, (name,)).fetchone())


def owner_in(db: sqlite3.Connection) -> str | None:
    """Return the vmId in an open state file; None if there is none."""
    owner = load(db, OWNER)
    return owner.decode(errors="replace") if owner else None


# -- Who does the work on the disk: a thread, since the disk may hang ------------------

Done = Callable[[Any, BaseException | None], None]


class Timings(Struct, frozen=True):
    """Time limits of the state file, in seconds.

    Attributes:
        patience: a disk that has not answered for this time counts as failed; infinite
            = wait for it without a limit.
        standstill: if the check of the disk is late by more than this, the whole
            machine was paused, and the time of the disk begins again.
        closing: how much longer than ``patience`` closing may take.
        quiet: after this time without work, SQLite's log is written back; infinite =
            never.
    """

    patience: float = 3.0
    standstill: float = 1.0
    closing: float = 2.0
    quiet: float = 0.1


class Ask(Struct, eq=False):
    """A question to the file, or a transaction of its own.

    Attributes:
        work: asks.
        after: the commits up to this number are written first.
        since: when it was asked, by the loop's clock.
        future: of the caller.
        then: called with the result before the caller gets what it returns.
        is_read: whether an error of the disk says that rows cannot be written either;
            a transaction of its own is only tried again by its caller.
    """

    work: Callable[[], Any]
    after: int
    since: float
    future: asyncio.Future[Any]
    then: Callable[[Any], Any]
    is_read: bool = True

    def answer(self, result: Any, error: BaseException | None) -> None:
        """Give the caller the result, or the error."""
        if isinstance(error, Exception):
            if not self.future.done():
                self.future.set_exception(error)
            return
        found = self.then(result)
        if not self.future.done():
            self.future.set_result(found)


class Driver(Protocol):
    """Does the work on the disk, one piece at a time."""

    @property
    def is_alive(self) -> bool:
        """Whether it can still do work."""
        ...

    def start(self, work: Callable[[], object], done: Done) -> None:
        """Begin a piece of work; ``done`` is called in the event loop at its end.

        Args:
            work: may hang.
            done: gets the result and None, or None and the error.
        """
        ...

    def stop(self) -> None:
        """End when the work is done."""
        ...


class ThreadDriver:
    """Does the work in a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._queue = queue.SimpleQueue[tuple[Callable[[], object], Done] | None]()
        self._thread = threading.Thread(target=self._run, name="outbox", daemon=True)
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    def start(self, work: Callable[[], object], done: Done) -> None:
        """Begin a piece of work; see ``Driver``."""
        self._queue.put((work, done))

    def stop(self) -> None:
        """End the thread when its work is done."""
        self._queue.put(None)

    def _run(self) -> None:
        while (one := self._queue.get()) is not None:
            work, done = one
            try:
                result, error = work(), None
            except BaseException as fault:  # noqa: BLE001 - passed on to the loop
                result, error = None, fault
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(done, result, error)
            del one, work, done, result, error  # they hold what was written
