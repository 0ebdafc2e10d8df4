"""Damaged state files under the real process, started again as systemd does."""

import asyncio
import json
import os
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.support.builders import ME
from tests.support.configurations import config_text, webhook
from tests.support.damage import damaged, lived
from tests.system.processes import PATIENCE, Addresses, ended, forwarder, simulator_here

pytestmark = [pytest.mark.slow, pytest.mark.integration]

MOST_STARTS = 3


def written(folder: Path, at: Addresses) -> Path:
    config = folder / "bridge.toml"
    config.write_text(
        config_text(
            webhook(f"{at.inbox}/siem"),
            imds=at.imds,
            state=folder / "bridge.db",
            identity={"vm_id": ME.vm_id, "vm_name": ME.vm_name},
        )
    )
    return config


async def scheduled(at: Addresses, number: int) -> str:
    """Have IMDS show another event; return its EventId."""
    event_id = f"FFFFFFFF-0000-0000-0000-{number:012}"
    event = {"type": "Freeze", "resources": [ME.vm_name], "notBefore": 900}
    await at.control("POST", "events", {**event, "eventId": event_id})
    return event_id


async def received(at: Addresses) -> list[dict[str, Any]]:
    """Return every CloudEvent that was received."""
    bodies = [one["body"] for one in await at.messages("/siem")]
    return [body for body in bodies if isinstance(body, dict)]


async def is_received(at: Addresses, event_id: str) -> bool:
    return any(body["subject"] == event_id for body in await received(at))


async def starts_until_received(config: Path, at: Addresses, event_id: str) -> int:
    """Start the forwarder whenever it has ended; return how often it took."""
    async with asyncio.timeout(PATIENCE):
        for count in range(1, MOST_STARTS + 1):
            process = await forwarder(config)
            while process.returncode is None:
                if await is_received(at, event_id):
                    assert await ended(process) == 0
                    return count
                await asyncio.sleep(0.05)
    pytest.fail(f"{MOST_STARTS} starts in a row ended on the state file")


@pytest.mark.parametrize("seed", [4, 59, 93, 108])
async def test_damaged_file_is_no_end(seed: int, tmp_path: Path) -> None:
    known = await lived(tmp_path)
    for part, body in damaged(known.files, seed).items():
        (tmp_path / f"bridge.db{part}").write_bytes(body)
    async with simulator_here() as at:
        config = written(tmp_path, at)

        assert await starts_until_received(config, at, await scheduled(at, 1)) == 1

        for event in await received(at):
            was = known.bodies.get(event["id"])
            assert was is None or json.loads(was) == event


async def test_file_that_is_damaged_while_it_runs_is_no_end(tmp_path: Path) -> None:
    """What SQLite has read of it stays in its memory; the start after it sees all."""
    async with simulator_here() as at:
        config = written(tmp_path, at)
        state = tmp_path / "bridge.db"
        process = await forwarder(config)
        first = await scheduled(at, 1)
        async with asyncio.timeout(PATIENCE):
            while not await is_received(at, first):
                await asyncio.sleep(0.05)
        with closing(sqlite3.connect(state)) as db:
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            db.execute("INSERT INTO sightings (key, at) VALUES ('seen', 1.0)")
            db.commit()  # so that the forwarder reads it anew
        handle = os.open(state, os.O_WRONLY)
        os.pwrite(handle, b"\xaa" * 4096 * 8, 4096 * 2)
        os.close(handle)

        await scheduled(at, 2)  # it may be told on the way to the end
        async with asyncio.timeout(PATIENCE):
            await process.wait()
        assert process.returncode == 1
        third = await scheduled(at, 3)
        assert await starts_until_received(config, at, third) == 1

    assert len(list(tmp_path.glob("bridge.db.corrupt-*T??????"))) == 1
    assert b"state file is corrupt" in config.with_suffix(".log").read_bytes()
