"""The lock beside a state file: one forwarder at a time uses the state file."""

import os
import sqlite3
from pathlib import Path

from msgspec import Struct

from bridge.foundation.errors import OutboxError, OutboxLockedError
from bridge.foundation.privileges import enter, make_private

FileId = tuple[int, int]


def identity_of(path: Path | str) -> FileId | None:
    """Return device and inode of the file at a path; None = they cannot be read."""
    try:
        found = os.stat(path)  # noqa: PTH116 - called every 2 s; Path.stat is slower
    except OSError:
        return None
    return found.st_dev, found.st_ino


def lock_of(path: Path | str) -> str:
    """Return the path of the lock file of a state file."""
    return f"{path}.lock"


class StateLock(Struct):
    """Reserves a state file for this process, with a lock on a file beside it.

    It uses a lock of SQLite, which works on every system and ends with the process. The
    state file itself is not locked, because commands must be able to read it.

    Attributes:
        path: of the state file.
    """

    path: Path
    _held: sqlite3.Connection | None = None
    _file: FileId | None = None
    _is_certain: bool = False

    @property
    def file(self) -> Path:
        """The path of the lock file."""
        return Path(lock_of(self.path))

    def take(self) -> None:
        """Take the lock, after releasing it if it was taken before.

        Raises:
            OutboxLockedError: another forwarder holds it.
            OutboxError: the directory of the file cannot be created or written, or
                root must not open files there.
        """
        self.release()
        held = self._opened()
        try:
            held.execute("PRAGMA journal_mode = MEMORY")
            held.execute("BEGIN EXCLUSIVE")
        except sqlite3.Error as error:
            held.close()
            if error.sqlite_errorname.startswith("SQLITE_BUSY"):
                text = f"another forwarder runs on the state file {self.path}"
                raise OutboxLockedError(text) from error
            raise OutboxError(self._unusable(f"{self.file}: {error}")) from error
        self._held, self._file = held, identity_of(self.file)
        # On a read-only file system SQLite takes no lock and reports no error.
        self._is_certain = os.access(self.file, os.W_OK)

    def fault(self) -> str | None:
        """Return why the lock is lost; None = it is held."""
        if identity_of(self.file) == self._file:
            return None
        return f"{self.file} was removed or replaced: another forwarder may start"

    def keep(self) -> None:
        """Take the lock again unless it is certain that it is held.

        Raises:
            OutboxError: see ``take``.
        """
        if not self._is_certain or self.fault() is not None:
            self.take()

    def release(self) -> None:
        """Release the lock."""
        held, self._held, self._is_certain = self._held, None, False
        if held is not None:
            held.close()

    def _opened(self) -> sqlite3.Connection:
        enter(self.path)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            enter(self.path)  # once more: somebody may have been faster
            make_private(self.file)
            return sqlite3.connect(
                self.file, timeout=0, isolation_level=None, check_same_thread=False
            )
        except (OSError, sqlite3.Error) as error:
            fault = getattr(error, "strerror", None) or error
            raise OutboxError(self._unusable(str(fault))) from error

    def _unusable(self, fault: str) -> str:
        return f"the state file {self.path} cannot be used: {fault}"
