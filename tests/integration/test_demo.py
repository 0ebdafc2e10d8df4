"""``sebridge demo`` as a person runs it."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from tests.integration.processes import started

pytestmark = pytest.mark.integration


async def demo(folder: Path, *arguments: str) -> asyncio.subprocess.Process:
    return await started(
        *(sys.executable, "-m", "bridge", "demo", *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={**os.environ, "TMPDIR": str(folder)},
    )


async def text_of(process: asyncio.subprocess.Process) -> str:
    output, _ = await asyncio.wait_for(process.communicate(), 240)
    return output.decode()


async def test_demo_ends_well_when_everything_arrived(tmp_path: Path) -> None:
    """Two at a time: also one of an event that nobody approves."""
    picture = tmp_path / "demo.svg"

    process = await demo(tmp_path, "--svg", str(picture))
    other = await demo(tmp_path, "--scenario", "cancelled-maintenance")
    text, cancelled = await asyncio.gather(text_of(process), text_of(other))

    assert process.returncode == 0, text
    assert "Everything arrived, and the approval reached IMDS." in text
    assert "reply: relayed" in text
    assert "http://" not in picture.read_text().replace("http://www.w3.org", "")
    frame = set("│┃╭╮╰╯┏┓└┘├┤")  # broken where Fira Code is missing
    assert frame.isdisjoint(picture.read_text())
    assert other.returncode == 0, cancelled
    assert "cancelled" in cancelled
    assert "StartRequest" not in cancelled


async def test_demo_of_an_eviction_drains_and_leaves_rotation(tmp_path: Path) -> None:
    process = await demo(tmp_path, "--scenario", "spot-eviction")
    text = await text_of(process)

    assert process.returncode == 0, text
    for marks in (
        ["200 in: sends work", "503 out: sends no more work", "Preempt is over"],
        ["3 jobs run", "all jobs are done", "StartRequest received", "jobs are taken"],
        [f"message: Command drain {what} succeeded" for what in ("prepare", "restore")],
    ):
        places = [text.index(mark) for mark in marks]
        assert places == sorted(places), marks
    assert text.count("200 in: sends work") == 2


async def test_eviction_that_is_too_fast_to_drain_is_shown_without(
    tmp_path: Path,
) -> None:
    process = await demo(tmp_path, "--scenario", "spot-eviction", "--speed", "6")
    text = await text_of(process)

    assert process.returncode == 0, text
    assert "Everything arrived, and the approval reached IMDS." in text
    assert "drain" not in text


async def test_demo_of_an_unknown_scenario_names_the_known_ones(tmp_path: Path) -> None:
    process = await demo(tmp_path, "--scenario", "nope")
    text = await text_of(process)

    assert process.returncode == 2
    assert "live-migration" in text
    assert "Traceback" not in text


@pytest.mark.parametrize(
    "signals",
    [
        (signal.SIGINT,),
        (signal.SIGTERM,),
        (signal.SIGTERM, signal.SIGTERM),
        (signal.SIGINT, signal.SIGINT, signal.SIGTERM),
    ],
)
async def test_interrupted_demo_leaves_nothing_behind(
    signals: tuple[signal.Signals, ...], tmp_path: Path
) -> None:
    process = await demo(tmp_path)
    assert process.stdout is not None
    async with asyncio.timeout(60):
        while b"scheduled" not in await process.stdout.readline():
            pass

    for number in signals:
        process.send_signal(number)
    text = await text_of(process)

    assert process.returncode == 1
    assert text.rstrip().endswith("everything is cleaned up")
    assert "Traceback" not in text
    assert not list(tmp_path.glob("sebridge-demo-*"))
