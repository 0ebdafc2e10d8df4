"""A crowd at the health port: whoever else connects, events go out all the same."""

import asyncio
import json
import resource
import socket
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import aiohttp
import pytest

from tests.support.configurations import config_text, webhook
from tests.support.stopwatch import Stopwatch
from tests.system.processes import (
    PATIENCE,
    Addresses,
    ended,
    settled,
    simulator,
    simulator_here,
    started,
)

pytestmark = [pytest.mark.slow, pytest.mark.integration]

CROWD = 1100
ASKED = b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.fixture(autouse=True)
def room() -> Iterator[None]:
    """Let this process open as many sockets as the crowd needs."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= hard < 4 * CROWD:
        pytest.skip("this process may not open enough sockets")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 4 * CROWD), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture
async def at() -> AsyncIterator[Addresses]:
    async with simulator_here() as found:
        yield found


def written_for(at: Addresses, state: Path) -> str:
    siem = webhook(f"{at.inbox}/siem", when={"lifecycle": False})
    return config_text(siem, imds=at.imds, state=state, listen="127.0.0.1:0")


async def limited(config: Path, soft: int, hard: int) -> asyncio.subprocess.Process:
    """Start ``sebridge run`` where few files may be open."""
    run = f"ulimit -Sn {soft}; ulimit -Hn {hard}; exec {sys.executable} -m bridge run"
    with config.with_suffix(".log").open("ab") as log:
        return await started(
            *("bash", "-c", f"{run} -c {config}"), stdout=log, stderr=log
        )


@contextmanager
def crowd(port: int, count: int = CROWD, say: bytes = b"") -> Iterator[None]:
    """Connect so often, and say no more than that."""
    with ExitStack() as stack:
        for _ in range(count):
            one = stack.enter_context(socket.socket())
            one.settimeout(5)
            with suppress(OSError):
                one.connect(("127.0.0.1", port))
                one.sendall(say)
        yield


def port_of(config: Path) -> int:
    lines = config.with_suffix(".log").read_text().splitlines()
    found = [json.loads(line) for line in lines]
    (opened,) = [one for one in found if one["message"] == "health port open"]
    return int(opened["addresses"][0].rpartition(":")[2])


@pytest.mark.parametrize("say", [b"", ASKED], ids=["silent", "kept alive"])
async def test_event_is_delivered_while_1100_others_hold_connections(
    say: bytes, at: Addresses, tmp_path: Path
) -> None:
    """At ``ulimit -n 1024``, which cannot be raised."""
    config = tmp_path / "bridge.toml"
    config.write_text(written_for(at, tmp_path / "state.db"))
    running = await limited(config, 1024, 1024)
    try:
        await settled(config, 0)
        port = port_of(config)
        with crowd(port, say=say):
            await at.control("POST", "events", {"type": "Preempt", "notBefore": 30})
            watch = Stopwatch()
            async with asyncio.timeout(PATIENCE):
                while not await at.messages("/siem"):
                    await asyncio.sleep(0.05)
            took = watch.seconds
            open_files = len(list(Path(f"/proc/{running.pid}/fd").iterdir()))
            answer = await get(port, "/livez")
    finally:
        code = await ended(running)

    assert took < 3
    assert open_files < 120
    assert answer == (200, "ok\n")
    assert config.with_suffix(".log").stat().st_size < 20_000
    assert code == 0


async def get(port: int, path: str) -> tuple[int, str]:
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://127.0.0.1:{port}{path}") as response,
    ):
        return response.status, await response.text()


async def test_run_may_open_as_many_files_as_the_system_lets_it(
    at: Addresses, tmp_path: Path
) -> None:
    config = tmp_path / "bridge.toml"
    config.write_text(written_for(at, tmp_path / "state.db"))
    running = await limited(config, 256, 2048)
    try:
        await settled(config, 0)
        limits = Path(f"/proc/{running.pid}/limits").read_text()
    finally:
        await ended(running)

    (line,) = [line for line in limits.splitlines() if "open files" in line]
    assert line.split()[3:5] == ["2048", "2048"]


async def test_crowd_at_the_simulator_keeps_nobody_from_it() -> None:
    async with simulator() as at:
        port = int(at.imds.rpartition(":")[2])
        with crowd(port, 600):
            assert (await get(port, "/simulator/state"))[0] == 200
            sockets = list(Path(f"/proc/{at.pid}/fd").iterdir())

    assert len(sockets) < 330
