"""CloudEvents to a file or standard output, as lines of structured JSON.

For agents that read files, such as the Azure Monitor Agent or Fluent Bit. An event is
delivered when its line is on the disk.
"""

import asyncio
import errno
import re
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

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
from bridge.sinks.file.appending import Appender, NotAFileError, StandardOutput

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
        return _DASH if self.path == _DASH else str(Path(self.path).resolve())

    def faults(self) -> Iterator[tuple[str, ...]]:
        """Check the path and the numbers."""
        yield from BatchKeys.faults(self)
        if not self.path or not self.path.isprintable() or self.path[-1] in "/\\":
            yield "path", 'must be the path of a file, or "-" for standard output'
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
