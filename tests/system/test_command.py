"""A command run by a real forwarder: in time, again after a kill, ended at the stop."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.support.configurations import command, config_text, webhook
from tests.support.stopwatch import Stopwatch
from tests.system.processes import (
    PATIENCE,
    Addresses,
    ended,
    forwarder,
    settled,
    simulator_here,
)

pytestmark = pytest.mark.integration

EVENT_ID = "00000000-0000-4000-8000-00000000C0DE"
NOTE = '#!/bin/sh\necho "$SEBRIDGE_ACTION $SEBRIDGE_EVENT_ID $$" >>"{log}"\n'


def event_of(event_id: str = EVENT_ID, notice: int = 600) -> dict[str, object]:
    return {
        "type": "Reboot",
        "resources": ["WestNO_0"],
        "eventId": event_id,
        "notBefore": notice,
    }


def event_in(body: object) -> dict[str, Any]:
    found = json.loads(body) if isinstance(body, str) else body
    assert isinstance(found, dict)
    return found


class Stage:
    """A simulator, a forwarder's configuration and a hook."""

    def __init__(self, folder: Path, at: Addresses, more: str = "exit 0") -> None:
        self.at, self.log = at, folder / "ran.log"
        self.hook, self.config = folder / "drain", folder / "bridge.toml"
        self.hook.write_text(NOTE.format(log=self.log) + more + "\n")
        self.hook.chmod(0o700)
        self.config.write_text(
            config_text(
                webhook(f"{at.inbox}/siem"),
                command(self.hook, output="always"),
                imds=at.imds,
                state=folder / "state.db",
                shutdown_grace="1s",
            )
        )

    @property
    def runs(self) -> list[list[str]]:
        if not self.log.exists():
            return []
        return [line.split() for line in self.log.read_text().splitlines()]

    async def until_ran(self, count: int) -> None:
        async with asyncio.timeout(PATIENCE):
            while len(self.runs) < count:
                await asyncio.sleep(0.02)

    async def results(self, count: int) -> list[dict[str, Any]]:
        """Wait until so many results have arrived, and return them."""
        async with asyncio.timeout(PATIENCE + 2 * count):
            while True:
                found = [
                    event_in(message["body"])
                    for message in await self.at.messages("/siem")
                ]
                results = [one for one in found if ".command." in one["type"]]
                if len(results) >= count:
                    return results
                await asyncio.sleep(0.05)


@asynccontextmanager
async def running(stage: Stage) -> AsyncIterator[asyncio.subprocess.Process]:
    log = stage.config.with_suffix(".log")
    since = log.stat().st_size if log.exists() else 0
    process = await forwarder(stage.config)
    try:
        await settled(stage.config, since)
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        for _, _, pid in stage.runs:
            with suppress(ProcessLookupError):
                os.killpg(int(pid), signal.SIGKILL)


async def test_it_is_run_and_its_result_is_published(tmp_path: Path) -> None:
    async with simulator_here() as at:
        stage = Stage(tmp_path, at, "echo drained for $HOME; exit 0")
        async with running(stage) as process:
            watch = Stopwatch()
            await at.control("POST", "events", event_of())
            (result,) = await stage.results(1)
            assert watch.seconds < 10
            assert await ended(process) == 0

        assert [run[:2] for run in stage.runs] == [["prepare", EVENT_ID]]
        assert result["type"] == "sebridge.command.succeeded.v1"
        assert result["subject"] == EVENT_ID
        # The hook inherits HOME from the forwarder.
        assert result["data"]["output"] == f"drained for {os.environ['HOME']}"


async def test_kill_in_the_middle_runs_it_again(tmp_path: Path) -> None:
    async with simulator_here() as at:
        stage = Stage(tmp_path, at, '[ $(wc -l <"$0.d") -gt 1 ] || sleep 60')
        stage.hook.with_name("drain.d").symlink_to(stage.log)
        async with running(stage) as process:
            await at.control("POST", "events", event_of())
            await stage.until_ran(1)
            process.kill()
            await process.wait()
        async with running(stage) as process:
            await stage.until_ran(2)
            (result,) = await stage.results(1)
            await ended(process)

        assert [run[:2] for run in stage.runs] == [["prepare", EVENT_ID]] * 2
        assert result["data"]["attempts"] == 1
        assert result["type"] == "sebridge.command.succeeded.v1"


async def test_stop_ends_it_after_the_grace_and_it_is_run_again(
    tmp_path: Path,
) -> None:
    async with simulator_here() as at:
        stage = Stage(tmp_path, at, '[ $(wc -l <"$0.d") -gt 1 ] || exec sleep 60')
        stage.hook.with_name("drain.d").symlink_to(stage.log)
        async with running(stage) as process:
            await at.control("POST", "events", event_of())
            await stage.until_ran(1)
            watch = Stopwatch()
            assert await ended(process) == 0
            assert watch.wall > 0.9
            assert watch.seconds < 8
            ((_, _, pid),) = stage.runs
            assert not Path(f"/proc/{pid}").exists()
        async with running(stage) as process:
            (result,) = await stage.results(1)
            await ended(process)

        assert result["data"]["attempts"] == 1
        assert len(stage.runs) == 2


@pytest.mark.slow
async def test_fifty_events_each_have_their_run(tmp_path: Path) -> None:
    async with simulator_here() as at:
        stage = Stage(tmp_path, at, "sleep 0.2")
        ids = [f"00000000-0000-4000-8000-{n:012}" for n in range(50)]
        async with running(stage) as process:
            for event_id in ids:
                await at.control("POST", "events", event_of(event_id))
            results = await stage.results(50)
            await ended(process)

        assert sorted(run[1] for run in stage.runs) == ids
        assert sorted(one["subject"] for one in results) == ids
        assert {one["type"].split(".")[2] for one in results} == {"succeeded"}
