"""Connections to the state file: how it is opened, and what its errors mean.

A connection can write down the statements that change something, so that the copy in
memory (``bridge.outbox.storage.mirror``) does the same once they are committed.
"""

import os
import sqlite3
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Protocol

from bridge.foundation.errors import (
    OutboxCorruptError,
    OutboxError,
    OutboxUnavailableError,
)
from bridge.outbox.storage.schema import migrate

BUSY_SECONDS = 2.5  # less than a write may take before the disk counts as hanging
# Of the forwarder: another process's lock must not take much of a notice of 30 s.
SHORT_BUSY_SECONDS = 1.0
_WAL_BYTES = 4 * 1024 * 1024  # what a large transaction leaves behind at most

_UNWRITABLE = ("FULL", "IOERR", "READONLY", "BUSY", "LOCKED", "CANTOPEN", "PROTOCOL")
_DAMAGED = ("CORRUPT", "NOTADB")
_HARMLESS = ("SELECT", "PRAGMA", "BEGIN", "COMMIT", "SAVEPOINT", "RELEASE", "ROLLBACK")

# What a bit on the disk has made unreadable must not keep all else from being read.
readable = partial(str, encoding="utf-8", errors="replace")

Connect = Callable[[Path], "Connection"]
Statement = tuple[str, Any, bool]  # SQL, parameters, whether it is done once per row


class Room(Protocol):
    """Says whether memory takes another event."""

    def takes(self, *, is_urgent: bool) -> bool:
        """Whether there is room for it."""
        ...


class Connection(sqlite3.Connection):
    """A connection to the state file or to its copy in memory.

    Attributes:
        is_durable: whether what is told through it is on disk before it is sent.
        room: what limits how many events it takes; None = nothing.
        is_part: whether what is to be sent may be missing here although it is on the
            disk; False = it is lost.
        changes: the changing statements since the list was put here; None = nobody
            wants to know.
    """

    is_durable: bool = True
    room: Room | None = None
    is_part: bool = False
    changes: list[Statement] | None = None

    def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
        """Execute a statement, and write it down if it may change something."""
        cursor = super().execute(sql, parameters)
        if self.changes is not None and _may_change(sql):
            self.changes.append((sql, parameters, False))
        return cursor

    def executemany(self, sql: str, parameters: Any, /) -> sqlite3.Cursor:
        """Execute a statement for each row, and write it down."""
        rows = list(parameters)
        cursor = super().executemany(sql, rows)
        if self.changes is not None:
            self.changes.append((sql, rows, True))
        return cursor


@lru_cache(maxsize=32)
def _may_change(sql: str) -> bool:
    return not sql.lstrip()[:9].upper().startswith(_HARMLESS)


def make_private(path: Path) -> None:
    """See to it that nobody but its owner reads the file, whatever the umask is.

    SQLite makes the files beside it with the same rights. What is not ours to
    change is left as it is, and told by whoever opens it.
    """
    with suppress(OSError):
        # Never a file that is there: to close it again would end SQLite's locks.
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    if os.name != "posix":
        return
    for part in (path, Path(f"{path}-wal"), Path(f"{path}-shm")):
        with suppress(OSError):
            if part.is_file() and part.stat().st_mode & 0o077:
                part.chmod(0o600)


def connect(
    path: Path, factory: type[Connection] = Connection, busy: float | None = None
) -> Connection:
    """Open the file as this house wants it, and bring it to the present version.

    Args:
        path: the file.
        factory: the class of the connection.
        busy: seconds for which another process's lock is waited for; None = as long as
            a command may wait.

    Raises:
        OutboxUnavailableError: it cannot be used just now.
        OutboxError: it is no healthy database of ours.
    """
    connection = None
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
        migrate(connection)
    except BaseException as error:
        if connection is not None:
            connection.close()
        if isinstance(error, sqlite3.Error):
            raise translated(error, f"the state file {path} cannot be used") from error
        raise
    return connection


def is_unwritable(error: Exception) -> bool:
    """Whether it is the disk's fault or another process's, and may pass."""
    if isinstance(error, OutboxError):
        return isinstance(error, OutboxUnavailableError)
    return _is_one_of(error, _UNWRITABLE)


def translated(error: Exception, text: str) -> OutboxError:
    """Return the error as the house knows it."""
    kind = OutboxError
    if isinstance(error, sqlite3.Error) and is_unwritable(error):
        kind = OutboxUnavailableError
    elif _is_one_of(error, _DAMAGED):
        kind = OutboxCorruptError
    fault = kind(f"{text}: {error}")
    fault.__cause__ = error
    return fault


def _is_one_of(error: Exception, kinds: tuple[str, ...]) -> bool:
    name = getattr(error, "sqlite_errorname", "").removeprefix("SQLITE_")
    return name.startswith(kinds)
