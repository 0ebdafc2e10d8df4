"""Drained, then approved, by a real forwarder: on short notice, killed at random."""

import asyncio
import os
import random
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

import aiohttp
import pytest

from bridge.simulator.imds.lifecycle import EventLife
from bridge.simulator.imds.server import ImdsSimulator
from bridge.simulator.inbox import Inbox
from tests.support.configurations import command, config_text, webhook
from tests.support.ports import free_port
from tests.system.processes import ended, forwarder, started

pytestmark = [pytest.mark.slow, pytest.mark.integration, pytest.mark.timeout(300)]

PATIENCE = 60.0
DRAINED = {
    "name": "drained",
    "event_types": ["Reboot", "Preempt"],
    "action": "auto-approve",
    "after": ["drain"],
}
HOOK = """#!/bin/sh
echo "begin $SEBRIDGE_ACTION $$ $(date +%s.%N)" >>"{folder}/ran.log"
[ "$SEBRIDGE_ACTION" = restore ] || sleep {seconds}
echo "end $SEBRIDGE_ACTION $$ $(date +%s.%N)" >>"{folder}/ran.log"
"""
TRAFFIC = '[traffic]\nlisten = "127.0.0.1:{port}"\n'


@dataclass
class Machine:
    """A VM whose forwarder drains it, and approves its events."""

    imds: ImdsSimulator
    inbox: Inbox
    folder: Path
    port: int = field(default_factory=free_port)

    def prepare(self, seconds: float, more: str = "") -> Path:
        """Write the hook, which takes so long, and the configuration."""
        hook, config = self.folder / "drain", self.folder / "bridge.toml"
        hook.write_text(HOOK.format(folder=self.folder, seconds=seconds))
        hook.chmod(0o700)
        text = config_text(
            webhook(f"{self.inbox.url}/siem"),
            command(hook),
            imds=self.imds.url,
            state=self.folder / "state.db",
            shutdown_grace="1s",
            approvals={"rules": [DRAINED]},
        )
        config.write_text(text + more.format(port=self.port))
        return config

    @asynccontextmanager
    async def running(self) -> AsyncIterator[asyncio.subprocess.Process]:
        """Run the forwarder; what it has left running is killed in the end."""
        process = await forwarder(self.folder / "bridge.toml")
        try:
            yield process
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
            for _, _, pid, _ in self.runs():
                with suppress(ProcessLookupError):
                    os.killpg(int(pid), signal.SIGKILL)

    def schedule(self, event_type: str, notice: float, started: float = 1) -> str:
        life = EventLife(
            event_type=event_type,
            resources=(self.imds.vm_name,),
            notice_seconds=notice,
            started_seconds=started,
        )
        return self.imds.schedule(life).event_id

    def runs(self) -> list[list[str]]:
        """Return what the hook has noted: begin or end, action, pid and time."""
        log = self.folder / "ran.log"
        if not log.exists():
            return []
        return [line.split() for line in log.read_text().splitlines()]

    def ends(self, action: str) -> list[float]:
        """Return when runs for an action ended, of wall time."""
        found = [run for run in self.runs() if run[:2] == ["end", action]]
        return [float(at) for *_, at in found]

    def posts(self) -> list[float]:
        """Return when StartRequests came, of wall time."""
        return [one.at for one in self.imds.requests if one.method == "POST"]

    def received(self, kind: str) -> set[str]:
        """Return the ids of the events of a kind that were received."""
        bodies = [m.body for m in self.inbox.messages if isinstance(m.body, dict)]
        return {str(b["id"]) for b in bodies if f".{kind}.v1" in str(b["type"])}

    def arrival(self, kind: str) -> float:
        """Return when an event of a kind came first, of wall time."""
        bodies = [(m.received_at, m.body) for m in self.inbox.messages]
        found = (
            datetime.fromisoformat(at).timestamp()
            for at, body in bodies
            if isinstance(body, dict) and str(body["type"]).endswith(f".{kind}.v1")
        )
        return min(found)

    async def until_received(self, kind: str) -> None:
        async with asyncio.timeout(PATIENCE):
            while not self.received(kind):
                await asyncio.sleep(0.02)

    async def probed(self) -> str:
        """Return whether the probe says in or out; "" where nobody answers."""
        url = f"http://127.0.0.1:{self.port}/"
        try:
            async with aiohttp.ClientSession() as session, session.get(url) as found:
                return str((await found.json())["traffic"])
        except aiohttp.ClientError:
            return ""


@pytest.fixture
async def machine(tmp_path: Path) -> AsyncIterator[Machine]:
    async with ImdsSimulator() as imds, Inbox() as inbox:
        yield Machine(imds, inbox, tmp_path)


async def kill_at_random(machine: Machine, chance: random.Random, times: int) -> None:
    """Run the forwarder so often, and kill it each time at a random moment."""
    for _ in range(times):
        async with machine.running():
            since = len(machine.runs())
            if chance.random() < 0.7:  # else it dies while it starts, at times
                await begun(machine, since)
            await asyncio.sleep(chance.uniform(0.0, 1.7))


async def begun(machine: Machine, since: int) -> None:
    """Wait until the hook has done something more, or the event is approved."""
    async with asyncio.timeout(PATIENCE):
        while len(machine.runs()) == since and not machine.posts():
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("seed", [1, 2])
async def test_no_kill_approves_too_early_or_twice(machine: Machine, seed: int) -> None:
    chance = random.Random(seed)  # noqa: S311 - to be repeated, not to be secret
    machine.prepare(seconds=chance.uniform(1.0, 2.0))
    machine.schedule("Reboot", notice=900, started=600)

    await kill_at_random(machine, chance, times=3)
    async with machine.running() as process:
        await machine.until_received("startrequest.relayed")
        await machine.until_received("command.succeeded")
        assert await ended(process) == 0

    (post,) = machine.posts()  # started by it, the event is asked for no more
    assert min(machine.ends("prepare")) <= post
    assert len(machine.received("startrequest.relayed")) == 1
    assert len(machine.received("startrequest.withheld")) <= 1


async def stands(machine: Machine, where: str) -> None:
    async with asyncio.timeout(PATIENCE):
        while await machine.probed() != where:
            await asyncio.sleep(0.05)


@dataclass
class Prober:
    """A balancer that asks the probe again and again, as long as the block lasts.

    Attributes:
        heard: when, of wall time, and what; "" where nobody answered.
    """

    machine: Machine
    heard: list[tuple[float, str]] = field(default_factory=list)

    @asynccontextmanager
    async def probing(self) -> AsyncIterator[None]:
        asking = asyncio.create_task(self._ask())
        try:
            yield
        finally:
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)

    async def _ask(self) -> None:
        while True:
            self.heard.append((time.time(), await self.machine.probed()))
            await asyncio.sleep(0.1)

    async def until(self, where: str) -> None:
        async with asyncio.timeout(PATIENCE):
            while not any(heard == where for _, heard in self.heard):
                await asyncio.sleep(0.02)

    def first(self, where: str) -> float:
        return min(at for at, heard in self.heard if heard == where)

    def last(self, where: str) -> float:
        return max(at for at, heard in self.heard if heard == where)


@pytest.mark.parametrize("kills", [0, 3])
async def test_spot_eviction_is_drained_out_of_rotation_and_approved_in_time(
    machine: Machine, kills: int
) -> None:
    """A notice of 30 s, a drain of 5 s: all is done before the event is Started."""
    chance = random.Random(kills)  # noqa: S311 - to be repeated, not to be secret
    machine.prepare(5, TRAFFIC)
    prober = Prober(machine)

    async with prober.probing():
        began, moments = 0.0, list[float]()
        for life in range(kills + 1):
            async with machine.running() as process:
                if not life:
                    await prober.until("in")
                    machine.schedule("Preempt", notice=30, started=600)
                    began = time.time()
                    moments = sorted(chance.uniform(0, 12) for _ in range(kills))
                if life < kills:
                    await asyncio.sleep(began + moments[life] - time.time())
                    continue
                await until_started(machine)
                await stands(machine, "out")
                assert await ended(process) == 0

    (post,) = machine.posts()
    drained = min(machine.ends("prepare"))
    assert prober.last("in") < prober.first("out") < drained <= post
    result, started = (
        machine.arrival("command.succeeded"),
        machine.arrival("scheduledevent.started"),
    )
    assert drained <= result < started < began + 30
    assert len(machine.received("startrequest.relayed")) == 1


async def until_started(machine: Machine) -> None:
    await machine.until_received("command.succeeded")
    await machine.until_received("startrequest.relayed")
    await machine.until_received("scheduledevent.started")


async def sebridge(machine: Machine, *words: str) -> None:
    """Run a command with the machine's configuration, which must succeed."""
    process = await started(
        *(sys.executable, "-m", "bridge", *words),
        *("-c", str(machine.folder / "bridge.toml")),
        stdout=-3,
    )
    assert await asyncio.wait_for(process.wait(), PATIENCE) == 0


async def test_success_of_a_test_does_not_count(machine: Machine) -> None:
    """The drain has failed; that send-test ran it well approves nothing."""
    machine.prepare(seconds=0)
    hook, good = machine.folder / "drain", (machine.folder / "drain").read_text()
    hook.write_text(f'{good}[ "$SEBRIDGE_TEST" = 1 ]\n')

    async with machine.running() as process:
        machine.schedule("Reboot", notice=900, started=600)
        await machine.until_received("command.failed")

        for kind in ("Reboot", "Preempt"):
            await sebridge(machine, "send-test", "--run", "--event-type", kind)
        await asyncio.sleep(2)  # eight polls
        assert len(machine.ends("prepare")) >= 2
        assert machine.posts() == []

        hook.write_text(good)
        await sebridge(machine, "outbox", "retry", "--sink", "drain")
        await machine.until_received("startrequest.relayed")
        assert await ended(process) == 0

    assert len(machine.posts()) == 1
