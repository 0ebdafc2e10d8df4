"""A root with a hook in it, and a stand-in of systemd that starts the launcher."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from bridge.foundation.clock import SystemClock
from bridge.sinks.command.process import Exit
from bridge.sinks.command.unit import Places, UnitRunner

LAUNCHER = Path(__file__).parents[2] / "infra" / "systemd" / "hook_launcher.py"
UNIT = "sebridge-hook@drain.service"
PATIENCE = 60
VARIABLES = {
    "PATH": "/nowhere",
    "SEBRIDGE_ACTION": "prepare",
    "SEBRIDGE_SINK": "drain",
    "SEBRIDGE_ID": "cause-1",
    "SEBRIDGE_EVENT_ID": "E-1",
}


class Machine:
    """A root with a hook in it, and who starts the launcher for a request.

    Attributes:
        is_on: whether requests are heard.
    """

    def __init__(self, folder: Path) -> None:
        self.root, self.ran, self.pids = folder, folder / "ran", folder / "pids"
        self.hook = folder / "etc/sebridge/hooks/drain"
        self.places = Places(
            folder / "run/sebridge/hooks", folder / "run/sebridge-hook"
        )
        self.requests = self.places.requests / "drain"
        self.results = self.places.results / "drain"
        self.hook.parent.mkdir(parents=True)
        self.places.requests.parent.mkdir(parents=True)
        self.results.mkdir(parents=True)
        self.starts = 0
        self.is_on = True
        self.launcher: subprocess.Popen[bytes] | None = None

    def has(self, text: str, mode: int = 0o700) -> None:
        note = f'echo $$ >>"{self.pids}"'
        self.hook.write_text(f"#!/bin/sh\n{note}\n{text}\n")
        self.hook.chmod(mode)

    def runner(
        self, patience: float = PATIENCE, ending: float = PATIENCE
    ) -> UnitRunner:
        return UnitRunner(UNIT, SystemClock(), self.places, patience, ending)

    def launch(self, what: str, **environ: str) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(  # noqa: S603 - our own launcher
            [sys.executable, "-I", LAUNCHER, what, "drain", self.root],
            env={"PATH": os.environ["PATH"], **environ},
            stdout=subprocess.DEVNULL,
        )

    async def serve(self) -> None:
        """Start the service while there is a request, and say how it ended."""
        while True:
            await asyncio.sleep(0.02)
            if not self.is_on or not (self.requests / "request").exists():
                continue
            self.starts += 1
            self.launcher = self.launch("run")
            code = await asyncio.to_thread(self.launcher.wait)
            how = {"EXIT_CODE": "exited", "EXIT_STATUS": str(code)}
            if code < 0:
                how = {"EXIT_CODE": "killed", "EXIT_STATUS": "KILL"}
            result = {0: "success", -9: "oom-kill"}.get(code, "exit-code")
            finish = self.launch("finish", SERVICE_RESULT=result, **how)
            assert await asyncio.to_thread(finish.wait) == 0

    async def until_ran(self, count: int = 1) -> None:
        async with asyncio.timeout(PATIENCE):
            while self.ran.exists() is False or len(self.lines) < count:
                await asyncio.sleep(0.02)

    @property
    def lines(self) -> list[str]:
        return self.ran.read_text().splitlines()

    def end(self) -> None:
        """End what still runs: no systemd does it here."""
        if self.launcher is not None:
            self.launcher.kill()
            self.launcher.wait()
        for pid in self.pids.read_text().split() if self.pids.exists() else ():
            with suppress(ProcessLookupError):
                os.killpg(int(pid), signal.SIGKILL)


async def run(
    machine: Machine,
    given: Mapping[str, str] = VARIABLES,
    *,
    stop: asyncio.Event | None = None,
    limit: float = PATIENCE,
    runner: UnitRunner | None = None,
) -> Exit:
    return await (runner or machine.runner()).run(
        (),
        given=b'{"id":"1"}',
        environment=given,
        limit=limit,
        stop=stop or asyncio.Event(),
    )


@asynccontextmanager
async def running(
    machine: Machine, given: Mapping[str, str] = VARIABLES
) -> AsyncIterator["tuple[asyncio.Task[Exit], asyncio.Event]"]:
    stop = asyncio.Event()
    task = asyncio.create_task(run(machine, given, stop=stop))
    try:
        yield task, stop
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


@asynccontextmanager
async def machine_in(folder: Path) -> AsyncIterator[Machine]:
    """Yield a machine on which requests are heard."""
    found = Machine(folder)
    serving = asyncio.create_task(found.serve())
    try:
        yield found
    finally:
        serving.cancel()
        with suppress(asyncio.CancelledError):
            await serving
        found.end()
