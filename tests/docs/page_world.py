"""The environment for the commands of the pages: a folder, a simulator, a forwarder.

The folder has the files that the pages mention: ``bridge.toml``, ``faulty.toml``,
``event.json`` (the freeze of the pages), ``received.json`` (the same as a webhook has
received it) and ``approver.toml``, which is the one of config/approvals.md.
"""

import asyncio
import json
import os
import re
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.docs.pages import blocks
from tests.support.configurations import (
    approvals,
    config_text,
    servicebus,
    slack,
    webhook,
)
from tests.support.ports import free_port
from tests.system.processes import (
    PATIENCE,
    Addresses,
    ended,
    forwarder,
    simulator_here,
    started,
)

EVENT_ID = "C7061BAC-AFDC-4513-B24B-AA5F13A16123"
FREEZE = {
    "EventId": EVENT_ID,
    "EventStatus": "Scheduled",
    "EventType": "Freeze",
    "ResourceType": "VirtualMachine",
    "Resources": ["WestNO_0", "WestNO_1"],
    "NotBefore": "Mon, 11 Apr 2022 22:26:58 GMT",
    "Description": "",
    "EventSource": "Platform",
    "DurationInSeconds": 5,
}
FAULTY = """[imds]
poll_intervall = "2s"

[[sinks]]
name = "ops"
type = "slack"
webhook_url = "env:SLACK_WEBHOOK_URL"

[[sinks]]
name = "siem"
type = "webhook"
url = "http://169.254.169.254/ingest"
"""


@dataclass(frozen=True, slots=True)
class World:
    """A folder with the files of the pages, and a running forwarder.

    Attributes:
        ports: free ports, which replace 9465 and 9466.
    """

    folder: Path
    at: Addresses
    ports: Mapping[str, int]

    @property
    def environ(self) -> Mapping[str, str]:
        """The environment of the commands; it holds the secrets."""
        return {
            **os.environ,
            "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}",
            "HOME": str(self.folder),
            "IMDS": self.at.imds,
            "SERVICEBUS": self.at.connection_string,
            "PYTHONUTF8": "1",
        }

    async def run(self, text: str) -> tuple[int, str]:
        """Run commands in bash; return the exit code and all output."""
        for port, free in self.ports.items():
            text = text.replace(f":{port}/", f":{free}/")
        process = await started(
            *("bash", "-euo", "pipefail", "-c", text),
            cwd=self.folder,
            env=self.environ,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        said, _ = await asyncio.wait_for(process.communicate(), 4 * PATIENCE)
        assert process.returncode is not None
        return process.returncode, said.decode()

    async def until_ready(self, text: str) -> tuple[int, str]:
        """Start a command, stop it after its first line; return exit code and line."""
        process = await started(
            *("bash", "-c", f"exec {text.strip()}"),
            cwd=self.folder,
            env=self.environ,
            stdout=asyncio.subprocess.PIPE,
        )
        assert process.stdout is not None
        line = await asyncio.wait_for(process.stdout.readline(), 4 * PATIENCE)
        return await ended(process), line.decode()


@asynccontextmanager
async def world(folder: Path) -> AsyncIterator[World]:
    """Build a world in which the freeze is announced, and its deliveries are stored."""
    async with simulator_here() as at:
        here = World(folder, at, {"9465": free_port(), "9466": free_port()})
        _write(here)
        bridge = await forwarder(folder / "bridge.toml", here.environ)
        try:
            await _wait_for_the_freeze(here)
            yield here
        finally:
            await ended(bridge)


def put_commands(folder: Path) -> None:
    """Create the commands that the pages call; they use the Python of the tests."""
    entry = "import sys; sys.argv[0] = 'sebridge'; from bridge.__main__ import main"
    for name, words in (("sebridge", f' -c "{entry}; main()"'), ("python", "")):
        script = folder / name
        script.write_text(f'#!/bin/sh\nexec {sys.executable}{words} "$@"\n')
        script.chmod(0o755)


def _write(here: World) -> None:
    (here.folder / "bin").mkdir()
    put_commands(here.folder / "bin")
    (here.folder / "bridge.toml").write_text(_configuration(here))
    (here.folder / "faulty.toml").write_text(FAULTY)
    (here.folder / "event.json").write_text(json.dumps(FREEZE))
    (approver,) = (
        block.text
        for block in blocks("config/approvals.md")
        if block.mark == "file: approver.toml"
    )
    (here.folder / "approver.toml").write_text(_to_the_simulator(approver))


def _configuration(here: World) -> str:
    bus, http, probe = "env:SERVICEBUS", here.ports["9465"], here.ports["9466"]
    disruptive = {"event_types": ["Reboot", "Redeploy", "Preempt", "Terminate"]}
    return config_text(
        servicebus(bus),
        slack(f"{here.at.inbox}/slack/ops", max_rate=20, when=disruptive),
        webhook("http://127.0.0.1:9/ingest"),
        imds=here.at.imds,
        state=here.folder / "state.db",
        listen=f"127.0.0.1:{http}",
        identity={
            "vm_name": "WestNO_0",
            "vm_id": "2a816217-dad7-5a92-a38a-1e6c71306bdd",
        },
        traffic={"listen": f"127.0.0.1:{probe}"},
        approvals=approvals(
            bus, "vm-approvals-sessions", sessions=["{vm_id}"], reply_to=["replies"]
        ),
    )


def _to_the_simulator(config: str) -> str:
    """Replace the namespace in Azure with the local broker."""
    here = re.sub(
        r"(?m)^namespace = .*$", 'connection_string = "env:SERVICEBUS"', config
    )
    return re.sub(r"(?m)^credential = .*\n", "", here)


async def _wait_for_the_freeze(here: World) -> None:
    given = {
        "eventId": EVENT_ID,
        "type": "Freeze",
        "resources": FREEZE["Resources"],
        "duration": 5,
        "startedSeconds": 3600,
    }
    await here.at.control("POST", "events", given)
    async with asyncio.timeout(4 * PATIENCE):
        while not (found := await _announced(here)):
            await asyncio.sleep(0.2)
    (here.folder / "received.json").write_text(json.dumps(found))


async def _announced(here: World) -> object | None:
    """Wait until Service Bus has the event about the freeze, and return the event."""
    command = "sebridge outbox show -c bridge.toml --sink bus --json --event"
    code, said = await here.run(f"{command} {EVENT_ID}")
    if code:
        return None
    found = (one for one in json.loads(said) if one["state"] == "delivered")
    return next((one["event"] for one in found), None)
