"""Stands in for kernel32.dll: handles, jobs and processes, called through ctypes."""

import ctypes
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace

from bridge.sinks.command.windows_job import Kernel32

_BOOL, _DWORD, _HANDLE = ctypes.c_int32, ctypes.c_uint32, ctypes.c_void_p
KILL_ON_JOB_CLOSE, BREAKAWAY_OK = 0x2000, 0x0800
ACCESS_DENIED, INVALID_HANDLE, INVALID_PARAMETER = 5, 6, 87
_STILL_ACTIVE = 259


@dataclass(slots=True)
class FalseJob:
    """A job: the pids in it, and what Windows does when its handle is closed."""

    flags: int = 0
    members: set[int] = field(default_factory=set)


@dataclass
class FalseKernel32:
    """Windows, as far as a job speaks to it.

    Attributes:
        failing: functions that are refused.
        alive: the pids that run.
        on_open: told of each pid that was opened.
        on_kill: told of each pid that is ended by Windows.
        on_break: told of each group that is sent CTRL_BREAK.
        calls: what was called, in order.
        misuse: what Windows would have refused, or worse.
    """

    failing: set[str] = field(default_factory=set)
    alive: set[int] = field(default_factory=set)
    on_open: Callable[[int], object] = lambda _: None
    on_kill: Callable[[int], object] = lambda _: None
    on_break: Callable[[int], object] = lambda _: None
    calls: list[str] = field(default_factory=list)
    misuse: list[str] = field(default_factory=list)
    jobs: dict[int, FalseJob] = field(default_factory=dict)
    processes: dict[int, int] = field(default_factory=dict)
    error: int = 0
    _next: int = 0x7F00_0000_1000  # more than fits in 32 bits

    def kernel(self) -> Kernel32:
        return Kernel32.of(self.library(), lambda: self.error)

    def library(self) -> object:
        """Return what ``WinDLL`` returns, its types as Windows declares them."""
        kinds: dict[str, tuple[type, ...]] = {
            "CreateJobObjectW": (_HANDLE, _HANDLE, _HANDLE),
            "SetInformationJobObject": (_BOOL, _HANDLE, _BOOL, _HANDLE, _DWORD),
            "QueryInformationJobObject": (
                _BOOL,
                *(_HANDLE, _BOOL, _HANDLE, _DWORD, _HANDLE),
            ),
            "OpenProcess": (_HANDLE, _DWORD, _BOOL, _DWORD),
            "GetExitCodeProcess": (_BOOL, _HANDLE, _HANDLE),
            "AssignProcessToJobObject": (_BOOL, _HANDLE, _HANDLE),
            "TerminateJobObject": (_BOOL, _HANDLE, _DWORD),
            "GenerateConsoleCtrlEvent": (_BOOL, _DWORD, _DWORD),
            "CloseHandle": (_BOOL, _HANDLE),
        }
        return SimpleNamespace(
            **{
                name: ctypes.CFUNCTYPE(*kind)(self._door(name))
                for name, kind in kinds.items()
            }
        )

    def _door(self, name: str) -> Callable[..., int]:
        work: Callable[..., int] = getattr(self, f"_{name}")

        def call(*arguments: int | None) -> int:
            self.calls.append(name)
            if name in self.failing:
                return self._refuse(ACCESS_DENIED)
            return work(*arguments)

        return call

    def _refuse(self, error: int) -> int:
        self.error = error
        return 0

    def _wrong(self, text: str) -> int:
        self.misuse.append(text)
        return self._refuse(INVALID_HANDLE)

    def _new(self) -> int:
        self._next += 4
        return self._next

    def _CreateJobObjectW(self, security: int | None, name: int | None) -> int:  # noqa: N802 - a name of Windows
        if (security, name) != (None, None):
            return self._wrong("a job that others could open")
        handle = self._new()
        self.jobs[handle] = FalseJob()
        return handle

    def _SetInformationJobObject(  # noqa: N802 - a name of Windows
        self, job: int, kind: int, data: int, size: int
    ) -> int:
        if job not in self.jobs or (kind, size) != (9, 144):
            return self._wrong(f"limits {kind} of {size} bytes for {job:x}")
        values = struct.unpack("<16xI124x", ctypes.string_at(data, size))
        if any(ctypes.string_at(data, size)[:16] + ctypes.string_at(data + 20, 124)):
            return self._wrong("limits that nobody meant")
        self.jobs[job].flags = values[0]
        return 1

    def _QueryInformationJobObject(  # noqa: N802 - a name of Windows
        self, job: int, kind: int, data: int, size: int, length: int | None
    ) -> int:
        if job not in self.jobs or (kind, size, length) != (1, 48, None):
            return self._wrong(f"question {kind} of {size} bytes about {job:x}")
        active = len(self.jobs[job].members & self.alive)
        ctypes.memmove(data, struct.pack("<32x4I", 9, 9, active, 9), size)
        return 1

    def _OpenProcess(self, rights: int, inherit: int, pid: int) -> int:  # noqa: N802 - a name of Windows
        if rights != 0x1101 or inherit:
            return self._wrong(f"rights {rights:x} {inherit}")
        if pid not in self.alive:
            return self._refuse(INVALID_PARAMETER)
        handle = self._new()
        self.processes[handle] = pid
        self.on_open(pid)
        return handle

    def _GetExitCodeProcess(self, process: int, data: int) -> int:  # noqa: N802 - a name of Windows
        if process not in self.processes:
            return self._wrong(f"exit code of {process:x}")
        is_alive = self.processes[process] in self.alive
        code = struct.pack("<I", _STILL_ACTIVE if is_alive else 0)
        ctypes.memmove(data, code, 4)
        return 1

    def _AssignProcessToJobObject(self, job: int, process: int) -> int:  # noqa: N802 - a name of Windows
        if job not in self.jobs or process not in self.processes:
            return self._wrong(f"assign {process:x} to {job:x}")
        if self.processes[process] not in self.alive:
            return self._refuse(ACCESS_DENIED)
        self.jobs[job].members.add(self.processes[process])
        return 1

    def _TerminateJobObject(self, job: int, code: int) -> int:  # noqa: N802 - a name of Windows
        if job not in self.jobs or not code:
            return self._wrong(f"terminate {job:x} with {code}")
        self._end(self.jobs[job])
        return 1

    def _GenerateConsoleCtrlEvent(self, kind: int, group: int) -> int:  # noqa: N802 - a name of Windows
        if kind != 1 or not group:  # 0 is each process of the console: the bridge too
            return self._wrong(f"event {kind} to {group}")
        self.on_break(group)
        return 1

    def _CloseHandle(self, handle: int) -> int:  # noqa: N802 - a name of Windows
        if self.processes.pop(handle, None) is not None:
            return 1
        job = self.jobs.pop(handle, None)
        if job is None:
            return self._wrong(f"close {handle:x}")
        if job.flags & KILL_ON_JOB_CLOSE:
            self._end(job)
        return 1

    def _end(self, job: FalseJob) -> None:
        for pid in job.members & self.alive:
            self.alive.discard(pid)
            self.on_kill(pid)
