"""infra/acceptance.sh against the simulator, with a stand-in for ``az``."""

import asyncio
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from acceptance.app import KEY
from acceptance.simulated import World, bridge_toml, reboot
from tests.infra.azure_stand_in import (
    ROOT,
    SCRIPT,
    SIGNATURE,
    STORAGE_KEY,
    Cloud,
    acceptance,
    begun,
    records,
    rows,
    served,
)
from tests.support.ports import free_port
from tests.system.processes import PATIENCE, simulator_here, started

pytestmark = [pytest.mark.integration, pytest.mark.deploy]

LIFE = replace(reboot(), started_seconds=8.0)
CHANGES = ("create", "delete", "update", "restart", "invoke", "config-zip", "upload")


@pytest.fixture
async def cloud(tmp_path: Path) -> AsyncIterator[Cloud]:
    async with served(Cloud(tmp_path)) as found:
        yield found


def changes(cloud: Cloud) -> list[str]:
    """Return the commands that change something."""
    return [line for line in cloud.said if any(word in line for word in CHANGES)]


@pytest.mark.timeout(600)
async def test_two_reboots_are_as_in_the_simulator(
    cloud: Cloud, tmp_path: Path
) -> None:
    """Everything is compared, nothing differs, and nothing is left behind."""
    (tmp_path / "machine").mkdir()
    async with World(tmp_path / "machine", LIFE) as cloud.world:
        code, said = await acceptance(cloud, "--started", "8")

    assert code == 0, said
    compared = re.search(r"(\d+) things compared, 0 differ", said)
    assert compared
    assert int(compared[1]) > 500
    assert cloud.groups == {}
    assert len(cloud.called("vm restart")) == 2
    stories = records(tmp_path / "work" / "azure", "stories.json")
    assert [story["by"] for story in stories] == ["queue", "function"]
    assert stories[0]["answer"]["said"]["outcome"] == "relayed"
    app = records(tmp_path / "work" / "azure", "function.json")
    assert [answer["status"] for answer in app] == [401, 400, 404, 202]
    for secret in (SIGNATURE.removeprefix("sig="), STORAGE_KEY, KEY):
        assert secret not in said


@pytest.mark.timeout(600)
async def test_one_thing_that_differs_is_in_the_table(
    cloud: Cloud, tmp_path: Path
) -> None:
    """In documents, messages and Slack; and the exit code says so."""
    (tmp_path / "machine").mkdir()
    life = replace(LIFE, duration_seconds=120)
    async with World(tmp_path / "machine", life) as cloud.world:
        code, said = await acceptance(cloud, "--started", "8")

    assert code == 3, said
    row = "reboot 1, the document when Scheduled: Events[0].DurationInSeconds 120 -1"
    differ = rows(said)
    assert row in differ
    assert any("Service Bus, scheduled: body.data.event.Dur" in one for one in differ)
    assert cloud.groups == {}


async def test_group_with_other_resources_is_left_alone(cloud: Cloud) -> None:
    cloud.groups, cloud.others = {"mine": {}}, 3

    code, said = await acceptance(cloud)

    assert code == 2
    assert "the group mine has 3 resources that are not of this script" in said
    assert changes(cloud) == []


async def test_empty_group_is_emptied_and_not_deleted(cloud: Cloud) -> None:
    cloud.groups, cloud.fails = {"mine": {}}, ("network nat gateway",)

    code, said = await acceptance(cloud)

    assert code == 1
    assert "network nat gateway failed" in said
    assert cloud.called("group delete") == []
    assert (
        len(cloud.called("deployment group create -g mine -n acceptance-remove")) == 1
    )
    assert "--mode Complete" in cloud.called("deployment group create")[0]
    assert "--operation Delete" in cloud.said[-1]


@pytest.mark.parametrize(
    "step",
    [
        "network public-ip",
        "storage account keys",
        "storage blob generate-sas",
        "deployment group create",
        "functionapp deployment",
        "role assignment",
    ],
)
async def test_step_that_fails_is_named_and_all_is_removed(
    cloud: Cloud, step: str
) -> None:
    cloud.fails = (step,)

    code, said = await acceptance(cloud)

    assert code == 1, said
    assert f"{step} failed" in said
    assert cloud.said[-1] == "group delete -n mine --yes"
    assert cloud.groups == {}


async def test_removal_that_fails_is_not_kept_secret(cloud: Cloud) -> None:
    cloud.fails = ("network nat gateway", "group delete")

    code, said = await acceptance(cloud)

    assert code == 1
    assert "NOT removed: see what is left in the group mine" in said


async def test_kept_group_is_reported_with_its_removal(cloud: Cloud) -> None:
    cloud.fails = ("network nat gateway",)

    code, said = await acceptance(cloud, "--keep")

    assert code == 1
    assert cloud.groups == {"mine": {"sebridgeAcceptance": "made"}}
    assert "az group delete -n mine --yes" in said
    assert cloud.called("group delete") == []


async def test_group_kept_before_is_taken_up_and_deleted(cloud: Cloud) -> None:
    cloud.groups = {"mine": {"sebridgeAcceptance": "made"}}
    cloud.others, cloud.fails = 9, ("network nat gateway",)

    await acceptance(cloud)

    assert cloud.called("group create") == []
    assert cloud.groups == {}


async def test_missing_feature_is_reported_before_anything_is_made(
    cloud: Cloud,
) -> None:
    cloud.encryption = "NotRegistered"

    code, said = await acceptance(cloud)

    assert code == 2
    assert "EncryptionAtHost" in said
    assert changes(cloud) == []


async def test_fault_on_the_vm_is_shown_and_ends_it(cloud: Cloud) -> None:
    """The command of Azure knows no exit code: the script's last line is looked for."""
    await asyncio.to_thread((cloud.folder / "vm" / "cloud-init").unlink)
    (cloud.folder / "vm" / "cloud-init").write_text("#!/bin/sh\necho broken; exit 1\n")
    (cloud.folder / "vm" / "cloud-init").chmod(0o755)

    code, said = await acceptance(cloud)

    assert code == 1
    assert "broken" in said
    assert cloud.groups == {}


async def test_killed_script_removes_all(cloud: Cloud, tmp_path: Path) -> None:
    """While it waits for a reboot: a Ctrl-C, or the end of a CI job."""
    (tmp_path / "machine").mkdir()
    async with World(tmp_path / "machine", LIFE) as cloud.world:
        process = await begun(cloud, "--started", "8")
        while "vm restart" not in "".join(cloud.said[-1:]):
            await asyncio.sleep(0.1)
            assert process.returncode is None
        process.send_signal(signal.SIGTERM)
        said, _ = await process.communicate()

    assert process.returncode == 143, said
    assert cloud.groups == {}


async def test_slack_stand_in_is_configured_once(cloud: Cloud) -> None:
    config = cloud.folder / "bridge.toml"
    config.write_text("# as cloud-init has written it\n")
    text = (ROOT / "infra" / "acceptance" / "vm.sh").read_text()
    (cloud.folder / "vm.sh").write_text(f"{text}witness\necho done\n")
    invoke = ["vm", "run-command", "invoke", "--scripts", f"@{cloud.folder}/vm.sh"]

    said = [await cloud.az(invoke), await cloud.az(invoke)]

    assert all("done" in one for one in said), said
    assert config.read_text().count("[[sinks]]") == 1
    calls = (cloud.folder / "systemctl.log").read_text().splitlines()
    assert calls.count("restart sebridge.service") == 1
    assert calls.count("enable --now sebridge-witness.service") == 2
    assert "witness.py" in (cloud.folder / "sebridge-witness.service").read_text()


async def test_witness_goes_on_after_a_reboot(tmp_path: Path) -> None:
    """It asks its questions once, and an old document is no new one."""
    out = tmp_path / "witness.jsonl"

    async def watched(at: str, kind: str, count: int) -> None:
        words = ("--out", str(out), "--imds", at, "--every", "0.1")
        process = await started(
            *(sys.executable, str(ROOT / "infra" / "acceptance" / "witness.py")),
            *(*words, "--port", str(free_port())),
        )
        async with asyncio.timeout(PATIENCE):
            while len(seen(kind)) < count:
                await asyncio.sleep(0.05)
        process.kill()
        await process.wait()

    def seen(kind: str) -> list[object]:
        lines = records(tmp_path, out.name) if out.exists() else []
        return [line for line in lines if line["kind"] == kind]

    async with simulator_here() as at:
        await watched(at.imds, "document", 1)
        await at.control("POST", "events", {"type": "Reboot"})
        await watched(at.imds, "document", 2)
    await watched(at.imds, "trouble", 1)

    assert len(seen("probe")) == 8
    assert len(seen("document")) == 2


def script(*words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(  # noqa: S603 - our own script
        ["/bin/bash", SCRIPT, *words], capture_output=True, text=True, check=False
    )


def test_dry_run_prints_each_command_and_does_nothing() -> None:
    """Without az, and without an account."""
    found = script("-g", "mine", "--dry-run", "--python", "python3")

    assert found.returncode == 0, found.stderr
    lines = found.stdout.splitlines()
    for command in (
        "+ az group create -n mine",
        "+ az deployment group create -g mine -n main",
        "+ az functionapp deployment source config-zip",
        "+ az vm run-command invoke",
        "+ az group delete -n mine --yes",
    ):
        assert any(line.startswith(command) for line in lines), command
    assert "-- az vm restart -g mine" in found.stdout
    assert "costs under 1 USD" in found.stdout
    assert "40 to 80 minutes" in found.stdout


@pytest.mark.parametrize(
    "words", [(), ("-g",), ("-g", "mine", "--nonsense"), ("-g", "mine", "--work")]
)
def test_wrong_usage_is_reported(words: tuple[str, ...]) -> None:
    found = script(*words)

    assert found.returncode == 2
    assert found.stdout == ""
    assert "usage" in found.stderr or "needs a value" in found.stderr


@pytest.mark.skipif(not shutil.which("shellcheck"), reason="shellcheck is missing")
def test_scripts_are_clean() -> None:
    found = subprocess.run(  # noqa: S603 - fixed words
        ["shellcheck", "-x", SCRIPT, ROOT / "infra" / "acceptance" / "vm.sh"],  # noqa: S607 - from PATH
        capture_output=True,
        text=True,
        check=False,
    )

    assert found.stdout == ""


def test_simulated_bridge_has_the_configuration_of_a_real_one() -> None:
    """All that cloud-init gives it, but the way to the namespace."""
    text = bridge_toml((ROOT / "infra" / "bicep" / "cloud-init.yaml").read_text())

    assert 'heartbeat = "10m"' in text
    assert 'topic = "scheduled-events"' in text
    assert 'reply_to = ["replies"]' in text
    assert text.count('connection_string = "env:BUS"') == 2
    assert "@" not in text.replace("sebridge-hook@", "")
