"""A bot in Slack: killed and started again, it still knows its message."""

import asyncio
import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.support.configurations import Table, approvals, config_text
from tests.system.processes import (
    PATIENCE,
    Addresses,
    ended,
    forwarder,
    settled,
    simulator_here,
)

pytestmark = pytest.mark.integration

TOKEN = "xoxb-1-5EC12E7"


def written_for(at: Addresses, state: Path) -> str:
    slack: Table = {
        "name": "ops",
        "type": "slack",
        "token": "env:IT",
        "channel": "C012AB3CD",
        "api_url": f"{at.inbox}/slack/api/",
        "buttons": True,
        "button_secret": "0123456789abcdef0123456789abcdef",
        "max_rate": 5,
    }
    return config_text(
        slack,
        imds=at.imds,
        state=state,
        approvals=approvals(at.connection_string),
    )


async def asked(at: Addresses, method: str, **arguments: str) -> list[dict[str, Any]]:
    """Call Slack as somebody who reads along."""
    async with (
        aiohttp.ClientSession(headers={"Authorization": f"Bearer {TOKEN}"}) as session,
        session.get(f"{at.inbox}/slack/api/{method}", params=arguments) as response,
    ):
        found: list[dict[str, Any]] = (await response.json()).get("messages", [])
        return found


async def messages(at: Addresses, *words: str, count: int) -> list[dict[str, Any]]:
    """Return the messages of the channel once there are as many with such words."""
    async with asyncio.timeout(PATIENCE):
        while True:
            found = await asked(at, "conversations.history", channel="C012AB3CD")
            with_words = [
                each for each in found if all(w in str(each["blocks"]) for w in words)
            ]
            if len(with_words) == count:
                return with_words
            await asyncio.sleep(0.1)


async def all_committed(state: Path) -> None:
    """Wait until the state file says that nothing is left to deliver."""
    pending = "SELECT count(*) FROM deliveries WHERE state = 'pending'"
    async with asyncio.timeout(PATIENCE):
        with closing(sqlite3.connect(state, isolation_level=None)) as db:
            while db.execute(pending).fetchone() != (0,):
                await asyncio.sleep(0.05)


async def brisk(at: Addresses) -> None:
    """Let Slack take five messages a second, to spare the test some of them."""
    limits = {"rateLimit": True, "postsPerSecond": 5, "postBurst": 2}
    async with (
        aiohttp.ClientSession() as session,
        session.put(f"{at.inbox}/slack/workspace", json=limits) as response,
    ):
        assert response.status == 204, await response.text()


@pytest.mark.slow
async def test_message_outlives_the_forwarder_and_preempt_goes_first(
    tmp_path: Path,
) -> None:
    async with simulator_here() as at:
        await brisk(at)
        config = tmp_path / "bridge.toml"
        state = tmp_path / "bridge.db"
        config.write_text(written_for(at, state))
        process = await forwarder(config, {"IT": TOKEN})
        freeze = {"type": "Freeze", "resources": ["WestNO_0"], "notBefore": 90_000}
        await at.control("POST", "events", {**freeze, "eventId": "first"})
        (first,) = await messages(at, "is scheduled", "sebridge-approve", count=1)
        await all_committed(state)  # a kill before that would send it again
        process.kill()
        await process.wait()

        await at.control("POST", "events/first/start")
        for number in range(2):
            more = {**freeze, "eventId": f"00000000-0000-0000-0000-{number:012}"}
            await at.control("POST", "events", more)
        preempt = {"type": "Preempt", "resources": ["WestNO_0"], "notBefore": 60}
        await at.control("POST", "events", preempt)
        logged = config.with_suffix(".log").stat().st_size
        process = await forwarder(config, {"IT": TOKEN})
        await settled(config, logged)
        (last,) = await messages(at, "Freeze has started", count=1)
        waiting = await messages(at, "Freeze is scheduled", count=2)
        (urgent,) = await messages(at, "Preempt is scheduled", count=1)
        thread = await asked(
            at, "conversations.replies", channel="C012AB3CD", ts=last["ts"]
        )
        code = await ended(process)

    assert last["ts"] == first["ts"]
    assert "sebridge-approve" not in json.dumps(last["blocks"])
    assert [each["text"] for each in thread[1:]] == [
        "Freeze is scheduled",
        "Freeze has started",
    ]
    assert all(float(urgent["ts"]) < float(each["ts"]) for each in waiting)
    assert code == 0
    for file in tmp_path.iterdir():
        assert b"5EC12E7" not in file.read_bytes(), file
