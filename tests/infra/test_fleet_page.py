"""infra/fleet.md, followed from its first command to its last by one person.

Azure is a stand-in (az_of_the_page.py). What is built is built, with wheels that are
made here; what reaches the storage account is installed into a tree without a network,
by the commands of the application.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from bridge.configuration import load as config
from tests.docs.pages import blocks
from tests.infra import kits
from tests.infra.test_rings import Fleet

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PAGE = "infra/fleet.md"
ANSIBLE = Path(sys.executable).parent / "ansible-playbook"
NEEDED = ("Azure", "hosts")

pytestmark = [
    pytest.mark.integration,
    pytest.mark.deploy,
    pytest.mark.skipif(not ANSIBLE.exists(), reason="ansible-core is missing"),
    pytest.mark.skipif(
        not kits.can_cut_off_the_network(), reason="no namespace without a network here"
    ),
]


def commands(tree: Path, inventory: Path) -> str:
    """Return all commands of the page, with what a reader puts in."""
    found = [block for block in blocks(PAGE) if block.language == "sh"]
    marks = {f"needs: {what}" for what in NEEDED} | {"command: rings"}
    assert {block.mark for block in found} == marks
    text = "\n".join(block.text for block in found)
    for word, meant in (
        ("STORAGE ", "sebridgepackages "),
        ("VM-RG", "web"),
        ("INVENTORY", str(inventory)),
        ("infra/build.sh", "infra/build.sh --wheels wheels"),
        ("rings.py --version", "rings.py --soak 0 --every 0.01 --version"),
    ):
        assert word in text, word
        text = text.replace(word, meant)
    text = re.sub(r"(?m)^ansible-playbook", f"{ANSIBLE}", text)
    inventory.write_text(
        "localhost ansible_connection=local ansible_become=false"
        f" ansible_python_interpreter={sys.executable} sebridge_destdir={tree}\n"
    )
    return text


@pytest.fixture(scope="module")
def followed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Fleet, Path, Path]:
    """Follow the page; return the fleet, the checkout and the tree of a host."""
    folder = tmp_path_factory.mktemp("page")
    top, fleet, tree = kits.source(folder), Fleet(folder), folder / "host"
    for part in ("blobs", "bin"):
        (fleet.world / part).mkdir()
    tree.mkdir()
    fleet.vm("web-1", has="0.0.9")
    fleet.vm("web-2")
    (top / "python-3.13.9-amd64.exe").write_bytes(b"an installer")
    for name, what in (
        ("az", f'"{sys.executable}" "{HERE}/az_of_the_page.py" "$@"'),
        ("sebridge", f'"{sys.executable}" -m bridge "$@"'),
        ("python3", f'"{sys.executable}" "$@"'),
    ):
        path = fleet.world / "bin" / name
        path.write_text(f"#!/bin/sh\nexec {what}\n")
        path.chmod(0o755)
    secrets = folder / "secrets"
    secrets.mkdir()
    for name in ("slack-bot-token", "button-secret"):
        (secrets / name).write_text("x" * 40)

    found = subprocess.run(  # noqa: S603 - the page's commands
        ["/bin/bash", "-euo", "pipefail", "-c", commands(tree, folder / "inventory")],
        cwd=top,
        env={
            "PATH": ":".join(
                [f"{fleet.world}/bin", str(ANSIBLE.parent), os.environ["PATH"]]
            ),
            "HOME": str(folder),
            "LC_ALL": "C.UTF-8",
            "WORLD": str(fleet.world),
            "CREDENTIALS_DIRECTORY": str(secrets),
            "SOURCE_DATE_EPOCH": "1700000000",
            "ANSIBLE_LOCAL_TEMP": str(folder / "tmp"),
            "ANSIBLE_PIPELINING": "1",  # no file copied and two shells per task
        },
        capture_output=True,
        text=True,
        check=False,
    )

    assert found.returncode == 0, found.stdout[-3000:] + found.stderr[-3000:]
    return fleet, top, tree


def test_configuration_names_the_namespace_and_the_identity(
    followed: tuple[Fleet, Path, Path],
) -> None:
    text = (followed[1] / "bridge.toml").read_text()

    assert "fleet.servicebus.windows.net" in text
    assert "contoso" not in text
    assert text.count("5eb41d6e-0000-4000-8000-00000000c11e") == 2
    assert "00000000-0000-0000-0000" not in text


def test_windows_gets_the_same_with_its_own_folder_of_secrets(
    followed: tuple[Fleet, Path, Path], tmp_path: Path
) -> None:
    path = followed[1] / "bridge-windows.toml"
    secrets = tmp_path / "sebridge" / "secrets"
    secrets.mkdir(parents=True)
    for name in ("slack-bot-token", "button-secret"):
        (secrets / name).write_text("x" * 40)

    found = config.load(path, {"ProgramData": str(tmp_path)})

    assert [sink.name for sink in found.sinks] == ["bus", "ops"]
    note = json.loads((followed[0].world / "deployed.windows").read_text())
    assert (note["osType"], note["applicationName"]) == ("Windows", "sebridge-windows")
    assert "windows-amd64.zip" in note["packageUri"]


def test_every_vm_has_the_version_and_the_identity(
    followed: tuple[Fleet, Path, Path],
) -> None:
    fleet, _, _ = followed
    calls = (fleet.world / "calls").read_text()

    assert fleet.logs() == {"web-1": ["0.1.0"], "web-2": ["0.1.0"]}
    for name in ("web-1", "web-2"):
        assert re.search(rf"vm identity assign --ids \S+/{name} --identities", calls)
    assert "effect=AuditIfNotExists" in calls
    assert "effect=DeployIfNotExists" in calls


def test_what_was_published_is_installed_by_the_commands_of_the_application(
    followed: tuple[Fleet, Path, Path], tmp_path: Path
) -> None:
    fleet, top, _ = followed
    note = json.loads((fleet.world / "deployed.application").read_text())
    text = (top / "infra/bicep/modules/application.bicep").read_text()
    (linux,) = re.findall(r"(?ms)^var linux = \{\n(.*?)^\}", text)
    (install,) = re.findall(r"(?m)^  install: '(.+)'$", linux)
    place, root = tmp_path / "place", tmp_path / "root"
    place.mkdir()
    for name, key in (("sebridge.tar.gz", "packageUri"), ("bridge.toml", "configUri")):
        (blob,) = re.findall(r"/([^/?]+)\?", note[key])
        shutil.copy(fleet.world / "blobs" / blob, place / name)

    subprocess.run(  # noqa: S603 - the application's command
        [*kits.NO_NETWORK, "/bin/bash", "-c", install],
        cwd=place,
        env={"PATH": os.environ["PATH"], "DESTDIR": str(root)},
        capture_output=True,
        check=True,
    )

    said = (root / "etc/sebridge/bridge.toml").read_text()
    assert said == (top / "bridge.toml").read_text()
    subprocess.run([root / "opt/sebridge/bin/sebridge", "--version"], check=True)  # noqa: S603 - installed


def test_host_of_the_inventory_has_the_program_and_the_configuration(
    followed: tuple[Fleet, Path, Path],
) -> None:
    _, top, tree = followed

    said = (tree / "etc/sebridge/bridge.toml").read_text()
    assert said == (top / "bridge.toml").read_text()
    subprocess.run([tree / "opt/sebridge/bin/sebridge", "--version"], check=True)  # noqa: S603 - installed
