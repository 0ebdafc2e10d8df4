"""A command and its children on Windows, in a Job Object.

    start ──▶ create the job ──▶ set its limits ──▶ assign the process
      stop ──▶ CTRL_BREAK to the process group ──10 s──▶ terminate the job ──▶ close
      the command ends by itself ──▶ lift the limit ──▶ close

If the bridge dies, Windows closes the handle, which ends all processes of the job.

The process already runs when it is assigned to the job: asyncio cannot create it
suspended and resume it later. A child that the process starts before the assignment (in
one or two turns of the event loop) is outside the job: CTRL_BREAK reaches the child,
but terminating the job does not end it. PowerShell needs more time to begin a script.
"""

import ctypes
import logging
import struct
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Protocol, Self

from msgspec import Struct

log = logging.getLogger(__name__)

_BASIC_ACCOUNTING, _EXTENDED_LIMITS = 1, 9  # JOBOBJECTINFOCLASS
_BREAKAWAY_OK, _KILL_ON_JOB_CLOSE = 0x0800, 0x2000  # JOB_OBJECT_LIMIT_…
_TERMINATE, _SET_QUOTA, _QUERY = 0x0001, 0x0100, 0x1000  # PROCESS_…
_CTRL_BREAK_EVENT = 1
_STILL_ACTIVE = 259
_KILLED = 1  # the exit code of terminated processes; Popen.kill uses the same

# ctypes.wintypes has other widths outside Windows; these have the same everywhere.
_BOOL, _DWORD, _ENUM = ctypes.c_int32, ctypes.c_uint32, ctypes.c_int32
_HANDLE = _POINTER = ctypes.c_void_p
_LIMITS = struct.Struct("@2qI2NIN2I6Q4N")  # JOBOBJECT_EXTENDED_LIMIT_INFORMATION
_LIMIT_FLAGS = 2
_ACCOUNTING = struct.Struct("@4q4I")  # JOBOBJECT_BASIC_ACCOUNTING_INFORMATION
_ACTIVE_PROCESSES = 6
_SIGNATURES: Mapping[str, tuple[type, ...]] = {  # the result first, then arguments
    "CreateJobObjectW": (_HANDLE, _POINTER, _POINTER),
    "SetInformationJobObject": (_BOOL, _HANDLE, _ENUM, _POINTER, _DWORD),
    "QueryInformationJobObject": (_BOOL, _HANDLE, _ENUM, _POINTER, _DWORD, _POINTER),
    "OpenProcess": (_HANDLE, _DWORD, _BOOL, _DWORD),
    "GetExitCodeProcess": (_BOOL, _HANDLE, _POINTER),
    "AssignProcessToJobObject": (_BOOL, _HANDLE, _HANDLE),
    "TerminateJobObject": (_BOOL, _HANDLE, _DWORD),
    "GenerateConsoleCtrlEvent": (_BOOL, _DWORD, _DWORD),
    "CloseHandle": (_BOOL, _HANDLE),
}


class Process(Protocol):
    """The process of a command, as asyncio returns it."""

    @property
    def pid(self) -> int:
        """The id of the process, which is also the id of its process group."""
        ...

    @property
    def returncode(self) -> int | None:
        """The exit code; None: the process runs."""
        ...

    def kill(self) -> None:
        """End this process, but not its children."""
        ...


class Kernel32(Struct, frozen=True):
    """The functions of kernel32.dll that a job needs.

    Attributes:
        functions: the functions by the names that Windows gives them.
        last_error: returns the number of the last error.
    """

    functions: Mapping[str, Callable[..., int | None]]
    last_error: Callable[[], int]

    @classmethod
    def of(cls, library: object, last_error: Callable[[], int]) -> Self:
        """Return the functions of a library, with the types of their arguments.

        Without these types ctypes would cut a handle to 32 bits.
        """
        functions = {}
        for name, (result, *arguments) in _SIGNATURES.items():
            function: Any = getattr(library, name)
            function.restype, function.argtypes = result, arguments
            functions[name] = function
        return cls(functions, last_error)

    def call(self, name: str, *arguments: object) -> int:
        """Call a function and return its result.

        Raises:
            OSError: the function failed.
        """
        result = self.functions[name](*arguments)
        if not result:
            raise OSError(f"{name}: Windows error {self.last_error()}")
        return result

    def close(self, handle: int) -> None:
        """Close a handle, only once: Windows may give its number to another."""
        with suppress(OSError):
            self.call("CloseHandle", handle)


def kernel32() -> Kernel32:
    """Return the functions of the real kernel32.dll.

    Raises:
        OSError: this is not Windows.
    """
    if sys.platform == "win32":
        library = ctypes.WinDLL("kernel32", use_last_error=True)
        return Kernel32.of(library, ctypes.get_last_error)
    raise OSError("kernel32.dll exists only on Windows")


class Jobs(Struct):
    """Puts each command into a job of its own.

    Attributes:
        is_logged: whether a command without a job was logged: once is enough.
    """

    kernel: Kernel32
    is_logged: bool = False

    def of(self, process: Process) -> "Job":
        """Return the job of a process; one without a handle if Windows refuses it."""
        handle = None
        if process.returncode is None:
            # The pid is not used again yet: asyncio keeps a handle until the end.
            try:
                handle = self._made(process.pid)
            except OSError as error:
                self._log(error)
        return Job(self.kernel, process, handle)

    def _made(self, pid: int) -> int | None:
        """Create a job with a process in it; return None if the process has ended."""
        job = self.kernel.call("CreateJobObjectW", None, None)
        is_in = False
        try:
            _limit(self.kernel, job, _BREAKAWAY_OK | _KILL_ON_JOB_CLOSE)
            is_in = self._assigned(job, pid)
        finally:
            if not is_in:
                self.kernel.close(job)
        return job if is_in else None

    def _assigned(self, job: int, pid: int) -> bool:
        """Put a process into a job; return False if it has ended."""
        rights = _TERMINATE | _SET_QUOTA | _QUERY
        process = self.kernel.call("OpenProcess", rights, 0, pid)
        try:
            self.kernel.call("AssignProcessToJobObject", job, process)
        except OSError:
            if self._runs(process):
                raise
            return False
        finally:
            self.kernel.close(process)
        return True

    def _runs(self, process: int) -> bool:
        code = _DWORD(_STILL_ACTIVE)
        with suppress(OSError):
            self.kernel.call("GetExitCodeProcess", process, ctypes.byref(code))
        return code.value == _STILL_ACTIVE

    def _log(self, error: OSError) -> None:
        if not self.is_logged:
            self.is_logged = True
            log.warning(
                "command runs without a Job Object", extra={"fault": str(error)}
            )


def _limit(kernel: Kernel32, job: int, flags: int) -> None:
    values = [0] * len(_LIMITS.unpack(bytes(_LIMITS.size)))
    values[_LIMIT_FLAGS] = flags
    limits = ctypes.create_string_buffer(_LIMITS.pack(*values), _LIMITS.size)
    kernel.call("SetInformationJobObject", job, _EXTENDED_LIMITS, limits, _LIMITS.size)


class Job(Struct):
    """A process and its children, except those that left the job themselves.

    Attributes:
        handle: the handle of the job; None: there is no job, and ``kill`` ends only
            the process.
    """

    kernel: Kernel32
    process: Process
    handle: int | None

    def terminate(self) -> None:
        """Send CTRL_BREAK to the process group.

        This does not use ``Process.send_signal``: if Windows refuses, Python 3.11 and
        3.12 end the process at once and raise SystemError (python/cpython#87128).
        """
        try:
            self.kernel.call(
                "GenerateConsoleCtrlEvent", _CTRL_BREAK_EVENT, self.process.pid
            )
        except OSError as error:
            log.warning("command cannot be asked to end", extra={"fault": str(error)})

    def kill(self) -> None:
        """End all processes of the job."""
        if self.handle is not None:
            with suppress(OSError):
                self.kernel.call("TerminateJobObject", self.handle, _KILLED)
                return
        with suppress(OSError):  # it has ended
            self.process.kill()

    def is_there(self) -> bool:
        """Whether any process of the job is left."""
        if self.handle is not None:
            with suppress(OSError):
                return self._active(self.handle) > 0
        return self.process.returncode is None

    def release(self) -> None:
        """Let the processes that are left go on after the handle is closed."""
        if self.handle is None:
            return
        try:
            _limit(self.kernel, self.handle, _BREAKAWAY_OK)
        except OSError as error:
            log.warning(
                "what a command left running is ended", extra={"fault": str(error)}
            )

    def close(self) -> None:
        """Close the handle, which ends the processes left, except after ``release``."""
        handle, self.handle = self.handle, None
        if handle is not None:
            self.kernel.close(handle)

    def _active(self, job: int) -> int:
        found, size = ctypes.create_string_buffer(_ACCOUNTING.size), _ACCOUNTING.size
        self.kernel.call(
            "QueryInformationJobObject", job, _BASIC_ACCOUNTING, found, size, None
        )
        return int(_ACCOUNTING.unpack(found)[_ACTIVE_PROCESSES])
