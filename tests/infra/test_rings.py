"""infra/fleet/rings.py against a stand-in of the Azure CLI: who gets which version."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.docs.pages import blocks

pytestmark = pytest.mark.deploy

HERE = Path(__file__).parent
RINGS = HERE.parents[1] / "infra" / "fleet" / "rings.py"
GALLERY = (
    "/subscriptions/s/resourceGroups/images/providers/Microsoft.Compute/galleries/g"
)
LINUX = f"{GALLERY}/applications/sebridge"
WINDOWS = f"{GALLERY}/applications/sebridge-windows"
OTHER = f"{GALLERY}/applications/agent/versions/7.0.0"


class Fleet:
    """VMs of a subscription, and the command that changes them."""

    def __init__(self, folder: Path) -> None:
        self.world = folder / "world"
        self.world.mkdir()
        self._script("az", f'exec "{sys.executable}" -I "{HERE}/az_stand_in.py" "$@"')
        # What the machines have: the program, its Python, the service.
        self._script("sebridge", 'test "$1" != status || echo "$ANSWER"')
        self._script("python", f'exec "{sys.executable}" "$@"')
        self._script("systemctl", "echo active")

    def _script(self, name: str, text: str) -> None:
        path = self.world / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)

    def vm(  # noqa: PLR0913 - what a VM may differ in
        self,
        name: str,
        group: str = "web",
        *,
        has: str = "",
        power: str = "running",
        kind: str = "Linux",
        size: str = "Standard_D2s_v5",
        ring: str = "",
        agent: str = "Ready",
        state: str = "Succeeded",
        application: str = LINUX,
        **more: Any,
    ) -> None:
        """Add a VM; ``more`` is for the stand-in, and ``scale_set``."""
        own = {
            "packageReferenceId": f"{application.upper()}/versions/{has}",
            "order": 3,
            "configurationReference": "https://own.example/bridge.toml",
        }
        others = [{"packageReferenceId": OTHER, "order": 1}]
        scale_set = (
            {"virtualMachineScaleSet": {"id": "x"}} if "scale_set" in more else {}
        )
        provider = "providers/Microsoft.Compute/virtualMachines"
        model = {
            "id": f"/subscriptions/s/resourceGroups/{group}/{provider}/{name}",
            "tags": {"sebridge-ring": ring} if ring else None,
            "properties": {
                **scale_set,
                "provisioningState": state,
                "hardwareProfile": {"vmSize": size},
                "storageProfile": {"osDisk": {"osType": kind}},
                "applicationProfile": {
                    "galleryApplications": others + [own] * bool(has)
                },
                "instanceView": {
                    "statuses": [
                        {"code": "ProvisioningState/succeeded"},
                        {"code": f"PowerState/{power}"},
                    ],
                    "vmAgent": {"statuses": [{"displayStatus": agent}]},
                    "extensions": [
                        {
                            "name": "VMAppExtension",
                            "statuses": [{"message": "install.sh:\n no Python"}],
                        }
                    ],
                },
            },
        }
        given = {"fails": [], "sick": [], "log": [], **more, "model": model}
        (self.world / f"{group}+{name}.json").write_text(json.dumps(given))

    def read(self, name: str, group: str = "web") -> Any:
        return json.loads((self.world / f"{group}+{name}.json").read_text())

    def logs(self) -> dict[str, list[str]]:
        """Return the versions that each VM was given."""
        files = sorted(self.world.glob("*+*.json"))
        return {
            file.stem.split("+")[1]: json.loads(file.read_text())["log"]
            for file in files
        }

    def applications(self, name: str) -> list[Any]:
        profile = self.read(name)["model"]["properties"]["applicationProfile"]
        found: list[Any] = profile["galleryApplications"]
        return found

    def run(self, *words: str, **environ: str) -> "subprocess.CompletedProcess[str]":
        given = ("--version", "1.2.3", "--soak", "0", "--every", "0.01", *words)
        return subprocess.run(  # noqa: S603 - our own script
            [sys.executable, RINGS, *given],
            env={
                "PATH": f"{self.world}:{os.environ['PATH']}",
                "WORLD": str(self.world),
                **environ,
            },
            capture_output=True,
            text=True,
            check=False,
        )


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    return Fleet(tmp_path)


def test_every_machine_gets_the_version_ring_by_ring(fleet: Fleet) -> None:
    for number in range(6):
        fleet.vm(f"web-{number}", has="1.2.2")

    found = fleet.run("--linux", LINUX, "--rings", "1,2,all")

    assert found.returncode == 0, found.stdout + found.stderr
    assert set(map(tuple, fleet.logs().values())) == {("1.2.3",)}
    lines = [line for line in found.stdout.splitlines() if line.startswith("ring")]
    assert lines == [
        "ring 1 of 3: 1 machines",
        "ring 1: 1 tried, 0 failed",
        "ring 2 of 3: 2 machines",
        "ring 2: 2 tried, 0 failed",
        "ring 3 of 3: 3 machines",
        "ring 3: 3 tried, 0 failed",
    ]
    assert found.stdout.count(": ready\n") == 6


@pytest.mark.parametrize(
    ("count", "sizes"),
    [(1, [1, 0, 0]), (3, [1, 1, 1]), (20, [2, 10, 8])],
)
def test_first_ring_is_a_tenth_of_a_small_fleet(
    count: int, sizes: list[int], fleet: Fleet
) -> None:
    for number in range(count):
        fleet.vm(f"web-{number}")

    found = fleet.run("--linux", LINUX, "--dry-run")

    lines = [line for line in found.stdout.splitlines() if line.startswith("ring")]
    assert lines == [
        f"ring {number} of 3: {size} machines" for number, size in enumerate(sizes, 1)
    ]


def test_other_applications_and_a_configuration_of_its_own_stay(fleet: Fleet) -> None:
    fleet.vm("web-1", has="1.2.2")
    fleet.vm("web-2")

    assert fleet.run("--linux", LINUX).returncode == 0

    other, ours = fleet.applications("web-1")
    assert other == {"packageReferenceId": OTHER, "order": 1}
    assert ours == {
        "packageReferenceId": f"{LINUX}/versions/1.2.3",
        "order": 3,
        "configurationReference": "https://own.example/bridge.toml",
        "treatFailureAsDeploymentFailure": True,
    }
    assert fleet.applications("web-2")[1] == {
        "packageReferenceId": f"{LINUX}/versions/1.2.3",
        "treatFailureAsDeploymentFailure": True,
    }


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        ({"fails": ["1.2.3"]}, "failed: install.sh: no Python"),
        ({"sick": ["1.2.3"]}, "failed: missing: imds: no document"),
        ({"dead": True}, "failed: missing: the forwarder does not answer"),
    ],
    ids=["not installed", "not ready", "not there"],
)
def test_bad_version_does_not_leave_the_first_ring(
    bad: dict[str, Any], why: str, fleet: Fleet
) -> None:
    for number in range(8):
        fleet.vm(f"web-{number}", has="1.2.2", **bad)

    found = fleet.run("--linux", LINUX, "--rings", "2,all", "--at-once", "1")

    assert found.returncode == 1
    assert why in found.stdout
    changed = [log for log in fleet.logs().values() if log]
    # One is too many of two: the second is not touched where it is seen in time.
    assert len(changed) == (1 if "fails" in bad else 2)
    assert "ring 1: stopped: " in found.stdout
    assert "the way back: this command with the --version" in found.stdout
    assert "ring 2" not in found.stdout


def test_way_back_is_the_version_before(fleet: Fleet) -> None:
    for number in range(2):
        fleet.vm(f"web-{number}", has="1.2.2", sick=["1.2.3"])
    said = fleet.run("--linux", LINUX, "--rings", "20,200,all").stdout
    assert "what was changed had: 1.2.2 on 2" in said

    found = fleet.run("--linux", LINUX, "--rings", "20,200,all", "--version", "1.2.2")

    assert found.returncode == 0
    assert set(map(tuple, fleet.logs().values())) == {("1.2.3", "1.2.2")}


def test_few_failures_of_a_large_ring_are_borne(fleet: Fleet) -> None:
    for number in range(9):
        fleet.vm(f"web-{number}")
    fleet.vm("web-9", fails=["1.2.3"])

    assert (
        fleet.run(
            "--linux", LINUX, "--rings", "20,200,all", "--failures", "10"
        ).returncode
        == 0
    )
    assert (
        fleet.run(
            "--linux", LINUX, "--rings", "20,200,all", "--failures", "9"
        ).returncode
        == 1
    )


def test_failures_are_counted_among_those_that_were_tried(fleet: Fleet) -> None:
    """One of twenty is few; not where the other nineteen are off."""
    fleet.vm("web-0", fails=["1.2.3"])
    for number in range(1, 20):
        fleet.vm(f"web-{number}", power="deallocated")

    found = fleet.run("--linux", LINUX, "--rings", "20,200,all")

    assert found.returncode == 1
    assert "ring 1: stopped: 1 of 1 failed" in found.stdout


@pytest.mark.parametrize(
    ("odd", "why"),
    [
        ({"power": "deallocated"}, "it is off (PowerState/deallocated)"),
        ({"agent": "Not Ready"}, "its VM agent does not answer"),
        ({"kind": "Windows"}, "no --windows was given"),
        ({"size": "Standard_D2pls_v5"}, "no --arm64 was given"),
        ({"scale_set": True}, "its scale set says what is installed"),
    ],
    ids=["off", "agent", "windows", "arm", "scale set"],
)
def test_machine_that_cannot_be_changed_is_skipped_and_reported(
    odd: dict[str, Any], why: str, fleet: Fleet
) -> None:
    fleet.vm("web-1")
    fleet.vm("odd-1", **odd)

    found = fleet.run("--linux", LINUX, "--rings", "20,200,all")

    assert found.returncode == 0
    assert f"web/odd-1: skipped: {why}" in found.stdout
    assert "1 machines were skipped" in found.stdout
    assert fleet.logs() == {"web-1": ["1.2.3"], "odd-1": []}


def test_ring_of_which_nobody_could_be_changed_proves_nothing(fleet: Fleet) -> None:
    fleet.vm("first", ring="1", power="stopped")
    fleet.vm("web-1", ring="2")

    found = fleet.run("--linux", LINUX, "--rings", "1,all")

    assert found.returncode == 1
    assert "it proves nothing" in found.stdout
    assert fleet.logs() == {"first": [], "web-1": []}


def test_mixed_fleet_gets_what_each_system_needs(fleet: Fleet) -> None:
    fleet.vm("web-1")
    fleet.vm("win-1", kind="Windows", application=WINDOWS, has="1.0.0")

    found = fleet.run("--linux", LINUX, "--windows", WINDOWS)

    assert found.returncode == 0
    assert found.stdout.count(": ready\n") == 2
    (_, linux), (_, windows) = map(fleet.applications, ("web-1", "win-1"))
    assert linux["packageReferenceId"] == f"{LINUX}/versions/1.2.3"
    assert windows["packageReferenceId"] == f"{WINDOWS}/versions/1.2.3"


def test_second_run_changes_nothing_and_asks_again(fleet: Fleet) -> None:
    fleet.vm("web-1")
    fleet.run("--linux", LINUX)

    found = fleet.run("--linux", LINUX)

    assert "web/web-1: done: had it already" in found.stdout
    assert "web/web-1: ready" in found.stdout
    assert fleet.logs() == {"web-1": ["1.2.3"]}


def test_what_failed_before_is_taken_away_and_given_again(fleet: Fleet) -> None:
    """Azure does not try an application again that is in the list already."""
    fleet.vm("web-1", has="1.2.3", state="Failed")

    found = fleet.run("--linux", LINUX)

    assert found.returncode == 0
    assert fleet.logs() == {"web-1": ["", "1.2.3"]}


def test_tag_names_the_ring_or_leaves_a_machine_out(fleet: Fleet) -> None:
    fleet.vm("first", ring="1")
    fleet.vm("later", ring="2")
    fleet.vm("mine", ring="never")
    fleet.vm("other")

    found = fleet.run("--linux", LINUX, "--rings", "1,all", "--dry-run")

    assert found.stdout.splitlines()[:2] == [
        "ring 1 of 2: 1 machines",
        "  web/first: 1.2.3",
    ]
    assert "web/mine" not in found.stdout
    assert fleet.logs() == {"first": [], "later": [], "mine": [], "other": []}


def test_dry_run_names_who_is_skipped(fleet: Fleet) -> None:
    fleet.vm("off", power="deallocated")
    fleet.vm("win", kind="Windows")

    said = fleet.run("--linux", LINUX, "--dry-run").stdout

    assert "web/off: skipped: it is off (PowerState/deallocated)" in said
    assert "web/win: skipped: no --windows was given" in said


def test_only_the_groups_that_are_named_are_changed(fleet: Fleet) -> None:
    fleet.vm("web-1")
    fleet.vm("db-1", group="db")
    fleet.vm("db-2", group="db")

    fleet.run("--linux", LINUX, "-g", "db")

    assert fleet.logs() == {"web-1": [], "db-1": ["1.2.3"], "db-2": ["1.2.3"]}


def test_change_that_does_not_end_is_a_failure(fleet: Fleet) -> None:
    fleet.vm("web-1")

    found = fleet.run("--linux", LINUX, "--patience", "0")

    assert found.returncode == 1
    assert "web/web-1: failed: not done after 0 s" in found.stdout


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["--linux", LINUX, "--version", "1.2"], "three numbers"),
        (["--linux", f"{LINUX}/versions/1.2.3"], "without its version"),
        (["--linux", LINUX, "--rings", "20,200"], "all at the end"),
        ([], "name an application"),
    ],
)
def test_wrong_argument_is_reported(words: list[str], what: str, fleet: Fleet) -> None:
    found = fleet.run(*words)

    assert found.returncode == 2
    assert what in found.stderr


def test_wrong_tag_is_reported_before_anything_is_changed(fleet: Fleet) -> None:
    fleet.vm("web-1")
    fleet.vm("web-2", ring="canary")

    found = fleet.run("--linux", LINUX)

    assert found.returncode == 1
    assert found.stderr == (
        "rings.py: web/web-2: its tag names the ring 'canary': 1 to 3, or never\n"
    )
    assert fleet.logs() == {"web-1": [], "web-2": []}


def test_azure_cli_that_refuses_is_quoted(fleet: Fleet) -> None:
    found = fleet.run("--linux", LINUX, REFUSES="1")

    assert found.returncode == 1
    assert found.stderr == (
        "rings.py: az account show: ERROR: Please run 'az login' to setup account.\n"
    )


def test_azure_cli_that_is_missing_is_reported(fleet: Fleet) -> None:
    (fleet.world / "az").unlink()

    found = fleet.run("--linux", LINUX, PATH=str(fleet.world))

    assert found.stderr == "rings.py: the Azure CLI (az) is not installed\n"


def test_commands_of_the_page_do_what_it_says(fleet: Fleet) -> None:
    fleet.vm("web-1", has="0.0.9")
    (block,) = (b for b in blocks("infra/fleet.md") if b.mark == "command: rings")
    quick = block.text.replace("-g VM-RG", "-g web --soak 0 --every 0.01")

    subprocess.run(  # noqa: S603 - the page's commands
        ["/bin/bash", "-euc", quick],
        cwd=HERE.parents[1],
        env={
            "PATH": f"{Path(sys.executable).parent}:{fleet.world}:{os.environ['PATH']}",
            "WORLD": str(fleet.world),
            "application": LINUX,
        },
        check=True,
    )

    assert fleet.logs() == {"web-1": ["0.1.0"]}
