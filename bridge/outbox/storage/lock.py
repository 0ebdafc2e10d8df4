"""The lock beside a state file: one process at a time uses the state file.

    free ──take──▶ held ──the file is removed or replaced──▶ lost ──take──▶ held
      └──take──▶ not to be had (no room, no permission, no locks there) ──take──▶ held
      └──take──▶ OutboxLockedError: another process holds it

Only a lock that another process holds ends a start. Whatever else is wrong with it is
said, and the forwarder goes on in memory until it has the lock.

It is a lock on a range of bytes of a file, which ends with the process. The content of
the file has no meaning. The state file itself is not locked, because commands must be
able to read it.
"""

import errno
import os
import stat
import struct
import sys
import threading
from contextlib import suppress
from pathlib import Path

from msgspec import Struct, field

from bridge.foundation.errors import ForeignFolderError, OutboxLockedError
from bridge.foundation.privileges import enter

if sys.platform != "win32":
    import fcntl

FileId = tuple[int, int]

# The bytes that SQLite locks in its files, far behind the end of this one.
_OFFSET, _LENGTH = 0x40000000, 512
_HOW = os.O_RDWR | sum(
    getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC")
)
_LAST_WAIT = 1.0  # seconds
_HELD_ERRORS = (errno.EACCES, errno.EAGAIN)
# ``struct flock`` of Linux on 64 bits: type, whence, start, length, pid.
_FLOCK = "hhqqi0q"
# A lock does not keep out the process that holds it, and is lost if that process closes
# the file once more: so no file of these is opened again.
_HELD: set[FileId] = set()


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

    Attributes:
        path: of the state file.
        kind: what uses state files like this one: a forwarder, or a hub.
    """

    path: Path
    kind: str = "forwarder"
    _guard: threading.Lock = field(default_factory=threading.Lock)
    _handle: int | None = None
    _file: FileId | None = None
    _trouble: str | None = "it was not taken yet"

    @property
    def file(self) -> Path:
        """The path of the lock file."""
        return Path(lock_of(self.path))

    def take(self) -> None:
        """Take the lock, or what was lost of it, if possible; else ``fault`` says why.

        Raises:
            OutboxLockedError: another process holds it.
        """
        with self._guard:
            if self.fault() is not None:
                self._take()

    def _take(self) -> None:
        self._release()
        try:
            handle = self._opened()
        except OSError as error:
            self._trouble = f"the lock {self.file} cannot be opened: {error.strerror}"
            return
        except ForeignFolderError as error:
            self._trouble = str(error)
            return
        self._trouble = None
        try:
            self._lock(handle)
        finally:
            if self._handle is None:
                os.close(handle)

    def fault(self) -> str | None:
        """Return why the lock is not held; None = it is held."""
        if self._trouble is not None:
            return self._trouble
        if identity_of(f"{self.path}.lock") == self._file:
            return None
        return f"{self.file} was removed or replaced: another {self.kind} may start"

    def release(self) -> None:
        """Release the lock, unless it is being taken on a disk that hangs."""
        if self._guard.acquire(timeout=_LAST_WAIT):
            try:
                self._release()
            finally:
                self._guard.release()

    def _release(self) -> None:
        handle, self._handle = self._handle, None
        self._trouble = "it was released"
        if handle is not None:
            if self._file is not None:
                _HELD.discard(self._file)
            os.close(handle)

    def _opened(self) -> int:
        """Open the lock file, and make it if it is missing.

        Raises:
            OSError: it cannot be opened, or is no file.
            ForeignFolderError: root must not open it.
            OutboxLockedError: this process holds it already.
        """
        enter(self.path)
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        enter(self.path)  # once more: somebody may have been faster
        if identity_of(self.file) in _HELD:
            raise self._held_by(os.getpid())
        try:
            handle = os.open(self.file, _HOW)
        except FileNotFoundError:
            return os.open(self.file, _HOW | os.O_CREAT, 0o600)
        mode = os.fstat(handle).st_mode
        if not stat.S_ISREG(mode):
            os.close(handle)
            raise OSError(errno.EINVAL, "it is not a file")
        if sys.platform != "win32" and mode & 0o077:
            with suppress(OSError):  # it is somebody else's
                os.fchmod(handle, 0o600)
        return handle

    def _lock(self, handle: int) -> None:
        """Lock an open file, and keep it open if that succeeds.

        Raises:
            OutboxLockedError: another process holds it.
        """
        for is_last in (False, True):  # its holder may end between the two questions
            try:
                _lock_range(handle)
            except OSError as error:
                if error.errno in _HELD_ERRORS:
                    self._look_for_holder(handle)
                if is_last:
                    self._trouble = (
                        f"{self.file} cannot be locked ({error.strerror}): another "
                        f"{self.kind} could not be kept out"
                    )
            else:
                found = os.fstat(handle)
                self._handle, self._file = handle, (found.st_dev, found.st_ino)
                _HELD.add(self._file)
                return

    def _look_for_holder(self, handle: int) -> None:
        """Find out whether a process of this machine holds the lock.

        Some file systems refuse locks with the error of a held lock. Where nobody can
        be asked, it counts as held.

        Raises:
            OutboxLockedError: a process holds it.
        """
        if sys.platform != "linux":  # pragma: no cover - tests run on Linux
            raise self._held_by(None)
        try:
            holder = _holder(handle)
        except OSError:
            return
        if holder is not None and holder >= 0:  # below 0: on another machine (NFS)
            raise self._held_by(holder)

    def _held_by(self, pid: int | None) -> OutboxLockedError:
        who = f" (process {pid})" if pid else ""
        text = f"a {self.kind} already runs on the state file {self.path}{who}"
        return OutboxLockedError(text)


def _lock_range(handle: int) -> None:
    if sys.platform == "win32":  # pragma: no cover - tests run on POSIX
        import msvcrt  # noqa: PLC0415 - does not exist elsewhere

        os.lseek(handle, _OFFSET, os.SEEK_SET)
        msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
    else:
        fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB, _LENGTH, _OFFSET)


def holder_of(path: Path) -> int | None:
    """Return the pid of whoever holds the lock of a state file; None = not known."""
    try:
        handle = os.open(lock_of(path), _HOW)
    except OSError:
        return None
    try:
        return _holder(handle)
    except OSError:
        return None
    finally:
        os.close(handle)


def _holder(handle: int) -> int | None:
    """Return the pid that the kernel names for the lock; None = nobody holds it.

    0 is a process of another container, a negative pid one of another machine.

    Raises:
        OSError: the file system does not say.
    """
    if sys.platform == "win32":  # pragma: no cover - it is not asked there
        return None
    else:  # noqa: RET505 - mypy leaves out a branch for another system only
        asked = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, _OFFSET, _LENGTH, 0)
        answer = struct.unpack(_FLOCK, fcntl.fcntl(handle, fcntl.F_GETLK, asked))
        kind, *_, pid = answer
        return None if kind == fcntl.F_UNLCK else int(pid)
