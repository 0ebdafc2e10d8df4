"""Connections to the state file: how it is opened, and what its errors mean."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from bridge.foundation.errors import (
    ForeignDatabaseError,
    NewerSchemaError,
    OutboxCorruptError,
    OutboxError,
    OutboxLockedError,
    OutboxUnavailableError,
)
from bridge.foundation.privileges import enter, make_private, no_file
from bridge.outbox.storage.schema import create

# Seconds to wait for another process's lock: in a command (less than ``patience``), and
# in the forwarder, for which an event may be announced only 30 s ahead.
BUSY_SECONDS = 2.5
SHORT_BUSY_SECONDS = 1.0
_WAL_BYTES = 4 * 1024 * 1024  # after a large transaction, the log is cut to this

_UNWRITABLE = ("FULL", "IOERR", "READONLY", "BUSY", "LOCKED", "CANTOPEN", "PROTOCOL")
_DAMAGED = ("CORRUPT", "NOTADB")
NOT_OURS = (ForeignDatabaseError, NewerSchemaError, OutboxLockedError)

# One damaged text must not prevent all other rows from being read.
readable = partial(str, encoding="utf-8", errors="replace")

Connection = sqlite3.Connection
Connect = Callable[[Path], Connection]


def connect(
    path: Path, factory: type[Connection] = Connection, busy: float | None = None
) -> Connection:
    """Open the file; a new one gets its tables.

    Args:
        path: the file.
        factory: the class of the connection.
        busy: seconds to wait for another process's lock; None = ``BUSY_SECONDS``.

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
            timeout=BUSY_SECONDS if busy is None else busy,
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


def as_outbox_error(error: Exception) -> Exception:
    """Return an error of SQLite as an OutboxError, any other unchanged."""
    text = "the state file cannot be read or written"
    return translated(error, text) if isinstance(error, sqlite3.Error) else error


@contextmanager
def transaction(db: Connection) -> Iterator[None]:
    """Commit what is done meanwhile; after an error, nothing of it.

    Raises:
        sqlite3.Error: the disk has failed, and nothing was written.
    """
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise
