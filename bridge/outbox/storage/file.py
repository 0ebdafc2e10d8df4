"""The state file as its thread uses it: opened, written, and in its place.

Nothing here knows of threads.

not open ──open──▶ open ──the file or its lock is gone, or fails──▶ regain ──▶ open
   └──it cannot be opened──▶ only for reading, or nothing ──▶ regain ──▶ open
"""

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from msgspec import Struct

from bridge.foundation.errors import (
    ForeignDatabaseError,
    NewerSchemaError,
    OlderSchemaError,
    OutboxCorruptError,
    OutboxFullError,
    OutboxLockedError,
    OutboxUnavailableError,
)
from bridge.foundation.privileges import enter, make_private, no_file
from bridge.foundation.sqlite_files import (
    as_outbox_error,
    copy_to,
    has_log,
    is_damage,
    is_unwritable,
    translated,
)
from bridge.outbox.records import is_other
from bridge.outbox.storage.journal import Commit, owner_in, write
from bridge.outbox.storage.lock import FileId, StateLock, identity_of
from bridge.outbox.storage.schema import create, empty, opened, readable

T = TypeVar("T")

# Seconds to wait for another process's lock: in a command (less than ``patience``), and
# in the forwarder, for which an event may be announced only 30 s ahead.
BUSY_SECONDS = 2.5
SHORT_BUSY_SECONDS = 1.0
_WAL_BYTES = 4 * 1024 * 1024  # after a large transaction, the log is cut to this

_TRANSIENT = (OutboxUnavailableError, OutboxFullError)  # no sign of damage
NOT_OURS = (ForeignDatabaseError, NewerSchemaError, OutboxLockedError)

Connection = sqlite3.Connection
Connect = Callable[[Path], Connection]

MUCH = 5000  # rows, whose memory is worth to be given back
# With these errors the connection itself is useless: it was opened while the file
# system was read-only, or the file system is gone. Opening the file again may help.
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
    """The state file, in its place.

    Nothing is written to it before it was examined with the lock held: it may be
    damaged, or of another VM; and nothing while it, its log or its lock is gone.

    Attributes:
        path: the path of the file.
        may_degrade: whether its owner goes on in memory when the disk fails.
        connect: opens the file; None = as usual.
        lock: of the file; None = it is not locked.
        vm_id: of this VM; None = not known.
        check: checks the file, and moves it aside if it cannot be used here; returns
            what was lost or moved aside, None = nothing; raises OutboxError. None = the
            file is used as it is.
        on_trouble: called with the fault of each piece of work that failed, if an
            intact file would not cause this fault.
        lost: what ``check`` has returned.
    """

    path: Path
    may_degrade: bool = False
    connect: Connect | None = None
    lock: StateLock | None = None
    vm_id: str | None = None
    check: Callable[[], str | None] | None = None
    on_trouble: Callable[[str], object] = str
    lost: str | None = None
    _db: Connection | None = None
    _copy: Connection | None = None  # for reads while the file is not open
    _unexamined: str | None = None  # why it was not examined; None = it was
    # What was opened: the file, and SQLite's log, whose rows are not in the file yet.
    _ids: tuple[FileId | None, FileId | None] = (None, None)
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
        self._examine()
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
            found = _read_only(self.path)
        except OutboxCorruptError:
            if self._unexamined is None:
                raise
            found = None
        is_ours = self._unexamined is None or found is None
        if found is not None and not is_ours and is_other(owner_in(found), self.vm_id):
            found.close()
            found = None
        self._copy = empty() if found is None else found
        return found is None

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
                self._rows += write(db, [one.rows for one in commits])
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
            return job(self.db), self._fault()
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

        The lock is taken again, and a file that was removed is written again, from what
        the open connection still reads.

        Raises:
            OutboxError: another forwarder has the lock, another file is in its place,
                or it cannot be made usable now.
        """
        if self.lock is not None:
            self.lock.take()
        if self._unexamined is not None:
            self._examine()
        if (fault := self._barred()) is not None:
            raise OutboxUnavailableError(fault)
        if (missing := self._missing()) is not None:
            if missing == str(self.path) and identity_of(self.path) is not None:
                raise OutboxUnavailableError(f"another file stands at {self.path}")
            if self._db is not None:
                try:
                    copy_to(self.path, self._db)
                except (OSError, sqlite3.Error) as error:
                    text = (
                        f"the state file {self.path} cannot be written again: {error}"
                    )
                    raise OutboxUnavailableError(text) from error
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
        self._ids = (identity_of(self.path), identity_of(f"{self.path}-wal"))
        return file

    # -- its place -----------------------------------------------------------

    def _examine(self) -> None:
        """Examine the file if the lock is held and that is possible now.

        Raises:
            OutboxError: the file must not be used at all, for example because a newer
                version has written it.
        """
        if self.check is None:
            return
        fault = None if self.lock is None else self.lock.fault()
        if fault is None:
            try:
                self.lost = self.check() or self.lost
            except OutboxUnavailableError as error:
                fault = str(error)
        self._unexamined = fault

    def _barred(self) -> str | None:
        """Return why the file must not be written, wherever it is."""
        fault = None if self.lock is None else self.lock.fault()
        return fault or self._unexamined

    def _missing(self) -> str | None:
        """Return what is not there any more: the file, or else its log."""
        for path, was in zip(
            (f"{self.path}", f"{self.path}-wal"), self._ids, strict=True
        ):
            if was is not None and identity_of(path) != was:
                return path
        return None

    def _fault(self) -> str | None:
        """Return why the file must not be used; None = it is there, and it is ours."""
        if (fault := self._barred()) is not None:
            return fault
        missing = self._missing()
        return None if missing is None else f"{missing} was removed or replaced"

    def _demand_place(self) -> None:
        """Make sure that the file may be used.

        Raises:
            OutboxUnavailableError: it may not.
        """
        if (fault := self._fault()) is not None:
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
            return opened(f"{path.absolute().as_uri()}?{how}")
        except (NewerSchemaError, OlderSchemaError, ForeignDatabaseError):
            return None
        except sqlite3.Error as error:
            if not is_unwritable(error):
                raise translated(error, f"{path} cannot be read") from error
    return None


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
