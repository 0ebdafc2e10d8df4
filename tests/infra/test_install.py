"""Installing and taking away, in a tree of its own: what is there, and what stays."""

import os
import shutil
import stat
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

pytestmark = pytest.mark.deploy

INFRA = Path(__file__).parents[2] / "infra"
UNIT = "etc/systemd/system/sebridge.service"
COMMAND = "usr/local/bin/sebridge"
COMPLETION = "usr/local/share/bash-completion/completions/sebridge"
SOCKET = "etc/systemd/system/sebridge-traffic.socket"
UNITS = "etc/systemd/system"
LIBRARY = "etc/sebridge/hooks/hook.sh"
CREDENTIALS = f"{UNIT}.d/credentials.conf"
CHECK = "/opt/sebridge/bin/sebridge check -c"

PYTHON = """\
#!/bin/sh
# A Python that makes a virtual environment in no time.
[ "$1" = -m ] || exit "${OLD:-0}"
mkdir -p "$3/bin"
printf '#!/bin/sh\\necho "$@" >>"%s/pip.log"\\n' "$3" >"$3/bin/pip"
printf '#!/bin/sh\\nexec "%s" -m bridge "$@"\\n' "$REAL" >"$3/bin/sebridge"
printf '#!/bin/sh\\nexec "%s" "$@"\\n' "$REAL" >"$3/bin/python"
chmod +x "$3/bin/pip" "$3/bin/sebridge" "$3/bin/python"
"""


class Tree:
    """A machine's files under a folder, and a Python that is quick."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "root"
        self.infra = INFRA
        self.python = folder / "python"
        self.python.write_text(PYTHON)
        self.python.chmod(0o755)

    def run(self, script: str, *arguments: str, **environ: str) -> str:
        """Run a script that must not fail; returns what it said."""
        found = self.tried(script, *arguments, **environ)
        assert found.returncode == 0, found.stderr
        return found.stdout

    def tried(
        self, script: str, *arguments: str, **environ: str
    ) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(  # noqa: S603 - our own scripts
            ["/bin/bash", str(self.infra / script), *arguments],
            env={
                "PATH": os.environ["PATH"],
                "DESTDIR": str(self.root),
                "PYTHON": str(self.python),
                "REAL": sys.executable,
                **environ,
            },
            capture_output=True,
            text=True,
            check=False,
        )

    def files(self) -> dict[str, str]:
        return {
            path.relative_to(self.root).as_posix(): path.read_text()
            for path in self.root.rglob("*")
            if path.is_file()
        }

    def mode(self, path: str) -> int:
        return stat.S_IMODE((self.root / path).stat().st_mode)

    def settle(self, settings: Path, text: str | None) -> None:
        """Have the scripts take another folder for /etc/sebridge, which is so."""
        self.infra = settings.with_name("infra")
        shutil.copytree(INFRA / "systemd", self.infra / "systemd")
        for name in ("install.sh", "lib.sh", "program.sh"):
            script = (INFRA / name).read_text()
            there = f"settings={settings}\n"
            script = script.replace("settings=/etc/$name\n", there)
            (self.infra / name).write_text(script)
        clone = self.infra.parent
        (clone / "bridge").mkdir()
        (clone / "bridge" / "__init__.py").write_text("")
        for name in ("pyproject.toml", "constraints.txt"):
            (clone / name).write_text("")
        settings.mkdir()
        if text is not None:
            (settings / "bridge.toml").write_text(text)

    def secret(self, name: str) -> None:
        folder = self.root / "etc/sebridge/secrets"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("hunter2")


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def test_everything_is_put_in_its_place(tree: Tree) -> None:
    said = tree.run("install.sh")

    files = tree.files()
    assert files[UNIT] == (INFRA / "systemd/sebridge.service").read_text()
    assert "etc/sysusers.d/sebridge.conf" in files
    assert "file:${CREDENTIALS_DIRECTORY}" in files["etc/sebridge/bridge.toml"]
    assert tree.mode("etc/sebridge") == 0o750
    assert tree.mode("etc/sebridge/secrets") == 0o700
    assert tree.mode("etc/sebridge/bridge.toml") == 0o640
    assert (tree.root / "opt/sebridge/pip.log").read_text() == (
        "install --quiet --disable-pip-version-check --constraint "
        f"{INFRA.parent}/constraints.txt {INFRA.parent}[email,slack,template]\n"
    )
    assert "systemctl" not in said  # this is not the machine that runs


HUB_FILES = {
    "etc/sysusers.d/sebridge-hub.conf",
    "etc/sebridge-hub/hub.toml",
    "etc/systemd/system/sebridge-hub.service",
    "etc/systemd/system/sebridge-hub.service.d/credentials.conf",
}


def test_hub_stands_beside_the_forwarder_and_goes_without_it(tree: Tree) -> None:
    tree.run("install.sh")
    before = set(tree.files())

    tree.run("install.sh", "--hub")

    files = tree.files()
    assert set(files) >= before | HUB_FILES
    assert "ExecStart=/opt/sebridge-hub/bin/sebridge hub -c" in files[HUB_UNIT]
    assert tree.mode("etc/sebridge-hub/hub.toml") == 0o640
    link = tree.root / "usr/local/bin/sebridge-hub"
    assert link.readlink() == Path("/opt/sebridge-hub/bin/sebridge")
    log = (tree.root / "opt/sebridge-hub/pip.log").read_text()
    assert log.endswith(f"{INFRA.parent}[email,hub,slack,template]\n")

    tree.run("uninstall.sh", "--hub", "--purge")
    assert set(tree.files()) == before
    assert not link.is_symlink()


HUB_UNIT = "etc/systemd/system/sebridge-hub.service"


def test_hub_is_checked_before_it_is_started(tree: Tree, tmp_path: Path) -> None:
    tree.settle(tmp_path / "settings", None)
    config = tree.root / "etc/sebridge-hub/hub.toml"
    config.parent.mkdir(parents=True)
    config.write_text("[hub]\n")

    said = tree.run("install.sh", "--hub", "--no-start")

    assert config.read_text() == "[hub]\n"
    assert "has no settings yet" not in said
    found = tree.tried("install.sh", "--hub", "--traffic")
    assert (found.returncode, found.stdout) == (2, "")
    assert "are the forwarder's, not the hub's" in found.stderr


def test_command_is_on_the_path_and_bash_completes_it(tree: Tree) -> None:
    tree.run("install.sh")

    link = tree.root / COMMAND
    assert link.readlink() == Path("/opt/sebridge/bin/sebridge")
    link.unlink()  # the program itself is not in this tree
    link.write_text('#!/bin/sh\necho complete -W "$_SEBRIDGE_COMPLETE" sebridge\n')
    link.chmod(0o755)
    found = subprocess.run(  # noqa: S603 - what was installed
        ["/bin/bash", "-c", f". {tree.root / COMPLETION}; complete -p sebridge"],
        env={"PATH": f"{link.parent}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout == "complete -W 'bash_source' sebridge\n"


def test_command_of_that_name_that_is_another_stays(tree: Tree) -> None:
    other = tree.root / COMMAND
    other.parent.mkdir(parents=True)
    other.write_text("mine")

    assert "is not this one, and stays" in tree.run("install.sh")
    tree.run("uninstall.sh")

    assert other.read_text() == "mine"


def test_second_run_changes_nothing(tree: Tree) -> None:
    tree.run("install.sh")
    before = {k: v for k, v in tree.files().items() if "pip.log" not in k}

    said = tree.run("install.sh")

    assert {k: v for k, v in tree.files().items() if "pip.log" not in k} == before
    assert [line for line in said.splitlines() if line.startswith("+")] == []


def test_configuration_of_a_person_is_never_overwritten(tree: Tree) -> None:
    config = tree.root / "etc/sebridge/bridge.toml"
    config.parent.mkdir(parents=True)
    config.write_text("# mine")

    tree.run("install.sh")

    assert config.read_text() == "# mine"


def test_each_file_of_the_secrets_is_a_credential(tree: Tree) -> None:
    tree.run("install.sh")
    assert "LoadCredential" not in tree.files()[CREDENTIALS]

    tree.secret("slack-webhook-url")
    tree.secret("siem.token")
    said = tree.run("install.sh")

    assert tree.files()[CREDENTIALS].splitlines()[1:] == [
        "[Service]",
        "LoadCredential=siem.token:/etc/sebridge/secrets/siem.token",
        "LoadCredential=slack-webhook-url:/etc/sebridge/secrets/slack-webhook-url",
    ]
    assert "hunter2" not in said


@pytest.mark.parametrize("name", ["a b", "a:b", ".a\nExecStart=x", "a%n"])
def test_secret_whose_name_would_be_a_line_of_the_unit_is_refused(
    tree: Tree, name: str
) -> None:
    tree.secret(name.lstrip("."))

    found = tree.tried("install.sh")

    assert found.returncode == 1
    assert "a secret's name is letters, digits" in found.stderr
    assert CREDENTIALS not in tree.files()


@pytest.mark.parametrize("script", ["install.sh", "uninstall.sh"])
def test_dry_run_says_it_and_does_nothing(tree: Tree, script: str) -> None:
    if script == "uninstall.sh":
        tree.run("install.sh")
    before = tree.files() if tree.root.exists() else {}

    said = tree.run(script, "--dry-run")

    assert str(tree.root / UNIT) in said
    assert (tree.files() if tree.root.exists() else {}) == before


@pytest.mark.parametrize("text", [None, "# nothing [yet]\n", "[[sinks]]\n"])
def test_service_is_started_once_it_is_configured(
    text: str | None, tree: Tree, tmp_path: Path
) -> None:
    """A forwarder that sends nothing and receives nothing does not start."""
    tree.settle(tmp_path / "settings", text)

    said = tree.run("install.sh", "--dry-run", DESTDIR="")

    is_configured = text is not None and "[[sinks]]" in text
    assert ("systemctl restart sebridge.service" in said) is is_configured
    assert (" check -c " in said) is is_configured
    assert ("has no settings yet: edit it, then " in said) is not is_configured
    assert "systemctl enable sebridge.service" in said


def test_dry_run_for_the_machine_shows_account_check_and_start(
    tree: Tree, tmp_path: Path
) -> None:
    settings = tmp_path / "settings"
    tree.settle(settings, "[[sinks]]\n")

    said = tree.run("install.sh", "--dry-run", DESTDIR="").splitlines()

    commands = [line for line in said if "system" in line or " check " in line]
    assert "+ systemd-sysusers /etc/sysusers.d/sebridge.conf " in commands
    assert [line.split("+ ", 1)[1].strip() for line in commands[-4:]] == [
        "systemctl daemon-reload",
        f"env CREDENTIALS_DIRECTORY={settings}/secrets {CHECK} {settings}/bridge.toml",
        "systemctl enable sebridge.service",
        "systemctl restart sebridge.service",
    ]


def test_listener_of_the_probe_is_held_where_that_is_asked_for(tree: Tree) -> None:
    tree.run("install.sh")
    assert SOCKET not in tree.files()

    said = tree.run("install.sh", "--traffic")

    assert "has no [traffic]: nobody would answer" in said
    files = tree.files()
    socket = (INFRA / "systemd/sebridge-traffic.socket").read_text()
    assert files[SOCKET] == socket
    assert "Sockets=sebridge-traffic.socket" in files[f"{UNIT}.d/traffic.conf"]
    (tree.root / SOCKET).write_text("old")
    tree.run("install.sh")  # from then on it is kept as it should be
    assert tree.files()[SOCKET] == socket

    tree.run("uninstall.sh")
    assert not [name for name in tree.files() if "systemd" in name]


def test_listener_is_let_go_before_systemd_holds_it(tree: Tree, tmp_path: Path) -> None:
    tree.settle(tmp_path / "settings", "[[sinks]]\n[traffic]\n")

    said = tree.run("install.sh", "--dry-run", "--traffic", DESTDIR="").splitlines()

    commands = [line.split("+ ", 1)[1].strip() for line in said if "systemctl" in line]
    assert commands == [
        "systemctl daemon-reload",
        "systemctl enable sebridge.service",
        "systemctl stop sebridge.service",
        "systemctl enable --now sebridge-traffic.socket",
        "systemctl restart sebridge.service",
    ]
    assert not [line for line in said if "nobody would answer" in line]


def test_hook_is_roots_own_and_kept_as_it_should_be(tree: Tree, tmp_path: Path) -> None:
    hook = tmp_path / "my drain"
    hook.write_text("#!/bin/sh\n")

    tree.run("install.sh", "--hook", f"drain={hook}", "--hook", f"b={hook}")

    files = tree.files()
    assert files["etc/sebridge/hooks/drain"] == "#!/bin/sh\n"
    assert "etc/sebridge/hooks/b" in files
    assert files[LIBRARY] == (INFRA / "hooks/hook.sh").read_text()
    launcher = (INFRA / "systemd/hook_launcher.py").read_text()
    own = tree.root / "opt/sebridge/libexec/hook_launcher.py"
    assert own.read_text() == launcher
    assert f"{UNITS}/sebridge-hook@.path" in files
    assert f"{UNITS}/sebridge-hook@.service" in files
    for path in ("etc/sebridge/hooks", "etc/sebridge/hooks/drain"):
        assert tree.mode(path) == 0o755
    (tree.root / LIBRARY).write_text("old")
    tree.run("install.sh")  # from then on they are kept as they should be
    assert tree.files()[LIBRARY] == files[LIBRARY]
    assert tree.files()["etc/sebridge/hooks/drain"] == "#!/bin/sh\n"

    tree.run("uninstall.sh")
    left = [name for name in tree.files() if "systemd" in name or "opt/" in name]
    assert left == []
    assert "etc/sebridge/hooks/drain" in tree.files()


def sinks(tree: Tree) -> list[dict[str, object]]:
    found: list[dict[str, object]] = tomllib.loads(
        (tree.root / "etc/sebridge/bridge.toml").read_text()
    ).get("sinks", [])
    return found


def test_hook_is_asked_for_by_a_sink_that_is_written_once(
    tree: Tree, tmp_path: Path
) -> None:
    config, hook = tree.root / "etc/sebridge/bridge.toml", tmp_path / "hook"
    config.parent.mkdir(parents=True)
    mine = '# sebridge-hook@drain.service\n[traffic]\nlisten = "127.0.0.1:9466"'
    config.write_text(mine)
    config.chmod(0o640)
    hook.write_text("#!/bin/sh\n")

    first, second = (
        tree.run("install.sh", "--hook", f"drain={hook}") for _ in range(2)
    )

    assert config.read_text().startswith(f"{mine}\n")
    (sink,) = sinks(tree)
    assert sink == {
        "name": "drain",
        "type": "command",
        "unit": "sebridge-hook@drain.service",
        "when": {"event_types": ["Reboot", "Redeploy", "Preempt", "Terminate"]},
    }
    assert tree.mode("etc/sebridge/bridge.toml") == 0o640
    assert sorted(path.name for path in config.parent.glob("bridge*")) == [
        "bridge.toml"
    ]
    assert "bridge.toml: a sink" in first
    assert "bridge.toml: a sink" not in second  # it is there


def test_first_hook_is_all_that_a_configuration_needs(
    tree: Tree, tmp_path: Path
) -> None:
    hook = tmp_path / "hook"
    hook.write_text("#!/bin/sh\n")

    said = tree.run("install.sh", "--hook", f"a={hook}", "--hook", f"b={hook}")

    assert [sink["name"] for sink in sinks(tree)] == ["a", "b"]
    assert said.count("bridge.toml: a sink") == 2


@pytest.mark.parametrize(
    "mine",
    [
        '[[sinks]]\nname = "drain"\ntype = "command"\ncommand = ["/x"]\n',
        'sinks = [{name = "a", type = "file", path = "/a"}]\n',
        "[imds\n",
    ],
)
def test_sink_that_check_would_refuse_is_left_to_a_person(
    tree: Tree, tmp_path: Path, mine: str
) -> None:
    config, hook = tree.root / "etc/sebridge/bridge.toml", tmp_path / "hook"
    config.parent.mkdir(parents=True)
    config.write_text(mine)
    hook.write_text("#!/bin/sh\n")

    said = tree.run("install.sh", "--hook", f"drain={hook}")

    assert config.read_text() == mine
    assert "! " in said
    assert 'wants a sink with unit = "sebridge-hook@drain.service"' in said
    assert [path.name for path in config.parent.glob("bridge*")] == ["bridge.toml"]


def test_dry_run_says_that_a_sink_would_be_written(tree: Tree, tmp_path: Path) -> None:
    hook = tmp_path / "hook"
    hook.write_text("#!/bin/sh\n")

    said = tree.run("install.sh", "--dry-run", "--hook", f"drain={hook}")

    assert "/etc/sebridge/bridge.toml: a sink with unit = " in said
    assert not tree.root.exists()


def test_requests_for_a_hook_are_listened_to_at_once(
    tree: Tree, tmp_path: Path
) -> None:
    tree.settle(tmp_path / "settings", "[[sinks]]\n")
    shutil.copytree(INFRA / "hooks", tree.infra / "hooks")
    hook = tree.infra / "hooks" / "stop-services"

    said = tree.run(
        "install.sh", "--dry-run", "--hook", f"drain={hook}", DESTDIR=""
    ).splitlines()

    commands = [line.split("+ ", 1)[1].strip() for line in said if "systemctl" in line]
    assert commands[:2] == [
        "systemctl daemon-reload",
        "systemctl enable --now sebridge-hook@drain.path",
    ]


@pytest.mark.parametrize(
    ("hook", "what"),
    [
        ("drain", "--hook wants NAME=FILE"),
        ("../x=infra/lib.sh", "a name is letters, digits"),
        ("a.b=infra/lib.sh", "a name is letters, digits"),
        ("drain=nowhere", "there is no file nowhere"),
    ],
)
def test_hook_that_is_none_is_reported(hook: str, what: str, tree: Tree) -> None:
    found = tree.tried("install.sh", "--hook", hook)

    assert found.returncode == 2
    assert what in found.stderr
    assert not tree.root.exists()


def test_install_without_a_start_does_not_start(tree: Tree) -> None:
    said = tree.run("install.sh", "--dry-run", "--no-start", DESTDIR="")

    assert "daemon-reload" in said
    assert "restart" not in said


def test_uninstall_keeps_what_is_a_persons(tree: Tree) -> None:
    tree.run("install.sh")
    tree.secret("token")
    own = tree.root / f"{UNIT}.d/own.conf"
    own.write_text("[Service]\n")

    tree.run("uninstall.sh")

    assert set(tree.files()) == {
        "etc/sebridge/bridge.toml",
        "etc/sebridge/secrets/token",
        "etc/sysusers.d/sebridge.conf",
        f"{UNIT}.d/own.conf",
    }
    assert tree.run("uninstall.sh") == ""  # and again: nothing to do


def test_purge_leaves_nothing(tree: Tree) -> None:
    tree.run("install.sh")
    (tree.root / "var/lib/sebridge").mkdir(parents=True)
    (tree.root / "var/lib/sebridge/state.db").write_text("")

    tree.run("uninstall.sh", "--purge")

    assert tree.files() == {}
    assert not (tree.root / COMMAND).is_symlink()


@pytest.mark.parametrize("script", ["install.sh", "uninstall.sh"])
def test_unknown_argument_is_reported_with_those_that_are_known(
    tree: Tree, script: str
) -> None:
    found = tree.tried(script, "--frce")

    assert found.returncode == 2
    assert "unknown argument: --frce" in found.stderr
    assert "--dry-run" in found.stderr


def test_wheel_that_is_not_there_and_a_python_too_old_are_reported(tree: Tree) -> None:
    assert (
        "there is no file x.whl" in tree.tried("install.sh", "--wheel", "x.whl").stderr
    )

    found = tree.tried("install.sh", OLD="1")

    assert found.returncode == 1
    assert "must be Python 3.11 or newer" in found.stderr
    assert not tree.root.exists()


WATCHED = """\
import os, sys
sys.path.insert(0, "infra/systemd")
import hook_launcher
from pathlib import Path
folder, seen = Path(sys.argv[1]), set()

def look(event, _):
    if event in {"os.chmod", "os.chown"}:
        seen.update(path.lstat().st_mode & 0o777 for path in folder.iterdir())

os.umask(0)
sys.addaudithook(look)
hook_launcher.write(folder / "ended", {"head": "of the hook"}, os.getgid())
print(sorted(map(oct, seen)), oct((folder / "ended").stat().st_mode & 0o777))
"""


def test_output_of_a_hook_is_at_no_moment_everybodys(tmp_path: Path) -> None:
    """Looked at before each change of owner and mode, whatever the umask is."""
    (tmp_path / "ended.new").symlink_to(tmp_path / "elsewhere")

    said = subprocess.run(  # noqa: S603 - our own script
        [sys.executable, "-c", WATCHED, tmp_path],
        cwd=INFRA.parent,
        capture_output=True,
        text=True,
        check=True,
    ).stdout

    assert said == "['0o600'] 0o640\n"
    assert not (tmp_path / "elsewhere").exists()
