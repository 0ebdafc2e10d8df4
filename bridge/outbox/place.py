"""The place of the state file: whether it is still there, and this process's own.

in place ──the file or its lock is removed──▶ lost ──regain──▶ in place
│  the lock is taken anew, and a
│  file that is gone is written anew
└──another file or forwarder is
there──▶ lost, until it is gone
"""

import sqlite3
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

from bridge.foundation.errors import OutboxUnavailableError
from bridge.outbox.lock import FileId, StateLock, identity_of
from bridge.outbox.recovery.trouble import sync_folder
from bridge.outbox.storage.connection import Connection, make_private

_RESTORED = ".restored"  # while it is being written


@dataclass(slots=True)
class Place:
    """Where a state file lies.

    Attributes:
        path: of the state file.
        lock: of it.
    """

    path: Path
    lock: StateLock
    _file: FileId | None = None

    def opened(self) -> None:
        """Note which file was opened."""
        self._file = identity_of(self.path)

    def fault(self) -> str | None:
        """Return what has become of the file or its lock; None = both are there."""
        if (fault := self.lock.fault()) is not None:
            return fault
        return None if self._is_there() else f"{self.path} was removed or replaced"

    def regain(self, file: Connection | None) -> bool:
        """Take the lock, and write the file anew where it is gone.

        Args:
            file: the connection to the file; what it was opened on can be read through
                it although it was removed. None = it could not be opened.

        Returns:
            Whether the file has to be opened anew.

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
        """Write all that a connection can read to a new file, and put it in place.

        Raises:
            OutboxUnavailableError: it cannot be written.
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
            text = f"the state file {self.path} cannot be written anew: {error}"
            raise OutboxUnavailableError(text) from error
