"""A forwarder on a machine whose clock is wrong: the time of IMDS counts."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from bridge.app import forwarder
from bridge.configuration.load import load
from bridge.foundation.clock import SystemClock
from tests.support.configurations import config_text, webhook
from tests.support.ports import free_port
from tests.system.processes import PATIENCE, Addresses, simulator_here

pytestmark = pytest.mark.integration

EVENT = "00000000-0000-0000-0000-00000000000A"


class WrongClock(SystemClock):
    """The clock of this machine, set wrong by some seconds."""

    def __init__(self, ahead: float) -> None:
        super().__init__()
        self.now = lambda: datetime.now(UTC) + timedelta(seconds=ahead)


class Run:
    """A forwarder in this process, and what it tells."""

    def __init__(self, at: Addresses, folder: Path, rules: str = "") -> None:
        self.at = at
        self.port, self.probe = free_port(), free_port()
        self.config = folder / "bridge.toml"
        text = config_text(
            webhook(f"{at.inbox}/siem"),
            imds=at.imds,
            state=folder / "state.db",
            listen=f"127.0.0.1:{self.port}",
            events={"heartbeat": "1s"},
            traffic={"listen": f"127.0.0.1:{self.probe}"},
        )
        self.config.write_text(text + rules)

    @asynccontextmanager
    async def life(self, ahead: float) -> AsyncIterator[None]:
        stop = asyncio.Event()
        running = asyncio.create_task(
            forwarder.run(load(self.config, {}), stop, WrongClock(ahead))
        )
        try:
            yield
        finally:
            stop.set()
            await asyncio.wait_for(running, PATIENCE)

    async def received(self, kind: str) -> dict[str, Any]:
        """Return the first event of a kind, once it has come."""
        async with asyncio.timeout(PATIENCE):
            while True:
                for message in await self.at.messages("/siem"):
                    body = message["body"]
                    if isinstance(body, dict) and f".{kind}." in str(body["type"]):
                        return body
                await asyncio.sleep(0.05)

    async def get(self, path: str, port: int | None = None) -> tuple[int, str]:
        url = f"http://127.0.0.1:{port or self.port}{path}"
        async with aiohttp.ClientSession() as session, session.get(url) as response:
            return response.status, await response.text()

    async def announce(self, notice: float) -> None:
        event = {"type": "Reboot", "eventId": EVENT, "notBefore": notice}
        await self.at.control("POST", "events", event)


@pytest.mark.parametrize(("ahead", "where"), [(-3600, "behind"), (7200, "ahead of")])
async def test_times_are_those_of_imds_and_the_difference_is_reported(
    ahead: int, where: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with simulator_here() as at:
        run = Run(at, tmp_path)
        async with run.life(ahead):
            beat = await run.received("bridge.heartbeat")
            status, ready = await run.get("/readyz")
            known = json.loads((await run.get("/status"))[1])
            await run.announce(notice=40)
            received = await run.received("scheduledevent.scheduled")
            probe, _ = await run.get("/", run.probe)
            metrics = (await run.get("/metrics"))[1]
            page = (await run.get("/"))[1]

    near = range(ahead - 1, ahead + 2)  # a Date has whole seconds
    assert beat["data"]["clockOffsetSeconds"] in near
    assert received["data"]["noticeSeconds"] in range(30, 42)
    for text in (received["time"], received["data"]["observedAt"]):
        off = datetime.fromisoformat(text) - datetime.now(UTC)
        assert abs(off) < timedelta(seconds=PATIENCE)
    assert probe == 503
    assert status == 200
    (note,) = json.loads(ready)
    assert note.startswith("clock: this VM's clock is ")
    assert note.endswith(f" s {where} IMDS's, whose time is used")
    assert known["clock"]["offsetSeconds"] in near
    assert f"sebridge_clock_offset_seconds {'-' if ahead < 0 else ''}" in metrics
    assert "whose time is used" in page
    assert caplog.text.count("this VM's clock differs from IMDS's") == 1


@pytest.mark.slow
async def test_delay_of_a_rule_is_kept_when_the_clock_is_wrong_after_a_restart(
    tmp_path: Path,
) -> None:
    rule = """
[[approvals.rules]]
name = "own"
action = "auto-approve"
delay = "8s"
"""
    async with simulator_here() as at:
        run = Run(at, tmp_path, "[approvals]\n" + rule)
        async with run.life(0):
            await run.announce(notice=900)
            began = time.monotonic()
            await run.received("scheduledevent.scheduled")
        async with run.life(7200):
            await run.received("startrequest.relayed")
            took = time.monotonic() - began

    assert 8 <= took < 30
