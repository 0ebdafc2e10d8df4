"""A hook in a unit of its own, started by a real systemd for the real service.

The forwarder is the one of infra/systemd/sebridge.service with all that it may not do;
the hook is root's, put in its place by infra/install.sh.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from bridge.foundation.clock import SystemClock
from bridge.sinks.command.process import Exit
from bridge.sinks.command.unit import Places, UnitRunner
from tests.support.configurations import config_text, webhook
from tests.system.namespaces import ROOT, Machine, machine_in, missing
from tests.system.processes import PATIENCE, Addresses, simulator_here

pytestmark = [
    pytest.mark.slow,
    pytest.mark.integration,
    pytest.mark.xdist_group("systemd"),
    pytest.mark.skipif(missing() is not None, reason=str(missing())),
    pytest.mark.timeout(300),
]
DRAIN = {
    "name": "drain",
    "type": "command",
    "unit": "sebridge-hook@drain.service",
    "output": "always",
}
# A systemd inside a namespace may not hear that the last process of a unit has ended,
# where the kernel has cgroups of version 1: it goes on when its time to stop is over.
DROP_IN = """[Service]
StandardError=append:/run/forwarder.log
TimeoutStopSec=10s
"""
UNIT = "sebridge-hook@drain.service"
VARIABLES = {
    "SEBRIDGE_ACTION": "prepare",
    "SEBRIDGE_SINK": "drain",
    "SEBRIDGE_EVENT_ID": "E-1",
}


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    folder = tmp_path_factory.mktemp("systemd")
    with machine_in(folder) as found:
        if found is None:
            log = (folder / "systemd.log").read_text(errors="replace")
            pytest.skip(f"no systemd can be process 1 here: {log[-500:]}")
        (folder / "drain").write_text("#!/bin/sh\n")
        found.install("--hook", f"drain={folder / 'drain'}")
        found.run("install", "-d", "-o", "sebridge", "-g", "sebridge", "/run/sebridge")
        yield found


@pytest.fixture(autouse=True)
def kept(machine: Machine) -> Iterator[None]:
    yield
    machine.run("systemctl", "stop", UNIT)  # a run that a test has left waiting
    machine.run("systemctl", "reset-failed")
    for name in ("ran", "gate"):
        (machine.root / "run" / name).unlink(missing_ok=True)


def has(machine: Machine, text: str) -> None:
    """Make the hook another program."""
    hook = machine.root / "etc/sebridge/hooks/drain"
    hook.write_text(f'#!/bin/sh\necho "$SEBRIDGE_ACTION $$" >>/run/ran\n{text}\n')


def ran(machine: Machine) -> list[str]:
    log = machine.root / "run/ran"
    return log.read_text().splitlines() if log.exists() else []


def child_of(machine: Machine) -> str:
    """Return what a hook has left in a file."""
    gate = machine.root / "run/gate"
    return gate.read_text().strip() if gate.exists() else ""


async def until_ran(machine: Machine, count: int = 1) -> None:
    async with asyncio.timeout(PATIENCE):
        while len(ran(machine)) < count:
            await asyncio.sleep(0.05)


async def run(
    machine: Machine,
    cause: str,
    *,
    limit: float = 60,
    patience: float = PATIENCE,
    stop: asyncio.Event | None = None,
) -> Exit:
    """Ask for a run from outside, as the forwarder does inside."""
    run_ = machine.root / "run"
    places = Places(run_ / "sebridge/hooks", run_ / "sebridge-hook")
    runner = UnitRunner(UNIT, SystemClock(), places, patience, PATIENCE)
    return await runner.run(
        (),
        given=b"{}",
        environment={**VARIABLES, "SEBRIDGE_ID": cause},
        limit=limit,
        stop=stop or asyncio.Event(),
    )


async def test_root_runs_it_and_tells_how_it_ended(machine: Machine) -> None:
    has(machine, "id -u; exit 75")

    found = await run(machine, "ends")

    assert (found.code, found.output) == (75, "0")


ATTEMPTS = (
    'echo {} >"$1/result"',
    'echo {} >>"$1/ended"',
    'rm -f "$1/taken"',
    'mv "$1" "$1.old"',
    'mkdir "$1/../other"',
    "echo x >>/etc/sebridge/hooks/drain",
)


async def test_account_of_the_forwarder_cannot_say_how_a_run_ended(
    machine: Machine,
) -> None:
    """Nor change the hook; what it may do is read the result."""
    has(machine, "exit 3")
    assert (await run(machine, "own")).code == 3
    results = "/run/sebridge-hook/drain"

    def as_forwarder(script: str) -> int:
        who = ("runuser", "-u", "sebridge", "--", "sh", "-c", script, "sh", results)
        return machine.tried(*who).returncode

    assert as_forwarder('cat "$1/result"') == 0
    assert [one for one in ATTEMPTS if as_forwarder(one) == 0] == []
    result = (machine.root / results[1:] / "result").read_text()
    assert json.loads(result)["ended"]["code"] == 3


async def test_stop_ends_all_that_it_has_started(machine: Machine) -> None:
    has(machine, "setsid sleep 600 & echo $! >/run/gate; sleep 600")
    stop = asyncio.Event()
    task = asyncio.create_task(run(machine, "stopped", stop=stop))
    await until_ran(machine)
    async with asyncio.timeout(PATIENCE):
        while not (child := child_of(machine)):
            await asyncio.sleep(0.05)

    stop.set()
    found = await task

    assert found.was_stopped
    async with asyncio.timeout(PATIENCE):  # it is gone, once systemd has heard of it
        while machine.tried("kill", "-0", child).returncode == 0:
            await asyncio.sleep(0.1)


async def test_twelve_in_a_row_are_all_run(machine: Machine) -> None:
    has(machine, "")

    codes = [(await run(machine, f"many-{n}")).code for n in range(12)]

    assert codes == [0] * 12
    assert len(ran(machine)) == 12


async def test_person_who_stops_the_unit_is_heard(machine: Machine) -> None:
    has(machine, "sleep 600")
    task = asyncio.create_task(run(machine, "by hand"))
    await until_ran(machine)

    await asyncio.to_thread(machine.run, "systemctl", "stop", UNIT)

    assert (await task).was_stopped


async def test_launcher_that_is_killed_is_reported(machine: Machine) -> None:
    has(machine, "sleep 600")
    task = asyncio.create_task(run(machine, "killed"))
    await until_ran(machine)

    await asyncio.to_thread(machine.run, "systemctl", "kill", "-s", "KILL", UNIT)
    found = await task

    assert found.is_transient
    assert found.fault == "its service ended before the hook did: signal (KILL)"


async def test_missing_launcher_and_path_are_clear_errors(machine: Machine) -> None:
    has(machine, "")
    launcher = machine.root / "opt/sebridge/libexec/hook_launcher.py"
    text = launcher.read_text()
    launcher.unlink()
    path = "sebridge-hook@drain.path"

    missing_ = await run(machine, "no launcher", patience=5)
    # The service too: a start of it that is under way would take the next request.
    await asyncio.to_thread(machine.run, "systemctl", "stop", path, UNIT)
    launcher.write_text(text)
    deaf = await run(machine, "no path", patience=2)
    await asyncio.to_thread(machine.run, "systemctl", "reset-failed")
    await asyncio.to_thread(machine.run, "systemctl", "start", path)

    for found in (missing_, deaf):
        assert (found.code, found.is_transient) == (None, True)
        assert f"{UNIT} did not take the request within" in (found.fault or "")
        assert f"systemctl status {path} {UNIT}" in (found.fault or "")
    assert (await run(machine, "both there")).code == 0


# -- with the service as it is shipped -------------------------------------------------


@pytest.fixture
async def at(machine: Machine) -> AsyncIterator[Addresses]:
    async with simulator_here() as found:
        siem = webhook(f"{found.inbox}/siem")
        config = config_text(siem, DRAIN, imds=found.imds)
        (machine.root / "etc/sebridge/bridge.toml").write_text(config)
        (machine.root / "etc/systemd/system/sebridge.service.d/tests.conf").write_text(
            DROP_IN
        )
        machine.run("systemctl", "daemon-reload")
        machine.run("systemctl", "start", "sebridge.service")
        try:
            yield found
        finally:
            machine.run("systemctl", "stop", "sebridge.service")
            machine.run("rm", "-rf", "/var/lib/sebridge")


def event_in(body: object) -> dict[str, Any]:
    found = json.loads(body) if isinstance(body, str) else body
    assert isinstance(found, dict)
    return found


async def results(at: Addresses, count: int) -> list[dict[str, Any]]:
    async with asyncio.timeout(PATIENCE):
        while True:
            events = [event_in(one["body"]) for one in await at.messages("/siem")]
            found = [event for event in events if ".command." in event["type"]]
            if len(found) >= count:
                return found
            await asyncio.sleep(0.1)


async def test_run_goes_on_over_a_kill_of_the_service(
    machine: Machine, at: Addresses
) -> None:
    has(machine, "until [ -e /run/gate ]; do sleep 0.1; done; echo drained; id -un")
    event = {"type": "Reboot", "resources": ["WestNO_0"], "eventId": "E-1"}
    await at.control("POST", "events", {**event, "notBefore": 600})
    await until_ran(machine)

    kill = ("systemctl", "kill", "-s", "KILL", "sebridge.service")
    await asyncio.to_thread(machine.run, *kill)
    log = machine.root / "run/forwarder.log"
    async with asyncio.timeout(PATIENCE):
        while "run of a hook taken up" not in log.read_text():
            await asyncio.sleep(0.1)
    (machine.root / "run/gate").touch()
    (result,) = await results(at, 1)

    assert result["type"] == "sebridge.command.succeeded.v1"
    assert result["data"]["output"] == "drained\nroot"
    assert len(ran(machine)) == 1


async def test_ten_lines_make_a_vm_that_drains_itself(
    machine: Machine, at: Addresses
) -> None:
    """The commands of infra/hooks/README.md, as they stand there."""
    page = (ROOT / "infra/hooks/README.md").read_text()
    lines = page.split("<!-- command: first-hook -->\n```sh\n")[1].split("```")[0]
    assert len(lines.splitlines()) <= 10
    # No table: install.sh takes a file that has one for a finished configuration.
    imds = f'imds.endpoint = "{at.imds}"\nimds.poll_interval = "250ms"\n'
    config = machine.root / "etc/sebridge/bridge.toml"
    config.write_text(f'{imds}http.listen = ""\n')
    nginx = "[Unit]\nDefaultDependencies=no\n[Service]\nExecStart=/bin/sleep infinity\n"
    (machine.root / "etc/systemd/system/nginx.service").write_text(nginx)
    sudo = machine.root / "usr/local/bin/sudo"
    sudo.write_text('#!/bin/sh\nexec "$@"\n')
    sudo.chmod(0o755)
    machine.run("systemctl", "daemon-reload")
    machine.run("systemctl", "start", "nginx.service")

    said = machine.run("bash", "-ec", f"cd {ROOT}\n{lines}")
    assert "/etc/sebridge/bridge.toml: ok" in said
    assert is_active(machine)
    event = {"type": "Reboot", "resources": ["WestNO_0"], "eventId": "E-2"}
    await at.control("POST", "events", {**event, "notBefore": 600})
    async with asyncio.timeout(PATIENCE):
        while is_active(machine):
            await asyncio.sleep(0.2)
    await at.control("DELETE", "events/E-2")
    async with asyncio.timeout(PATIENCE):
        while not is_active(machine):
            await asyncio.sleep(0.2)


def is_active(machine: Machine) -> bool:
    return machine.tried("systemctl", "is-active", "nginx.service").returncode == 0


def test_check_knows_that_requests_are_heard(machine: Machine, at: Addresses) -> None:
    check = ("sebridge", "check", "--connect", "-c", "/etc/sebridge/bridge.toml")
    assert "drain can be run, and only root writes it" in machine.run(*check)

    machine.run("systemctl", "stop", "sebridge-hook@drain.path")
    found = machine.tried(*check)
    machine.run("systemctl", "start", "sebridge-hook@drain.path")

    assert found.returncode != 0
    assert "systemctl enable --now sebridge-hook@drain.path" in found.stdout


def test_command_in_the_service_as_shipped_is_doubted(
    machine: Machine, at: Addresses
) -> None:
    config = machine.root / "etc/sebridge/bridge.toml"
    command = 'command = ["/etc/sebridge/hooks/drain"]'
    text = config.read_text()
    check = ("sebridge", "check", "-c", "/etc/sebridge/bridge.toml")
    assert "may do almost nothing" not in machine.run(*check)
    config.write_text(text.replace(f'unit = "{UNIT}"', command))

    found = machine.tried(*check)

    assert "sinks.drain.command: sebridge.service may do almost nothing" in (
        found.stdout + found.stderr
    )


def test_test_by_hand_leaves_the_service_its_folders(
    machine: Machine, at: Addresses
) -> None:
    has(machine, 'echo "test $SEBRIDGE_TEST"')
    send = ("sebridge", "send-test", "-c", "/etc/sebridge/bridge.toml", "--run")

    said = machine.run(*send)

    assert "drain" in said
    owners = machine.run("stat", "-c", "%U", "/run/sebridge/hooks/drain")
    assert owners.split() == ["sebridge"]
