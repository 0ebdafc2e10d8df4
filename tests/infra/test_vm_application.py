"""The VM Application: its commands, run as the extension of Azure runs them.

In the folder that it makes for the application and the version, with the package and
the configuration under the names that infra/bicep gives them, with no network.
"""

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from pycep import BicepParser

from tests.docs.pages import blocks
from tests.infra import kits

ROOT = Path(__file__).parents[2]
BICEP = ROOT / "infra/bicep/modules/application.bicep"
WAAGENT = "var/lib/waagent/Microsoft.CPlat.Core.VMApplicationManagerLinux/sebridge"
CONFIG = """
[[sinks]]
name = "siem"
type = "webhook"
url = "https://siem.example/{0}"
"""

pytestmark = [
    pytest.mark.deploy,
    pytest.mark.skipif(
        not kits.can_cut_off_the_network(), reason="no namespace without a network here"
    ),
]


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return kits.archive_in(tmp_path_factory.mktemp("kit"), "1.2.3")


@pytest.fixture(scope="module")
def profile() -> dict[str, Any]:
    """Return what the application's version says for Linux."""
    text = BICEP.read_text()
    found: dict[str, Any] = dict(BicepParser().parse(text=text))
    version = found["resources"]["applicationVersion"]["config"]
    settings = version["properties"]["publishingProfile"]["settings"]
    commands = dict(re.findall(r"(?m)^  (install|remove): '(.+)'$", linux(text)))
    return {"commands": commands, "settings": settings, "text": text}


def linux(text: str) -> str:
    """Return the variable with the commands for Linux."""
    found = re.search(r"(?ms)^var linux = \{\n(.*?)^\}", text)
    assert found
    return found[1]


class Machine:
    """The files of a machine, on which the extension works."""

    def __init__(self, folder: Path, archive: Path, commands: dict[str, str]) -> None:
        self.root = folder / "root"
        self.archive = archive
        self.commands = commands

    def put(self, version: str, config: str | None) -> Path:
        """Download a version: the package, and the configuration beside it."""
        place = self.root / WAAGENT / version
        place.mkdir(parents=True, exist_ok=True)
        shutil.copy(self.archive, place / "sebridge.tar.gz")
        if config is not None:
            (place / "bridge.toml").write_text(config)
        return place

    def run(self, place: Path, action: str) -> "subprocess.CompletedProcess[str]":
        """Run a command in the folder of a version, as the extension does."""
        return subprocess.run(  # noqa: S603 - our own commands
            [*kits.NO_NETWORK, "/bin/bash", "-c", self.commands[action]],
            cwd=place,
            env={"PATH": os.environ["PATH"], "DESTDIR": str(self.root)},
            capture_output=True,
            text=True,
            check=False,
        )

    def install(self, version: str, config: str | None) -> str:
        found = self.run(self.put(version, config), "install")
        assert found.returncode == 0, found.stdout + found.stderr
        return found.stdout

    @property
    def config(self) -> Path:
        return self.root / "etc/sebridge/bridge.toml"


@pytest.fixture(scope="module")
def installed(
    archive: Path, profile: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> Machine:
    """Return a machine that has the application, with the configuration "one"."""
    folder = tmp_path_factory.mktemp("installed")
    found = Machine(folder, archive, profile["commands"])
    found.install("1.2.3", CONFIG.format("one"))
    return found


@pytest.fixture
def machine(installed: Machine, tmp_path: Path) -> Machine:
    """Return a copy of it: a tree works wherever it is put."""
    found = Machine(tmp_path, installed.archive, dict(installed.commands))
    shutil.copytree(installed.root, found.root, symlinks=True)
    return found


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["demo"], "the demo"),
        (["demo", "--fleet", "3", "--no-wait"], "the demo"),
        (["simulate"], "the simulator"),
    ],
)
def test_local_azure_is_not_there_and_the_program_says_where_to_get_it(
    installed: Machine, arguments: list[str], what: str
) -> None:
    found = subprocess.run(  # noqa: S603 - what was installed
        [installed.root / "opt/sebridge/bin/sebridge", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )

    assert found.returncode == 1
    assert re.fullmatch(
        rf"sebridge: {what} needs the extra \[simulator\]: python3 -m venv more && "
        r"more/bin/pip install '\./scheduled_events_bridge-.+\.whl\[simulator\]'\n",
        found.stderr,
    )


def test_application_is_installed_updated_and_removed(machine: Machine) -> None:
    assert machine.config.read_text() == CONFIG.format("one")
    assert machine.config.stat().st_mode & 0o777 == 0o640
    command = machine.root / "opt/sebridge/bin/sebridge"
    said = subprocess.run(  # noqa: S603 - what was installed
        [command, "check", "-c", machine.config], capture_output=True, check=False
    )
    assert said.returncode == 0, said.stderr

    # A newer version into a folder of its own; then the older one is taken away.
    place = machine.put("1.2.4", CONFIG.format("two"))
    assert machine.run(place, "install").returncode == 0
    assert machine.config.read_text() == CONFIG.format("two")
    shutil.rmtree(machine.root / WAAGENT / "1.2.3")

    assert machine.run(place, "remove").returncode == 0
    assert not (machine.root / "opt/sebridge").exists()
    assert machine.config.exists()


def test_remove_does_without_what_install_has_unpacked(machine: Machine) -> None:
    place = machine.root / WAAGENT / "1.2.3"
    shutil.rmtree(place)

    assert machine.run(machine.put("1.2.3", None), "remove").returncode == 0
    assert not (machine.root / "opt/sebridge").exists()


NO_PROGRAMS = """\
mount --bind . . && mount -o remount,bind,noexec . && cd "$PWD" || exit 9
exec /bin/bash -c "$1"
"""


def test_var_that_is_mounted_noexec_holds_up_neither_install_nor_remove(
    machine: Machine,
) -> None:
    place = machine.put("1.2.4", CONFIG.format("two"))
    (place / "probe").write_text("#!/bin/sh\n")
    (place / "probe").chmod(0o755)

    def run(command: str) -> int:
        inside = ["unshare", "-m", "/bin/bash", "-c", NO_PROGRAMS, "-", command]
        return subprocess.run(  # noqa: S603 - our own commands
            [*kits.NO_NETWORK, *inside],
            cwd=place,
            env={"PATH": os.environ["PATH"], "DESTDIR": str(machine.root)},
            check=False,
        ).returncode

    if run("exit 0") == 9:
        pytest.skip("no mounts can be made here")
    assert run("./probe") == 126
    assert run(machine.commands["install"]) == 0
    assert machine.config.read_text() == CONFIG.format("two")
    assert run(machine.commands["remove"]) == 0
    assert not (machine.root / "opt/sebridge").exists()


def test_configuration_of_a_person_stays(machine: Machine) -> None:
    machine.config.write_text("# mine")

    said = machine.install("1.2.4", CONFIG.format("two"))

    assert machine.config.read_text() == "# mine"
    assert "was changed by hand, and stays" in said


def test_configuration_that_fits_again_is_taken_up(machine: Machine) -> None:
    """A person has written what the application brings: from now on it is its own."""
    machine.config.write_text("# mine")
    machine.config.write_text(CONFIG.format("two"))

    machine.install("1.2.4", CONFIG.format("two"))
    machine.install("1.2.5", CONFIG.format("three"))

    assert machine.config.read_text() == CONFIG.format("three")


def test_without_a_configuration_there_is_the_example(machine: Machine) -> None:
    shutil.rmtree(machine.config.parent)

    said = machine.install("1.2.6", None)

    assert "the application brings no configuration" in said
    assert "# [[sinks]]" in machine.config.read_text()

    machine.install("1.2.7", CONFIG.format("two"))  # and it gives way to a real one
    assert machine.config.read_text() == CONFIG.format("two")


def test_failed_update_leaves_the_configuration_as_it_was(machine: Machine) -> None:
    place = machine.put("1.2.4", CONFIG.format("two"))
    machine.commands = {
        "install": machine.commands["install"].replace(
            "&& bash", "&& echo damaged >>wheels/deps-1-py3-none-any.whl && bash"
        )
    }

    found = machine.run(place, "install")

    assert found.returncode == 1
    assert "a file is damaged" in found.stderr
    assert machine.config.read_text() == CONFIG.format("one")


def test_tree_does_not_tell_where_it_was_built(machine: Machine) -> None:
    noted = list(machine.root.glob("opt/sebridge-versions/*/lib/*/*/*/direct_url.json"))
    texts = [path.read_text() for path in noted if "sebridge" in str(path)]
    assert len(texts) == 1
    assert '"url": "file:///scheduled_events_bridge-' in texts[0]


def test_hook_in_a_tree_is_asked_for(machine: Machine, tmp_path: Path) -> None:
    """What check takes is written, by the program of the tree."""
    place = machine.root / WAAGENT / "1.2.3"
    words = f"bash ./install.sh --hook drain={ROOT}/infra/hooks/stop-services"
    machine.commands = {"hook": words}

    found = machine.run(place, "hook")

    assert found.returncode == 0, found.stderr
    assert 'unit = "sebridge-hook@drain.service"' in machine.config.read_text()


def test_wrong_word_is_reported(machine: Machine) -> None:
    place = machine.root / WAAGENT / "1.2.3"
    machine.commands = {"other": "bash ./vm-application.sh instal"}

    found = machine.run(place, "other")

    assert found.returncode == 2
    assert "usage: vm-application.sh install|remove" in found.stderr


def test_names_in_the_commands_are_those_of_the_download(
    profile: dict[str, Any],
) -> None:
    text = linux(profile["text"])

    assert "  package: 'sebridge.tar.gz'\n" in text
    assert "configFileName: 'bridge.toml'" in profile["text"]
    assert "tar -xzf sebridge.tar.gz " in profile["commands"]["install"]


def test_page_of_closed_networks_is_followed(archive: Path, tmp_path: Path) -> None:
    (block,) = (
        b for b in blocks("infra/closed.md") if b.mark == "command: closed-network"
    )
    for file in (archive, archive.parent / "SHA256SUMS"):
        shutil.copy(file, tmp_path)
    text = block.text.replace("0.1.0", "1.2.3").replace("sudo ", "")

    found = subprocess.run(  # noqa: S603 - the page's commands
        [*kits.NO_NETWORK, "/bin/bash", "-euc", text],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"], "DESTDIR": str(tmp_path / "root")},
        capture_output=True,
        text=True,
        check=False,
    )

    assert found.returncode == 0, found.stderr
    command = tmp_path / "root/opt/sebridge/bin/sebridge"
    subprocess.run([command, "--version"], check=True)  # noqa: S603 - installed


def test_script_is_sound() -> None:
    if shutil.which("shellcheck") is None:
        pytest.skip("shellcheck is missing")

    said = subprocess.run(
        ["shellcheck", "--external-sources", "infra/fleet/vm-application.sh"],  # noqa: S607 - from PATH
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )

    assert said.returncode == 0, said.stdout


def test_configuration_is_at_no_moment_everybodys(tmp_path: Path) -> None:
    """As it is before it is moved into its place, and while install.sh runs."""
    kit, root, bin_ = tmp_path / "kit", tmp_path / "root", tmp_path / "bin"
    (kit / "systemd").mkdir(parents=True)
    bin_.mkdir()
    for name in ("lib.sh", "fleet/vm-application.sh"):
        shutil.copy(ROOT / "infra" / name, kit)
    for name in ("bridge.toml", "sysusers.conf"):
        shutil.copy(ROOT / "infra/systemd" / name, kit / "systemd")
    (kit / "bridge.toml").write_text(CONFIG.format("one"))
    look = f"stat -c '%a %n' {root}/etc/sebridge/bridge.toml* >>{tmp_path}/seen\n"
    for path, rest in ((kit / "install.sh", ""), (bin_ / "mv", 'exec /bin/mv "$@"\n')):
        path.write_text(f"#!/bin/sh\n{look}{rest}")
        path.chmod(0o755)

    for version in ("one", "two"):
        (kit / "bridge.toml").write_text(CONFIG.format(version))
        subprocess.run(  # noqa: S603 - our own script
            ["/bin/bash", kit / "vm-application.sh", "install"],
            env={"PATH": f"{bin_}:{os.environ['PATH']}", "DESTDIR": str(root)},
            umask=0,
            check=True,
        )

    assert (root / "etc/sebridge/bridge.toml").read_text() == CONFIG.format("two")
    seen = (tmp_path / "seen").read_text().splitlines()
    modes = {line.split()[0] for line in seen if not line.endswith(".fleet")}
    assert modes == {"640"}
