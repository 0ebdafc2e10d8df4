"""Counts starts that failed because of the state file, in a small file beside it.

The state file itself cannot hold the count, because it may be damaged. The note exists
only while a forwarder starts, and while there is trouble.

    starting ──open──▶ running ──a minute──▶ count is 0 again
       │                  │ damage found: noted at once
       └──fails because of the state file──▶ counted; the third start moves it aside
"""

import errno
import os
import sqlite3
import stat
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec
from msgspec import Struct, field

from bridge.foundation.errors import (
    ForeignDatabaseError,
    ForeignFolderError,
    NewerSchemaError,
    OutboxError,
    OutboxFullError,
    OutboxLockedError,
    OutboxUnavailableError,
)
from bridge.foundation.privileges import enter
from bridge.foundation.sqlite_files import sync_folder

_MOST_ENDS = 2  # failed starts in a row; the next start moves the file aside
_MOST_UNFINISHED = 5  # the same, for starts that were killed while opening the file
_MOST_MOVES = 2  # in a row; after that, the file is not the cause
_LAST_WAIT = 1.0  # seconds
_LONGEST = 500  # characters of a fault
_READ = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)

_NO_DAMAGE = (
    ForeignDatabaseError,
    NewerSchemaError,
    OutboxFullError,
    OutboxLockedError,
    OutboxUnavailableError,
)


class Note(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The content of the note.

    Attributes:
        unfinished: starts in a row that were killed while the file was opened.
        ended: starts in a row that failed because of the state file.
        moved: how often it was moved aside since a forwarder last ran well.
        damage: the damage that was found; None = none since the last thorough check.
    """

    unfinished: int = 0
    ended: int = 0
    moved: int = 0
    damage: str | None = None


class Trouble(Struct):
    """The note beside one state file. Its methods may be called in any thread.

    An error when writing the note is ignored: then the disk has worse problems. Nothing
    is read before the first question: the disk may hang.
    """

    path: Path
    _note: Note | None = None
    _is_met: bool = False  # damage was found in this run
    _guard: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def of(cls, state: Path) -> "Trouble":
        """Return the note beside a state file."""
        return cls(Path(f"{state}.trouble"))

    @property
    def note(self) -> Note:
        """What was noted."""
        if self._note is None:
            self._note = _read(self.path)
        return self._note

    @property
    def is_hopeless(self) -> bool:
        """Whether another start with the same file would probably fail too."""
        note = self.note
        is_over = note.ended >= _MOST_ENDS or note.unfinished >= _MOST_UNFINISHED
        return is_over and note.moved < _MOST_MOVES

    def begin(self) -> None:
        """Note that the file will be opened now."""
        self._change(unfinished=self.note.unfinished + 1)

    def open(self) -> None:
        """Note that the file has been opened."""
        self._change(unfinished=0)

    def looked(self) -> None:
        """Note that a thorough check has found no damage."""
        self._change(damage=None)

    def moved(self) -> None:
        """Note that the file was moved aside; failed starts no longer count."""
        self._change(ended=0, damage=None, moved=self.note.moved + 1)

    def meet(self, fault: str) -> None:
        """Note the first damage immediately: the process may end soon."""
        if not self._is_met:
            self._is_met = True
            self._change(damage=fault[:_LONGEST])

    def end(self, error: BaseException) -> None:
        """Note the error with which the process ends."""
        faults = [str(one) for one in _leaves(error) if self._is_of_state(one)]
        if faults:
            fault, ended = faults[0][:_LONGEST], self.note.ended + 1
            self._change(unfinished=0, ended=ended, damage=fault)
        elif self._note is not None:
            self._change(unfinished=0)

    def forget(self) -> None:
        """Note that the forwarder runs well; damage stays noted."""
        self._change(unfinished=0, ended=0, moved=0)

    def _is_of_state(self, error: BaseException) -> bool:
        if isinstance(error, OutboxError | sqlite3.Error):
            return not isinstance(error, _NO_DAMAGE)
        return self._is_met and isinstance(error, Exception)

    def _change(self, **values: object) -> None:
        if not self._guard.acquire(timeout=_LAST_WAIT):
            return  # the disk hangs
        try:
            note = msgspec.structs.replace(self.note, **values)
            if note != self.note:
                self._note = note
                with suppress(OSError, ForeignFolderError):
                    enter(self.path)
                    self._write()
        finally:
            self._guard.release()

    def _write(self) -> None:
        if self.note == Note():
            self.path.unlink(missing_ok=True)
            return
        new = Path(f"{self.path}.new")
        flags = os.O_CREAT | os.O_WRONLY | os.O_TRUNC | getattr(os, "O_NOFOLLOW", 0)
        handle = os.open(new, flags, 0o600)
        try:
            os.write(handle, msgspec.json.encode(self.note))
            os.fsync(handle)
        finally:
            os.close(handle)
        new.replace(self.path)
        sync_folder(self.path.parent)


def _read(path: Path) -> Note:
    try:
        enter(path)
        body = _content(path)
    except (OSError, ForeignFolderError):
        return Note()
    try:
        return msgspec.json.decode(body, type=Note)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return Note(damage="the note beside the state file cannot be read")


def _content(path: Path) -> bytes:
    """Return the content of a note.

    Raises:
        OSError: it cannot be read, or is no file; a FIFO has no end.
    """
    number = os.open(path, _READ)
    with os.fdopen(number, "rb") as file:
        if not stat.S_ISREG(os.fstat(number).st_mode):
            raise OSError(errno.EINVAL, "it is not a file")
        return file.read()


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for one in error.exceptions:
            yield from _leaves(one)
    else:
        yield error
