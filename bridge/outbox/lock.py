"""The lock beside a state file: one forwarder at a time works on it."""

import os
import sqlite3
from dataclasses import dataclass
from pathlib import Path

from bridge.foundation.errors import OutboxError, OutboxLockedError
from bridge.outbox.storage.connection import make_private

FileId = tuple[int, int]


def identity_of(path: Path) -> FileId | None:
    """Return which file stands at a path; None = none that can be seen."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


@dataclass(slots=True)
class StateLock:
    """Keeps a state file for this process alone, through a file beside it.

    SQLite's lock is the same on every system and ends with the process; the state file
    itself must stay open to those who only look.

    Attributes:
        path: of the state file.
    """

    path: Path
    _held: sqlite3.Connection | None = None
    _file: FileId | None = None
    _is_certain: bool = False

    @property
    def file(self) -> Path:
        """The file that is locked."""
        return Path(f"{self.path}.lock")

    def take(self) -> None:
        """Take the lock, anew if it was taken before.

        Raises:
            OutboxLockedError: another forwarder runs on it.
            OutboxError: its directory cannot be made or written.
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
        # SQLite locks nothing on a file system that is read-only, and does not say so.
        self._is_certain = os.access(self.file, os.W_OK)

    def fault(self) -> str | None:
        """Return what has become of the lock; None = it is held."""
        if identity_of(self.file) == self._file:
            return None
        return f"{self.file} was removed or replaced: another forwarder may start"

    def keep(self) -> None:
        """Take the lock anew if it is not certain that it is held.

        Raises:
            OutboxError: as ``take``.
        """
        if not self._is_certain or self.fault() is not None:
            self.take()

    def release(self) -> None:
        """Give the lock up."""
        held, self._held, self._is_certain = self._held, None, False
        if held is not None:
            held.close()

    def _opened(self) -> sqlite3.Connection:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            make_private(self.file)
            return sqlite3.connect(
                self.file, timeout=0, isolation_level=None, check_same_thread=False
            )
        except (OSError, sqlite3.Error) as error:
            fault = getattr(error, "strerror", None) or error
            raise OutboxError(self._unusable(str(fault))) from error

    def _unusable(self, fault: str) -> str:
        return f"the state file {self.path} cannot be used: {fault}"
