"""Append whole, durable lines to a file of limited size.

The file is opened for each write and closed again, so logrotate may move it at any time
without a signal. If a crash has left a torn line, the line is ended, not cut off: a
reader that has read half of it must find its place again. What a failed attempt has
written is cut off: otherwise a full disk would get more of it with each attempt.
"""

import os
import select
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

STANDARD_OUTPUT = 1
_PIECE = 512  # bytes that POSIX promises to write to a pipe in one piece or not at all

# Each flag exists on one kind of system only.
_AS_IT_IS = getattr(os, "O_BINARY", 0)
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)
_NO_WAIT = getattr(os, "O_NONBLOCK", 0)  # for a FIFO without a reader
_FLAGS = os.O_RDWR | os.O_APPEND | _AS_IT_IS | _NO_LINK | _NO_WAIT


class NotAFileError(OSError):
    """The path is not a regular file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Appender:
    """Appends lines to a file.

    Attributes:
        max_size: bytes; a file that would grow larger is moved to ``PATH.1``; 0: never.
        keep: how many moved files are kept.
        mode: permissions of a new file, whatever the umask.
    """

    path: Path
    max_size: int
    keep: int
    mode: int

    def append(self, lines: bytes) -> None:
        """Append whole lines; return when they are on the disk.

        Raises:
            OSError: they were not written; if possible, no part of them is left.
        """
        with self._opened() as number:
            size = os.fstat(number).st_size
            if not (self.max_size and size and size + len(lines) > self.max_size):
                self._write(number, lines, size)
                return
        self._rotate()
        with self._opened() as number:
            self._write(number, lines, os.fstat(number).st_size)

    def look(self) -> None:
        """Check whether lines can be appended; change nothing.

        Raises:
            OSError: they cannot.
        """
        try:
            number = os.open(self.path, _FLAGS)
        except FileNotFoundError:
            self._look_at_folder()
        else:
            with _closing(number):
                _check(number)

    def _look_at_folder(self) -> None:
        folder = self.path.parent
        folder.stat()
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(0, "Permission denied")

    @contextmanager
    def _opened(self) -> Iterator[int]:
        """Open the file; create it if it does not exist."""
        try:
            number = os.open(self.path, _FLAGS)
        except FileNotFoundError:
            number = os.open(self.path, _FLAGS | os.O_CREAT | os.O_EXCL, 0o600)
            if sys.platform != "win32":
                os.fchmod(number, self.mode)
        with _closing(number):
            _check(number)
            yield number

    def _write(self, number: int, lines: bytes, size: int) -> None:
        start = b"\n" if size and _last(number, size) != b"\n" else b""
        try:
            _write_all(number, start + lines)
            os.fsync(number)
            if not size:
                _settle(self.path.parent)
        except OSError:
            with suppress(OSError):
                os.ftruncate(number, size)
            raise

    def _rotate(self) -> None:
        """Move the file to ``PATH.1``, the old ``PATH.1`` to ``PATH.2``, and so on."""
        for index in range(self.keep - 1, -1, -1):
            with suppress(FileNotFoundError):
                self._moved(index).replace(self._moved(index + 1))

    def _moved(self, index: int) -> Path:
        return self.path.with_name(f"{self.path.name}.{index}") if index else self.path


@contextmanager
def _closing(number: int) -> Iterator[None]:
    try:
        yield
    finally:
        os.close(number)


def _check(number: int) -> None:
    """Refuse an open file that is a device, a FIFO or a directory.

    Raises:
        NotAFileError: it is one of these.
    """
    if not stat.S_ISREG(os.fstat(number).st_mode):
        raise NotAFileError(0, "is not a regular file")


def _last(number: int, size: int) -> bytes:
    os.lseek(number, size - 1, os.SEEK_SET)
    return os.read(number, 1)


def _write_all(number: int, data: bytes) -> None:
    while data:
        data = data[os.write(number, data) :]


def _settle(folder: Path) -> None:
    """Sync the directory, so that the name of a new file is on the disk, too."""
    if sys.platform == "win32":
        return
    number = os.open(folder, os.O_RDONLY)
    with _closing(number):
        os.fsync(number)


@dataclass(slots=True)
class StandardOutput:
    """Writes lines to standard output.

    Attributes:
        timeout: seconds to wait for a reader to take a piece.
        is_torn: whether the last line was not written wholly.
    """

    timeout: float
    is_torn: bool = False

    def append(self, lines: bytes) -> None:
        """Write lines; return when the reader of the pipe or the disk has taken them.

        Raises:
            OSError: they could not be written; TimeoutError: the pipe has no reader.
        """
        self.look()
        rest = b"\n" + lines if self.is_torn else lines
        self.is_torn = True
        while rest:
            self._wait()
            rest = rest[os.write(STANDARD_OUTPUT, rest[:_PIECE]) :]
        self.is_torn = False
        if stat.S_ISREG(os.fstat(STANDARD_OUTPUT).st_mode):
            os.fsync(STANDARD_OUTPUT)

    def look(self) -> None:
        """Check whether there is a standard output.

        Raises:
            NotAFileError: there is none; its number may belong to another file.
        """
        if sys.stdout is None:
            raise NotAFileError(0, "is closed")

    def _wait(self) -> None:
        if sys.platform == "win32":
            return
        poll = select.poll()
        poll.register(STANDARD_OUTPUT, select.POLLOUT)
        if not poll.poll(self.timeout * 1000):
            raise TimeoutError
