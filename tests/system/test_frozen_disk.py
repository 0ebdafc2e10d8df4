"""A whole forwarder whose disk hangs: a file system of its own, frozen under it.

What hangs in the kernel cannot be killed, so every test thaws the disk in the end.
"""

import asyncio
import json
import signal
import sqlite3
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest

from tests.support.configurations import approvals, config_text, webhook
from tests.support.disks import Frozen
from tests.support.ports import free_port
from tests.support.stopwatch import Stopwatch
from tests.system.processes import (
    Addresses,
    forwarder,
    settled,
    simulator_here,
    started,
)

pytestmark = [pytest.mark.slow, pytest.mark.integration]

PATIENCE = 60.0
GRACE = 5.0


@dataclass
class Scene:
    """A forwarder that runs, its surroundings, and its disk."""

    at: Addresses
    disk: Frozen
    config: Path
    port: int
    process: asyncio.subprocess.Process

    async def schedule(self, number: int, event_type: str = "Preempt") -> str:
        """Let an event appear; returns its EventId."""
        event_id = f"00000000-0000-0000-0000-{number:012}"
        event = {
            "type": event_type,
            "eventId": event_id,
            "notBefore": 60,
        }
        await self.at.control("POST", "events", event)
        return event_id

    async def received(self) -> list[tuple[str, str, bool]]:
        """Return what came: end of the EventId, transition or outcome, durable."""
        found = []
        for message in await self.at.messages("/siem"):
            body = message["body"]
            assert isinstance(body, dict)
            data = body["data"]
            what = data.get("transition") or data["outcome"]
            found.append((body["subject"][-1], what, data.get("durable", True)))
        return found

    async def until_received(self, number: int, transition: str) -> None:
        async with asyncio.timeout(PATIENCE):
            while (str(number), transition) not in [
                (name, what) for name, what, _ in await self.received()
            ]:
                await asyncio.sleep(0.1)

    async def get(self, path: str) -> tuple[int, str]:
        url = f"http://127.0.0.1:{self.port}{path}"
        async with aiohttp.ClientSession() as session, session.get(url) as response:
            return response.status, await response.text()

    async def until(self, path: str, status: int) -> str:
        async with asyncio.timeout(PATIENCE):
            while (found := await self.get(path))[0] != status:
                await asyncio.sleep(0.1)
        return found[1]

    def log(self) -> list[dict[str, object]]:
        lines = self.config.with_suffix(".log").read_text().splitlines()
        return [json.loads(line) for line in lines]

    def said(self, what: str) -> int:
        """Return how often the log has said so."""
        return sum(what in str(line.get("message", line)) for line in self.log())


@pytest.fixture
async def scene(tmp_path: Path, frozen: Frozen) -> AsyncIterator[Scene]:
    async with opened(tmp_path, frozen) as found:
        yield found


@asynccontextmanager
async def opened(folder: Path, disk: Frozen) -> AsyncIterator[Scene]:
    async with simulator_here() as at:
        port = free_port()
        config = folder / "bridge.toml"
        config.write_text(
            config_text(
                webhook(f"{at.inbox}/siem", when={"lifecycle": False}),
                imds=at.imds,
                state=disk.path / "state.db",
                listen=f"127.0.0.1:{port}",
                shutdown_grace=f"{GRACE}s",
                approvals=approvals(at.connection_string),
            )
        )
        scene = Scene(at, disk, config, port, await forwarder(config))
        try:
            await settled(config, 0)
            yield scene
        finally:
            disk.thaw()
            if scene.process.returncode is None:
                scene.process.send_signal(signal.SIGKILL)
            await scene.process.wait()


async def test_frozen_disk_silences_nobody_and_heals(scene: Scene) -> None:
    await scene.schedule(1, "Freeze")
    await scene.until_received(1, "scheduled")
    await scene.until("/readyz", 200)
    scene.disk.freeze()

    await scene.schedule(2)
    await scene.until_received(2, "scheduled")

    assert ("2", "scheduled", False) in await scene.received()
    assert "state" in await scene.until("/readyz", 503)
    assert (await scene.get("/livez"))[0] == 200
    assert "sebridge_state_degraded 1.0" in (await scene.get("/metrics"))[1]
    assert scene.said("going on in memory") == 1

    scene.disk.thaw()
    await scene.until("/readyz", 200)
    assert scene.said("state file can be written again") == 1
    await scene.schedule(3)
    await scene.until_received(3, "scheduled")
    received = await scene.received()
    assert [name for name, what, _ in received if what == "scheduled"] == [
        "1",
        "2",
        "3",
    ]
    scene.process.send_signal(signal.SIGTERM)
    assert await asyncio.wait_for(scene.process.wait(), PATIENCE) == 0
    with closing(sqlite3.connect(scene.disk.path / "state.db")) as db:
        rows = db.execute(
            """SELECT i.event_id, d.state FROM deliveries d JOIN items i
               ON i.id = d.item WHERE i.type LIKE '%scheduled.v1' ORDER BY d.id"""
        ).fetchall()
        times = db.execute("SELECT DISTINCT times FROM told").fetchall()
    assert [(name[-1], state) for name, state in rows] == [
        ("1", "delivered"),
        ("2", "delivered"),
        ("3", "delivered"),
    ]
    assert times == [(1,)], "what was committed was done a second time"


async def test_approvals_are_relayed_although_the_disk_is_frozen(scene: Scene) -> None:
    event_id = await scene.schedule(1, "Freeze")
    await scene.until_received(1, "scheduled")
    scene.disk.freeze()

    approve = await started(
        *(sys.executable, "-m", "bridge", "approve", event_id),
        *("-c", str(scene.config)),
    )
    assert await asyncio.wait_for(approve.wait(), PATIENCE) == 0

    await scene.until_received(1, "relayed")
    await scene.until_received(1, "started")


async def test_start_on_a_frozen_disk_publishes_all_and_goes_on_when_it_thaws(
    scene: Scene,
) -> None:
    first, second = [await scene.schedule(number, "Freeze") for number in (1, 2)]
    for number in (1, 2):
        await scene.until_received(number, "scheduled")
    scene.process.send_signal(signal.SIGTERM)
    assert await asyncio.wait_for(scene.process.wait(), PATIENCE) == 0
    await scene.at.control("DELETE", f"events/{second}")
    scene.disk.freeze()

    scene.process = await forwarder(scene.config)
    await scene.schedule(3)
    await scene.until_received(3, "scheduled")
    text = await scene.until("/readyz", 503)
    assert "what earlier runs did is not known" in text, text
    approve = await started(
        *(sys.executable, "-m", "bridge", "approve", first),
        *("-c", str(scene.config)),
    )
    assert await asyncio.wait_for(approve.wait(), PATIENCE) == 0
    await scene.until_received(1, "relayed")
    assert ("2", "ended") not in [(n, what) for n, what, _ in await scene.received()]

    scene.disk.thaw()
    await scene.until("/readyz", 200)
    await scene.until_received(2, "ended")
    count = Counter(name + what for name, what, _ in await scene.received())
    assert count["1scheduled"] == 2, "it was published anew, as nothing was known of it"
    assert count["2ended"] == count["2scheduled"] == count["3scheduled"] == 1
    ids = Counter(
        str(message["body"]["id"])  # type: ignore[index]  # a CloudEvent
        for message in await scene.at.messages("/siem")
    )
    assert sorted(ids.values())[-2:] == [1, 2]


async def test_stop_while_the_disk_is_frozen_ends_within_the_grace(
    scene: Scene,
) -> None:
    scene.disk.freeze()
    await scene.schedule(1)
    await scene.until_received(1, "scheduled")

    scene.process.send_signal(signal.SIGTERM)
    await until_exited(scene.process.pid)

    scene.disk.thaw()  # its thread in the kernel was all that was left of it
    assert await asyncio.wait_for(scene.process.wait(), PATIENCE) == 0
    assert scene.said("forwarder stopped") == 1
    assert "Traceback" not in scene.config.with_suffix(".log").read_text()


async def test_stop_at_the_moment_of_the_hang_ends_too(scene: Scene) -> None:
    scene.disk.freeze()

    scene.process.send_signal(signal.SIGTERM)
    await until_exited(scene.process.pid)

    scene.disk.thaw()
    assert await asyncio.wait_for(scene.process.wait(), PATIENCE) == 0
    assert "Traceback" not in scene.config.with_suffix(".log").read_text()


async def until_exited(pid: int) -> None:
    """Wait until it has; it may take its grace, and not what the disk takes."""
    watch = Stopwatch()
    async with asyncio.timeout(PATIENCE):
        while not has_exited(pid):
            await asyncio.sleep(0.1)
    assert watch.seconds < GRACE + 20


def has_exited(pid: int) -> bool:
    """Whether the process has called exit: its first thread is no more."""
    text = Path(f"/proc/{pid}/status").read_text()
    return "State:\tZ" in text
