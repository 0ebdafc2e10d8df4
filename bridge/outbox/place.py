"""Checks that the state file is still there and belongs to this process.

    not examined ──examine──▶ in place ──the file or its lock is removed──▶ lost
         └──no lock, or it cannot be opened──▶ lost ──regain──▶ in place

``regain`` takes the lock again, and writes a removed file again. It fails as long as
another file is in its place or another forwarder has the lock. Nothing is written to a
file before it was examined with the lock held: it may be damaged, or of another VM.
"""

import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

from msgspec import Struct

from bridge.foundation.errors import OutboxUnavailableError
from bridge.foundation.privileges import make_private
from bridge.outbox.lock import FileId, StateLock, identity_of
from bridge.outbox.owner import is_other, owner_in
from bridge.outbox.recovery.trouble import sync_folder
from bridge.outbox.storage.connection import Connection

_RESTORED = ".restored"  # suffix of a file that is being written


class Place(Struct):
    """The place of a state file.

    Attributes:
        path: of the state file.
        lock: the lock of the state file; None = it is not locked.
        vm_id: of this VM; None = not known.
        check: checks the file, and moves it aside if it cannot be used here; raises
            OutboxError.
    """

    path: Path
    lock: StateLock | None
    vm_id: str | None
    check: Callable[[], None]
    _file: FileId | None = None
    _unexamined: str | None = "it was not examined yet"

    @property
    def is_examined(self) -> bool:
        """Whether the file was examined: it may be written, if it is still there."""
        return self._unexamined is None

    def examine(self) -> None:
        """Examine the file if the lock is held and that is possible now.

        Raises:
            OutboxError: the file must not be used at all, for example because a newer
                version has written it.
        """
        if (fault := self._lock_fault()) is None:
            try:
                self.check()
            except OutboxUnavailableError as error:
                fault = str(error)
        self._unexamined = fault

    def accepts(self, db: sqlite3.Connection) -> bool:
        """Whether the content of a file that was not examined is of this VM."""
        return self.is_examined or not is_other(owner_in(db), self.vm_id)

    def opened(self) -> None:
        """Remember the file that was opened."""
        self._file = identity_of(self.path)

    def fault(self) -> str | None:
        """Return why the file must not be used; None = it is there, and it is ours."""
        if (fault := self._lock_fault() or self._unexamined) is not None:
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
            OutboxError: another forwarder has the lock, another file is there, or the
                file cannot be used.
        """
        if self.lock is not None:
            self.lock.keep()
        if not self.is_examined:
            self.examine()
        if self._unexamined is not None:
            raise OutboxUnavailableError(self._unexamined)
        if self._is_there():
            return False
        if identity_of(self.path) is not None:
            raise OutboxUnavailableError(f"another file stands at {self.path}")
        if file is not None:
            self._restore(file)
        return True

    def _lock_fault(self) -> str | None:
        return None if self.lock is None else self.lock.fault()

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
