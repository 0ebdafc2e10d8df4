"""The Ansible role, run by ansible-core into a tree of its own."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.infra import kits

ROOT = Path(__file__).parents[2]
ROLES = ROOT / "infra" / "fleet" / "ansible" / "roles"
ANSIBLE = Path(sys.executable).parent / "ansible-playbook"
CONFIG = """\
[[sinks]]
name = "siem"
type = "webhook"
url = "https://siem.example/in"
"""
# site.yml becomes root and works on many hosts: this is its role, here.
PLAY = """\
- hosts: localhost
  connection: local
  gather_facts: true
  gather_subset: [min]
  roles: [sebridge]
"""

pytestmark = [
    pytest.mark.deploy,
    pytest.mark.skipif(not ANSIBLE.exists(), reason="ansible-core is missing"),
    pytest.mark.skipif(
        not kits.can_cut_off_the_network(), reason="no namespace without a network here"
    ),
]


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return kits.archive_in(tmp_path_factory.mktemp("kit"), "1.2.3")


class Host:
    """A tree, and the role that is run into it with no network."""

    def __init__(self, folder: Path, archive: Path) -> None:
        self.folder = folder
        self.root = folder / "root"
        self.root.mkdir()
        (folder / "play.yml").write_text(PLAY)
        (folder / "bridge.toml").write_text(CONFIG)
        self.given: dict[str, object] = {
            "sebridge_archive": str(archive),
            "sebridge_config": str(folder / "bridge.toml"),
            "sebridge_destdir": str(self.root),
        }

    def run(self, **more: object) -> "subprocess.CompletedProcess[str]":
        given = self.folder / "given.json"
        given.write_text(json.dumps({**self.given, **more}))
        return subprocess.run(  # noqa: S603 - our own role
            [
                *(*kits.NO_NETWORK, ANSIBLE, "-i", "localhost,"),
                *("--extra-vars", f"@{given}", self.folder / "play.yml"),
            ],
            env={
                "PATH": os.environ["PATH"],
                "HOME": str(self.folder),
                "LC_ALL": "C.UTF-8",
                "ANSIBLE_ROLES_PATH": str(ROLES),
                "ANSIBLE_LOCAL_TEMP": str(self.folder / "tmp"),
                "ANSIBLE_PYTHON_INTERPRETER": sys.executable,
                "ANSIBLE_NOCOLOR": "1",
                "ANSIBLE_PIPELINING": "1",  # no file copied and two shells per task
            },
            capture_output=True,
            text=True,
            check=False,
        )

    def changed(self, **more: object) -> int:
        """Run the role, which must not fail; return how many tasks made a change."""
        found = self.run(**more)
        assert found.returncode == 0, found.stdout + found.stderr
        assert "hunter2" not in found.stdout + found.stderr
        recap = re.search(r"changed=(\d+)", found.stdout)
        assert recap, found.stdout
        return int(recap[1])


@pytest.fixture
def host(tmp_path: Path, archive: Path) -> Host:
    return Host(tmp_path, archive)


def test_role_installs_and_a_second_run_changes_nothing(host: Host) -> None:
    assert host.changed() > 0

    config = host.root / "etc/sebridge/bridge.toml"
    assert config.read_text() == CONFIG
    command = host.root / "opt/sebridge/bin/sebridge"
    said = subprocess.run(  # noqa: S603 - what was installed
        [command, "check", "-c", config], capture_output=True, check=False
    )
    assert said.returncode == 0, said.stderr
    assert host.changed() == 0

    # A secret more, and the unit loads it; a hook, which asks for its sink.
    more = {
        "sebridge_secrets": {"siem-token": "hunter2"},
        "sebridge_hooks": {"drain": str(ROOT / "infra/hooks/stop-services")},
        "sebridge_config": "",
    }
    assert host.changed(**more) > 0
    unit = host.root / "etc/systemd/system/sebridge.service.d/credentials.conf"
    assert "LoadCredential=siem-token:" in unit.read_text()
    secret = host.root / "etc/sebridge/secrets/siem-token"
    assert secret.stat().st_mode & 0o777 == 0o600
    assert 'unit = "sebridge-hook@drain.service"' in config.read_text()
    assert host.changed(**more) == 0


@pytest.mark.parametrize(
    ("archive_name", "what"),
    [
        ("", "sebridge_archive is the path of"),
        ("x-1.2.3-linux-riscv64.tar.gz", "x-1.2.3-linux-riscv64.tar.gz is not for"),
    ],
)
def test_wrong_archive_is_reported_before_anything_is_changed(
    archive_name: str, what: str, host: Host
) -> None:
    found = host.run(sebridge_archive=archive_name)

    assert found.returncode != 0
    assert what in found.stdout
    assert list(host.root.iterdir()) == []


def test_windows_host_is_left_out(host: Host) -> None:
    """A mixed inventory: its facts say what it is."""
    play = host.folder / "play.yml"
    play.write_text(
        PLAY.replace("gather_facts: true", "gather_facts: false").replace(
            "  roles:", "  vars: {ansible_facts: {os_family: Windows}}\n  roles:"
        )
    )

    found = host.run()

    assert found.returncode == 0
    assert "The archive is named" not in found.stdout
    assert list(host.root.iterdir()) == []


def test_playbook_goes_in_steps_and_stops_where_too_many_fail() -> None:
    (play,) = yaml.safe_load((ROLES.parent / "site.yml").read_text())

    assert play["serial"] == [1, 5, "20%"]
    assert play["max_fail_percentage"] == 5
    assert play["roles"] == ["sebridge"]


def test_every_variable_is_described() -> None:
    text = (ROLES / "sebridge/defaults/main.yml").read_text()
    tasks = (ROLES / "sebridge/tasks/main.yml").read_text()
    lines = text.splitlines()

    for name in yaml.safe_load(text):
        number = next(n for n, one in enumerate(lines) if one.startswith(f"{name}:"))
        assert lines[number - 1].startswith("# ")
        assert name in tasks
    own = {"sebridge_copied", "sebridge_installed"}
    own |= {"sebridge_options", "sebridge_hook_options"}
    assert set(re.findall(r"\bsebridge_\w+", tasks)) - own == set(yaml.safe_load(text))
