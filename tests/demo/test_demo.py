"""``sebridge demo`` as a person runs it."""

import asyncio
import os
import shlex
import signal
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from bridge.cli.main import main
from bridge.demo.stage import log_end
from tests.system.processes import started

pytestmark = pytest.mark.integration


async def demo(folder: Path, *arguments: str) -> asyncio.subprocess.Process:
    return await bridge(folder, "demo", *arguments)


async def bridge(
    folder: Path, *arguments: str, **environ: str
) -> asyncio.subprocess.Process:
    return await started(
        *(sys.executable, "-m", "bridge", *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={**os.environ, "TMPDIR": str(folder), **environ},
    )


async def text_of(process: asyncio.subprocess.Process) -> str:
    output, _ = await asyncio.wait_for(process.communicate(), 240)
    return output.decode()


@pytest.mark.slow
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
    assert list(tmp_path.iterdir()) == [picture]


@pytest.mark.slow
@pytest.mark.parametrize("scenario", ["host-failure", "spot-eviction"])
async def test_kept_demo_can_be_looked_at_with_the_commands_it_prints(
    scenario: str, tmp_path: Path
) -> None:
    """All that it wrote is in one folder, whose configuration ``check`` accepts."""
    process = await demo(tmp_path, "--scenario", scenario, "--keep")
    text = await text_of(process)

    assert process.returncode == 0, text
    if scenario == "spot-eviction":
        assert_drained_and_out_of_rotation(text)
    (folder,) = tmp_path.iterdir()
    assert f"Kept in {folder}. Next:" in text
    begin = f"  {sys.executable} -m bridge "
    commands = [
        line.removeprefix(begin).split("  ")[0]
        for line in text.splitlines()
        if line.startswith(begin)
    ]
    assert [command.split()[0] for command in commands] == ["check", "events", "outbox"]
    for command in commands:
        process = await bridge(tmp_path, *shlex.split(command))
        said = await text_of(process)
        assert process.returncode == 0, said
        assert "warning" not in said
    assert (folder / "forwarder.log").stat().st_size > 0
    for secret in ("servicebus", "slack"):
        assert (folder / secret).stat().st_mode & 0o077 == 0


def assert_drained_and_out_of_rotation(text: str) -> None:
    for marks in (
        ["200 in: sends work", "503 out: sends no more work", "Preempt is over"],
        [
            "3 jobs are running",
            "all jobs are done",
            "StartRequest received",
            "jobs are accepted",
        ],
        [f"message: Command drain {what} succeeded" for what in ("prepare", "restore")],
    ):
        places = [text.index(mark) for mark in marks]
        assert places == sorted(places), marks
    assert text.count("200 in: sends work") == 2


# The forwarder of a demo inherits the environment, and refuses this.
REFUSED = {"SEBRIDGE__IMDS__POLL_INTERVAL": "never"}


async def test_failed_demo_ends_with_what_the_forwarder_said_last(
    tmp_path: Path,
) -> None:
    process = await bridge(tmp_path, "demo", **REFUSED)
    text = await text_of(process)

    assert process.returncode == 1
    verdict = "Failed: the forwarder ended with exit code 2.\n"
    _, _, said = text.partition(verdict)
    log, _, commands = " ".join(said.split()).partition("Next:")
    assert "SEBRIDGE__IMDS__POLL_INTERVAL: must be a number of seconds" in log
    assert "demo --keep" in commands
    assert "Traceback" not in text
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
async def test_failed_demo_that_is_kept_shows_the_end_of_the_log_that_stays(
    tmp_path: Path,
) -> None:
    process = await bridge(tmp_path, "demo", "--keep", **REFUSED)
    text = "".join((await text_of(process)).split())  # a long path is broken anywhere

    (folder,) = tmp_path.iterdir()
    (line,) = (folder / "forwarder.log").read_text().splitlines()
    shown = f"exit code 2. {line} Kept in {folder}."
    assert process.returncode == 1
    assert "".join(shown.split()) in text


def test_end_of_a_log_is_its_last_five_lines(tmp_path: Path) -> None:
    assert log_end(tmp_path) == []
    lines = [f"line {number}" for number in range(20)]

    (tmp_path / "forwarder.log").write_bytes("\n".join(lines).encode() + b"\xff\n")

    assert log_end(tmp_path) == [*lines[15:19], "line 19\ufffd"]


@pytest.mark.slow
async def test_eviction_that_is_too_fast_to_drain_is_shown_without(
    tmp_path: Path,
) -> None:
    """It was not kept: the next commands name nothing that is gone."""
    process = await demo(tmp_path, "--scenario", "spot-eviction", "--speed", "5.1")
    text = await text_of(process)

    assert process.returncode == 0, text
    assert "Everything arrived, and the approval reached IMDS." in text
    assert "drain" not in text
    *_, found = text.split("Next:\n")
    assert len(found.splitlines()) == 4
    assert found.splitlines()[-1].startswith('README, "No Azure yet?"')
    assert str(tmp_path) not in text
    assert list(tmp_path.iterdir()) == []


def test_demo_of_an_unknown_scenario_names_the_known_ones() -> None:
    result = CliRunner().invoke(main, ["demo", "--scenario", "nope"])

    assert result.exit_code == 2
    assert "live-migration" in result.output


@pytest.mark.slow
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
    """Before, it has said what it loads, what it plays and for how long."""
    process = await demo(tmp_path)
    assert process.stdout is not None
    lines: list[bytes] = []
    async with asyncio.timeout(60):
        while not lines or b"scheduled" not in lines[-1]:
            lines.append(await process.stdout.readline())

    for number in signals:
        process.send_signal(number)
    text = await text_of(process)

    assert process.returncode == 1
    assert text.rstrip().endswith("everything is cleaned up")
    assert "Traceback" not in text
    assert not list(tmp_path.glob("sebridge-demo-*"))
    first, *others = map(bytes.decode, lines)  # nobody looks at an empty screen
    assert first.startswith("Loading the simulator: a few seconds")
    assert others[0].startswith("live-migration  ")
    assert others[1].startswith("It takes about 8 s, all on this machine")


@pytest.mark.slow
async def test_fleet_is_seen_by_its_hub_and_approved_by_both_ways(
    tmp_path: Path,
) -> None:
    process = await demo(tmp_path, "--fleet", "3", "--no-wait")
    text = await text_of(process)

    assert process.returncode == 0, text
    marks = ["3 bridges alive", "web: completed", "db-1 is silent", "db: completed"]
    places = [text.index(mark) for mark in marks]
    assert places == sorted(places)
    assert "both approvals reached Azure" in text
    assert list(tmp_path.iterdir()) == []


def test_no_wait_is_for_a_fleet() -> None:
    result = CliRunner().invoke(main, ["demo", "--no-wait"])

    assert "--no-wait is for --fleet" in result.output
    assert result.exit_code == 2
