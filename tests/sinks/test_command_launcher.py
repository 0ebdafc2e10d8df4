"""What root does not do for the forwarder, and how a hook for a unit is configured."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from bridge.events.document import ScheduledEvent
from bridge.foundation.errors import RefusedDeliveryError
from bridge.sinks.acting import Action
from bridge.sinks.base import Resources
from bridge.sinks.command.environment import Occasion, variables_of
from bridge.sinks.command.ownership import Service
from bridge.sinks.command.sink import CommandSinkConfig
from bridge.sinks.command.unit import hook_name
from tests.sinks.hook_machine import (
    LAUNCHER,
    PATIENCE,
    UNIT,
    Machine,
    machine_in,
    run,
)
from tests.support.builders import imds_event
from tests.support.sink_fixtures import config_faults, sink_config

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="systemd is Linux's")
NOWHERE: Resources = None  # type: ignore[assignment]  # it is not looked at


@pytest.fixture
async def machine(tmp_path: Path) -> AsyncIterator[Machine]:
    async with machine_in(tmp_path) as found:
        yield found


# -- what root does not do -------------------------------------------------------------


def asked(machine: Machine, text: str) -> int:
    """Leave a request that the bridge did not write; return what the launcher says."""
    machine.requests.mkdir(parents=True, exist_ok=True)
    (machine.requests / "request").write_text(text)
    return machine.launch("run").wait(PATIENCE)


def request(**more: object) -> str:
    fine = {"runId": "0" * 32, "limit": 60, "environment": {}, "event": "{}"}
    return json.dumps({**fine, **more})


@pytest.mark.integration
@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "[" * 100_000,
        request(runId="../../etc/passwd"),
        request(runId=1),
        request(limit=0),
        request(limit=1e9),
        request(limit="nan"),
        request(environment=[1]),
        request(event=1),
        " " * (5 * 1024 * 1024),
    ],
)
def test_request_that_is_none_runs_nothing_and_is_gone(
    text: str, tmp_path: Path
) -> None:
    machine = Machine(tmp_path)
    machine.has(f'echo ran >>"{machine.ran}"')

    assert asked(machine, text) == 65

    assert not machine.ran.exists()
    assert not (machine.requests / "request").exists()
    assert not list(machine.results.iterdir())


@pytest.mark.integration
def test_no_symbolic_link_of_the_forwarder_is_followed(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.has(f'echo ran >>"{machine.ran}"')
    secret = tmp_path / "secret"
    secret.write_text(request())
    machine.requests.mkdir(parents=True)
    (machine.requests / "request").symlink_to(secret)
    assert machine.launch("run").wait(PATIENCE) == 65

    elsewhere = tmp_path / "elsewhere"
    shutil.move(machine.places.requests, elsewhere)
    (elsewhere / "drain" / "request").write_text(request())
    machine.places.requests.symlink_to(elsewhere)
    assert machine.launch("run").wait(PATIENCE) == 65

    assert (elsewhere / "drain" / "request").exists()
    assert secret.exists()
    assert not machine.ran.exists()


@pytest.mark.integration
@pytest.mark.parametrize("what", ["hook", "folder", "link", "missing"])
async def test_hook_that_may_be_somebody_elses_is_not_run(
    what: str, machine: Machine
) -> None:
    machine.has(f'echo ran >>"{machine.ran}"')
    if what == "hook":
        machine.hook.chmod(0o720)
    elif what == "folder":
        machine.hook.parent.chmod(0o777)
    else:
        moved = machine.hook.rename(machine.root / "moved")
        if what == "link":
            machine.hook.symlink_to(moved)

    found = await run(machine)

    assert found.code is None
    assert found.fault
    assert not machine.ran.exists()


@pytest.mark.integration
def test_name_that_is_a_path_is_refused(tmp_path: Path) -> None:
    code = subprocess.run(  # noqa: S603 - our own launcher
        [sys.executable, LAUNCHER, "run", "../drain", tmp_path],
        check=False,
        capture_output=True,
    ).returncode

    assert code == 64


@pytest.mark.integration
async def test_every_key_a_command_is_told_is_known_to_the_launcher(
    machine: Machine,
) -> None:
    """The two lists are held together here: root's side has its own."""
    machine.has("env")
    event = ScheduledEvent(event_id="E-1", raw=imds_event())
    occasion = Occasion(
        sink="drain",
        action=Action.PREPARE,
        type="t",
        id="cause-1",
        transition="scheduled",
        event=event,
        others=("E-2",),
        vm_name="vm",
        attempt=1,
        now=datetime(2026, 3, 2, tzinfo=UTC),
        is_test=True,
    )
    shown = variables_of(occasion) | {"SEBRIDGE_UNKNOWN": "1"}

    found = await run(machine, shown)

    heard = dict(line.split("=", 1) for line in found.output.splitlines())
    assert {k: v for k, v in heard.items() if k in shown} == variables_of(occasion)


# -- configuration ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("unit", "name"),
    [
        (UNIT, "drain"),
        ("sebridge-hook@a_B-9.service", "a_B-9"),
        ("sebridge-hook@.service", None),
        ("sebridge-hook@../x.service", None),
        ("sebridge-hook@a b.service", None),
        ("other@a.service", None),
    ],
)
def test_unit_names_its_hook(unit: str, name: str | None) -> None:
    assert hook_name(unit) == name


def test_exactly_one_of_command_and_unit_is_wanted() -> None:
    config = sink_config({"type": "command", "unit": UNIT})
    assert isinstance(config, CommandSinkConfig)
    assert config.program == ("/etc/sebridge/hooks/drain",)

    both = {"type": "command", "unit": UNIT, "command": ["/a"]}
    assert any("unit: replaces command" in f for f in config_faults(both))
    none = config_faults({"type": "command"})
    assert any("command: must be a program" in f for f in none)
    odd = config_faults({"type": "command", "unit": "nginx.service"})
    assert any("unit: must be sebridge-hook@NAME.service" in f for f in odd)


async def test_check_says_that_a_hook_is_missing() -> None:
    config = sink_config({"type": "command", "unit": "sebridge-hook@no-such.service"})

    with pytest.raises(RefusedDeliveryError, match=r"hooks/no-such cannot be run"):
        await config.reach(NOWHERE)


def test_hook_of_a_unit_is_not_doubted(tmp_path: Path) -> None:
    (tmp_path / "sebridge.service").touch()

    class Here(CommandSinkConfig, frozen=True, kw_only=True):
        service = Service((tmp_path,))

    assert list(Here(name="d", type="command", unit=UNIT).doubts()) == []


@pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() != 0, reason="the hook must be root's"
)
async def test_check_looks_at_the_hook_of_a_unit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Here(CommandSinkConfig, frozen=True, kw_only=True):
        hooks = tmp_path

    monkeypatch.setenv("PATH", str(tmp_path))  # no systemd is asked
    config = Here(name="drain", type="command", unit=UNIT)
    hook = tmp_path / "drain"
    hook.touch(mode=0o644)
    with pytest.raises(RefusedDeliveryError, match="it is not executable"):
        await config.reach(NOWHERE)

    hook.chmod(0o700)  # root alone may run it: that is all it takes

    assert await config.reach(NOWHERE) == f"{hook} can be run, and only root writes it"
