"""Lines at the end of a file: whole, durable, and in a file that is kept small.

The file is opened for each line and closed again, so that whoever moves it away
(logrotate) needs to tell nobody. A line that a crash has torn is ended, not cut off: a
reader that has seen half of it must find its place again. What an attempt that failed
has left is cut off: it would grow with each further one, on a disk that is full.
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
_PIECE = 512  # what POSIX promises a pipe to take, or not, as a whole

# Each is of one kind of system.
_AS_IT_IS = getattr(os, "O_BINARY", 0)
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)
_NO_WAIT = getattr(os, "O_NONBLOCK", 0)  # for a FIFO that nobody reads
_FLAGS = os.O_RDWR | os.O_APPEND | _AS_IT_IS | _NO_LINK | _NO_WAIT


class NotAFileError(OSError):
    """What is there is no regular file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Appender:
    """Appends lines to a file.

    Attributes:
        max_size: bytes; before it is larger, it is moved to ``PATH.1``; 0 = never.
        keep: how many that were moved are kept.
        mode: permissions of a file that is made, whatever the umask.
    """

    path: Path
    max_size: int
    keep: int
    mode: int

    def append(self, line: bytes) -> None:
        """Append a line, and return when it is on the disk.

        Raises:
            OSError: it is not; nothing of it is left, if that could be helped.
        """
        with self._opened() as number:
            size = os.fstat(number).st_size
            if not (self.max_size and size and size + len(line) > self.max_size):
                self._write(number, line, size)
                return
        self._rotate()
        with self._opened() as number:
            self._write(number, line, os.fstat(number).st_size)

    def look(self) -> None:
        """Find out whether lines may be appended, and leave everything as it is.

        Raises:
            OSError: they may not.
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
        """Open the file; one that is not there is made."""
        try:
            number = os.open(self.path, _FLAGS)
        except FileNotFoundError:
            number = os.open(self.path, _FLAGS | os.O_CREAT | os.O_EXCL, 0o600)
            if sys.platform != "win32":
                os.fchmod(number, self.mode)
        with _closing(number):
            _check(number)
            yield number

    def _write(self, number: int, line: bytes, size: int) -> None:
        start = b"\n" if size and _last(number, size) != b"\n" else b""
        try:
            _write_all(number, start + line)
            os.fsync(number)
            if not size:
                _settle(self.path.parent)
        except OSError:
            with suppress(OSError):
                os.ftruncate(number, size)
            raise

    def _rotate(self) -> None:
        """Move the file to ``PATH.1``, that one to ``PATH.2``, and so on."""
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
    """Refuse what is open if it is a device, a FIFO or a directory.

    Raises:
        NotAFileError: it is.
    """
    if not stat.S_ISREG(os.fstat(number).st_mode):
        raise NotAFileError(0, "is no regular file")


def _last(number: int, size: int) -> bytes:
    os.lseek(number, size - 1, os.SEEK_SET)
    return os.read(number, 1)


def _write_all(number: int, data: bytes) -> None:
    while data:
        data = data[os.write(number, data) :]


def _settle(folder: Path) -> None:
    """Put the name of a new file onto the disk, too."""
    if sys.platform == "win32":
        return
    number = os.open(folder, os.O_RDONLY)
    with _closing(number):
        os.fsync(number)


@dataclass(slots=True)
class StandardOutput:
    """Lines to standard output.

    Attributes:
        timeout: seconds to wait for a reader to take a piece.
        is_torn: whether the last line was not written wholly.
    """

    timeout: float
    is_torn: bool = False

    def append(self, line: bytes) -> None:
        """Write a line, and return when whoever reads has taken it, or the disk has.

        Raises:
            OSError: it could not be written; TimeoutError: nobody reads.
        """
        self.look()
        rest = b"\n" + line if self.is_torn else line
        self.is_torn = True
        while rest:
            self._wait()
            rest = rest[os.write(STANDARD_OUTPUT, rest[:_PIECE]) :]
        self.is_torn = False
        if stat.S_ISREG(os.fstat(STANDARD_OUTPUT).st_mode):
            os.fsync(STANDARD_OUTPUT)

    def look(self) -> None:
        """Find out whether there is a standard output.

        Raises:
            NotAFileError: there is none, and its number may be another file's.
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
