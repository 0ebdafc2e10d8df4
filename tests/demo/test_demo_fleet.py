"""``sebridge demo --fleet`` when its hub fails, or a person ends it."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from bridge.demo import fleet
from tests.demo.test_demo import demo, text_of

pytestmark = [pytest.mark.slow, pytest.mark.integration]
SECONDS = 60.0


def children(process: asyncio.subprocess.Process) -> dict[int, str]:
    """Return the command lines of the processes that a process has started."""
    found = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
    return {int(pid): _command_of(pid) for pid in found.split()}


def _command_of(pid: str) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except OSError:  # it has just ended
        return ""


async def hub_of(process: asyncio.subprocess.Process) -> int:
    """Wait until a demo has started its hub; return the number of the process."""
    async with asyncio.timeout(SECONDS):
        while True:
            for pid, command in children(process).items():
                if " hub -c " in command:
                    return pid
            await asyncio.sleep(0.01)


async def line_with(process: asyncio.subprocess.Process, mark: str) -> str:
    """Read lines until one has a mark; return all of them."""
    assert process.stdout is not None
    found = ""
    async with asyncio.timeout(SECONDS):
        while mark not in found:
            line = await process.stdout.readline()
            assert line, found
            found += line.decode()
    return found


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_fleet_that_is_starting_ends_at_once(
    number: signal.Signals, tmp_path: Path
) -> None:
    """It does not wait until its hub listens, nor start any forwarder after that."""
    process = await demo(tmp_path, "--fleet", "3")
    hub = await hub_of(process)
    os.kill(hub, signal.SIGSTOP)

    process.send_signal(number)
    os.kill(hub, signal.SIGCONT)
    text = await text_of(process)

    assert process.returncode == 1
    assert text.rstrip().endswith("interrupted; everything is cleaned up")
    assert "its page is" not in text
    assert "Traceback" not in text
    assert not Path(f"/proc/{hub}").exists()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("count", [1, 2])
async def test_fleet_at_work_is_ended_by_signals(count: int, tmp_path: Path) -> None:
    process = await demo(tmp_path, "--fleet", "3")
    await line_with(process, "3 bridges alive")
    started = children(process)

    for _ in range(count):
        process.send_signal(signal.SIGINT)
    text = await text_of(process)

    assert process.returncode == 1
    assert text.rstrip().endswith("interrupted; everything is cleaned up")
    assert "Traceback" not in text
    assert len(started) == 4
    assert not any(Path(f"/proc/{pid}").exists() for pid in started)
    assert list(tmp_path.iterdir()) == []


async def test_fleet_that_has_shown_all_ends_well_by_a_signal(tmp_path: Path) -> None:
    process = await demo(tmp_path, "--fleet", "3")
    await line_with(process, "The demo runs until Ctrl-C.")

    process.send_signal(signal.SIGINT)
    text = await text_of(process)

    assert process.returncode == 0
    assert "interrupted" not in text
    assert "Traceback" not in text
    assert list(tmp_path.iterdir()) == []


async def test_fleet_whose_hub_dies_ends_with_what_failed(tmp_path: Path) -> None:
    process = await demo(tmp_path, "--fleet", "3", "--no-wait")
    hub = await hub_of(process)
    before = await line_with(process, "its page is")

    os.kill(hub, signal.SIGKILL)
    text = before + await text_of(process)

    assert process.returncode == 1
    assert "Failed: the hub does not answer: 3 bridges alive" in text
    assert "Traceback" not in text
    assert list(tmp_path.iterdir()) == []


async def test_fleet_whose_hub_ends_before_it_listens_says_why(tmp_path: Path) -> None:
    process = await demo(tmp_path, "--fleet", "3", "--no-wait")
    os.kill(await hub_of(process), signal.SIGKILL)
    text = await text_of(process)

    assert process.returncode == 1
    assert "Failed: the hub does not start: it has logged nothing." in text
    assert "Traceback" not in text


def test_fleet_whose_hub_is_too_slow_ends_with_what_failed(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    status = fleet.play(3, is_ended=True, patience=0.01)

    assert status == 1
    assert "Failed: the hub does not start in time: it has" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []
