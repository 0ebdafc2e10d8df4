"""A command on Windows: its Job Object, on any system, by a false kernel32.dll."""

import asyncio
import logging
import os
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from bridge.foundation.clock import SystemClock
from bridge.sinks.command.process import ProcessRunner
from bridge.sinks.command.windows_job import Job, Jobs, kernel32
from tests.sinks.false_kernel32 import (
    BREAKAWAY_OK,
    KILL_ON_JOB_CLOSE,
    FalseKernel32,
)

PID, CHILD = 4100, 4200
MAKING = [
    "CreateJobObjectW",
    "SetInformationJobObject",
    "OpenProcess",
    "AssignProcessToJobObject",
]
FUNCTIONS = [
    *MAKING,
    "QueryInformationJobObject",
    "GetExitCodeProcess",
    "TerminateJobObject",
    "GenerateConsoleCtrlEvent",
    "CloseHandle",
]
WITHOUT = "command runs without a Job Object"


@dataclass
class FalseProcess:
    """The process of a command; its end is known as soon as it has come."""

    windows: FalseKernel32
    pid: int = PID

    @property
    def returncode(self) -> int | None:
        return None if self.pid in self.windows.alive else 1

    def kill(self) -> None:
        if self.pid not in self.windows.alive:
            raise ProcessLookupError
        self.windows.alive.discard(self.pid)


@pytest.fixture
def windows() -> FalseKernel32:
    return FalseKernel32(alive={PID})


def job_of(windows: FalseKernel32) -> Job:
    return Jobs(windows.kernel()).of(FalseProcess(windows))


def fork(windows: FalseKernel32) -> None:
    """Have the command start a child: Windows puts it into the job of its parent."""
    windows.alive.add(CHILD)
    for job in windows.jobs.values():
        job.members.add(CHILD)


def test_job_is_made_limited_and_given_the_process_in_this_order(
    windows: FalseKernel32,
) -> None:
    job_of(windows)

    assert windows.calls == [*MAKING, "CloseHandle"]
    assert windows.processes == {}  # that of the process is closed at once
    (job,) = windows.jobs.values()
    assert job.members == {PID}
    assert job.flags == KILL_ON_JOB_CLOSE | BREAKAWAY_OK


def test_stop_asks_first_then_ends_the_child_too(windows: FalseKernel32) -> None:
    asked: list[int] = []
    windows.on_break = asked.append
    job = job_of(windows)
    fork(windows)

    job.terminate()
    assert (asked, windows.alive) == ([PID], {PID, CHILD})
    windows.alive.discard(PID)
    assert job.is_there()  # the child is left
    job.kill()
    assert not job.is_there()
    job.close()

    assert windows.alive == set()
    assert windows.jobs == {}
    assert windows.calls[5:] == [
        "GenerateConsoleCtrlEvent",
        "QueryInformationJobObject",
        "TerminateJobObject",
        "QueryInformationJobObject",
        "CloseHandle",
    ]


def test_what_a_command_left_on_purpose_goes_on(windows: FalseKernel32) -> None:
    job = job_of(windows)
    fork(windows)
    windows.alive.discard(PID)

    job.release()
    job.close()

    assert windows.alive == {CHILD}
    assert windows.jobs == {}


def test_handle_that_is_closed_without_release_ends_all(windows: FalseKernel32) -> None:
    """As when the bridge dies: Windows closes its handles."""
    job = job_of(windows)
    fork(windows)

    job.close()

    assert windows.alive == set()


def test_limit_that_cannot_be_lifted_is_reported(
    windows: FalseKernel32, caplog: pytest.LogCaptureFixture
) -> None:
    job = job_of(windows)
    windows.failing = {"SetInformationJobObject"}

    job.release()
    job.close()

    assert caplog.messages == ["what a command left running is ended"]
    assert windows.alive == set()


@pytest.mark.parametrize("name", MAKING)
def test_job_that_cannot_be_made_is_reported_once_and_the_command_runs(
    windows: FalseKernel32, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    windows.failing = {name}
    jobs = Jobs(windows.kernel())

    for _ in range(2):
        job = jobs.of(FalseProcess(windows))
        assert (job.handle, job.is_there()) == (None, True)
        job.release()
        job.close()

    assert windows.alive == {PID}
    assert (windows.jobs, windows.processes, windows.misuse) == ({}, {}, [])
    (record,) = caplog.records
    assert (record.message, record.levelno) == (WITHOUT, logging.WARNING)
    assert vars(record)["fault"] == f"{name}: Windows error 5"


def test_without_a_job_the_command_is_ended_alone(windows: FalseKernel32) -> None:
    windows.failing = {"CreateJobObjectW"}
    job = job_of(windows)
    fork(windows)

    job.terminate()
    job.kill()
    job.kill()  # it has ended: nothing to do

    assert windows.alive == {CHILD}
    assert not job.is_there()


def test_command_that_has_ended_needs_no_job(
    windows: FalseKernel32, caplog: pytest.LogCaptureFixture
) -> None:
    windows.alive.clear()

    assert job_of(windows).handle is None
    assert (windows.calls, caplog.messages) == ([], [])


def test_command_that_ends_before_it_is_assigned_is_no_trouble(
    windows: FalseKernel32, caplog: pytest.LogCaptureFixture
) -> None:
    """asyncio does not know yet; Windows refuses a process that has ended."""

    class Late(FalseProcess):
        @property
        def returncode(self) -> int | None:
            return None

    windows.on_open = windows.alive.discard
    job = Jobs(windows.kernel()).of(Late(windows))

    assert job.handle is None
    assert caplog.messages == []
    assert "AssignProcessToJobObject" in windows.calls
    assert (windows.jobs, windows.processes, windows.misuse) == ({}, {}, [])


def test_ctrl_break_that_is_refused_is_reported_and_ends_nothing(
    windows: FalseKernel32, caplog: pytest.LogCaptureFixture
) -> None:
    """A service may have no console; then nothing but the end itself is left."""
    windows.failing = {"GenerateConsoleCtrlEvent"}
    job = job_of(windows)

    job.terminate()
    assert windows.alive == {PID}
    job.kill()

    assert windows.alive == set()
    assert caplog.messages == ["command cannot be asked to end"]


def test_job_that_cannot_be_terminated_ends_when_its_handle_is_closed(
    windows: FalseKernel32,
) -> None:
    windows.failing = {"TerminateJobObject"}
    job = job_of(windows)
    fork(windows)

    job.kill()
    assert windows.alive == {CHILD}
    job.close()

    assert windows.alive == set()


def test_job_that_cannot_be_asked_about_is_there_as_long_as_its_process(
    windows: FalseKernel32,
) -> None:
    windows.failing = {"QueryInformationJobObject"}
    job = job_of(windows)
    fork(windows)

    assert job.is_there()
    windows.alive.discard(PID)
    assert not job.is_there()


def test_handle_is_closed_once_even_where_windows_refuses(
    windows: FalseKernel32,
) -> None:
    """A second try could close what has got the same number since."""
    job = job_of(windows)
    windows.failing = {"CloseHandle"}

    job.close()
    job.close()

    assert windows.calls[5:] == ["CloseHandle"]


class JobMachine(RuleBasedStateMachine):
    """Any order of calls and refusals: no handle is lost, none is used once closed."""

    def __init__(self) -> None:
        super().__init__()
        self.windows = FalseKernel32()
        self.job: Job | None = None

    @initialize(failing=st.sets(st.sampled_from(FUNCTIONS[:-1])))
    def begin(self, failing: set[str]) -> None:
        self.windows.failing = failing
        self.jobs = Jobs(self.windows.kernel())

    @rule(failing=st.sets(st.sampled_from(FUNCTIONS[:-1]), max_size=3))
    def refuse(self, failing: set[str]) -> None:
        self.windows.failing = failing

    @precondition(lambda self: self.job is None)
    @rule(is_alive=st.booleans())
    def start(self, *, is_alive: bool) -> None:
        self.windows.alive = {PID} if is_alive else set()
        self.job = self.jobs.of(FalseProcess(self.windows))

    @precondition(lambda self: self.job is not None and PID in self.windows.alive)
    @rule()
    def start_a_child(self) -> None:
        fork(self.windows)

    @rule(pid=st.sampled_from([PID, CHILD]))
    def end_by_itself(self, pid: int) -> None:
        self.windows.alive.discard(pid)

    @precondition(lambda self: self.job is not None)
    @rule(name=st.sampled_from(["terminate", "kill", "is_there", "release"]))
    def call(self, name: str) -> None:
        getattr(self.job, name)()
        if name == "kill":
            assert PID not in self.windows.alive

    @precondition(lambda self: self.job is not None)
    @rule()
    def close(self) -> None:
        assert self.job is not None
        self.job.close()
        self.job.close()
        assert (self.windows.jobs, self.windows.processes) == ({}, {})
        self.job = None

    @invariant()
    def nothing_is_used_once_it_is_closed(self) -> None:
        assert self.windows.misuse == []

    @invariant()
    def handles_are_those_of_the_job_alone(self) -> None:
        handle = None if self.job is None else self.job.handle
        assert set(self.windows.jobs) == ({handle} if handle else set())
        assert self.windows.processes == {}


JobMachine.TestCase.settings = settings(max_examples=60, deadline=None)
test_any_order_of_calls_and_refusals = JobMachine.TestCase


# -- with real processes -----------------------------------------------------------

posix = pytest.mark.skipif(os.name != "posix", reason="stands in for Windows")


@dataclass
class Here:
    """A Windows whose processes are those of this machine."""

    windows: FalseKernel32 = field(default_factory=FalseKernel32)
    running: dict[int, asyncio.subprocess.Process] = field(default_factory=dict)

    def of(self, process: asyncio.subprocess.Process) -> Job:
        """Tell Windows of a process, then ask the product about it."""
        self.running[process.pid] = process
        self.windows.alive.add(process.pid)
        self.windows.on_kill = self.kill
        self.windows.on_break = self.interrupt
        return Jobs(self.windows.kernel()).of(process)

    def kill(self, pid: int) -> None:
        with suppress(ProcessLookupError):
            self.running[pid].kill()

    def interrupt(self, pid: int) -> None:
        self.running[pid].send_signal(signal.SIGINT)


def runner_on(windows: FalseKernel32) -> ProcessRunner:
    of = Here(windows).of
    return ProcessRunner(SystemClock(), patience=0.2, linger=0.2, group_of=of)


@posix
@pytest.mark.parametrize("failing", [[], *([name] for name in FUNCTIONS)])
async def test_stop_of_a_command_ends_it_whatever_windows_refuses(
    tmp_path: Path, failing: list[str]
) -> None:
    windows, stop, begun = FalseKernel32(), asyncio.Event(), tmp_path / "begun"
    windows.failing = set(failing)
    script = f"trap '' INT; touch {begun}; exec sleep 300"
    running = asyncio.create_task(
        runner_on(windows).run(
            ("/bin/sh", "-c", script),
            given=b"",
            environment={"PATH": os.environ["PATH"]},
            limit=300.0,
            stop=stop,
        )
    )
    async with asyncio.timeout(60):
        while not begun.exists():
            await asyncio.sleep(0.01)
    stop.set()
    found = await running

    assert (found.was_stopped, found.code) == (True, -signal.SIGKILL)
    assert "GenerateConsoleCtrlEvent" in windows.calls
    assert windows.misuse == []
    if "CloseHandle" not in failing:
        assert (windows.jobs, windows.processes) == ({}, {})


@posix
async def test_command_that_ends_by_itself_is_released_and_its_job_closed() -> None:
    windows = FalseKernel32()
    found = await runner_on(windows).run(
        ("/bin/sh", "-c", "echo out; exit 3"),
        given=b"",
        environment={"PATH": os.environ["PATH"]},
        limit=300.0,
        stop=asyncio.Event(),
    )

    assert (found.code, found.output) == (3, "out")
    assert "TerminateJobObject" not in windows.calls
    assert windows.calls[-2:] == ["SetInformationJobObject", "CloseHandle"]
    assert (windows.jobs, windows.misuse) == ({}, [])


# -- where it is loaded ------------------------------------------------------------

LOADED = """
import asyncio, subprocess, sys, tempfile, aiohttp  # as they are here
sys.platform = {platform!r}
import bridge.sinks.command.sink
print("bridge.sinks.command.windows_job" in sys.modules)
"""


@pytest.mark.integration
@pytest.mark.parametrize(("platform", "is_loaded"), [("linux", False), ("win32", True)])
def test_job_is_loaded_on_windows_alone(platform: str, *, is_loaded: bool) -> None:
    found = subprocess.run(  # noqa: S603 - our own text
        [sys.executable, "-c", LOADED.format(platform=platform)],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[2],
    )

    assert found.stdout == f"{is_loaded}\n", found.stderr


@posix
def test_kernel32_is_missed_elsewhere() -> None:
    with pytest.raises(OSError, match="exists only on Windows"):
        kernel32()
