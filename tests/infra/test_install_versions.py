"""Versions of the program side by side: made new, switched, taken back, and moved.

A tree of its own (DESTDIR) for what the files show, and a real systemd in namespaces
for the service.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.configurations import NOWHERE, config_text, webhook
from tests.support.ports import free_port
from tests.system.namespaces import Machine, machine_in, missing

pytestmark = pytest.mark.deploy

ROOT = Path(__file__).parents[2]
INFRA = ROOT / "infra"
# Python as it is, but that pip installs a program in no time, and notes it.
PYTHON = f"""\
#!/bin/sh
if [ "$1 $2" = "-m venv" ]; then
  "{sys.executable}" -m venv --without-pip "$3" || exit 1
  cat >"$3/bin/pip" <<'TEXT'
#!/bin/sh
bin=$(dirname "$0")
for last; do :; done
printf '#!%s/python\\nimport sys\\nprint("%s", sys.prefix)\\n' "$bin" "$last" \\
  >"$bin/sebridge"
chmod +x "$bin/sebridge"
TEXT
  chmod +x "$3/bin/pip"
else
  exec "{sys.executable}" "$@"
fi
"""


class Tree:
    """A tree into which wheels are installed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.root = folder / "root"
        self.python = folder / "python"
        self.python.write_text(PYTHON)
        self.python.chmod(0o755)

    def wheel(self, content: str, name: str = "x-1-py3-none-any.whl") -> Path:
        """Write a wheel, each time under the same name and version."""
        path = self.folder / name
        path.write_text(content)
        return path

    def tried(self, *arguments: str | Path) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(  # noqa: S603 - our own script
            ["/bin/bash", INFRA / "install.sh", *arguments],
            env={
                "PATH": os.environ["PATH"],
                "DESTDIR": str(self.root),
                "PYTHON": str(self.python),
            },
            capture_output=True,
            text=True,
            check=False,
        )

    def install(self, wheel: Path) -> str:
        found = self.tried("--wheel", wheel)
        assert found.returncode == 0, found.stderr
        return found.stdout

    @property
    def current(self) -> str:
        return (self.root / "opt/sebridge").readlink().name

    def versions(self) -> set[str]:
        folder = self.root / "opt/sebridge-versions"
        return {p.name for p in folder.iterdir() if p.is_dir() and not p.is_symlink()}


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def test_wheel_of_the_same_version_is_installed_if_it_is_another(tree: Tree) -> None:
    tree.install(tree.wheel("one"))
    first = tree.current

    assert "= " in tree.install(tree.wheel("one"))
    assert tree.current == first
    tree.install(tree.wheel("two"))

    assert tree.current != first
    assert tree.versions() == {first, tree.current}


def test_present_version_and_the_one_before_are_kept(tree: Tree) -> None:
    seen = []
    for content in ("one", "two", "three"):
        tree.install(tree.wheel(content))
        seen.append(tree.current)

    assert tree.versions() == set(seen[1:])


def test_rollback_is_the_version_before_and_back_again(tree: Tree) -> None:
    tree.install(tree.wheel("one"))
    first = tree.current
    tree.install(tree.wheel("two"))
    second = tree.current

    assert tree.tried("--rollback").returncode == 0
    assert tree.current == first
    assert tree.tried("--rollback").returncode == 0
    assert tree.current == second


def test_rollback_without_a_version_before_is_reported(tree: Tree) -> None:
    tree.install(tree.wheel("one"))

    found = tree.tried("--rollback")

    assert found.returncode == 1
    assert "there is no version before this one" in found.stderr


def test_version_that_was_not_made_wholly_is_made_anew(tree: Tree) -> None:
    tree.install(tree.wheel("one"))
    folder = tree.root / "opt/sebridge-versions" / tree.current
    (folder / "whole").unlink()
    shutil.rmtree(folder / "bin")

    tree.install(tree.wheel("one"))

    assert (folder / "bin/sebridge").exists()


def cut_off(root: Path) -> Path:
    """Let the next installation end after it has switched; return what does that."""
    in_the_way = root / "etc/systemd/system/sebridge.service.d/credentials.conf"
    in_the_way.unlink(missing_ok=True)
    in_the_way.mkdir(parents=True)
    return in_the_way


def test_installation_that_was_cut_off_knows_the_way_back(tree: Tree) -> None:
    seen = []
    for content in ("one", "two"):
        tree.install(tree.wheel(content))
        seen.append(tree.current)
    in_the_way = cut_off(tree.root)
    assert tree.tried("--wheel", tree.wheel("three")).returncode != 0
    assert tree.current not in seen
    in_the_way.rmdir()

    said = tree.install(tree.wheel("four"))  # and not to the one that was only tried

    assert f"the way back is {seen[-1]}" in said
    assert tree.versions() == {seen[-1], tree.current}
    assert tree.tried("--rollback").returncode == 0
    assert tree.current == seen[-1]
    assert not (tree.root / "opt/sebridge-versions/trial").exists()


def test_program_of_pip_or_of_an_older_script_is_the_version_before(tree: Tree) -> None:
    own = tree.root / "opt/sebridge/bin"
    own.mkdir(parents=True)
    (own / "sebridge").write_text("as it was")

    tree.install(tree.wheel("one"))
    assert (own / "sebridge").read_text() != "as it was"
    tree.tried("--rollback")

    assert (own / "sebridge").read_text() == "as it was"


@pytest.mark.parametrize("long", ["", "x" * 120])
def test_tree_works_wherever_it_is_put(long: str, tree: Tree, tmp_path: Path) -> None:
    """With a path too long for a first line, pip writes another one."""
    wheel = tree.wheel("one")
    tree.root = tmp_path / f"root{long}"
    tree.install(wheel)
    moved = tmp_path / "elsewhere"
    tree.root.rename(moved)

    command = moved / "opt/sebridge/bin/sebridge"
    said = subprocess.run(  # noqa: S603 - what was installed
        [command], capture_output=True, text=True, check=True
    ).stdout

    # The folder of the version, so that a switch leaves a running one its files.
    version = (moved / "opt/sebridge").resolve()
    assert said.split()[-1] == str(version)
    assert str(tree.root) not in command.read_text().split("print")[0]
    assert str(tree.root) not in (version / "pyvenv.cfg").read_text()


def test_kit_with_a_file_that_was_changed_is_refused(tree: Tree) -> None:
    kit = tree.folder / "kit"
    (kit / "wheels").mkdir(parents=True)
    for name in ("install.sh", "lib.sh", "program.sh"):
        shutil.copy(INFRA / name, kit)
    shutil.copytree(INFRA / "systemd", kit / "systemd")
    for name in ("pip-1.whl", "scheduled_events_bridge-1.whl"):
        (kit / "wheels" / name).write_text("as built")
    (kit / "requirements.txt").write_text("")
    digest = hashlib.sha256(b"as built").hexdigest()
    (kit / "SHA256SUMS").write_text(f"{digest}  ./wheels/pip-1.whl\n")
    (kit / "wheels" / "pip-1.whl").write_text("changed")

    found = subprocess.run(  # noqa: S603 - our own script
        ["/bin/bash", kit / "install.sh"],
        env={"PATH": os.environ["PATH"], "DESTDIR": str(tree.root)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert found.returncode == 1
    assert "a file is damaged" in found.stderr
    assert not (tree.root / "opt/sebridge").exists()


# --- The service, under a systemd.

needs_systemd = pytest.mark.skipif(missing() is not None, reason=str(missing()))


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    folder = tmp_path_factory.mktemp("service")
    with machine_in(folder) as found:
        if found is None:
            pytest.skip("no systemd can be process 1 here")
        yield found


def installed(
    machine: Machine, wheel: Path, python: Path | None = None
) -> "subprocess.CompletedProcess[str]":
    """Install a wheel there, whose Python is that of the machine or another."""
    script = INFRA / "install.sh"
    own = f"PYTHON={python or machine.folder / 'python'}"
    return machine.tried("env", own, "PATIENCE=5", "bash", script, "--wheel", wheel)


def process_id(machine: Machine) -> str:
    return machine.run("systemctl", "show", "-p", "MainPID", "--value", "sebridge")


@pytest.fixture(scope="module")
def served(machine: Machine) -> Machine:
    """Return the machine once the service runs there."""
    (machine.folder / "one.whl").write_text("one")
    settings = machine.root / "etc/sebridge"
    settings.mkdir()
    text = config_text(webhook(NOWHERE), listen=f"127.0.0.1:{free_port()}")
    (settings / "bridge.toml").write_text(text)
    found = installed(machine, machine.folder / "one.whl")
    assert found.returncode == 0, found.stdout + found.stderr
    return machine


@needs_systemd
@pytest.mark.integration
@pytest.mark.xdist_group("systemd")
def test_service_is_restarted_if_something_changed_and_not_else(
    served: Machine,
) -> None:
    first = process_id(served)

    said = installed(served, served.folder / "one.whl").stdout
    assert "= sebridge.service runs with all of this" in said
    assert process_id(served) == first

    config = served.root / "etc/sebridge/bridge.toml"
    later = time.time() + 1
    os.utime(config, (later, later))
    assert installed(served, served.folder / "one.whl").returncode == 0
    assert process_id(served) != first


@needs_systemd
@pytest.mark.integration
@pytest.mark.xdist_group("systemd")
def test_service_that_started_in_the_second_of_its_configuration_is_not_restarted(
    served: Machine,
) -> None:
    """As whoever writes the file and starts the service at once does."""
    served.run("systemctl", "stop", "sebridge")
    time.sleep(1.05 - time.time() % 1)  # so that both are in one second
    os.utime(served.root / "etc/sebridge/bridge.toml")
    served.run("systemctl", "start", "sebridge")
    first = process_id(served)

    said = installed(served, served.folder / "one.whl").stdout

    assert "= sebridge.service runs with all of this" in said
    assert process_id(served) == first


@needs_systemd
@pytest.mark.integration
@pytest.mark.xdist_group("systemd")
def test_version_that_does_not_get_ready_gives_way_to_the_one_before(
    served: Machine,
) -> None:
    before = (served.root / "opt/sebridge").readlink()
    broken = served.folder / "broken"
    text = (served.folder / "python").read_text()
    broken.write_text(text.replace("-m bridge", '-m bridge.no-such-module "$1"'))
    broken.chmod(0o755)
    (served.folder / "two.whl").write_text("two")

    found = installed(served, served.folder / "two.whl", broken)

    assert found.returncode == 1
    assert "the version before is in use again" in found.stderr
    assert (served.root / "opt/sebridge").readlink() == before
    assert served.run("systemctl", "is-active", "sebridge") == "active\n"
    versions = served.root / "opt/sebridge-versions"
    kept = {path.name for path in versions.iterdir() if path.is_dir()}
    assert kept == {before.name}  # no way back leads to what does not start


@needs_systemd
@pytest.mark.integration
@pytest.mark.xdist_group("systemd")
def test_version_of_a_run_that_was_cut_off_gives_way_to_the_one_before(
    served: Machine,
) -> None:
    """Also where the next run finds it in use already."""
    before = (served.root / "opt/sebridge").readlink()
    broken = served.folder / "broken-again"
    text = (served.folder / "python").read_text()
    broken.write_text(text.replace("-m bridge", '-m bridge.no-such-module "$1"'))
    broken.chmod(0o755)
    (served.folder / "three.whl").write_text("three")
    in_the_way = cut_off(served.root)
    assert installed(served, served.folder / "three.whl", broken).returncode != 0
    assert (served.root / "opt/sebridge").readlink() != before
    in_the_way.rmdir()

    found = installed(served, served.folder / "three.whl", broken)

    assert found.returncode == 1
    assert "the version before is in use again" in found.stderr
    assert (served.root / "opt/sebridge").readlink() == before
    assert served.run("systemctl", "is-active", "sebridge") == "active\n"
