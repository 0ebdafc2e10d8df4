"""The mirror: a copy of the state file in memory, for the time when the disk fails.

It follows every change of the file, because a disk that hangs cannot be read either.
Each statement that was committed to the file is run here again. If SQLite's
``data_version`` says that another process has written, the mirror is loaded again.

It holds the records about events, and the pending deliveries. Of a long backlog it
holds only some of the bodies. A pending delivery without its body is never due, because
``select_checked`` joins the two tables. But it is still the head of its key. So an
EventId whose earlier step is only on the disk waits, while all others are delivered.
"""

import sqlite3
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from bridge.foundation.privileges import no_file
from bridge.outbox.storage.connection import (
    Connection,
    Statement,
    is_unwritable,
    readable,
    translated,
)
from bridge.outbox.storage.schema import MIGRATIONS, migrate, versions

# -- Limits of the mirror: how much of the state file it holds in memory ---------------


@dataclass(frozen=True, slots=True)
class Extent:
    """The limits of a mirror.

    While the mirror is loaded again, the old and the new one are both in memory. During
    a long backlog the two take about 20 MiB, with what SQLite needs for each page.

    Attributes:
        rows: the most pending deliveries to load.
        beyond: the most placeholder rows. There is one for each sink and EventId with
            deliveries beyond ``rows``: it holds them back, which keeps their order.
        bodies: the most events to load.
        body_bytes: the most bytes of these events together.
        memories: the most rows to load of each other table; the newest ones.
        bytes: a mirror larger than this is loaded again, which makes it smaller, but
            only after it has grown by a third.
        spare: free memory is given back if it is at least this many bytes.
        statements: a mirror that holds only a part is loaded again after this many
            statements.
        noticed: a load that takes longer than this many seconds must not be frequent.
        life: after such a load, the next load waits for this many times its duration,
            unless the mirror is too large.
    """

    rows: int = 5_000
    beyond: int = 55_000
    bodies: int = 5_000
    body_bytes: int = 2 * 1024 * 1024
    memories: int = 5_000
    bytes: int = 6 * 1024 * 1024
    spare: int = 1024 * 1024
    statements: int = 20_000
    noticed: float = 0.05
    life: float = 20.0


EXTENT = Extent()


# -- The mirror: a copy of the state file in memory, for the time when the disk fails --


_PAGE = 1024  # small: most of the thirty tables and indexes are nearly empty
_BUSY_MILLISECONDS = 100  # after that, a locked file is read without the lock

# Settled rows stay on the disk; here they are deleted, but their count stays.
_SETTLED = (
    "DROP TRIGGER deliveries_removed",
    """CREATE TRIGGER mirror_settled AFTER UPDATE OF state ON deliveries
       WHEN new.state <> 'pending' BEGIN
           DELETE FROM deliveries WHERE id = new.id;
           DELETE FROM items WHERE id = new.item
               AND NOT EXISTS (SELECT 1 FROM deliveries WHERE item = new.item);
       END""",
)
_MEMORIES = (
    *("told", "sightings", "followers", "approvals", "sink_memory"),
    *("appearances", "command_successes"),
)
# The rows to copy from each table. The columns are named, because a newer version of
# this program may have added columns to the file.
_COPIES = (
    ("meta", "DELETE FROM main.meta"),
    ("meta", "INSERT INTO meta ({columns}) SELECT {columns} FROM disk.meta"),
    *(
        (
            table,
            f"""INSERT INTO {table} ({{columns}}) SELECT {{columns}}
            FROM disk.{table} ORDER BY at DESC LIMIT :memories""",  # noqa: S608 - our own names  # nosec B608
        )
        for table in _MEMORIES
    ),
    # Sink by sink, because the index of pending deliveries begins with the sink.
    (
        "deliveries",
        """INSERT INTO deliveries ({columns}) SELECT {d_columns} FROM disk.tallies t
        CROSS JOIN disk.deliveries d INDEXED BY deliveries_state
        ON d.sink = t.sink AND d.state = 'pending'
        WHERE t.state = 'pending' AND t.n > 0 ORDER BY d.id LIMIT :rows""",
    ),
    (
        "items",
        """INSERT INTO items ({columns}) SELECT {columns} FROM disk.items WHERE id IN (
            SELECT id FROM (
                SELECT i.id, sum(length(i.body)) OVER (ORDER BY w.calm, i.id) AS bytes
                FROM (SELECT item, min(urgent_until IS NULL) AS calm FROM deliveries
                      GROUP BY item ORDER BY calm, item LIMIT :bodies) w
                JOIN disk.items i ON i.id = w.item)
            WHERE bytes <= :body_bytes)""",
    ),
)
# Placeholder rows, which do not exist on the disk: one for each sink and key that has
# deliveries beyond the rows above. It holds the key back until the next load.
_BEYOND = (
    """INSERT INTO deliveries (id, item, sink, key, state, is_head, due)
        SELECT -min(id), 0, sink, key, 'pending', 1, 9e18
        FROM disk.deliveries INDEXED BY deliveries_key
        WHERE state = 'pending' AND key IS NOT NULL
            AND id > (SELECT max(id) FROM deliveries)
        GROUP BY sink, key LIMIT :beyond""",
    """UPDATE deliveries SET is_head = 0 WHERE id > 0 AND is_head AND EXISTS (
           SELECT 1 FROM deliveries b INDEXED BY deliveries_key
           WHERE b.sink = deliveries.sink AND b.key = deliveries.key
               AND b.state = 'pending' AND b.id < 0)""",
)
_COUNTS = (  # count the rows that were not copied, too, and continue the disk's ids
    "DELETE FROM tallies",
    "INSERT INTO tallies SELECT * FROM disk.tallies",
    "DELETE FROM sqlite_sequence",
    "INSERT INTO sqlite_sequence SELECT * FROM disk.sqlite_sequence",
)
_TALLIES = "SELECT sink, state, n FROM tallies ORDER BY sink, state"
_TALLY = "INSERT INTO tallies (sink, state, n) VALUES (?, ?, ?)"
_NUMBERS = "SELECT name, seq FROM sqlite_sequence ORDER BY name"


@dataclass(frozen=True, slots=True)
class Changes:
    """The changes of a transaction in the file.

    Attributes:
        statements: the changing statements, in order.
        tallies: all rows of the table ``tallies``.
        numbers: the last id used in each table.
    """

    statements: list[Statement]
    tallies: list[tuple[str, str, int]]
    numbers: list[tuple[str, int]]


def changes_of(db: Connection) -> Changes:
    """Return the changes of the open transaction."""
    return Changes(db.changes or [], db.execute(_TALLIES).fetchall(), numbers_of(db))


def numbers_of(db: Connection) -> list[tuple[str, int]]:
    """Return the last id used in each table."""
    return db.execute(_NUMBERS).fetchall()


def number_from(db: Connection, numbers: list[tuple[str, int]]) -> None:
    """Make new ids follow ``numbers``, but never repeat an id that is used."""
    for name, last in numbers:
        moved = db.execute(
            "UPDATE sqlite_sequence SET seq = max(seq, ?) WHERE name = ?", (last, name)
        )
        if not moved.rowcount:
            db.execute("INSERT INTO sqlite_sequence VALUES (?, ?)", (name, last))


@dataclass(slots=True)
class Mirror:
    """The copy of the state file in memory.

    Attributes:
        connection: the connection to the database in memory.
        extent: the limits of the copy.
        is_whole: whether it holds all pending deliveries and their events.
        replaces: whether an older mirror was freed since the last ``shrink``.
    """

    connection: Connection
    extent: Extent = EXTENT
    is_whole: bool = True
    replaces: bool = False
    _loaded_bytes: int = 0  # its size after it was loaded
    _loaded_pending: int = 0  # pending deliveries on the disk at that time
    _statements: int = 0  # statements repeated since then
    _may_end_at: float = 0.0  # monotonic; see ``_is_outgrown``

    @classmethod
    def load(cls, path: Path, extent: Extent = EXTENT) -> "Mirror":
        """Load the mirror of a file.

        Raises:
            sqlite3.Error: the file cannot be read.
        """
        began = time.monotonic()
        mirror = cls(_empty(), extent)
        try:
            mirror._copy(f"{path.absolute().as_uri()}?mode=ro")
        except sqlite3.Error:
            mirror.connection.close()
            raise
        mirror._loaded_bytes, _ = mirror.bytes()
        mirror._loaded_pending = mirror._count()
        now = time.monotonic()
        if (seconds := now - began) > extent.noticed:
            mirror._may_end_at = now + extent.life * seconds
        return mirror

    @classmethod
    def load_if_possible(cls, path: Path, extent: Extent = EXTENT) -> "Mirror":
        """Load the mirror of a file that cannot be opened for writing.

        The mirror is empty if the file cannot even be read, or has an older schema.

        Raises:
            OutboxCorruptError: the file is damaged.
        """
        mirror = cls(_empty(), extent)
        mirror.connection.execute(f"PRAGMA busy_timeout = {_BUSY_MILLISECONDS}")
        # On a full disk SQLite cannot even read a file that no process has open, unless
        # the file is declared immutable. On a full disk it is: nothing can write to it.
        ways = ["mode=ro", "mode=ro&immutable=1"]
        if no_file(path) is not None:  # a FIFO, for example: only the last opens no log
            ways = ways[1:] if path.is_file() else []
        for how in ways:
            try:
                mirror._copy(f"{path.absolute().as_uri()}?{how}")
                break
            except sqlite3.Error as error:
                if not is_unwritable(error):
                    mirror.connection.close()
                    text = f"the state file {path} cannot be read"
                    raise translated(error, text) from error
        mirror._number_above(path)
        return mirror

    @classmethod
    def blank(cls, path: Path, extent: Extent = EXTENT) -> "Mirror":
        """Return an empty mirror of a file that must not be read."""
        mirror = cls(_empty(), extent)
        mirror._number_above(path)
        return mirror

    def _number_above(self, path: Path) -> None:
        """Choose new ids far above those in the file, which could not be read."""
        with suppress(OSError):
            if path.exists():
                unseen = int(time.time() * 1000)
                number_from(self.connection, [("deliveries", unseen)])

    def apply(self, changes: Changes) -> bool:
        """Repeat the changes of a transaction that was committed to the file.

        Returns:
            Whether the mirror is still usable; if not, it must be loaded again.
        """
        db = self.connection
        self._statements += len(changes.statements)
        try:
            db.execute("BEGIN")
            for sql, parameters, is_many in changes.statements:
                (db.executemany if is_many else db.execute)(sql, parameters)
            if db.execute(_TALLIES).fetchall() != changes.tallies:
                db.execute("DELETE FROM tallies")
                db.executemany(_TALLY, changes.tallies)
            db.execute("COMMIT")
            return numbers_of(db) == changes.numbers and not self._is_outgrown()
        except sqlite3.Error:
            if db.in_transaction:
                db.execute("ROLLBACK")
            return False

    def _is_outgrown(self) -> bool:
        """Return whether to load the mirror again now.

        A mirror that is too large is loaded again at once. A mirror that holds only a
        part waits: no job runs during a load, so loads must be rare while a long
        backlog is delivered.
        """
        used, _ = self.bytes()
        if used > max(self.extent.bytes, self._loaded_bytes * 4 // 3):
            return True
        is_useful = not self.is_whole and self._statements > self.extent.statements
        return is_useful and time.monotonic() >= self._may_end_at

    @property
    def is_spent(self) -> bool:
        """Whether it holds a part of a backlog, of which less than half is left."""
        return not self.is_whole and 2 * self._count() < self._loaded_pending

    def _count(self) -> int:
        tallies = self.connection.execute(_TALLIES)
        return sum(n for _, state, n in tallies if state == "pending")

    def bytes(self) -> tuple[int, int]:
        """Return how many bytes are in use, and how many are free."""
        pages, free = (
            self.connection.execute(f"PRAGMA {name}").fetchone()[0]
            for name in ("page_count", "freelist_count")
        )
        return (pages - free) * _PAGE, free * _PAGE

    def shrink(self) -> bool:
        """Free unused pages; return whether much memory was freed lately.

        SQLite does not free them by itself. VACUUM copies all used pages, so it runs
        only if the unused pages are at least half as many.
        """
        used, free = self.bytes()
        was_replaced, self.replaces = self.replaces, False
        if free < max(self.extent.spare, used // 2):
            return was_replaced
        with suppress(sqlite3.Error):
            self.connection.execute("VACUUM")
        return True

    def close(self) -> None:
        """Free the memory."""
        self.connection.close()

    def _copy(self, source: str) -> None:
        """Copy the file in one transaction; copy nothing if its schema is older."""
        db = self.connection
        db.execute("ATTACH ? AS disk", (source,))
        db.execute("PRAGMA disk.cache_size = 64")
        try:
            db.execute("BEGIN")
            reader, writer = versions(db, "disk")
            if reader <= len(MIGRATIONS) <= writer:
                self._copy_tables()
            db.execute("COMMIT")
        finally:
            if db.in_transaction:
                db.execute("ROLLBACK")
            db.execute("DETACH disk")

    def _copy_tables(self) -> None:
        db = self.connection
        sizes = asdict(self.extent)
        for table, statement in _COPIES:
            db.execute(_named(db, table, statement), sizes)
        rows, bodies = (
            db.execute(f"SELECT count({what}) FROM deliveries").fetchone()[0]  # noqa: S608 - our own names  # nosec B608
            for what in ("*", "DISTINCT item")
        )
        (found,) = db.execute("SELECT count(*) FROM items").fetchone()
        self.is_whole = rows < self.extent.rows and bodies == found
        if rows >= self.extent.rows:
            for statement in _BEYOND:
                db.execute(statement, sizes)
        for statement in _COUNTS:
            db.execute(statement)


def _named(db: Connection, table: str, statement: str) -> str:
    """Return the statement with the names of the table's columns filled in."""
    names = [name for _, name, *_ in db.execute(f"PRAGMA main.table_info({table})")]
    return statement.format(
        columns=", ".join(names), d_columns=", ".join(f"d.{name}" for name in names)
    )


def _empty() -> Connection:
    """Return an empty database in memory with the tables of the state file."""
    db = sqlite3.connect(
        ":memory:",
        timeout=1.0,
        uri=True,
        isolation_level=None,
        check_same_thread=False,
        factory=Connection,
        cached_statements=32,
    )
    db.text_factory = readable
    db.is_part = True
    db.execute(f"PRAGMA page_size = {_PAGE}")
    db.execute("PRAGMA secure_delete = OFF")  # needed only on disks
    db.execute("PRAGMA temp_store = MEMORY")  # the disk may hang
    migrate(db)
    for statement in _SETTLED:
        db.execute(statement)
    return db
