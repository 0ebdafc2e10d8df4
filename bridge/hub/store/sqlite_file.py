"""The SQLite file of a hub: checked at the start, and watched while the hub runs.

at the start
  of a version before the first release → moved aside; a fresh file
  damaged, or only its log is there     → moved aside; its readable rows are copied into
                                          a fresh file
  a directory, of another program, not  → HubStoreError, which says what to do
  to be read or written
before each transaction
  removed                  → written again, from the connection that has it open
  its log removed          → that connection puts what was in the log into the file
  replaced, or overwritten → HubStoreAwayError, until it is back or the hub starts again
"""

import logging
import os
import sqlite3
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path

from msgspec import Struct, field
from sqlalchemy import Engine

from bridge.foundation.errors import HubStoreAwayError, HubStoreError
from bridge.foundation.privileges import PARTS, make_private, no_file
from bridge.foundation.sqlite_files import (
    copy_to,
    drop,
    fresh_of,
    set_aside,
    text_of,
    use_fresh,
)
from bridge.hub.store import engine, salvage
from bridge.hub.store.engine import migrate
from bridge.outbox.storage.lock import FileId, identity_of

log = logging.getLogger(__name__)

_BUSY_SECONDS = 5.0
_CHECK_SECONDS = 15.0  # delays every start; a larger file is checked in part
_OURS = {"alembic_version", "events"}
_RESTART = "put it back, or start the hub again, which saves what can be read"


class RemovedError(HubStoreAwayError):
    """The file or its log is gone; the thread that writes can write it again."""


# -- at the start --------------------------------------------------------------------


def examine(path: Path) -> None:
    """Make sure that a file can be used: move a damaged one aside, with a word.

    Raises:
        HubStoreError: it cannot be used, and not be moved aside either.
    """
    engine.reach(path)
    _refuse(path)
    _use_fresh(path)
    fault = _fault(path)
    if fault is not None:
        _renew(path, fault)
    make_private(path)


def _refuse(path: Path) -> None:
    """Refuse what a person has to change.

    Raises:
        HubStoreError: it says what to change.
    """
    if os.path.isdir(path):  # noqa: PTH112 - a Path asks a link, too, and may raise
        raise HubStoreError(f"hub.store: {path} is a directory: name a file in it")
    if (other := no_file(path)) is not None:
        raise HubStoreError(f"hub.store: {other} is not a file: move it away")
    for part in (path.parent, *(Path(f"{path}{suffix}") for suffix in PARTS)):
        if os.path.lexists(part) and not os.access(part, os.R_OK | os.W_OK):
            raise HubStoreError(
                f"hub.store: this user may not read and write {part}: give it to the "
                "account of the hub (chown)"
            )


def _fault(path: Path) -> str | None:
    """Return why a file is damaged; None = it is not, or it is new.

    Raises:
        HubStoreError: it is a database of another program.
    """
    if not path.exists() or path.stat().st_size == 0:
        log_ = Path(f"{path}-wal")
        has_log = log_.exists() and log_.stat().st_size > 0
        return "its content is gone, and only its log is there" if has_log else None
    try:
        with closing(sqlite3.connect(path, timeout=_BUSY_SECONDS)) as db:
            db.text_factory = text_of
            return _fault_of(db)
    except sqlite3.OperationalError as error:
        if error.sqlite_errorname.startswith(("SQLITE_BUSY", "SQLITE_FULL")):
            return None  # said when it is opened
        return str(error)
    except sqlite3.Error as error:
        return str(error)


def _fault_of(db: sqlite3.Connection) -> str | None:
    names = {name for (name,) in db.execute("SELECT name FROM sqlite_master")}
    if names and not _OURS & names:
        (_, _, path) = db.execute("PRAGMA database_list").fetchone()
        raise HubStoreError(
            f"hub.store: {path} is a database of another program: name another file"
        )
    if not names:
        (pages,) = db.execute("PRAGMA page_count").fetchone()
        return "it has no tables" if pages > 1 else None
    try:
        with _limited(db):
            return _damage(db)
    except sqlite3.OperationalError as error:
        if error.sqlite_errorname != "SQLITE_INTERRUPT":
            raise
        return None


@contextmanager
def _limited(db: sqlite3.Connection) -> Iterator[None]:
    """Interrupt SQLite after a while."""
    timer = threading.Timer(_CHECK_SECONDS, db.interrupt)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _damage(db: sqlite3.Connection) -> str | None:
    """Check every page and index, and every row as the hub reads it."""
    (found,) = db.execute("PRAGMA integrity_check(1)").fetchone()
    if found != "ok":
        return str(found)
    there = {name for (name,) in db.execute("SELECT name FROM sqlite_master")}
    for table in salvage.tables():
        known = {row[1] for row in db.execute(f'PRAGMA table_info("{table.name}")')}
        if table.name not in there or not {c.name for c in table.columns} <= known:
            continue  # of another version: ``migrate`` decides
        names = ", ".join(f'"{column.name}"' for column in table.columns)
        query = f'SELECT {names} FROM "{table.name}" NOT INDEXED'  # noqa: S608 - our own names  # nosec B608
        if not all(salvage.is_sound(table, row) for row in db.execute(query)):
            return f"a row of {table.name} cannot be read"
    return None


def _renew(path: Path, why: str) -> None:
    """Move a file aside, and copy its readable rows into a fresh file.

    The fresh file is complete before the old one is moved, so that a kill at any time
    loses nothing.

    Raises:
        HubStoreError: it cannot be done.
    """
    new, fresh = Path(f"{path}.restored"), fresh_of(path)
    drop(new)
    found = _rescued(path, new)
    try:
        new.rename(fresh)
        kept = _set_aside(path, "damaged")
    except OSError as error:
        raise _unmade(path, error) from error
    _use_fresh(path)
    log.error(
        "store is damaged: what can be read of it is kept",
        extra={
            "fault": why,
            "kept": str(kept),
            "events": found.copied.get("events", 0),
            "decisions": found.copied.get("decisions", 0),
            "votes": found.copied.get("votes", 0),
            "unreadable": found.unreadable,
        },
    )


def _rescued(path: Path, new: Path) -> salvage.Salvage:
    make_private(new)
    database = engine.open_sqlite(new, writes=True)
    try:
        with engine.store_errors(), database.begin() as connection:
            migrate(connection)
        _emptied_log(database)
        found = salvage.rescue(path, new)
        with engine.store_errors():
            salvage.keep_again(database, found)
    except (OSError, sqlite3.Error) as error:
        raise _unmade(path, error) from error
    finally:
        database.dispose()
    return found


def _emptied_log(database: Engine) -> None:
    """Bring everything from the log into the file."""
    with closing(database.raw_connection()) as connection:
        connection.cursor().execute("PRAGMA wal_checkpoint(TRUNCATE)")


def _unmade(path: Path, error: Exception) -> HubStoreError:
    cause = getattr(error, "strerror", None) or error
    return HubStoreAwayError(f"the store is away ({path} cannot be used: {cause})")


def begin_anew(path: Path, held: Mapping[str, int]) -> None:
    """Move a file with a schema of before the first release aside; its name is logged.

    Args:
        path: the file; no connection to it is open.
        held: how many events, decisions and votes it has.

    Raises:
        HubStoreError: it cannot be renamed.
    """
    kept = _set_aside(path, "before-0-1-0")
    make_private(path)
    log.error(
        "store of a version before 0.1.0 is moved aside",
        extra={
            "kept": str(kept),
            "events": held.get("events", 0),
            "decisions": held.get("decisions", 0),
            "votes": held.get("votes", 0),
        },
    )


def _set_aside(path: Path, why: str) -> Path:
    """Rename a file and its log; the new name ends with the time of its last change.

    Raises:
        HubStoreError: it cannot be renamed.
    """
    there = path if path.exists() else Path(f"{path}-wal")
    try:
        changed = datetime.fromtimestamp(there.stat().st_mtime, UTC)
        return set_aside(path, why, changed)
    except OSError as error:
        text = f"hub.store: {path} cannot be moved aside: {error}"
        raise HubStoreError(text) from error


def _use_fresh(path: Path) -> None:
    try:
        use_fresh(path)
    except OSError as error:
        raise _unmade(path, error) from error


# -- while the hub runs --------------------------------------------------------------


class Place(Struct):
    """The place of the file of a running hub.

    A connection stays open: a removed file can still be read through it, and SQLite
    does not delete the log of a file that was overwritten.

    Attributes:
        path: of the file.
    """

    path: Path
    _file: FileId | None = None
    _log: FileId | None = None
    _number: int = -1
    _anchor: sqlite3.Connection | None = None
    _guard: threading.Lock = field(default_factory=threading.Lock)

    def hold(self) -> None:
        """Remember the file that is open, and keep a connection to it.

        Raises:
            HubStoreAwayError: it cannot be read.
        """
        try:
            self._hold()
        except (OSError, sqlite3.Error) as error:
            raise _unmade(self.path, error) from error

    def _hold(self) -> None:
        uri = f"{self.path.absolute().as_uri()}?mode=rw"
        anchor = sqlite3.connect(
            uri, uri=True, isolation_level=None, check_same_thread=False
        )
        anchor.execute("SELECT count(*) FROM sqlite_master").fetchone()
        anchor.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        self.release()
        self._number = os.open(self.path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
        self._anchor, self._file = anchor, identity_of(self.path)
        self._log = identity_of(self._log_path)

    @property
    def _log_path(self) -> str:
        return f"{self.path}-wal"

    def release(self) -> None:
        """Close the connection; all others must be closed before."""
        if self._anchor is not None:
            self._anchor.close()
            os.close(self._number)
        self._anchor = None

    def check(self) -> None:
        """Make sure that the file is in its place, and is a database.

        Raises:
            RemovedError: nothing is there, or the log is gone.
            HubStoreAwayError: another file is there, or other content.
        """
        if self._anchor is None:
            return
        found = identity_of(self.path)
        if found is None:
            raise RemovedError(f"the store is away ({self.path} was removed)")
        if found != self._file:
            words = f"{self.path} was replaced by another file: {_RESTART}"
            raise HubStoreAwayError(f"the store is away ({words})")
        if not self._is_database():
            words = f"{self.path} was overwritten: {_RESTART}"
            raise HubStoreAwayError(f"the store is away ({words})")
        if identity_of(self._log_path) != self._log:
            raise RemovedError(f"the store is away ({self._log_path} was removed)")

    def _is_database(self) -> bool:
        if sys.platform == "win32":  # pragma: no cover - it has no pread
            return True
        return os.pread(self._number, len(salvage.MAGIC), 0) == salvage.MAGIC

    def ensure(self, *databases: Engine) -> None:
        """Check the place, and write a removed file again; see ``check``."""
        try:
            self.check()
        except RemovedError:
            self.restore(*databases)

    def _empty_log(self) -> None:
        """Put what the log of the open file holds into the file.

        Raises:
            HubStoreAwayError: somebody still reads from the log.
        """
        assert self._anchor is not None, "it is held"  # noqa: S101 - for mypy  # nosec B101
        query = "PRAGMA wal_checkpoint(TRUNCATE)"
        (is_busy, *_) = self._anchor.execute(query).fetchone()
        if is_busy:
            raise HubStoreAwayError(f"the store is away ({self._log_path} was removed)")

    def restore(self, *databases: Engine) -> None:
        """Write a removed file again. Only for the thread that writes.

        Args:
            databases: all that have connections to it.

        Raises:
            HubStoreAwayError: it cannot be written now.
        """
        assert self._anchor is not None, "it is held"  # noqa: S101 - for mypy  # nosec B101
        with self._guard:
            try:
                if identity_of(self.path) is None:
                    copy_to(fresh_of(self.path), self._anchor)
                    _use_fresh(self.path)
                for one in databases:
                    one.dispose()
                self._empty_log()
                self.hold()
            except (OSError, sqlite3.Error) as error:
                raise _unmade(self.path, error) from error
        log.error(
            "store was removed: it is written again", extra={"path": str(self.path)}
        )
