"""Checks that the state file is still there and belongs to this process.

    in place ──the file or its lock is removed──▶ lost ──regain──▶ in place

``regain`` takes the lock again, and writes a removed file again. It fails as long as
another file is in its place or another forwarder has the lock.
"""

import sqlite3
from contextlib import closing, suppress
from pathlib import Path

from msgspec import Struct

from bridge.foundation.errors import OutboxUnavailableError
from bridge.foundation.privileges import make_private
from bridge.outbox.lock import FileId, StateLock, identity_of
from bridge.outbox.recovery.trouble import sync_folder
from bridge.outbox.storage.connection import Connection

_RESTORED = ".restored"  # suffix of a file that is being written


class Place(Struct):
    """The place of a state file.

    Attributes:
        path: of the state file.
        lock: the lock of the state file.
    """

    path: Path
    lock: StateLock
    _file: FileId | None = None

    def opened(self) -> None:
        """Remember the file that was opened."""
        self._file = identity_of(self.path)

    def fault(self) -> str | None:
        """Return why the file or its lock is lost; None = both are there."""
        if (fault := self.lock.fault()) is not None:
            return fault
        return None if self._is_there() else f"{self.path} was removed or replaced"

    def regain(self, file: Connection | None) -> bool:
        """Take the lock, and write the file again if it was removed.

        Args:
            file: the connection to the file; a removed file can still be read through
                it. None = it is not open.

        Returns:
            Whether the file has to be opened again.

        Raises:
            OutboxError: another forwarder has the lock, or another file is there.
        """
        self.lock.keep()
        if self._is_there():
            return False
        if self.path.exists():
            raise OutboxUnavailableError(f"another file stands at {self.path}")
        if file is not None:
            self._restore(file)
        return True

    def _is_there(self) -> bool:
        return self._file is None or identity_of(self.path) == self._file

    def _restore(self, file: Connection) -> None:
        """Copy the content of a connection to a new file, and move it into place.

        Raises:
            OutboxUnavailableError: the new file cannot be written.
        """
        new = Path(f"{self.path}{_RESTORED}")
        try:
            for suffix in ("", "-journal", "-wal", "-shm"):
                Path(f"{new}{suffix}").unlink(missing_ok=True)
            make_private(new)
            with closing(sqlite3.connect(new)) as target:
                file.backup(target)
            new.rename(self.path)
            sync_folder(self.path.parent)
        except (OSError, sqlite3.Error) as error:
            with suppress(OSError):
                new.unlink(missing_ok=True)
            text = f"the state file {self.path} cannot be written again: {error}"
            raise OutboxUnavailableError(text) from error
