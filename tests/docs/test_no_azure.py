"""README's path without Azure, followed word for word: from nothing to an approval."""

import asyncio
import sys
from asyncio.subprocess import PIPE, STDOUT
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, blocks
from tests.support.ports import free_port
from tests.system.processes import PATIENCE

pytestmark = [pytest.mark.slow, pytest.mark.integration]


def commands(folder: Path) -> list[str]:
    """Return the commands of each terminal, with ports that are free here."""
    found = [one.text for one in blocks("README.md") if one.mark == "command: no-azure"]
    example = (ROOT / "config" / "examples" / "simulator.toml").read_text()
    config = folder / "simulator.toml"
    state = (folder / "state.db").as_posix()
    changes = {
        "config/examples/simulator.toml": config.as_posix(),
        "./sebridge-simulator.db": state,
        ".venv/bin/sebridge": f"{sys.executable} -m bridge",
        **{port: str(free_port()) for port in ("8080", "5672", "8081")},
    }
    listen = f'\n[http]\nlisten = "127.0.0.1:{free_port()}"\n'
    text, terminals = example, found
    for before, after in changes.items():
        text = text.replace(before, after)
        terminals = [one.replace(before, after) for one in terminals]
    config.write_text(text + listen)
    return terminals


@asynccontextmanager
async def terminal(command: str, words: bytes) -> AsyncIterator[None]:
    """Run the command of a terminal, beginning once it has printed some words."""
    process = await asyncio.create_subprocess_exec(
        *("sh", "-ec", command), stdout=PIPE, stderr=STDOUT
    )
    assert process.stdout is not None
    try:
        shown = b""
        async with asyncio.timeout(PATIENCE):
            while words not in shown:
                line = await process.stdout.readline()
                assert line, shown.decode()
                shown += line
        yield
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.communicate()


async def test_newcomer_gets_to_an_approved_event(tmp_path: Path) -> None:
    azure, machine, mine = commands(tmp_path)
    exports = "\n".join(one for one in machine.splitlines() if "export" in one)
    runs = machine.replace("&& ", "&& exec ")
    async with (
        terminal(f"exec {azure}", b"servicebus"),
        terminal(runs, b"transition observed"),
    ):
        person = await asyncio.create_subprocess_exec(
            *("sh", "-ec", f"{exports}\n{mine}"), stdout=PIPE
        )
        async with asyncio.timeout(PATIENCE):
            shown, _ = await person.communicate()

    text = shown.decode()
    assert person.returncode == 0, text
    for words in ("scheduled", ": relayed", "Ready.", "Reboot"):
        assert words in text
