"""Opens SQLite or PostgreSQL; hides how their errors, their SQL, their locks differ.

refused   the values may be the reason: too long, or against a constraint
slow      the statement took too long
away      anything else: no connection, no rights, no table, damaged, full, read-only

A refusal alone does not show that the values are the reason: ``Store.keep`` finds out
whether other values are accepted.
Source: https://www.postgresql.org/docs/current/errcodes-appendix.html,
https://sqlite.org/rescode.html
"""

import logging
import os
import sqlite3
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from msgspec import Struct, field
from sqlalchemy import (
    Connection,
    Engine,
    Executable,
    Table,
    create_engine,
    event,
    select,
    text,
)
from sqlalchemy.dialects import postgresql
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import (
    DataError,
    DBAPIError,
    InterfaceError,
    NotSupportedError,
    ProgrammingError,
    SQLAlchemyError,
)
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.pool import ConnectionPoolEntry

from bridge.foundation.errors import (
    HubStoreAwayError,
    HubStoreDamagedError,
    HubStoreError,
    HubStoreSlowError,
)
from bridge.foundation.privileges import make_private
from bridge.foundation.sqlite_files import copy_to, fresh_of, use_fresh
from bridge.hub.store.tables import meta

log = logging.getLogger(__name__)

Values = dict[str, object]  # of a row, by its columns
_CONNECT_SECONDS = 5
_STATEMENT_MS = 15_000
_SILENT_MS = 10_000  # after that long without an answer, the connection is broken
_BUSY_SECONDS = 5.0
MAGIC = b"SQLite format 3\0"
_READERS = 4
# Classes of SQLSTATE that values can cause: cardinality, data exception, integrity,
# WITH CHECK OPTION, program limit exceeded (a text too long for an index), RAISE.
_OF_VALUES = ("21", "22", "23", "44", "54", "P0")
_SQLITE_OF_VALUES = ("SQLITE_TOOBIG", "SQLITE_CONSTRAINT", "SQLITE_MISMATCH")
# A hub that is frozen within a transaction must not hold its locks for ever.
_IDLE_MS = 20_000
_LIMIT = (
    f"SELECT set_config('statement_timeout', '{_STATEMENT_MS}', true), "
    f"set_config('idle_in_transaction_session_timeout', '{_IDLE_MS}', true)"
)
# How long a silent server is waited for; and no prepared statements.
_POSTGRES: dict[str, object] = {
    "connect_timeout": _CONNECT_SECONDS,
    "tcp_user_timeout": _SILENT_MS,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "application_name": "sebridge hub",
    "prepare_threshold": None,
}
_OF_DRIVER = (DataError, InterfaceError, NotSupportedError, ProgrammingError)
_DAMAGED = ("SQLITE_CORRUPT", "SQLITE_NOTADB")
_SLOW = ("57014", "SQLITE_INTERRUPT")  # statement timeout
NO_TOKEN = "no token for the database"  # noqa: S105 - words of an error  # nosec B105
_CAUSES = (
    *(NO_TOKEN, "password authentication failed", "no pg_hba.conf entry"),
    *("connection refused", "timeout expired", "failed to resolve host"),
    *("Name or service not known", "does not exist", "support SSL", "SSL error"),
    *("certificate verify failed", "remaining connection slots are reserved"),
    *("too many clients", "starting up", "shutting down", "read-only transaction"),
    *("permission denied", "statement timeout", "no space left on device"),
    *("database or disk is full", "database is locked"),
    *("attempt to write a readonly database", "unable to open database file"),
    *("file is not a database", "disk image is malformed", "no such table"),
    *("no such column", "prepared statement", "disk I/O error"),
)


def open_sqlite(path: Path, *, writes: bool) -> Engine:
    """Return an engine for a file; an engine that writes has one connection only.

    The file must exist when the engine connects: it may be empty.
    """
    engine = create_engine(
        f"sqlite:///file:{quote(str(path.absolute()))}?mode=rw&uri=true",
        connect_args={"timeout": _BUSY_SECONDS, "check_same_thread": False},
        pool_size=1 if writes else _READERS,
        max_overflow=0,
    )
    begin = "BEGIN IMMEDIATE" if writes else "BEGIN"

    @event.listens_for(engine, "do_connect")
    def close_to_others(*_: object) -> None:
        if path.exists():  # a file that was removed is not made here: see ``Place``
            make_private(path)

    @event.listens_for(engine, "connect")
    def prepare(connection: DBAPIConnection, _entry: ConnectionPoolEntry) -> None:
        _prepare_sqlite(connection)

    @event.listens_for(engine, "begin")
    def start(connection: Connection) -> None:
        connection.exec_driver_sql(begin)

    return engine


def _prepare_sqlite(connection: Any) -> None:
    connection.isolation_level = None  # no implicit BEGIN: ``start`` begins them
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=FULL")
    cursor.close()


def open_postgres(url: str, token: Callable[[], str] | None = None) -> Engine:
    """Return an engine for a database; PgBouncer may stand before it.

    In its transaction mode another connection of the server may take each transaction:
    nothing may be left in a session, such as a prepared statement or a setting.
    Source: https://www.pgbouncer.org/features.html

    Args:
        url: the address of the database.
        token: returns the password of the next connection, a token of Entra ID, which
            is valid for an hour: the server asks at the beginning only. None = the
            password is in the address. Source:
            https://learn.microsoft.com/azure/postgresql/security/security-entra-configure
    """
    rest = url.partition("://")[2]
    engine = create_engine(
        f"postgresql+psycopg://{rest}",
        pool_size=_READERS * 2,
        max_overflow=0,
        pool_timeout=_CONNECT_SECONDS,
        pool_pre_ping=True,
        pool_recycle=1800,
        hide_parameters=True,
        connect_args=_POSTGRES,
    )
    if token is not None:

        @event.listens_for(engine, "do_connect")
        def sign_in(*given: Any) -> None:
            given[-1]["password"] = token()

    if "options=" not in urlsplit(url).query:  # PgBouncer refuses it at the start

        @event.listens_for(engine, "begin")
        def limit(connection: Connection) -> None:
            connection.exec_driver_sql(_LIMIT)

    return engine


@contextmanager
def store_errors() -> Iterator[None]:
    """Convert errors of the database; the new texts contain no secret.

    Raises:
        HubStoreAwayError: the same statement may succeed later.
        HubStoreSlowError: it took too long.
        HubStoreError: the database does not accept these values.
    """
    try:
        yield
    except (SQLAlchemyError, ValueError, OverflowError) as error:
        raise _translated(error) from error


def _translated(error: Exception) -> HubStoreError:
    named, code = _named(error), _code(error)
    if code in _SLOW:
        return HubStoreSlowError(f"the store is slow ({named})")
    if code.startswith(_DAMAGED):
        advice = "restore it, or start the hub again, which saves what can be read"
        return HubStoreDamagedError(f"the store is away ({named}: {advice})")
    if isinstance(error, PoolTimeoutError) or not _is_refusal(error, code):
        return HubStoreAwayError(f"the store is away ({named})")
    return HubStoreError(f"the store refuses it ({named})")


def _is_refusal(error: Exception, code: str) -> bool:
    """Whether the values may be the reason of an error."""
    if not isinstance(error, DBAPIError):
        return True  # they could not even be sent
    if error.connection_invalidated:
        return False
    if not code:  # an error of the driver about the type or the size of a value
        return isinstance(error, _OF_DRIVER)
    return code.startswith((*_OF_VALUES, *_SQLITE_OF_VALUES))


def _code(error: Exception) -> str:
    """Return the SQLSTATE, or the name of SQLite's code; "" = it has none."""
    inner = getattr(error, "orig", None)
    code = getattr(inner, "sqlstate", None) or getattr(inner, "sqlite_errorname", None)
    return str(code or "")


def _named(error: Exception) -> str:
    """Return the class of an error, and its cause if it is one of ``_CAUSES``.

    The rest of its text is left out: it may contain a secret.
    """
    inner = getattr(error, "orig", None) or error
    words, kind = str(inner).lower(), type(inner).__name__
    cause = next((known for known in _CAUSES if known.lower() in words), None)
    return f"{kind}: {cause}" if cause else kind


# -- Statements for both, and where they differ ----------------------------------------

_SALTS = {"events": 21, "bridges": 22, "pins": 23}


def insert(table: Table) -> postgresql.Insert:
    """Return an INSERT that allows ON CONFLICT; SQLite has the same syntax for it."""
    return postgresql.insert(table)


@cache
def upsert(table: Table, *names: str) -> postgresql.Insert:
    """Return an INSERT that replaces these columns of a row that is there already."""
    made = postgresql.insert(table)
    keys = [column.name for column in table.primary_key]
    fresh = {name: made.excluded[name] for name in names}
    return made.on_conflict_do_update(index_elements=keys, set_=fresh)


def note(connection: Connection, name: str, value: str) -> None:
    """Store a value under a name."""
    connection.execute(upsert(meta, "value"), {"name": name, "value": value})


def noted(connection: Connection, name: str) -> str | None:
    """Return the value that is stored under a name; None = there is none."""
    return connection.scalar(select(meta.c.value).where(meta.c.name == name))


def put(
    connection: Connection, statement: Executable, values: Sequence[Values]
) -> None:
    """Run one statement for each row of values, if there are any.

    Values within the statement would be slower: SQLAlchemy would compile it again for
    each number of rows.
    """
    if values:
        connection.execute(statement, list(values))


def lock(connection: Connection, names: Sequence[str], kind: str) -> None:
    """Lock names until the end of the transaction, even if they have no row yet.

    All hubs lock in the same order, which prevents deadlocks. SQLite has only one
    writer, so it needs no locks.
    """
    if connection.dialect.name != "postgresql":
        return
    ordered = (
        "SELECT hashtextextended(name, :salt) AS place "
        "FROM unnest(CAST(:names AS text[])) AS name ORDER BY place"
    )
    connection.execute(
        text(f"SELECT pg_advisory_xact_lock(place) FROM ({ordered}) AS o"),  # noqa: S608 - our own words  # nosec B608
        {"names": list(names), "salt": _SALTS[kind]},
    ).all()


# -- The file of a running hub is in its place, or it is written again -----------------
#
# Looked at before each transaction, and after it:
#
# removed                  → written again, from the connection that has it open
# its log removed          → that connection puts what was in the log into the file
# replaced, or overwritten → HubStoreAwayError, until it is back or the hub starts again


_RESTART = "put it back, or start the hub again, which saves what can be read"


class RemovedError(HubStoreAwayError):
    """The file or its log is gone; the thread that writes can write it again."""


@contextmanager
def file_errors(path: Path) -> Iterator[None]:
    """Convert errors of a file that cannot be read or written now.

    Raises:
        HubStoreAwayError: it cannot.
    """
    try:
        yield
    except (OSError, sqlite3.Error) as error:
        cause = getattr(error, "strerror", None) or error
        words = f"the store is away ({path} cannot be used: {cause})"
        raise HubStoreAwayError(words) from error


def _is_at(path: Path, number: int) -> bool:
    """Whether a file that is open is the one at a path."""
    try:
        return os.path.samefile(path, number)  # noqa: PTH121 - a Path takes no number
    except OSError:
        return False


class Place(Struct):
    """The place of the file of a running hub.

    A connection stays open: a removed file can still be read through it, and SQLite
    does not delete the log of a file that was overwritten.

    Attributes:
        path: of the file.
    """

    path: Path
    _file: int = -1  # the numbers of the open file, and of its log if it has one
    _log: int | None = None
    _anchor: sqlite3.Connection | None = None
    _guard: threading.Lock = field(default_factory=threading.Lock)

    def hold(self) -> None:
        """Remember the file that is open, and keep a connection to it.

        Raises:
            HubStoreAwayError: it cannot be read.
        """
        uri = f"{self.path.absolute().as_uri()}?mode=rw"
        how = os.O_RDONLY | getattr(os, "O_BINARY", 0)
        with file_errors(self.path):
            anchor = sqlite3.connect(
                uri, uri=True, isolation_level=None, check_same_thread=False
            )
            anchor.execute("SELECT count(*) FROM sqlite_master").fetchone()
            anchor.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
            self.release()
            self._file = os.open(self.path, how)
            has_log = self._log_path.exists()  # not where WAL does not work
            self._log = os.open(self._log_path, how) if has_log else None
            self._anchor = anchor

    @property
    def _log_path(self) -> Path:
        return Path(f"{self.path}-wal")

    def release(self) -> None:
        """Close the connection; all others must be closed before."""
        if self._anchor is not None:
            if self._log is not None:
                os.close(self._log)
            self._anchor.close()
            os.close(self._file)
        self._anchor = None

    def check(self) -> None:
        """Make sure that the file is in its place, and is a database.

        Raises:
            RemovedError: nothing is there, or the log is gone.
            HubStoreAwayError: another file is there, or other content.
        """
        if self._anchor is None:
            return
        if not _is_at(self.path, self._file):
            if not os.path.exists(self.path):  # noqa: PTH110 - a Path may raise
                raise RemovedError(f"the store is away ({self.path} was removed)")
            words = f"{self.path} was replaced by another file: {_RESTART}"
            raise HubStoreAwayError(f"the store is away ({words})")
        if not self._is_database():
            words = f"{self.path} was overwritten: {_RESTART}"
            raise HubStoreAwayError(f"the store is away ({words})")
        if self._log is not None and not _is_at(self._log_path, self._log):
            raise RemovedError(f"the store is away ({self._log_path} was removed)")

    def _is_database(self) -> bool:
        if sys.platform == "win32":  # pragma: no cover - it has no pread
            return True
        return os.pread(self._file, len(MAGIC), 0) == MAGIC

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
        with self._guard, file_errors(self.path):
            if not self.path.exists():
                copy_to(fresh_of(self.path), self._anchor)
                use_fresh(self.path)
            for one in databases:
                one.dispose()
            self._empty_log()
            self.hold()
        log.error(
            "store was removed: it is written again", extra={"path": str(self.path)}
        )
