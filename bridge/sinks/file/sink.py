"""CloudEvents to a file or standard output, as lines of structured JSON.

For agents that read files, such as the Azure Monitor Agent or Fluent Bit. An event is
delivered when its line is on the disk.
"""

import asyncio
import errno
import os
import re
import select
import stat
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from msgspec import Struct

from bridge.events.cloudevent import CloudEvent
from bridge.foundation.errors import (
    DeliveryError,
    Reason,
    RefusedDeliveryError,
    TransientDeliveryError,
)
from bridge.foundation.values import Duration, Size
from bridge.sinks.base import Preview, Resources
from bridge.sinks.batch import BatchKeys

# -- Append whole, durable lines to a file of limited size -----------------------------
#
# The file is opened for each write and closed again, so logrotate may move it at any
# time without a signal. If a crash has left a torn line, the line is ended, not cut
# off: a reader that has read half of it must find its place again. What a failed
# attempt has written is cut off: otherwise a full disk would get more of it with each
# attempt.


STANDARD_OUTPUT = 1
_PIECE = 512  # bytes that POSIX promises to write to a pipe in one piece or not at all

# Each flag exists on one kind of system only.
_AS_IT_IS = getattr(os, "O_BINARY", 0)
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)
_NO_WAIT = getattr(os, "O_NONBLOCK", 0)  # for a FIFO without a reader
_FLAGS = os.O_RDWR | os.O_APPEND | _AS_IT_IS | _NO_LINK | _NO_WAIT


class NotAFileError(OSError):
    """The path is not a regular file."""


class Appender(Struct, frozen=True, kw_only=True):
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


class StandardOutput(Struct):
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


# -- CloudEvents to a file or standard output, as lines of structured JSON -------------


_DASH = "-"
_MISSING = {errno.ENOENT, errno.ENOTDIR}
_FORBIDDEN = {errno.EACCES, errno.EPERM, errno.EISDIR}


class FileSinkConfig(BatchKeys, frozen=True, kw_only=True):
    """``[[sinks]]`` with ``type = "file"``.

    Attributes:
        path: the file that lines are appended to; "-" is standard output. It must not
            be a symbolic link. Example: ``"/var/log/sebridge/events.jsonl"``.
        max_size: a file that would grow larger is moved to PATH.1; 0 means never, for
            logrotate.
        keep: how many of the moved files are kept. Example: ``5``.
        mode: the permissions of a new file. Example: ``"0640"``.
        timeout: how long one attempt may take.
    """

    concurrency: ClassVar[int] = 1  # one line after another

    path: str
    max_size: Size = Size(10_000_000)
    keep: int = 5
    mode: str = "0640"
    timeout: Duration = Duration(10)

    @property
    def file(self) -> str:
        """The file that the sink writes; see ``SinkConfig.file``."""
        return _DASH if self.path == _DASH else os.path.realpath(self.path)

    def faults(self) -> Iterator[tuple[str, ...]]:
        """Check the path and the numbers."""
        yield from BatchKeys.faults(self)
        is_path = self.path and self.path.isprintable() and self.path[0] != "~"
        if not is_path or self.path[-1] in "/\\":
            text = 'must be the path of a file, or "-" for standard output'
            yield "path", f"{text}; ~ is not expanded"
        if not 1 <= self.keep <= 1000:
            yield "keep", "must be 1 to 1000"
        if not re.fullmatch("0?[0-7]{3}", self.mode):
            yield "mode", 'must be permissions in octal, such as "0640"'
        if not self.timeout:
            yield "timeout", "must be more than 0s"
        if self.batch > 1 and 0 < self.max_size < self.batch_size:
            what = "must not be more than max_size: a file holds whole batches"
            yield "batch_size", what, "max_size"

    @asynccontextmanager
    async def open(
        self,
        resources: Resources,  # noqa: ARG002 - the contract's
    ) -> AsyncIterator["FileSink"]:
        """Create the sink; the file is opened for each line."""
        yield FileSink(name=self._name, target=self._target(), timeout=self.timeout)

    async def reach(self, resources: Resources) -> str:  # noqa: ARG002 - the contract's
        """Check whether lines can be written, and write none; see ``SinkConfig``."""
        with _errors(self._name):
            async with asyncio.timeout(self.timeout):
                await asyncio.to_thread(self._target().look)
        return f"{self._name} can be written to"

    async def preview(
        self,
        resources: Resources,  # noqa: ARG002 - the contract's
        event: CloudEvent,
    ) -> Preview:
        """Return the line; see ``SinkConfig.preview``."""
        return Preview(head=(f"append to {self._name}",), body=render(event))

    @property
    def _name(self) -> str:
        return "standard output" if self.path == _DASH else self.path

    def _target(self) -> Appender | StandardOutput:
        if self.path == _DASH:
            return StandardOutput(timeout=self.timeout)
        return Appender(
            path=Path(self.path),
            max_size=self.max_size,
            keep=self.keep,
            mode=int(self.mode, 8),
        )


@dataclass(slots=True, kw_only=True)
class FileSink:
    """Appends each event to one file.

    Attributes:
        name: the name of the file in errors.
    """

    name: str
    target: Appender | StandardOutput
    timeout: float
    _work: asyncio.Task[None] | None = field(default=None, init=False)

    async def deliver(self, event: CloudEvent) -> None:
        """Append the event; see ``Sink.deliver``.

        Raises:
            TransientDeliveryError: the disk is full, fails or does not answer.
            RefusedDeliveryError: the directory does not exist, or access is denied.
        """
        await self._append(render(event))

    async def deliver_many(
        self, events: Sequence[CloudEvent]
    ) -> Sequence[DeliveryError | None]:
        """Append several events with one write; see ``BatchSink.deliver_many``.

        Raises:
            TransientDeliveryError: as ``deliver``; no line is left, if possible.
            RefusedDeliveryError: as ``deliver``.
        """
        await self._append(b"".join(map(render, events)))
        return [None] * len(events)

    async def _append(self, lines: bytes) -> None:
        with _errors(self.name):
            async with asyncio.timeout(self.timeout):
                # An urgent event can come during another write. A thread cannot be
                # cancelled, so only one may hang.
                while self._work is not None and not self._work.done():
                    await asyncio.wait([self._work])
                self._work = asyncio.create_task(
                    asyncio.to_thread(self.target.append, lines)
                )
                self._work.add_done_callback(_seen)
                await asyncio.shield(self._work)


def _seen(work: asyncio.Task[None]) -> None:
    """Fetch the result of a write, so that asyncio does not warn about it."""
    if not work.cancelled():
        work.exception()


def render(event: CloudEvent) -> bytes:
    """Return the line for an event: JSON has no line breaks of its own."""
    return event.to_json() + b"\n"


@contextmanager
def _errors(name: str) -> Iterator[None]:
    """Turn errors of the file system into delivery errors."""
    try:
        yield
    except TimeoutError:
        text = f"{name} does not accept what is written in time"
        raise TransientDeliveryError(text, Reason.TIMEOUT) from None
    except NotAFileError as error:
        text = f"{name} {error.strerror}"
        raise RefusedDeliveryError(text, Reason.REJECTED) from None
    except OSError as error:
        raise _failure(name, error) from None


def _failure(
    name: str, error: OSError
) -> RefusedDeliveryError | TransientDeliveryError:
    text = f"{name} cannot be written to ({error.strerror or type(error).__name__})"
    if error.errno == errno.ELOOP:
        return RefusedDeliveryError(f"{name} is a symbolic link", Reason.REJECTED)
    if error.errno in _MISSING:
        return RefusedDeliveryError(text, Reason.NOT_FOUND)
    if error.errno in _FORBIDDEN or isinstance(error, PermissionError):
        return RefusedDeliveryError(text, Reason.UNAUTHORIZED)
    reason = Reason.CONNECTION if error.errno == errno.EPIPE else Reason.SERVER
    return TransientDeliveryError(text, reason)
