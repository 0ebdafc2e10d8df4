"""Connections to the state file, and to its twin in memory for when there is no disk.

The twin holds what the house works with: what is pending (the oldest 10,000), and all
memory of what was told, seen and decided. What is settled stays behind on the disk.
"""

import os
import sqlite3
from contextlib import suppress
from pathlib import Path

from bridge.errors import OutboxCorruptError, OutboxError, OutboxUnavailableError
from bridge.outbox.schema import MIGRATIONS, migrate

BUSY_SECONDS = 5.0
MOST_IN_MEMORY = 10_000  # events
_WAL_BYTES = 4 * 1024 * 1024  # what a large transaction leaves behind at most

_UNWRITABLE = ("FULL", "IOERR", "READONLY", "BUSY", "LOCKED", "CANTOPEN", "PROTOCOL")
_DAMAGED = ("CORRUPT", "NOTADB")

_COPIES = (
    "INSERT INTO meta SELECT * FROM disk.meta",
    "INSERT INTO told SELECT * FROM disk.told",
    "INSERT INTO sightings SELECT * FROM disk.sightings",
    "INSERT INTO followers SELECT * FROM disk.followers",
    "INSERT INTO approvals SELECT * FROM disk.approvals",
    "INSERT INTO sink_memory SELECT * FROM disk.sink_memory",
    """INSERT INTO deliveries SELECT * FROM disk.deliveries
       WHERE state = 'pending' ORDER BY id LIMIT 10000""",
    """INSERT INTO items SELECT * FROM disk.items
       WHERE id IN (SELECT item FROM deliveries)""",
    # Counts are of all; and numbers go on where they are, as they will on the disk.
    "DELETE FROM tallies",
    "INSERT INTO tallies SELECT * FROM disk.tallies",
    "DELETE FROM sqlite_sequence",
    "INSERT INTO sqlite_sequence SELECT * FROM disk.sqlite_sequence",
)


class Connection(sqlite3.Connection):
    """A connection to the state file or to its twin.

    Attributes:
        is_durable: whether what is told through it is on disk before it is sent.
        room: how many more events it may take; None = no limit.
    """

    is_durable: bool = True
    room: int | None = None


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


def connect(path: Path) -> Connection:
    """Open the file as this house wants it, and bring it to the present version.

    Raises:
        OutboxUnavailableError: it cannot be used just now.
        OutboxError: it is no healthy database of ours.
    """
    connection = None
    make_private(path)
    try:
        connection = sqlite3.connect(
            path,
            timeout=BUSY_SECONDS,
            isolation_level=None,
            check_same_thread=False,
            factory=Connection,
        )
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


def twin_of(path: Path) -> Connection:
    """Return a database in memory that holds what is needed of the file.

    It is empty where the file cannot even be read, or is of an older version.

    Raises:
        OutboxCorruptError: the file is damaged.
    """
    twin = sqlite3.connect(
        ":memory:",
        uri=True,
        isolation_level=None,
        check_same_thread=False,
        factory=Connection,
    )
    migrate(twin)
    # Without room on the disk not even a reader can be had of a file that nobody
    # has open, unless it is promised that nobody writes: nobody can.
    for how in ("mode=ro", "mode=ro&immutable=1"):
        try:
            _copy(twin, f"{path.absolute().as_uri()}?{how}")
            break
        except sqlite3.Error as error:
            if not is_unwritable(error):
                twin.close()
                text = f"the state file {path} cannot be read"
                raise translated(error, text) from error
    twin.is_durable, twin.room = False, MOST_IN_MEMORY
    return twin


def _copy(twin: Connection, source: str) -> None:
    """Copy everything or nothing."""
    twin.execute("ATTACH ? AS disk", (source,))
    try:
        twin.execute("BEGIN")
        (version,) = twin.execute("PRAGMA disk.user_version").fetchone()
        if version == len(MIGRATIONS):
            for statement in _COPIES:
                twin.execute(statement)
        twin.execute("COMMIT")
    finally:
        if twin.in_transaction:
            twin.execute("ROLLBACK")
        twin.execute("DETACH disk")


def is_unwritable(error: sqlite3.Error) -> bool:
    """Whether it is the disk's fault or another process's, and may pass."""
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
