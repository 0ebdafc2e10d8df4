"""``sebridge init``, and the file that every command reads by default."""

import itertools
import json
import os
import re
import select
import shutil
import stat
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from bridge.cli.common import default_config
from bridge.cli.main import main
from bridge.configuration.starter import Wishes, first_text

HOOK = "https://hooks.slack.example/services/T0/B0/hush"
ROOT = Path(__file__).parents[2]
FLAGS = {
    "slack": ["--slack"],
    "webhook": ["--webhook", "https://siem.example/ingest"],
    "email": ["--email", "smtp.contoso.com/ops@contoso.com"],
    "servicebus": ["--servicebus", "contoso/scheduled-events"],
    "approvals": ["--approvals", "contoso/vm-approvals"],
    "command": ["--command", "/etc/sebridge/hooks/drain"],
    "traffic": ["--traffic"],
}
COMBINATIONS = [
    chosen
    for count in (1, 2, len(FLAGS))
    for chosen in itertools.combinations(FLAGS, count)
]
WITH_CONFIG = [
    *(["run"], ["check"], ["status"], ["events"], ["outbox", "list"], ["send-test"]),
    *(["render", "--sink", "x"], ["approve", "A-1"]),
]


def sebridge(
    *arguments: str, text: str = "", env: Mapping[str, str] | None = None
) -> Result:
    return CliRunner().invoke(
        main, arguments, input=text, env=env, catch_exceptions=False
    )


def init(path: Path, *flags: str, text: str = f"{HOOK}\n") -> Result:
    return sebridge("init", "-o", str(path), *flags, text=text)


def names_in(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def umask() -> int:
    found = os.umask(0)
    os.umask(found)
    return found


# -- written files -----------------------------------------------------------------


@pytest.mark.parametrize("chosen", COMBINATIONS, ids="+".join)
def test_every_combination_passes_check_and_does_what_was_asked(
    chosen: tuple[str, ...], tmp_path: Path
) -> None:
    path = tmp_path / "new" / "bridge.toml"

    written = init(path, *(word for name in chosen for word in FLAGS[name]))
    checked = sebridge("check", "-c", str(path))

    assert written.exit_code == 0, written.stderr
    assert checked.exit_code == 0, checked.stderr
    tables = tomllib.loads(path.read_text())
    kinds = [sink["type"] for sink in tables.get("sinks", [])]
    assert kinds == [name for name in chosen if name not in {"traffic", "approvals"}]
    for table in ("traffic", "approvals"):
        assert (table in tables) == (table in chosen)


def pages() -> Iterator[str]:
    """Yield the text of every page."""
    for folder in (".", "config", "infra", "bridge"):
        found = ROOT.glob("*.md") if folder == "." else (ROOT / folder).rglob("*.md")
        yield from (page.read_text("utf-8") for page in found)


def test_init_commands_of_the_pages_write_valid_files(tmp_path: Path) -> None:
    lines = {
        line
        for page in pages()
        for line in re.findall(r"^sebridge (init .*)$", page, re.MULTILINE)
    }
    assert lines
    for number, line in enumerate(sorted(lines)):
        path = tmp_path / f"{number}" / "bridge.toml"

        written = sebridge(*line.split(), "-o", str(path), text=f"{HOOK}\n")

        assert written.exit_code == 0, line
        assert sebridge("check", "-c", str(path)).exit_code == 0


WORDS = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=20)


@given(
    webhook=st.just("") | WORDS | WORDS.map("https://siem.example/{}".format),
    servicebus=st.just("") | WORDS | WORDS.map("contoso/{}".format),
    command=st.just("") | WORDS | WORDS.map("/opt/{}".format),
)
def test_any_options_write_a_valid_file_or_nothing(
    webhook: str, servicebus: str, command: str
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "bridge.toml"
        flags = [f"--webhook={webhook}", f"--servicebus={servicebus}"]

        written = init(path, *flags, f"--command={command}", "--traffic")

        if written.exit_code == 0:
            assert sebridge("check", "-c", str(path)).exit_code == 0
        else:
            assert written.exit_code == 2
            assert written.stderr.startswith("sebridge: ")
            assert names_in(Path(folder)) == []


def test_secret_goes_into_its_own_file_and_is_not_printed(tmp_path: Path) -> None:
    path = tmp_path / "bridge.toml"
    url = "https://app.example/api/events?code=hush"

    result = init(path, "--slack", "--webhook", url)

    assert result.exit_code == 0
    assert "hush" not in result.output + path.read_text()
    for name, secret in (("slack-webhook-url", HOOK), ("webhook-url", url)):
        assert (tmp_path / name).read_text() == f"{secret}\n"
        assert mode(tmp_path / name) == 0o600
    assert mode(path) == 0o644 & ~umask()


def test_preset_is_written_with_its_key(tmp_path: Path) -> None:
    flags = ["--webhook", "https://siem.example/x", "--preset", "splunk-hec"]

    result = sebridge(
        *("init", "-o", str(tmp_path / "bridge.toml"), *flags),
        *("--preset-key", "env:SPLUNK_TOKEN"),
        env={"SPLUNK_TOKEN": "hush"},
    )

    assert result.exit_code == 0, result.stderr
    (sink,) = tomllib.loads((tmp_path / "bridge.toml").read_text())["sinks"]
    assert sink["preset"] == "splunk-hec"
    assert sink["auth"] == {"token": "env:SPLUNK_TOKEN"}


def test_url_may_have_a_secret_in_its_path(tmp_path: Path) -> None:
    path = tmp_path / "bridge.toml"

    init(path, "--webhook", "https://chat.example/hooks/hush")

    assert mode(path) == 0o600


@pytest.mark.skipif(os.name == "nt" or os.geteuid() != 0, reason="gives a group away")
@pytest.mark.parametrize(("folder_mode", "shared"), [(0o750, 0o640), (0o755, 0o600)])
def test_service_reads_what_root_writes_into_the_folder_of_its_group(
    folder_mode: int, shared: int, tmp_path: Path
) -> None:
    folder = tmp_path / "etc"
    folder.mkdir()
    os.chown(folder, 0, 4321)
    folder.chmod(folder_mode)

    init(folder / "bridge.toml", *FLAGS["slack"], *FLAGS["webhook"])

    for name in ("bridge.toml", "slack-webhook-url"):
        found = (folder / name).stat()
        assert stat.S_IMODE(found.st_mode) == shared
        assert (found.st_gid == 4321) == (shared == 0o640)


def test_reference_is_written_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "bridge.toml"
    env = {"SLACK_WEBHOOK_URL": HOOK}

    result = sebridge(
        *("init", "-o", str(path), "--slack", "env:SLACK_WEBHOOK_URL"), env=env
    )

    assert result.exit_code == 0
    sink = tomllib.loads(path.read_text())["sinks"][0]
    assert sink["webhook_url"] == "env:SLACK_WEBHOOK_URL"
    assert names_in(tmp_path) == ["bridge.toml"]


def test_powershell_script_is_run_by_powershell(tmp_path: Path) -> None:
    path = tmp_path / "bridge.toml"
    script = r"C:\hooks\drain.ps1"

    result = init(path, "--command", script)

    if os.name == "nt":
        assert result.exit_code == 0
    else:  # where the path of the program must be absolute
        assert "sinks.drain.command: must begin with the whole path" in result.stderr


@pytest.mark.parametrize(
    ("program", "key"),
    [
        (
            "/etc/sebridge/hooks/drain",
            'unit = "sebridge-hook@drain.service"',
        ),
        ("/opt/acme/drain.sh", 'unit = "sebridge-hook@drain.service"'),
        ("/opt/acme/drain: all", 'command = ["/opt/acme/drain: all"]'),
    ],
)
def test_hook_that_root_runs_is_named_by_its_unit(program: str, key: str) -> None:
    """If the service is installed; a hook that cannot have a unit stays a command."""
    text = first_text(Wishes(command=program, by_unit=True))

    assert f'type = "command"\n{key}\n' in text


def test_sink_of_a_powershell_script_has_the_name_of_the_script() -> None:
    text = first_text(Wishes(command="C:\\hooks\\drain.ps1"))

    (sink,) = tomllib.loads(text)["sinks"]
    assert sink["name"] == "drain"
    assert sink["command"] == [
        *("powershell.exe", "-NoProfile", "-ExecutionPolicy", "Bypass"),
        *("-File", "C:\\hooks\\drain.ps1"),
    ]


def test_unusable_command_is_a_warning(tmp_path: Path) -> None:
    missing = str(tmp_path / "no-such-hook")

    result = init(tmp_path / "bridge.toml", "--command", missing)

    assert result.exit_code == 0
    assert result.stderr == (
        f"warning: {missing} cannot be run: No such file or directory\n"
    )


# -- refusals ----------------------------------------------------------------------


def test_existing_configuration_is_never_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "bridge.toml"
    path.write_text("[traffic]\n")

    result = init(path, "--slack")

    assert result.exit_code == 1
    assert "exists and is not overwritten" in result.stderr
    assert path.read_text() == "[traffic]\n"
    assert names_in(tmp_path) == ["bridge.toml"]


def test_link_that_leads_nowhere_is_not_followed(tmp_path: Path) -> None:
    path = tmp_path / "bridge.toml"
    path.symlink_to(tmp_path / "elsewhere.toml")

    assert init(path, "--traffic").exit_code == 1
    assert not (tmp_path / "elsewhere.toml").exists()


def test_file_of_comments_alone_is_kept_beside(tmp_path: Path) -> None:
    path = tmp_path / "bridge.toml"
    template = (Path(__file__).parents[2] / "infra/systemd/bridge.toml").read_text()
    path.write_text(template)

    assert init(path, "--traffic").exit_code == 0
    assert (tmp_path / "bridge.toml.orig").read_text() == template

    path.write_text("# mine\n")
    again = init(path, "--traffic")

    assert again.exit_code == 1
    assert "bridge.toml" in again.stderr
    assert path.read_text() == "# mine\n"
    assert (tmp_path / "bridge.toml.orig").read_text() == template


def test_existing_secret_is_used_without_a_question(tmp_path: Path) -> None:
    (tmp_path / "slack-webhook-url").write_text(f"{HOOK}/old\n")

    result = init(tmp_path / "bridge.toml", "--slack", text="")

    assert result.exit_code == 0
    assert (tmp_path / "slack-webhook-url").read_text() == f"{HOOK}/old\n"


def test_another_existing_secret_is_never_overwritten(tmp_path: Path) -> None:
    (tmp_path / "webhook-url").write_text("mine\n")

    result = init(tmp_path / "bridge.toml", "--webhook", "https://x.example/?code=1")

    assert result.exit_code == 1
    assert "webhook-url cannot be written: File exists" in result.stderr
    assert (tmp_path / "webhook-url").read_text() == "mine\n"
    assert not (tmp_path / "bridge.toml").exists()


@pytest.mark.parametrize(
    ("flags", "text", "said"),
    [
        ([], "", "nothing to write: use at least one of --slack, --webhook URL"),
        (["--slack"], "", "the address of the incoming webhook is missing"),
        (["--slack"], "no-address\n", "sinks.slack.webhook_url: "),
        (["--slack", HOOK], "", "other users can read the arguments of a process"),
        (["--slack", "env:NOT_SET_HERE"], "", "NOT_SET_HERE is not set"),
        (["--servicebus", "contoso"], "", "must be NAMESPACE/TOPIC"),
        (["--approvals", "contoso"], "", "must be NAMESPACE/QUEUE"),
        (["--email", "smtp.example"], "", "must be RELAY/ADDRESS"),
        (["--preset", "teams"], "", "--preset needs --webhook URL"),
        (["--preset-key", "env:X", "--traffic"], "", "--preset-key needs --preset"),
        (["--command", "drain"], "", "must begin with the whole path"),
        (["--webhook", "http://169.254.169.254/"], "", "leads to a forbidden address"),
    ],
)
def test_invalid_configuration_is_not_written(
    flags: list[str], text: str, said: str, tmp_path: Path
) -> None:
    result = init(tmp_path / "bridge.toml", *flags, text=text)

    assert result.exit_code == 2
    assert said in result.stderr
    assert "hush" not in result.stderr
    assert names_in(tmp_path) == []


# -- the questions -----------------------------------------------------------------


@pytest.mark.integration
def test_terminal_is_asked_and_a_secret_is_not_echoed(tmp_path: Path) -> None:
    path = tmp_path / "bridge.toml"
    answers = [
        ("incoming webhook?", "y"),
        ("to this URL", ""),
        ("RELAY/ADDRESS", ""),
        ("NAMESPACE/TOPIC", "contoso"),  # is wrong, and asked again
        ("must be NAMESPACE/TOPIC", "contoso/events"),
        ("NAMESPACE/QUEUE", ""),
        ("absolute path", "/bin/true"),
        ("load balancer?", "y"),
        ("Address of the incoming webhook", HOOK),
    ]

    shown = talk(["init", "-o", str(path)], answers)

    assert "hush" not in shown
    assert f"next: sebridge check --connect -c {path}" in shown
    tables = tomllib.loads(path.read_text())
    kinds = [sink["type"] for sink in tables["sinks"]]
    assert kinds == ["slack", "servicebus", "command"]
    assert "traffic" in tables
    assert sebridge("check", "-c", str(path)).exit_code == 0


def talk(arguments: list[str], answers: list[tuple[str, str]]) -> str:
    """Answer each question when it is asked; return all output of the terminal."""
    ours, theirs = os.openpty()
    process = subprocess.Popen(  # noqa: S603 - our own arguments
        [sys.executable, "-m", "bridge", *arguments],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    shown, waiting = "", list(answers)
    seen = 0
    try:
        while select.select([ours], [], [], 60)[0]:
            try:
                shown += os.read(ours, 65536).decode()
            except OSError:  # Linux: the other side has closed
                break
            if waiting and waiting[0][0] in shown[seen:]:
                seen = len(shown)
                os.write(ours, f"{waiting.pop(0)[1]}\n".encode())
        assert process.wait(60) == 0, shown
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    assert waiting == []
    return shown


# -- the default path --------------------------------------------------------------


def test_variable_names_the_configuration_of_every_command(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    env = {"SEBRIDGE_CONFIG": str(path)}
    assert sebridge("init", "--traffic", env=env).exit_code == 0

    report = json.loads(sebridge("check", "--json", env=env).stdout)

    assert report["file"] == str(path)
    assert report["faults"] == []
    path.write_text("[imds\n")
    for command in WITH_CONFIG:
        result = sebridge(*command, env=env)
        assert result.exit_code == 2, command
        assert f"{path}: no valid TOML" in result.stderr, command


def test_option_takes_precedence_over_the_variable(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    init(path, "--traffic")

    result = sebridge("check", "-c", str(path), env={"SEBRIDGE_CONFIG": "/no/such"})

    assert result.exit_code == 0


@pytest.mark.skipif(
    default_config(os.environ).parent.exists(), reason="there is one on this machine"
)
@pytest.mark.parametrize("command", WITH_CONFIG, ids=lambda c: c[0])
def test_missing_default_file_is_an_error_with_advice(command: list[str]) -> None:
    result = sebridge(*command, env={"SEBRIDGE_CONFIG": ""})

    assert result.exit_code == 2
    assert result.stderr.splitlines()[-1] == (
        f"Error: There is no {default_config(os.environ)}. 'sebridge init' writes a "
        "first configuration; -c FILE or SEBRIDGE_CONFIG names a file in another place."
    )


@pytest.mark.parametrize(
    ("platform", "environ", "path"),
    [
        ("linux", {}, "/etc/sebridge/bridge.toml"),
        ("darwin", {"PROGRAMDATA": "x"}, "/etc/sebridge/bridge.toml"),
        ("win32", {"PROGRAMDATA": "D:/Data"}, "D:/Data/sebridge/bridge.toml"),
    ],
)
def test_default_is_the_services_own_file(
    platform: str, environ: dict[str, str], path: str
) -> None:
    assert default_config(environ, platform) == Path(path)


# In a mount namespace of its own, a script has another /etc, which no one else sees.
ANOTHER_ETC = """
mount -t tmpfs none "$1" && mkdir "$1/new" "$1/work" &&
mount -t overlay none -o "lowerdir=/etc,upperdir=$1/new,workdir=$1/work" /etc || exit 77
set -e
bridge="$2 -m bridge"
"""
FIRST_FILE = """
$bridge init --traffic
$bridge check
$bridge init --traffic && exit 1
$bridge check -c /etc/sebridge/bridge.toml
"""


# The shipped service, with a hook in the place of install.sh --hook, or elsewhere.
BY_UNIT = """
mkdir -p /etc/systemd/system /etc/sebridge/hooks
install -m 755 /bin/true /etc/sebridge/hooks/drain
$bridge init -o "$1/before.toml" --command /etc/sebridge/hooks/drain
touch /etc/systemd/system/sebridge.service
for path in /etc/sebridge/hooks/drain "/opt/my own/drain.sh"; do
  rm -f /etc/sebridge/bridge.toml
  $bridge init --command "$path"
  grep -E "^(unit|command)" /etc/sebridge/bridge.toml
  $bridge check
done
grep -E "^(unit|command)" "$1/before.toml"
$bridge check -c "$1/before.toml"
"""


def ran_elsewhere(
    folder: Path, script: str, *more: str
) -> "subprocess.CompletedProcess[str]":
    """Run a script in a mount namespace with its own /etc."""
    environ = {k: v for k, v in os.environ.items() if k != "SEBRIDGE_CONFIG"}
    words = ["unshare", "-m", *more, "sh", "-c", f"{ANOTHER_ETC}{script}", "sh"]
    ran = subprocess.run(  # noqa: S603 - our own words
        [*words, str(folder), sys.executable],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
        env=environ,
    )
    if ran.returncode == 77 or "unshare" in ran.stderr:
        pytest.skip("no mount namespace of one's own here")
    return ran


@pytest.mark.integration
@pytest.mark.skipif(shutil.which("unshare") is None, reason="unshare is missing")
def test_first_file_is_where_every_command_looks_for_it(tmp_path: Path) -> None:
    ran = ran_elsewhere(tmp_path, FIRST_FILE)

    assert ran.returncode == 0, ran.stderr
    path = "/etc/sebridge/bridge.toml"
    assert ran.stdout.splitlines() == [
        f"{path}: written",
        "next: sebridge check --connect",
        f"{path}: ok",
        f"{path}: ok",
    ]
    assert f"{path} exists and is not overwritten" in ran.stderr


@pytest.mark.integration
@pytest.mark.skipif(shutil.which("unshare") is None, reason="unshare is missing")
def test_command_is_run_by_root_where_the_service_as_shipped_is_installed(
    tmp_path: Path,
) -> None:
    ran = ran_elsewhere(tmp_path, BY_UNIT)

    assert ran.returncode == 0, ran.stderr
    path, before = "/etc/sebridge/bridge.toml", tmp_path / "before.toml"
    put = "sudo infra/install.sh --hook 'drain=/opt/my own/drain.sh'"
    assert ran.stdout.splitlines() == [
        f"{before}: written",
        f"next: sebridge check --connect -c {before}",
        f"{path}: written",
        "next: sebridge check --connect",
        'unit = "sebridge-hook@drain.service"',
        f"{path}: ok",
        f"{path}: written",
        f"next: {put}",
        "next: sebridge check --connect",
        'unit = "sebridge-hook@drain.service"',
        f"{path}: ok",
        'command = ["/etc/sebridge/hooks/drain"]',
        f"{before}: ok",
    ]
    warnings = [line for line in ran.stderr.splitlines() if "warning" in line]
    assert len(warnings) == 1
    assert "sebridge.service may do almost nothing" in warnings[0]


# -- what else is read from its usual place ----------------------------------------


SECRETS = """
mkdir -p /etc/sebridge/secrets
echo https://hooks.slack.example/services/T0/B0/hush >/etc/sebridge/secrets/slack
printf '[[sinks]]\\nname = "ops"\\ntype = "slack"\\n' >/etc/sebridge/bridge.toml
printf 'webhook_url = "file:${CREDENTIALS_DIRECTORY}/slack"' >>/etc/sebridge/bridge.toml
unset CREDENTIALS_DIRECTORY
$bridge check
"""
OF_THE_HUB = """
mkdir -p /etc/sebridge-hub
printf '[hub]\\nlisten = 5\\n' >/etc/sebridge-hub/hub.toml
$bridge hub || echo "code $?"
"""
LOCKED = """
ip route add prohibit 169.254.169.254 || exit 77
printf '[traffic]\\n' >"$1/bridge.toml"
$bridge check --connect -c "$1/bridge.toml" || echo "code $?"
"""


@pytest.mark.integration
@pytest.mark.skipif(shutil.which("unshare") is None, reason="unshare is missing")
def test_root_finds_the_secrets_of_the_service(tmp_path: Path) -> None:
    ran = ran_elsewhere(tmp_path, SECRETS)

    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout == "/etc/sebridge/bridge.toml: ok\n"


@pytest.mark.integration
@pytest.mark.skipif(shutil.which("unshare") is None, reason="unshare is missing")
def test_hub_reads_its_file_in_its_usual_place(tmp_path: Path) -> None:
    ran = ran_elsewhere(tmp_path, OF_THE_HUB)

    assert ran.stdout == "code 2\n"
    assert "/etc/sebridge-hub/hub.toml:2: hub.listen: " in ran.stderr


@pytest.mark.integration
@pytest.mark.skipif(
    None in {shutil.which("unshare"), shutil.which("ip")},
    reason="unshare or ip is missing",
)
def test_locked_imds_has_its_own_advice(tmp_path: Path) -> None:
    """As systemd-imdsd locks it: by a route that prohibits its address."""
    ran = ran_elsewhere(tmp_path, LOCKED, "-n")

    assert ran.stdout.endswith("code 1\n")
    assert "systemd-imdsd (kernel command line" in ran.stdout
