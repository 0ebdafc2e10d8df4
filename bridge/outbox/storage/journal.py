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

import sqlite3
from collections.abc import Callable, Iterable
from itertools import chain

from msgspec import Struct, field

from bridge.outbox.records import (
    Content,
    checksum_of,
    checksum_of_decision,
    checksum_of_value,
)
from bridge.outbox.storage.schema import SEVERAL, TABLES

Value = str | bytes | int | float | None
Change = tuple[str, tuple[Value, ...]]  # the table, and the primary key
Row = tuple[Value, ...]  # in the order of ``Table.columns``
Rows = dict[Change, Row | None]  # None = the row is deleted

_STAY = ("items", "deliveries")
_BODY = 5  # of a row of items


class Commit(Struct, eq=False):
    """Rows that are written together.

    Attributes:
        number: the number of the commit, from 1.
        since: when it was put, by the loop's clock.
        rows: the rows that are still to be written with it.
        then: called once with whether they are on the disk; None = it was called, or
            nobody waits.
        late: called when they are on the disk after all.
    """

    number: int
    since: float
    rows: dict[Change, Row | None]
    then: Callable[[bool], None] | None
    late: Callable[[], None] | None

    def tell(self, *, is_written: bool) -> None:
        """Call ``then``; if it was called before and this is on the disk, ``late``."""
        then, self.then = self.then, None
        if then is not None:
            then(is_written)
            self.late = None if is_written else self.late
        elif is_written and self.late is not None:
            self.late()


class Journal(Struct):
    """The commits that are not on the disk yet, oldest first.

    Attributes:
        with_disk: the disk was given these, and has not answered.
        gathering: these came later.
        items: how many events and replies are among their rows.
        bytes: the length of their bodies.
        last: the number of the last commit.
    """

    with_disk: list[Commit] = field(default_factory=list)
    gathering: list[Commit] = field(default_factory=list)
    items: int = 0
    bytes: int = 0
    last: int = 0
    _given: dict[Change, Commit] = field(default_factory=dict)
    _where: dict[Change, Commit] = field(default_factory=dict)

    def put(
        self,
        rows: Rows,
        now: float,
        then: Callable[[bool], None] | None = None,
        late: Callable[[], None] | None = None,
    ) -> Commit:
        """Add a commit at the time ``now`` of the loop's clock."""
        self.last += 1
        commit = Commit(self.last, now, {}, then, late)
        for change, row in rows.items():
            self._place(commit, change, row)
        self.gathering.append(commit)
        return commit

    def _place(self, commit: Commit, change: Change, row: Row | None) -> None:
        earlier = self._where.get(change)
        if earlier is not None:
            self._count(change, earlier.rows[change], -1)
            if change[0] in _STAY:
                commit = earlier
            elif earlier is not commit:
                del earlier.rows[change]
        commit.rows[change] = row
        self._where[change] = commit
        self._count(change, row, 1)

    def _count(self, change: Change, row: Row | None, sign: int) -> None:
        if row is not None and change[0] == "items":
            body = row[_BODY]
            self.items += sign
            self.bytes += sign * len(body) if isinstance(body, bytes) else 0

    def take(self) -> list[Commit]:
        """Give all that gathers to the disk."""
        self.with_disk, self.gathering = self.gathering, []
        self._given, self._where = self._where, {}
        return self.with_disk

    def done(self) -> list[Commit]:
        """Note that the disk has what it was given; return it."""
        done, self.with_disk = self.with_disk, []
        for change, commit in self._given.items():
            self._count(change, commit.rows[change], -1)
        self._given = {}
        return done

    def back(self) -> None:
        """Note that the disk has refused what it was given: it gathers again."""
        later, where = self.gathering, self._where
        self.gathering, self.with_disk = self.with_disk, []
        self._where, self._given = self._given, {}
        for change, commit in where.items():
            self._count(change, commit.rows[change], -1)
        for commit in later:
            rows, commit.rows = commit.rows, {}
            for change, row in rows.items():
                self._place(commit, change, row)
            self.gathering.append(commit)

    def waiting(self) -> list[Commit]:
        """Return all commits that are not on the disk yet, oldest first."""
        return [*self.with_disk, *self.gathering]

    def has(self, change: Change) -> bool:
        """Whether a state of a row is not on the disk yet."""
        return change in self._where or change in self._given

    def unwritten(self) -> dict[Change, Row | None]:
        """Return the newest state of each row that is not on the disk yet."""
        found = {c: commit.rows[c] for c, commit in self._given.items()}
        return found | {c: commit.rows[c] for c, commit in self._where.items()}


# -- Writes rows to the state file, each with its checksum -----------------------------


def write(db: sqlite3.Connection, commits: Iterable[Rows]) -> None:
    """Write the rows of commits in the transaction that is open; each row occurs once.

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


def _checksum(name: str, key: Row, row: Row) -> int | None:
    if name == "meta":
        (value,) = row
        return checksum_of_value(str(key[0]), value) if type(value) is bytes else None
    if name == "items":
        # A row says nothing of the types of its columns.
        number, content = key[0], Content(*row[:6])  # type: ignore[arg-type]  # see above
        return checksum_of(number, content)  # type: ignore[arg-type]  # see above
    return checksum_of_decision(key[1], *row[:-1])
