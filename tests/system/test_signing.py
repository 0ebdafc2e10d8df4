"""Signed events of a real forwarder, checked in the file that a receiver keeps."""

import asyncio
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from bridge.cli.main import main
from tests.support.configurations import config_text
from tests.system.processes import (
    PATIENCE,
    Addresses,
    ended,
    forwarder,
    kill_rest,
    simulator_here,
)

pytestmark = pytest.mark.integration


async def seen(copy: Path, kind: str) -> None:
    """Wait until an event of a kind is in the file."""
    async with asyncio.timeout(PATIENCE):
        while not copy.exists() or kind not in copy.read_text():
            await asyncio.sleep(0.05)


def written(folder: Path, at: Addresses) -> Path:
    config = folder / "bridge.toml"
    copy = {"name": "copy", "type": "file", "path": str(folder / "copy.ndjson")}
    config.write_text(
        config_text(
            copy,
            imds=at.imds,
            state=folder / "bridge.db",
            events={"sign": True, "heartbeat": "1s"},
        )
    )
    return config


@pytest.mark.timeout(300)
async def test_every_event_of_a_forwarder_holds_over_a_kill(tmp_path: Path) -> None:
    copy = tmp_path / "copy.ndjson"
    async with simulator_here() as at:
        config = written(tmp_path, at)
        try:
            bridge = await forwarder(config)
            await at.control("POST", "events", {"type": "Freeze", "duration": 5})
            await seen(copy, "scheduledevent.scheduled")
            bridge.kill()
            await bridge.wait()
            bridge = await forwarder(config)
            await seen(copy, "bridge.heartbeat")
            await ended(bridge)
            await seen(copy, "bridge.stopped")
        finally:
            kill_rest()
    keys = tmp_path / "bridges.jwks"
    shown = CliRunner().invoke(main, ["key", "show", f"{tmp_path}/bridge.db.key"])
    keys.write_text(shown.output)
    found = CliRunner().invoke(main, ["verify", str(copy), "--keys", str(keys)])
    assert (found.exit_code, "holds" in found.output) == (0, True), found.output
    events = [json.loads(line) for line in copy.read_text().splitlines()]
    chains = [one["data"]["chain"] for one in events]
    numbers = {one["n"] for one in chains} - {None}
    assert numbers == set(range(1, len(numbers) + 1))
    assert len({one["run"] for one in chains}) == 2
