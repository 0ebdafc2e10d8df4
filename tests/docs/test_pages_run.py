"""Run the commands on the pages, and compare their output with the pages."""

import asyncio
import os
import re
import sys
from pathlib import Path

import pytest

from tests.docs.page_world import World, put_commands, world
from tests.docs.pages import Block, every_block

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="they are for a shell")

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
    command, _, told = block.text.partition("\n")
    _, said = await here.run(command.removeprefix("$ "))
    expected, found = shape(told), shape(said)
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
