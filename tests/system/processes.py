"""Real processes for integration tests: the simulator and the forwarder.

Where it does not matter what process it is, the simulator is in a thread of this one.
"""

import asyncio
import json
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from bridge.simulator.serve import Simulator, SimulatorOptions
from tests.support.configurations import (
    approvals,
    config_text,
    servicebus,
    slack,
    webhook,
)

PATIENCE = 60.0
_STARTED: list[asyncio.subprocess.Process] = []


async def started(*command: str, **options: Any) -> asyncio.subprocess.Process:
    """Start a process that does not outlive the test."""
    process = await asyncio.create_subprocess_exec(*command, **options)
    _STARTED.append(process)
    return process


def kill_rest() -> None:
    """Kill what a test has started and not ended: it failed in between."""
    for process in _STARTED:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
    _STARTED.clear()


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where a running simulator listens."""

    imds: str
    connection_string: str
    inbox: str
    pid: int

    async def messages(self, path: str = "") -> list[dict[str, object]]:
        """Return what the inbox has received."""
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"{self.inbox}/messages", params={"path": path}) as response,
        ):
            found: list[dict[str, object]] = await response.json()
            return found

    async def control(self, method: str, path: str, body: object = None) -> object:
        """Drive the simulated IMDS."""
        url = f"{self.imds}/simulator/{path}"
        async with (
            aiohttp.ClientSession() as session,
            session.request(method, url, json=body) as response,
        ):
            assert response.status == 200, await response.text()
            return await response.json()


@asynccontextmanager
async def simulator(
    *arguments: str, environ: Mapping[str, str] | None = None
) -> AsyncIterator[Addresses]:
    """Run ``sebridge simulate`` as a process of its own."""
    process = await started(
        *(sys.executable, "-m", "bridge", "simulate", *arguments),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, **(environ or {})},
    )
    assert process.stdout is not None
    try:
        line = await asyncio.wait_for(process.stdout.readline(), PATIENCE)
        yield _addresses(json.loads(line), process.pid)
    finally:
        await ended(process)


@asynccontextmanager
async def simulator_here(**options: Any) -> AsyncIterator[Addresses]:
    """Run the simulator in a thread: a process of its own takes half a second of CPU.

    Its pid is that of the tests, so nobody stops or counts it.

    Args:
        options: the fields of SimulatorOptions.
    """
    opened: Future[tuple[Addresses, asyncio.AbstractEventLoop, asyncio.Event]]
    opened = Future()

    async def serve() -> None:
        stop = asyncio.Event()
        async with Simulator(SimulatorOptions(**options)) as running:
            at = _addresses(running.addresses(), os.getpid())
            opened.set_result((at, asyncio.get_running_loop(), stop))
            await stop.wait()

    def work() -> None:
        try:
            asyncio.run(serve())
        except BaseException as error:
            if opened.done():
                raise
            opened.set_exception(error)

    thread = threading.Thread(target=work, name="simulator", daemon=True)
    thread.start()
    at, loop, stop = await asyncio.wait_for(asyncio.wrap_future(opened), PATIENCE)
    try:
        yield at
    finally:
        loop.call_soon_threadsafe(stop.set)
        while thread.is_alive():
            await asyncio.sleep(0.005)


def _addresses(found: Mapping[str, Mapping[str, str]], pid: int) -> Addresses:
    return Addresses(
        imds=found["imds"]["url"],
        connection_string=found["servicebus"]["connectionString"],
        inbox=found["inbox"]["url"],
        pid=pid,
    )


async def ended(process: asyncio.subprocess.Process) -> int:
    """Ask a process to stop, and return its exit code."""
    if process.returncode is None:
        process.send_signal(signal.SIGTERM)
    return await asyncio.wait_for(process.wait(), PATIENCE)


async def forwarder(
    config: Path,
    environ: Mapping[str, str] | None = None,
    before: Sequence[str] = (),
) -> asyncio.subprocess.Process:
    """Start ``sebridge run`` as a process of its own; its log stands beside.

    Args:
        config: the configuration file.
        environ: more variables of its environment.
        before: a command that becomes the forwarder, such as ``setpriv``.
    """
    with config.with_suffix(".log").open("ab") as log:
        return await started(
            *(*before, sys.executable, "-m", "bridge", "run", "-c", str(config)),
            stdout=log,
            stderr=log,
            env={**os.environ, **(environ or {})},
        )


def written_config(folder: Path, at: Addresses, name: str = "bridge") -> Path:
    """Write a configuration with all three sinks and approvals."""
    path = folder / f"{name}.toml"
    path.write_text(
        config_text(
            servicebus(at.connection_string),
            slack(f"{at.inbox}/slack/ops", max_rate=20),
            webhook(f"{at.inbox}/siem"),
            imds=at.imds,
            state=folder / f"{name}.db",
            approvals=approvals(at.connection_string, reply_to=["replies"]),
        )
    )
    return path


async def settled(config: Path, since: int) -> None:
    """Wait until a forwarder has said that it started, past ``since`` bytes of log."""
    log = config.with_suffix(".log")
    async with asyncio.timeout(PATIENCE):
        while b"forwarder started" not in log.read_bytes()[since:]:
            await asyncio.sleep(0.05)
