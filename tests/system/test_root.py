"""Root runs every command on a machine where the account of the service sets traps."""

import asyncio
import json
import os
import shutil
import ssl
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import trustme

from bridge.cli.main import main
from tests.support import root_world
from tests.support.builders import outgoing, patient_outbox, router
from tests.support.configurations import NOWHERE, config_text, webhook
from tests.support.ports import free_port
from tests.support.root_world import ROOT, World
from tests.support.sink_fixtures import Inbox

pytestmark = [
    pytest.mark.slow,
    pytest.mark.integration,
    pytest.mark.skipif(
        root_world.why_not() is not None, reason=str(root_world.why_not())
    ),
]

EVENT_ID = "AB12"
HUB = """\
[hub]
listen = "127.0.0.1:0"
store = "sqlite:{folder}/hub.db"
[[hub.sources]]
name = "bridges"
type = "bridges"
connection_string = "Endpoint=sb://127.0.0.1:1/;SharedAccessKeyName=a;SharedAccessKey=b"
topic = "t"
subscription = "s"
[[sinks]]
name = "siem"
type = "webhook"
url = "http://127.0.0.1:9"
[state]
path = "{folder}/hub-state.db"
"""
# Each command that reads a configuration, with words by which it opens the files.
COMMANDS: dict[str, list[tuple[str, ...]]] = {
    "approve": [("approve", "AB12", "--timeout", "1s", "--wait")],
    "check": [("check", "--connect")],
    "events": [("events",), ("events", "--follow"), ("events", "--watch")],
    "hub": [("hub",)],
    "outbox list": [("outbox", "list"), ("outbox", "list", "--watch")],
    "outbox show": [("outbox", "show", "1")],
    "outbox retry": [("outbox", "retry")],
    "outbox discard": [("outbox", "discard", "--all")],
    "render": [("render", "--sink", "siem")],
    "route": [("route", "--event", "{event}")],
    "run": [("run",)],
    "send-test": [("send-test",)],
    "status": [("status",), ("status", "--live")],
}
UNTIL_STOPPED = {"run": 8, "hub": 8, "--follow": 4, "--watch": 4}
WORDS = [words for found in COMMANDS.values() for words in found]


@pytest.fixture
def machine() -> Iterator[World]:
    """Return a machine without traps: a state file of the account, with deliveries."""
    with root_world.world() as found:
        state = found.state / "state.db"
        (found.folder / "bridge.toml").write_text(
            config_text(
                webhook(NOWHERE),
                state=state,
                approvals={
                    "connection_string": "Endpoint=sb://127.0.0.1:1/;"
                    "SharedAccessKeyName=a;SharedAccessKey=b",
                    "queue": "approvals",
                },
                traffic={"listen": f"127.0.0.1:{free_port()}"},
            )
        )
        (found.folder / "hub.toml").write_text(HUB.format(folder=found.state))
        event = {"EventId": EVENT_ID, "EventType": "Reboot", "Resources": ["vm"]}
        (found.folder / "event.json").write_text(json.dumps(event))

        async def fill() -> None:
            async with patient_outbox(state, router()) as outbox:
                await outbox.commit([outgoing("1", key=EVENT_ID)], now=1)

        asyncio.run(fill())
        found.give_away()
        yield found


@pytest.fixture
def trapped(machine: World) -> World:
    """Return the machine with all traps, at the state file and both of the hub."""
    (machine.state / "hub.db").write_bytes((machine.state / "state.db").read_bytes())
    (machine.state / "hub-state.db").write_bytes(
        (machine.state / "state.db").read_bytes()
    )
    for name in ("state.db", "hub.db", "hub-state.db"):
        machine.trap(machine.state / name)
    machine.give_away()
    return machine


def spoken(machine: World, words: tuple[str, ...], config: str) -> list[str | Path]:
    event = str(machine.folder / "event.json")
    said: list[str | Path] = [word.format(event=event) for word in words]
    return [*said, "-c", machine.folder / config]


@pytest.mark.parametrize("words", WORDS, ids=" ".join)
def test_command_of_root_springs_no_trap(
    words: tuple[str, ...], trapped: World
) -> None:
    before = trapped.facts()
    seconds = max((UNTIL_STOPPED.get(word, 0) for word in words), default=0) or 60
    config = "hub.toml" if words[0] == "hub" else "bridge.toml"

    said = trapped.sebridge(*spoken(trapped, words, config), seconds=seconds)

    assert trapped.facts() == before, said.stderr
    assert "Traceback" not in said.stderr


def test_forwarder_goes_on_in_memory_where_others_can_put_files(
    trapped: World,
) -> None:
    os.chown(trapped.state, 0, 0)
    trapped.state.chmod(0o777)
    before, there = trapped.facts(), {path.name for path in trapped.state.iterdir()}

    said = trapped.sebridge(*spoken(trapped, ("run",), "bridge.toml"), seconds=8)

    assert "state file is not opened by root" in said.stderr
    assert "going on in memory" in said.stderr
    assert trapped.facts() == before
    assert {path.name for path in trapped.state.iterdir()} == there


def test_check_of_a_hub_springs_no_trap(trapped: World) -> None:
    before = trapped.facts()

    trapped.sebridge(*spoken(trapped, ("check", "--connect"), "hub.toml"))

    assert trapped.facts() == before


@pytest.mark.parametrize(
    "line", ["outbox list --event ", "approve ", "events --event "]
)
def test_completion_springs_no_trap(line: str, trapped: World) -> None:
    before = trapped.facts()
    words = f"sebridge {line}"
    environ = {
        "_SEBRIDGE_COMPLETE": "bash_complete",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split())),
        "SEBRIDGE_CONFIG": str(trapped.folder / "bridge.toml"),
    }
    code = (
        "import sys; sys.argv[0] = 'sebridge'; from bridge.cli.main import main; main()"
    )

    said = trapped.run(sys.executable, "-c", code, environ=environ)

    assert trapped.facts() == before, said.stderr
    assert "Traceback" not in said.stderr


def test_no_command_is_left_out() -> None:
    """A command with a configuration file has its words in this file."""
    assert set(_with_configuration(main)) == COMMANDS.keys()


def _with_configuration(group: click.Group, above: str = "") -> Iterator[str]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from _with_configuration(command, f"{above}{name} ")
        elif any("--config" in one.opts for one in command.params):
            yield f"{above}{name}"


SCRIPT = """\
set -eu
. infra/lib.sh
. infra/program.sh
program={folder}/program settings={folder}
{function}
"""


@pytest.mark.parametrize("function", ["answers", "check", "ask_for drain"])
def test_function_of_the_scripts_springs_no_trap(function: str, trapped: World) -> None:
    before = trapped.facts()
    command = trapped.folder / "program/bin/sebridge"
    command.parent.mkdir(parents=True)
    command.write_text(f'#!/bin/sh\ncd {ROOT}\nexec {sys.executable} -m bridge "$@"\n')
    command.chmod(0o755)
    text = SCRIPT.format(folder=trapped.folder, function=function)

    said = trapped.run("bash", "-c", text)

    assert trapped.facts() == before, said.stderr


def test_root_works_with_the_files_as_their_account(machine: World) -> None:
    listed = machine.sebridge(*spoken(machine, ("outbox", "list"), "bridge.toml"))
    retried = machine.sebridge(*spoken(machine, ("outbox", "retry"), "bridge.toml"))

    assert listed.returncode == retried.returncode == 0, listed.stderr + retried.stderr
    assert EVENT_ID in listed.stdout
    assert machine.owners() == {root_world.ACCOUNT}


def test_forwarder_that_root_starts_runs_as_the_account(machine: World) -> None:
    said = machine.sebridge(*spoken(machine, ("run",), "bridge.toml"), seconds=8)

    assert "root's rights are given up" in said.stderr
    assert machine.owners() == {root_world.ACCOUNT}


def test_account_that_may_not_read_the_program_is_named(machine: World) -> None:
    """It could not load the modules that are still missing: root keeps out."""
    shutil.copytree(ROOT / "bridge", machine.closed / "bridge")
    code = "import sys; from bridge.cli.main import main; main()"
    words = spoken(machine, ("outbox", "list"), "bridge.toml")
    environ = {"PYTHONPATH": str(machine.closed), "PYTHONSAFEPATH": "1"}

    said = machine.run(sys.executable, "-c", code, *words, environ=environ)

    assert said.returncode == 1
    assert "may not read the program" in said.stderr
    assert "Traceback" not in said.stderr


async def test_secrets_that_only_root_can_read_are_used(machine: World) -> None:
    """Their files are root's alone; the copies are in memory."""
    authority = trustme.CA()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    authority.cert_pem.write_to_path(machine.closed / "ca.pem")
    (machine.closed / "token").write_text("of root")
    async with Inbox().serving(context) as inbox:
        sink = webhook(
            inbox.url,
            auth={"type": "bearer", "token": f"file:{machine.closed}/token"},
            ca_file=str(machine.closed / "ca.pem"),
        )
        text = config_text(sink, state=machine.state / "state.db")
        (machine.folder / "bridge.toml").write_text(text)
        words = spoken(machine, ("send-test",), "bridge.toml")
        said = await asyncio.to_thread(machine.sebridge, *words)

    assert said.returncode == 0, said.stderr + said.stdout
    (heard,) = inbox.received
    assert heard.headers["Authorization"] == "Bearer of root"
