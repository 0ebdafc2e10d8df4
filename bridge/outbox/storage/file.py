"""The state file as its thread uses it: how it is opened, and what its errors mean.

Nothing here knows of threads.

not open ──open──▶ open ──the file or its lock is gone, or fails──▶ regain ──▶ open
   └──it cannot be opened──▶ only for reading, or nothing ──▶ regain ──▶ open
"""

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import TypeVar

from msgspec import Struct

from bridge.foundation.errors import (
    ForeignDatabaseError,
    NewerSchemaError,
    OlderSchemaError,
    OutboxCorruptError,
    OutboxError,
    OutboxFullError,
    OutboxLockedError,
    OutboxUnavailableError,
)
from bridge.foundation.privileges import enter, make_private, no_file
from bridge.foundation.sqlite_files import has_log
from bridge.outbox.storage.journal import Commit, write
from bridge.outbox.storage.lock import Place
from bridge.outbox.storage.schema import SCHEMA, create, version

T = TypeVar("T")

# Seconds to wait for another process's lock: in a command (less than ``patience``), and
# in the forwarder, for which an event may be announced only 30 s ahead.
BUSY_SECONDS = 2.5
SHORT_BUSY_SECONDS = 1.0
_WAL_BYTES = 4 * 1024 * 1024  # after a large transaction, the log is cut to this

_UNWRITABLE = ("FULL", "IOERR", "READONLY", "BUSY", "LOCKED", "CANTOPEN", "PROTOCOL")
_DAMAGED = ("CORRUPT", "NOTADB")
_TRANSIENT = (OutboxUnavailableError, OutboxFullError)  # no sign of damage
NOT_OURS = (ForeignDatabaseError, NewerSchemaError, OutboxLockedError)

# One damaged text must not prevent all other rows from being read.
readable = partial(str, encoding="utf-8", errors="replace")

Connection = sqlite3.Connection
Connect = Callable[[Path], Connection]

# With these errors the connection itself is useless: it was opened while the file
# system was read-only, or the file system is gone. Opening the file again may help.
MUCH = 5000  # rows, whose memory is worth to be given back
_rows_of = attrgetter("rows")
_STALE = ("SQLITE_READONLY", "SQLITE_IOERR")


def connect(
    path: Path, factory: type[Connection] = Connection, busy: float = BUSY_SECONDS
) -> Connection:
    """Open the file; a new one gets its tables.

    Args:
        path: the file.
        factory: the class of the connection.
        busy: seconds to wait for another process's lock.

    Raises:
        OutboxUnavailableError: it cannot be used now, or not by root.
        OutboxError: it is damaged, of another schema, or not a state file.
    """
    connection = None
    enter(path)
    if (part := no_file(path)) is not None:
        raise OutboxUnavailableError(f"{part} is not a file: move it away")
    make_private(path)
    try:
        connection = sqlite3.connect(
            path,
            timeout=busy,
            isolation_level=None,
            check_same_thread=False,
            factory=factory,
        )
        connection.text_factory = readable
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA cache_size = -2048")
        connection.execute(f"PRAGMA journal_size_limit = {_WAL_BYTES}")
        create(connection)
    except BaseException as error:
        if connection is not None:
            connection.close()
        if isinstance(error, sqlite3.Error):
            raise translated(error, f"the state file {path} cannot be used") from error
        raise
    return connection


def is_unwritable(error: BaseException) -> bool:
    """Whether the disk or another process caused the error, so that it may end."""
    if isinstance(error, OutboxError):
        return isinstance(error, OutboxUnavailableError)
    return _is_one_of(error, _UNWRITABLE)


def translated(error: Exception, text: str) -> OutboxError:
    """Convert an error to an OutboxError, with ``text`` before its own text."""
    kind = OutboxError
    if isinstance(error, sqlite3.Error) and is_unwritable(error):
        kind = OutboxUnavailableError
    elif _is_one_of(error, _DAMAGED):
        kind = OutboxCorruptError
    fault = kind(f"{text}: {error}")
    fault.__cause__ = error
    return fault


def _is_one_of(error: BaseException, kinds: tuple[str, ...]) -> bool:
    name = getattr(error, "sqlite_errorname", "").removeprefix("SQLITE_")
    return name.startswith(kinds)


def is_damage(error: BaseException) -> bool:
    """Whether the content of the file caused the error."""
    return isinstance(error, OutboxCorruptError | MemoryError) or (
        isinstance(error, sqlite3.Error) and _is_one_of(error, _DAMAGED)
    )


def as_outbox_error(error: BaseException | None) -> BaseException | None:
    """Return an error of SQLite as an OutboxError, any other unchanged."""
    text = "the state file cannot be read or written"
    return translated(error, text) if isinstance(error, sqlite3.Error) else error


@contextmanager
def transaction(db: Connection) -> Iterator[Connection]:
    """Commit what is done meanwhile; after an error, nothing of it.

    Raises:
        sqlite3.Error: the disk has failed, and nothing was written.
    """
    db.execute("BEGIN IMMEDIATE")
    try:
        yield db
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise


class File(Struct):
    """The state file.

    Attributes:
        path: the path of the file.
        may_degrade: whether its owner goes on in memory when the disk fails.
        connect: opens the file; None = as usual.
        place: checks whether the file is still there; None = no such check.
        on_trouble: called with the fault of each piece of work that failed, if an
            intact file would not cause this fault.
    """

    path: Path
    may_degrade: bool = False
    connect: Connect | None = None
    place: Place | None = None
    on_trouble: Callable[[str], object] = str
    _db: Connection | None = None
    _copy: Connection | None = None  # for reads while the file is not open
    _rows: int = 0  # that were written since memory was given back

    @property
    def db(self) -> Connection:
        """The connection for reads.

        Raises:
            OutboxUnavailableError: the file is not open.
        """
        connection = self._db or self._copy
        if connection is None:
            raise OutboxUnavailableError(f"the state file {self.path} is not open")
        return connection

    def open(self) -> None:
        """Open the file.

        Raises:
            OutboxUnavailableError: it cannot be opened now.
            OutboxError: it must not be used.
        """
        if self.place is not None and not self.place.is_examined:
            self.place.examine()
        self._demand_place()
        self._db = self._connected()

    def open_copy(self) -> bool:
        """Open the file only for reading, or nothing; return whether it is nothing.

        Of a file that was not examined, damage and the state of another VM count as
        nothing: it is moved aside as soon as it may be.

        Raises:
            OutboxCorruptError: the file is damaged.
        """
        try:
            self._copy = _read_only(self.path)
        except OutboxCorruptError:
            if self.place is None or self.place.is_examined:
                raise
        place = self.place
        if self._copy is not None and place and not place.accepts(self._copy):
            self._copy.close()
            self._copy = None
        if self._copy is not None:
            return False
        self._copy = empty()
        return True

    def write(
        self, commits: Sequence[Commit], *, is_again: bool = False
    ) -> dict[int, Exception]:
        """Write commits in one transaction; return the errors of refused ones.

        If that is refused, each commit is tried alone: only one that is refused again
        is at fault. They are returned by their indexes.

        Args:
            commits: what to write.
            is_again: whether the disk has failed before: then the file is closed after
                some errors, and must be opened again.

        Raises:
            sqlite3.Error, OutboxUnavailableError: nothing was written.
            OutboxCorruptError, MemoryError: the file is damaged.
        """
        try:
            self._demand_place()
            refused = self._write(commits)
        except Exception as error:
            self._note(error)
            if is_again and isinstance(error, sqlite3.Error):
                self.let_go(error)
            raise
        for fault in refused.values():
            self._note(fault)
        return refused

    def _note(self, error: Exception) -> None:
        """Report an error that shows damage."""
        fault = as_outbox_error(error)
        if not isinstance(fault, _TRANSIENT):
            self.on_trouble(str(fault))

    def _write(self, commits: Sequence[Commit]) -> dict[int, Exception]:
        try:
            with transaction(self.db) as db:
                self._rows += write(db, map(_rows_of, commits))
        except Exception as error:
            if is_unwritable(error) or is_damage(error):
                raise
        else:
            return {}
        refused = dict[int, Exception]()
        with transaction(self.db):
            for index, commit in enumerate(commits):
                if (fault := self._refused(commit)) is not None:
                    refused[index] = fault
        return refused

    def _refused(self, commit: Commit) -> Exception | None:
        """Write a commit; return why it was refused, None = it was not."""
        self.db.execute("SAVEPOINT one")
        try:
            write(self.db, [commit.rows])
        except Exception as error:
            if is_unwritable(error) or is_damage(error) or not self.db.in_transaction:
                raise
            self.db.execute("ROLLBACK TO one")
            self.db.execute("RELEASE one")
            return error
        self.db.execute("RELEASE one")
        return None

    def read(self, job: Callable[[Connection], T]) -> tuple[T, str | None]:
        """Run a job that only reads; also return why the file must not be written.

        Raises:
            sqlite3.Error, OutboxUnavailableError: it cannot be read.
        """
        try:
            return job(self.db), None if self.place is None else self.place.fault()
        except Exception as error:
            self._note(error)
            raise

    def run(self, job: Callable[[Connection], T]) -> T:
        """Run a job in a transaction.

        Raises:
            sqlite3.Error, OutboxUnavailableError: nothing was written.
        """
        try:
            self._demand_place()
            with transaction(self.db) as db:
                return job(db)
        except Exception as error:
            self._note(error)
            raise

    def regain(self) -> bool:
        """Make a file that failed usable again; return whether it was opened again.

        Raises:
            OutboxError: it cannot be made usable now.
        """
        if self.place is not None and self.place.regain(self._db):
            self.let_go()
        if self._db is not None:
            return False
        self._db = self._connected()
        if self._copy is not None:
            self._copy.close()
            self._copy = None
        return True

    def let_go(self, error: sqlite3.Error | None = None) -> None:
        """Close the connection, so that ``regain`` opens the file again.

        Args:
            error: nothing is done if the connection may be used after it; None = it may
                not.
        """
        name = "" if error is None else getattr(error, "sqlite_errorname", "-")
        if self._db is not None and (not name or name.startswith(_STALE)):
            file, self._db = self._db, None
            with suppress(sqlite3.Error):
                file.close()

    def tidy(self) -> None:
        """Write SQLite's log back to the file, so that no commit must do it.

        After much was written, the system gets back the memory that is free now.
        """
        if self._rows >= MUCH:
            self._rows = 0
            give_back()
        if self._db is not None:
            with suppress(sqlite3.Error):
                self._db.execute("PRAGMA wal_checkpoint(PASSIVE)")

    def close(self) -> None:
        """Close what is open."""
        for one in (self._copy, self._db):
            if one is not None:
                one.close()

    def _connected(self) -> Connection:
        seconds = SHORT_BUSY_SECONDS if self.may_degrade else BUSY_SECONDS
        if self.connect is None:
            file = connect(self.path, busy=seconds)
        else:
            file = self.connect(self.path)
        if self.place is not None:
            self.place.opened()
        return file

    def _demand_place(self) -> None:
        """Check that the file may be used.

        Raises:
            OutboxUnavailableError: it may not.
        """
        if self.place is not None and (fault := self.place.fault()) is not None:
            raise OutboxUnavailableError(fault)


def _read_only(path: Path) -> Connection | None:
    """Open a file only for reading; None = it cannot be read, or has another schema.

    Raises:
        OutboxCorruptError: the file is damaged.
    """
    # On a full disk SQLite reads a file that no process has open only if it is declared
    # immutable. Then its log is not read: what is in the file alone is an older state.
    ways = ["mode=ro"] if has_log(path) else ["mode=ro", "mode=ro&immutable=1"]
    if no_file(path) is not None:  # a FIFO, for example: only the last opens no log
        ways = ways[1:] if path.is_file() else []
    for how in ways:
        try:
            return _opened(f"{path.absolute().as_uri()}?{how}")
        except (NewerSchemaError, OlderSchemaError, ForeignDatabaseError):
            return None
        except sqlite3.Error as error:
            if not is_unwritable(error):
                raise translated(error, f"{path} cannot be read") from error
    return None


def _opened(uri: str) -> Connection | None:
    """Open a file that has the tables of this version; None = it is empty."""
    db = sqlite3.connect(
        uri, timeout=0.1, uri=True, isolation_level=None, check_same_thread=False
    )
    try:
        db.text_factory = readable
        if version(db) == SCHEMA:
            return db
    except BaseException:
        db.close()
        raise
    db.close()
    return None


def content_error(path: Path) -> sqlite3.Error | OutboxError | None:
    """Return why a start would not use a file; it is read without its lock and log."""
    try:
        db = _opened(f"{path.absolute().as_uri()}?mode=ro&immutable=1")
    except (sqlite3.Error, OutboxError) as error:
        return error
    if db is not None:
        db.close()
    return None


def empty() -> Connection:
    """Return an empty state file in memory."""
    db = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    create(db)
    return db


def give_back() -> None:
    """Give back the memory that was freed, if the C library keeps it.

    By itself, glibc gives back only memory at the end of a heap: a process stays nearly
    as large as it ever was. Other threads that need memory during this call wait for
    some milliseconds. With another C library, nothing is done.
    """
    # Without ctypes, or where it may not make code at run time, memory stays as it is.
    with suppress(ImportError, MemoryError, OSError, AttributeError):
        import ctypes  # noqa: PLC0415 - costs memory, and most never need it

        ctypes.CDLL("libc.so.6").malloc_trim(0)
