"""One run of a program, in a process group of its own and with a time limit.

    begin ──exits──▶ read for a second more ──▶ ended
      └──too long, or asked to stop──▶ SIGTERM to the group ──10 s──▶ SIGKILL ──▶ ended

On Windows the signal is CTRL_BREAK and the group a Job Object: see ``process_group``.

Standard input is a file, not a pipe: writing to it never blocks, even if the program
does not read it. The output is read as it comes, and little of it is kept.
"""

import asyncio
import errno
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from typing import Protocol

from msgspec import Struct, field

from bridge.foundation.clock import Clock
from bridge.sinks.command.output import Kept

# -- A command and all its children: a process group, or a job on Windows --------------


class Group(Protocol):
    """A process and all its children."""

    def terminate(self) -> None:
        """Ask all processes of the group to end."""
        ...

    def kill(self) -> None:
        """End all processes of the group."""
        ...

    def is_there(self) -> bool:
        """Whether any process of the group is left."""
        ...

    def release(self) -> None:
        """Let the processes that are left go on after ``close``."""
        ...

    def close(self) -> None:
        """Give back the resources of the group; it is not used afterwards."""
        ...


# Returns the group of a process that has just begun.
GroupOf = Callable[[asyncio.subprocess.Process], Group]


if sys.platform == "win32":
    from bridge.sinks.command.windows_job import Jobs, kernel32

    def own_group_of() -> GroupOf:
        """Return what makes the groups of this system: Job Objects."""
        return Jobs(kernel32()).of

else:

    class _ProcessGroup(Struct, frozen=True):
        """A process and its children, except those that left the group themselves.

        The process began a POSIX session of its own.
        """

        process: asyncio.subprocess.Process

        def terminate(self) -> None:
            """Send SIGTERM to the group."""
            self._signal(signal.SIGTERM)

        def kill(self) -> None:
            """Send SIGKILL to the group."""
            self._signal(signal.SIGKILL)

        def is_there(self) -> bool:
            """Whether any process of the group is left."""
            return self._signal(0)

        def release(self) -> None:
            """Do nothing: the processes that are left go on anyway."""

        def close(self) -> None:
            """Do nothing: a process group holds no resources."""

        def _signal(self, number: int) -> bool:
            """Send a signal to the group; return whether it has any process."""
            try:
                os.killpg(self.process.pid, number)
            except ProcessLookupError:
                return False
            except PermissionError:  # processes of another account cannot be ended
                return self.process.returncode is None
            return True

    def own_group_of() -> GroupOf:
        """Return what makes the groups of this system: POSIX process groups."""
        return _ProcessGroup


# -- One run of a program, in a process group of its own and with a time limit ---------


_CHUNK = 64 * 1024
_LOOK_EVERY = 0.05  # while a group that was asked to end still has processes
_TRANSIENT = {
    errno.EAGAIN,
    errno.EMFILE,
    errno.ENFILE,
    errno.ENOMEM,
    errno.EINTR,
    errno.EIO,
    errno.ETXTBSY,  # the program file is open for writing: it is being replaced
}
_NO_PROGRAM = 'it is no program; a script begins with a line such as "#!/bin/sh"'
_BAD_CHARACTER = "an argument or variable has a character that no program can be given"


class Exit(Struct, frozen=True, kw_only=True):
    """How a program ended.

    Attributes:
        code: the exit code; negative: minus the number of the signal that killed the
            program; None: it never ran.
        fault: why the program never ran.
        is_transient: whether it may run at a later attempt.
        timed_out: whether the program was ended because it took too long.
        was_stopped: whether the program was ended because the caller set ``stop``.
    """

    code: int | None
    fault: str | None = None
    is_transient: bool = False
    timed_out: bool = False
    was_stopped: bool = False
    output: str = ""
    seconds: float = 0.0


class Runner(Protocol):
    """Runs programs."""

    async def run(
        self,
        command: tuple[str, ...],
        *,
        given: bytes,
        environment: Mapping[str, str],
        limit: float,
        stop: asyncio.Event,
    ) -> Exit:
        """Run a program to its end; when cancelled, leave no process running.

        Args:
            command: the program and its arguments.
            given: its standard input.
            environment: all environment variables of the program.
            limit: seconds after which the program is ended.
            stop: when set, the program is ended at once.
        """
        ...


class ProcessRunner(Struct, frozen=True):
    """Runs programs as processes of this machine.

    Attributes:
        patience: seconds between SIGTERM and SIGKILL.
        linger: seconds for which output is read after the end of the program. A child
            that goes on may keep the pipe open for ever.
        group_of: finds and ends all processes that the program has started.
    """

    clock: Clock
    patience: float = 10.0
    linger: float = 1.0
    group_of: GroupOf = field(default_factory=own_group_of)

    async def run(
        self,
        command: tuple[str, ...],
        *,
        given: bytes,
        environment: Mapping[str, str],
        limit: float,
        stop: asyncio.Event,
    ) -> Exit:
        """Run a program to its end; see ``Runner.run``."""
        began = self.clock.monotonic()
        with _reading() as reading, _input_of(given) as source:
            try:
                process = await _started(command, environment, source, reading.end)
            except (OSError, ValueError) as error:
                return _never_ran(error)
            finally:
                reading.close_end()
            with closing(self.group_of(process)) as group:
                try:
                    is_over = await self._over(process, limit, stop)
                finally:
                    await self._finish(process, group)
            with suppress(TimeoutError):
                async with asyncio.timeout(self.linger):
                    await reading.is_over.wait()
            return Exit(
                code=process.returncode,
                timed_out=not is_over and not stop.is_set(),
                was_stopped=not is_over and stop.is_set(),
                output=reading.kept.text(),
                seconds=self.clock.monotonic() - began,
            )

    async def _over(
        self, process: asyncio.subprocess.Process, limit: float, stop: asyncio.Event
    ) -> bool:
        """Wait for the program; return False if time was up or ``stop`` was set."""
        ended = asyncio.ensure_future(process.wait())
        stopped = asyncio.ensure_future(stop.wait())
        try:
            await asyncio.wait(
                {ended, stopped}, timeout=limit, return_when=asyncio.FIRST_COMPLETED
            )
            return ended.done()
        finally:
            ended.cancel()
            stopped.cancel()

    async def _finish(self, process: asyncio.subprocess.Process, group: Group) -> None:
        """End the program and its children, unless it ended by itself."""
        if process.returncode is not None:
            group.release()  # children left on purpose, such as a service, go on
            return
        group.terminate()
        with suppress(TimeoutError):
            async with asyncio.timeout(self.patience):
                while group.is_there():  # noqa: ASYNC110 - nothing reports its end
                    await asyncio.sleep(_LOOK_EVERY)
        group.kill()
        await process.wait()


async def _started(
    command: tuple[str, ...], environment: Mapping[str, str], source: int, end: int
) -> asyncio.subprocess.Process:
    own_group: dict[str, object] = {"start_new_session": True}
    if sys.platform == "win32":
        own_group = {"creationflags": 0x00000200}  # CREATE_NEW_PROCESS_GROUP
    return await asyncio.create_subprocess_exec(
        *command,
        stdin=source,
        stdout=end,
        stderr=end,
        env=dict(environment),
        cwd=os.sep,
        **own_group,  # type: ignore[arg-type]  # arguments of Popen
    )


def _never_ran(error: OSError | ValueError) -> Exit:
    number = getattr(error, "errno", None)
    cause = getattr(error, "strerror", None) or _BAD_CHARACTER
    text = _NO_PROGRAM if number == errno.ENOEXEC else cause
    return Exit(code=None, fault=text, is_transient=number in _TRANSIENT)


class _Reading(Struct):
    """Reads a pipe as it fills.

    Attributes:
        start: the file descriptor to read from.
        end: the file descriptor for the program to write to; -1 once it is closed here.
        is_over: set when no process can write any more.
    """

    start: int
    end: int
    kept: Kept = field(default_factory=Kept)
    is_over: asyncio.Event = field(default_factory=asyncio.Event)

    def begin(self) -> None:
        """Begin to read."""
        if sys.platform == "win32":  # an event loop of Windows cannot wait for a pipe
            reader = threading.Thread(
                target=self._read_beside,
                args=(asyncio.get_running_loop(),),
                name="command-output",
                daemon=True,
            )
            reader.start()
            return
        os.set_blocking(self.start, False)
        asyncio.get_running_loop().add_reader(self.start, self._read)

    def close_end(self) -> None:
        """Close this process's copy of ``end``, so that the last writer ends it."""
        if self.end >= 0:
            os.close(self.end)
            self.end = -1

    def close(self) -> None:
        """Stop reading."""
        self.close_end()
        if sys.platform != "win32":
            asyncio.get_running_loop().remove_reader(self.start)
            os.close(self.start)

    def _read_beside(self, loop: asyncio.AbstractEventLoop) -> None:
        """Read in a thread, which ends when no process can write any more."""
        with suppress(OSError, RuntimeError):  # the loop may close before the writer
            while chunk := os.read(self.start, _CHUNK):
                loop.call_soon_threadsafe(self.kept.feed, chunk)
            loop.call_soon_threadsafe(self.is_over.set)
        os.close(self.start)

    def _read(self) -> None:
        try:
            chunk = os.read(self.start, _CHUNK)
        except BlockingIOError:
            return
        if chunk:
            self.kept.feed(chunk)
            return
        asyncio.get_running_loop().remove_reader(self.start)
        self.is_over.set()


@contextmanager
def _reading() -> Iterator[_Reading]:
    reading = _Reading(*os.pipe())
    try:
        reading.begin()
        yield reading
    finally:
        reading.close()


@contextmanager
def _input_of(given: bytes) -> Iterator[int]:
    """Yield the descriptor of a file without a name that holds the input."""
    if hasattr(os, "memfd_create"):
        number = os.memfd_create("sebridge-event")
        with open(number, "wb+", buffering=0) as file:  # noqa: PTH123 - a number
            file.write(given)
            file.seek(0)
            yield file.fileno()
        return
    with tempfile.TemporaryFile(buffering=0) as file:
        file.write(given)
        file.seek(0)
        yield file.fileno()
