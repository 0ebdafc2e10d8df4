"""A command and all its children: a process group, or a job on Windows."""

import asyncio
import os
import signal
import sys
from dataclasses import dataclass
from typing import Protocol


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


class Groups(Protocol):
    """Makes the group of a process."""

    def of(self, process: asyncio.subprocess.Process) -> Group:
        """Return the group of a process that has just begun."""
        ...


if sys.platform == "win32":
    from bridge.sinks.command.windows_job import Jobs, kernel32

    def own_groups() -> Groups:
        """Return the groups of this system: Job Objects."""
        return Jobs(kernel32())

else:

    @dataclass(frozen=True, slots=True)
    class _ProcessGroup:
        """A process and its children, except those that left the group themselves."""

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

    @dataclass(frozen=True, slots=True)
    class _ProcessGroups:
        """Makes the group of a process, which began a POSIX session of its own."""

        def of(self, process: asyncio.subprocess.Process) -> _ProcessGroup:
            """Return the group of a process."""
            return _ProcessGroup(process)

    def own_groups() -> Groups:
        """Return the groups of this system: POSIX process groups."""
        return _ProcessGroups()
