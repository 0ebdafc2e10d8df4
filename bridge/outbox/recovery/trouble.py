"""What is remembered of starts that ended on the state file, in a small file beside it.

The state file itself is no place for it: it is the one that is damaged. The note is
there only while a forwarder starts, and while there is trouble.

    starting ──open──▶ running ──a minute──▶ forgotten
       │                  │ damage met: noted at once
       └──────ends on the state file──▶ counted; the third start moves it aside
"""

import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from bridge.foundation.errors import (
    ForeignDatabaseError,
    NewerSchemaError,
    OutboxError,
    OutboxFullError,
    OutboxLockedError,
    OutboxUnavailableError,
)

_MOST_ENDS = 2  # in a row; the start after them moves the file aside
_MOST_UNFINISHED = 5  # likewise: killed while the file was opened, nobody knows why
_MOST_MOVES = 2  # in a row; beyond it the file is not what is wrong
_LONGEST = 500  # characters of a fault

_NO_DAMAGE = (
    ForeignDatabaseError,
    NewerSchemaError,
    OutboxFullError,
    OutboxLockedError,
    OutboxUnavailableError,
)


class Note(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What stands in the file.

    Attributes:
        unfinished: starts in a row that came to no end while the file was opened.
        ended: starts in a row that ended on the state file.
        moved: how often it was moved aside since a forwarder has last run well.
        damage: what was met; None = nothing since the last thorough look.
    """

    unfinished: int = 0
    ended: int = 0
    moved: int = 0
    damage: str | None = None


@dataclass(slots=True)
class Trouble:
    """The note beside one state file. Its methods may be called in any thread.

    What cannot be written is done without: the disk is then in a trouble of its own.
    """

    path: Path
    note: Note = field(default_factory=Note)
    _is_met: bool = False  # in this life
    _guard: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def of(cls, state: Path) -> "Trouble":
        """Read what is remembered of a state file."""
        trouble = cls(Path(f"{state}.trouble"))
        try:
            body = trouble.path.read_bytes()
        except OSError:
            return trouble
        try:
            trouble.note = msgspec.json.decode(body, type=Note)
        except (msgspec.DecodeError, UnicodeDecodeError):
            trouble.note = Note(damage="the note beside it cannot be read")
        return trouble

    @property
    def is_hopeless(self) -> bool:
        """Whether another start on the same file would only end as those before."""
        note = self.note
        is_over = note.ended >= _MOST_ENDS or note.unfinished >= _MOST_UNFINISHED
        return is_over and note.moved < _MOST_MOVES

    def begin(self) -> None:
        """Note that the file is about to be opened."""
        self._change(unfinished=self.note.unfinished + 1)

    def open(self) -> None:
        """Note that the file has been opened."""
        self._change(unfinished=0)

    def looked(self) -> None:
        """Note that a thorough look has found nothing."""
        self._change(damage=None)

    def moved(self) -> None:
        """Note that the file was moved aside: the next one has its own chances."""
        self._change(ended=0, damage=None, moved=self.note.moved + 1)

    def meet(self, fault: str) -> None:
        """Note damage, at once and once: the process may not live much longer."""
        if not self._is_met:
            self._is_met = True
            self._change(damage=fault[:_LONGEST])

    def end(self, error: BaseException) -> None:
        """Note what the process ends with."""
        faults = [str(one) for one in _leaves(error) if self._is_of_state(one)]
        if faults:
            fault, ended = faults[0][:_LONGEST], self.note.ended + 1
            self._change(unfinished=0, ended=ended, damage=fault)
        else:
            self._change(unfinished=0)

    def forget(self) -> None:
        """Note that the forwarder runs well; what was met in this life stays noted."""
        self._change(unfinished=0, ended=0, moved=0)

    def _is_of_state(self, error: BaseException) -> bool:
        if isinstance(error, OutboxError | sqlite3.Error):
            return not isinstance(error, _NO_DAMAGE)
        return self._is_met and isinstance(error, Exception)

    def _change(self, **values: object) -> None:
        with self._guard:
            note = msgspec.structs.replace(self.note, **values)
            if note != self.note:
                self.note = note
                with suppress(OSError):
                    self._write()

    def _write(self) -> None:
        if self.note == Note():
            self.path.unlink(missing_ok=True)
            return
        new = Path(f"{self.path}.new")
        handle = os.open(new, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600)
        try:
            os.write(handle, msgspec.json.encode(self.note))
            os.fsync(handle)
        finally:
            os.close(handle)
        new.replace(self.path)
        sync_folder(self.path.parent)


def sync_folder(folder: Path) -> None:
    """Have the disk keep the names in a folder; Windows does so by itself."""
    if os.name != "posix":  # pragma: no cover - tests run on POSIX
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for one in error.exceptions:
            yield from _leaves(one)
    else:
        yield error
