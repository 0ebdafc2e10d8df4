"""Signed events of a real forwarder, checked in the file that a receiver keeps."""

import asyncio
import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from bridge.cli.main import main
from bridge.signing.own_key import own_keys
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
    result = [
        one["data"]["signing"] for one in events if "bridge.started" in one["type"]
    ]
    (mine,) = json.loads(shown.output)["keys"]
    assert {one["kid"] for it in result for one in it["keys"]} == {mine["kid"]}
    assert len({one["run"] for one in chains}) == 2


@pytest.mark.timeout(300)
async def test_kills_around_a_replaced_key_lose_nothing(tmp_path: Path) -> None:
    """One key, two, the new one alone; the forwarder is killed with each of them."""
    copy, key = tmp_path / "copy.ndjson", tmp_path / "bridge.db.key"
    keys = tmp_path / "bridges.jwks"
    lists = list[object]()
    async with simulator_here() as at:
        config = written(tmp_path, at)
        try:
            for count, change in enumerate(("rotate", "retire", None), 1):
                bridge = await forwarder(config)
                await at.control("POST", "events", {"type": "Freeze", "duration": 5})
                await forwarded(copy, count)
                bridge.kill()
                await bridge.wait()
                found = CliRunner().invoke(main, ["key", "show", str(key)])
                lists += json.loads(found.output)["keys"]
                if change:
                    done = CliRunner().invoke(main, ["key", change, str(key)])
                    assert done.exit_code == 0, done.output
        finally:
            kill_rest()
    assert len(lists) == 4  # one, two, one
    keys.write_text(json.dumps({"keys": lists}))
    found = CliRunner().invoke(main, ["verify", str(copy), "--keys", str(keys)])
    assert (found.exit_code, "holds" in found.output) == (0, True), found.output
    for alone in (lists[0], lists[-1]):  # what both have signed, each of them proves
        keys.write_text(json.dumps({"keys": [alone]}))
        found = CliRunner().invoke(main, ["verify", str(copy), "--keys", str(keys)])
        assert "unknown key" in found.output
        assert "wrong" not in found.output
    events = [json.loads(line) for line in copy.read_text().splitlines()]
    numbers = {one["data"]["chain"]["n"] for one in events} - {None}
    assert numbers == set(range(1, len(numbers) + 1))


async def forwarded(copy: Path, count: int) -> None:
    """Wait until so many starts of the forwarder are in the file.

    One that was killed before it had noted a delivery sends the same line again.
    """

    def starts() -> set[str]:
        whole = copy.read_text().split("\n")[:-1] if copy.exists() else []
        return {line for line in whole if "bridge.started" in line}

    async with asyncio.timeout(PATIENCE):
        while len(starts()) < count:
            await asyncio.sleep(0.05)


_KILLED = """
import os, signal, sys
path, left = sys.argv[1], int(sys.argv[2])

def look(event, given):
    global left
    if any(isinstance(one, (str, os.PathLike)) and path in str(one) for one in given):
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

sys.addaudithook(look)
from bridge.cli.main import main
main(["key", "rotate", path])
"""


def test_kill_at_each_step_of_a_rotation_leaves_a_whole_file(tmp_path: Path) -> None:
    """A real process dies each time it touches the file, one step later each time."""
    state, path = tmp_path / "state.db", tmp_path / "state.db.key"
    (first,) = own_keys(state, "vm-1")
    before = path.read_bytes()
    for step in range(1, 50):
        command = [sys.executable, "-c", _KILLED, str(path), str(step)]
        done = subprocess.run(command, check=False, capture_output=True)  # noqa: S603 - our own
        names = [one.key_id for one in own_keys(state, "vm-1")]
        assert names[-1] == first.key_id
        if done.returncode == 0:
            assert len(names) == 2
            break
        assert done.returncode == -signal.SIGKILL
        if len(names) == 2:  # it died after its work
            path.write_bytes(before)
    assert step > 4
