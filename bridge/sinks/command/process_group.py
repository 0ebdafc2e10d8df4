"""A command and all that it has started: a process group, or a job on Windows."""

import asyncio
import os
import signal
import sys
from dataclasses import dataclass
from typing import Protocol


class Group(Protocol):
    """A process and all that it has started."""

    def terminate(self) -> None:
        """Ask all of it to end."""
        ...

    def kill(self) -> None:
        """End all of it."""
        ...

    def is_there(self) -> bool:
        """Whether anything of it is left."""
        ...

    def release(self) -> None:
        """Let what is left go on after ``close``."""
        ...

    def close(self) -> None:
        """Hold nothing of it any more; nothing else is called afterwards."""
        ...


class Groups(Protocol):
    """Knows what a process has started."""

    def of(self, process: asyncio.subprocess.Process) -> Group:
        """Return a process that has just begun, and all that it will start."""
        ...


if sys.platform == "win32":
    from bridge.sinks.command.windows_job import Jobs, kernel32

    def own_groups() -> Groups:
        """Return those of this system."""
        return Jobs(kernel32())

else:

    @dataclass(frozen=True, slots=True)
    class _ProcessGroup:
        """A process and all that it has started, unless they went away on purpose."""

        process: asyncio.subprocess.Process

        def terminate(self) -> None:
            """Ask all of it to end."""
            self._signal(signal.SIGTERM)

        def kill(self) -> None:
            """End all of it."""
            self._signal(signal.SIGKILL)

        def is_there(self) -> bool:
            """Whether anything of it is left."""
            return self._signal(0)

        def release(self) -> None:
            """Let what is left go on, as it does anyway."""

        def close(self) -> None:
            """Hold nothing."""

        def _signal(self, number: int) -> bool:
            """Send a signal to all of it; return whether there was anybody."""
            try:
                os.killpg(self.process.pid, number)
            except ProcessLookupError:
                return False
            except PermissionError:  # of another account: it cannot be ended from here
                return self.process.returncode is None
            return True

    @dataclass(frozen=True, slots=True)
    class _ProcessGroups:
        """The groups that POSIX makes when a process begins a session."""

        def of(self, process: asyncio.subprocess.Process) -> _ProcessGroup:
            """Return the group of a process."""
            return _ProcessGroup(process)

    def own_groups() -> Groups:
        """Return those of this system."""
        return _ProcessGroups()
