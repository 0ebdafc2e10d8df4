"""How long a command that does not end is waited for: the contract's real seconds."""

import asyncio
import os
import sys
from pathlib import Path

import pytest

from bridge.foundation.clock import SystemClock
from bridge.sinks.command.process import Exit, ProcessRunner
from tests.sinks.hook_machine import machine_in
from tests.sinks.hook_machine import run as run_by_root
from tests.support.stopwatch import Stopwatch

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(sys.platform != "linux", reason="processes of Linux"),
]
DEAF = "trap '' TERM\nwhile :; do sleep 0.1; done\n"
LIMIT = 0.5


async def run(folder: Path, text: str, limit: float = 60.0) -> Exit:
    hook = folder / "hook"
    hook.write_text(f"#!/bin/sh\n{text}\n")
    hook.chmod(0o700)
    return await ProcessRunner(SystemClock()).run(
        (str(hook),),
        given=b"{}",
        environment={"PATH": os.environ["PATH"]},
        limit=limit,
        stop=asyncio.Event(),
    )


@pytest.mark.slow
async def test_one_that_ignores_sigterm_is_killed_after_10_s(tmp_path: Path) -> None:
    """By whoever runs it: the forwarder, or root's launcher."""
    by_root = tmp_path / "root"
    by_root.mkdir()
    async with machine_in(by_root) as machine:
        machine.has(DEAF)
        watch = Stopwatch()
        own, roots = await asyncio.gather(
            run(tmp_path, DEAF, LIMIT), run_by_root(machine, limit=LIMIT)
        )

    for found in (own, roots):
        assert (found.code, found.timed_out) == (-9, True)
        assert found.seconds >= LIMIT + 10
    assert watch.seconds < LIMIT + 10 + 4


async def test_pipes_that_a_child_keeps_open_are_read_for_1_s(tmp_path: Path) -> None:
    late = "(sleep 0.3; echo in time; sleep 2; echo too late) &"
    found = await run(tmp_path, f"{late}\nsetsid sleep 4 &\nexit 0\n")

    assert (found.code, found.output) == (0, "in time")
    assert found.seconds >= 1.0
