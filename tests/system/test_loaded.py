"""What a process loads: a forwarder with one webhook, and each command.

Each module that a forwarder does without is memory on every VM, and each that a command
does without is time at every start: what comes back, fails here. Each is a process of
its own; a forwarder runs until it has read the document twice.
"""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from tests.support.builders import patient_outbox, router
from tests.support.configurations import config_text, webhook
from tests.system.processes import PATIENCE, ended, started

# Says what is loaded when the process ends.
LISTING = """
import sys
from bridge.__main__ import main
try:
    main()
finally:
    print("\\n" + " ".join(sys.modules))
"""
# What costs much and has no work there; what is of the package alone is listed below.
WITHOUT = {"aiohttp.web", "argparse", "azure", "cryptography", "jinja2", "slack_sdk"}
# Of the packages that most can do without: what [approvals], [traffic], a sink and the
# health port are configured with, and the sink that is configured.
WITH = {
    "approvals": {"config", "evidence", "rotation", "rules"},
    "cli": {"common", "door", "ending", "long_running", "main", "process"},
    "demo": set(),
    "diagnostics": set(),
    "health": {"config", "port", "status"},
    "servicebus": {"namespace"},
    "simulator": set(),
    "sinks": {"base", "batch", "registry", "webhook"},
    "telemetry": {"metrics"},
    "traffic": {"config"},
}


def unmeasured() -> dict[str, str]:
    """Return the environment of a process that loads no measure of coverage."""
    return {n: v for n, v in os.environ.items() if not n.startswith("COVERAGE")}


async def loaded(folder: Path) -> set[str]:
    """Run a forwarder with one webhook, and return the modules it had in the end."""
    reads, is_enough = [], asyncio.Event()

    async def document(_: web.Request) -> web.Response:
        reads.append(1)
        if len(reads) > 1:
            is_enough.set()
        return web.json_response({"DocumentIncarnation": 1, "Events": []})

    async def compute(_: web.Request) -> web.Response:
        return web.json_response({"name": "vm", "vmId": "id"})

    app = web.Application()
    app.router.add_get("/metadata/scheduledevents", document)
    app.router.add_get("/metadata/instance/compute", compute)
    app.router.add_post("/siem", compute)
    async with TestServer(app) as server:
        path = folder / "bridge.toml"
        url = f"http://127.0.0.1:{server.port}"
        path.write_text(
            config_text(
                webhook(f"{url}/siem"),
                imds=url,
                state=folder / "state.db",
                listen="127.0.0.1:0",
            )
        )
        process = await started(
            *(sys.executable, "-c", LISTING, "run", "-c", str(path)),
            stdout=asyncio.subprocess.PIPE,
            env=unmeasured(),
        )
        async with asyncio.timeout(PATIENCE):
            await is_enough.wait()
        assert await ended(process) == 0
    assert process.stdout is not None
    return names((await process.stdout.read()).decode())


def names(output: str) -> set[str]:
    """Return the modules that `LISTING` has printed in the last line."""
    return set(output.splitlines()[-1].split())


@pytest.mark.integration
async def test_forwarder_with_one_webhook_loads_nothing_that_it_does_without(
    tmp_path: Path,
) -> None:
    found = await loaded(tmp_path)

    assert not found & WITHOUT
    for package, wanted in WITH.items():
        assert of_package(package, found) <= wanted, package


def of_package(package: str, found: set[str]) -> set[str]:
    """Return the names of the modules of a package, and of packages inside it."""
    parts = (name.split(".") for name in found)
    return {part[2] for part in parts if part[:2] == ["bridge", package] and part[2:]}


# -- commands ----------------------------------------------------------------------

# Half of the time of a start; who sends and receives nothing does without.
NETWORK = {"aiohttp", "azure", "slack_sdk"}
# Of the packages that are the forwarder, the hub, and what runs beside them.
PROCESSES = ("app", "demo", "pipeline", "simulator", "traffic")
WHOLE = """
[state]
path = "{folder}/state.db"
[[sinks]]
name = "log"
type = "file"
path = "-"
"""


def command(folder: Path, *arguments: str) -> tuple[int, set[str]]:
    """Run a command, and return its exit code and the modules it had in the end."""
    (folder / "bridge.toml").write_text(WHOLE.format(folder=folder.as_posix()))
    done = subprocess.run(  # noqa: S603 - our own arguments
        [sys.executable, "-c", LISTING, *arguments],
        cwd=folder,
        env=unmeasured(),
        stdout=subprocess.PIPE,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    return done.returncode, names(done.stdout)


@pytest.mark.integration
@pytest.mark.parametrize("line", ["--version", "--help", "run --help"])
def test_what_only_speaks_of_the_commands_loads_none(line: str, tmp_path: Path) -> None:
    code, found = command(tmp_path, *line.split())

    ours = {name for name in found if name.startswith("bridge.")}
    assert code == 0
    assert not found & {*NETWORK, "asyncio", "dataclasses", "msgspec", "sqlite3"}
    assert ours == {
        *("bridge.__main__", "bridge.cli", "bridge.cli.common", "bridge.cli.ending"),
        *("bridge.cli.main", "bridge.foundation", "bridge.foundation.errors"),
        *("bridge.foundation.errors", "bridge.foundation.printable"),
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    "line",
    [
        *(
            "check -c bridge.toml",
            "init --traffic -o new.toml",
            "outbox list -c bridge.toml",
        ),
        *("events -c bridge.toml", "schema event", "approve --help", "outbox --help"),
        *("simulate --help", "demo --help", "hub --help"),
    ],
)
async def test_command_that_sends_nothing_loads_nothing_to_send_with(
    line: str, tmp_path: Path
) -> None:
    is_approving = line.startswith("approve")
    async with patient_outbox(tmp_path / "state.db", router()):
        pass

    code, found = command(tmp_path, *line.split())

    assert code == 0
    assert not found & NETWORK
    loaded = {package: of_package(package, found) for package in PROCESSES}
    assert loaded == {
        "app": {"approve_reply", "approve_request"} if is_approving else set(),
        "demo": set(),
        "pipeline": set(),
        "simulator": set(),
        "traffic": set() if line.startswith(("simulate", "demo")) else {"config"},
    }


@pytest.mark.integration
def test_simulator_loads_nothing_of_the_forwarder(tmp_path: Path) -> None:
    """It stands in for Azure; of ours it needs how a process logs and ends."""
    code, found = command(tmp_path, "simulate", "--scenario", "no-such-scenario")

    packages = {name.split(".")[1] for name in found if name.startswith("bridge.")}
    assert code == 2
    assert packages == {
        *("__main__", "cli", "events", "foundation", "simulator", "telemetry")
    }
