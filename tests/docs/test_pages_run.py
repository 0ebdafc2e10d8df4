"""Run the commands on the pages, and compare their output with the pages."""

import asyncio
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.docs.page_world import World, put_commands, world
from tests.docs.pages import ROOT, Block, every_block

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="they are for a shell")

EXAMPLES = sorted((ROOT / "config" / "examples").glob("*.toml"))
RUN = {"run", "run: until ready", "printed"}
# Parts of an output that differ in each run.
CHANGES = (
    (r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC", "TIME"),
    (r"[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}", "GUID"),
    (r"127\.0\.0\.1:\d{2,5}", "127.0.0.1:PORT"),
    (r"\d+\.\d+ s", "N s"),
    (r" +", " "),
)


def shape(text: str) -> list[str]:
    """Return the lines of an output, with placeholders for parts that always differ."""
    for pattern, word in CHANGES:
        text = re.sub(pattern, word, text)
    return [line.rstrip() for line in text.rstrip("\n").split("\n")]


async def misprint(here: World, block: Block) -> str | None:
    """Compare the output on a page with the command's output; … stands for the rest."""
    command, _, shown = block.text.partition("\n")
    _, said = await here.run(command.removeprefix("$ "))
    expected, found = shape(shown), shape(said)
    if expected[-1] == "…":
        expected.pop()
        found = found[: len(expected)]
    return None if found == expected else f"{block}: {command}\n{said}"


async def fault_of(here: World, block: Block) -> str | None:
    """Run a block as its mark says; return the difference from the page, or None."""
    if block.mark == "printed":
        return await misprint(here, block)
    if block.mark == "run: until ready":
        code, said = await here.until_ready(block.text)
        return None if code == 0 and said else f"{block}: exit code {code}"
    code, said = await here.run(block.text)
    return f"{block}: exit code {code}\n{said}" if code else None


@pytest.mark.slow
@pytest.mark.timeout(600)  # many processes are slow on a busy machine
async def test_commands_of_the_pages_print_what_the_pages_show(tmp_path: Path) -> None:
    """All commands share a world: blocks with output run first, before it changes."""
    found = [block for block in every_block("sh", "console") if block.mark in RUN]
    found.sort(key=lambda block: block.mark != "printed")

    async with world(tmp_path) as here:
        faults = [await fault_of(here, block) for block in found]

    assert len(found) > 10
    assert [fault for fault in faults if fault] == []


def test_no_mark_is_misspelt_out_of_being_run() -> None:
    marks = [block.mark for block in every_block("sh", "console")]

    assert {mark for mark in marks if mark.startswith(("run", "printed"))} == RUN


@pytest.mark.integration
async def test_first_file_is_written_as_the_page_says(tmp_path: Path) -> None:
    (block,) = (b for b in every_block("sh") if b.mark == "command: init")
    put_commands(tmp_path)
    config = tmp_path / "bridge.toml"
    said = await said_by(
        f"{block.text}\nsebridge check",
        tmp_path,
        {"SEBRIDGE_CONFIG": str(config)},
        b"https://hooks.slack.com/services/T000/B000/XXXX\n",
    )

    assert config.read_text().count("[[sinks]]") == 3
    assert f"{config}: " in said


@pytest.mark.slow
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
async def test_head_of_an_example_says_how_to_check_it(
    path: Path, tmp_path: Path
) -> None:
    """From a bare clone, where no variable is set."""
    name = path.relative_to(ROOT).as_posix()
    commands = re.findall(r"(?m)^#   (.+)$", path.read_text())
    put_commands(tmp_path)

    said = await said_by("\n".join(commands), tmp_path, {"TMPDIR": str(tmp_path)})

    assert commands[-1] == f"sebridge check -c {name}"
    assert f"{name}: " in said
    assert "warning" not in said or path.stem == "simulator"


async def said_by(
    commands: str, folder: Path, environ: Mapping[str, str], given: bytes = b""
) -> str:
    """Run commands at the root of the project, and return what they print."""
    process = await asyncio.create_subprocess_exec(
        *("bash", "-euo", "pipefail", "-c", commands),
        cwd=ROOT,
        env={"PATH": f"{folder}:{os.environ['PATH']}", "PYTHONUTF8": "1", **environ},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    said, _ = await process.communicate(given)
    assert process.returncode == 0, said.decode()
    return said.decode()


@pytest.mark.integration
async def test_completion_is_made_for_each_shell(tmp_path: Path) -> None:
    (block,) = (b for b in every_block("sh") if b.mark == "completion")
    shells = re.findall(r"(_SEBRIDGE_COMPLETE=(\w+)_source sebridge)", block.text)
    put_commands(tmp_path)

    assert [name for _, name in shells] == ["bash", "zsh", "fish"]
    for command, _ in shells:
        process = await asyncio.create_subprocess_shell(
            command,
            env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
            stdout=asyncio.subprocess.PIPE,
        )
        said, _ = await process.communicate()
        assert process.returncode == 0
        assert b"_SEBRIDGE_COMPLETE" in said
