"""The archive for Windows and its scripts, as far as they can be checked elsewhere.

No PowerShell is to be had here: a grammar reads the scripts (test_hooks_powershell.py
holds that it does), and what they name must be there.
"""

import hashlib
import json
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tree_sitter_pwsh
from pycep import BicepParser
from tree_sitter import Language, Node, Parser

from bridge.cli.windows_service import NAME, home
from bridge.configuration import load as config
from bridge.foundation.errors import ConfigError
from bridge.outbox.statefile import default_path
from tests.docs.pages import blocks
from tests.infra import kits

ROOT = Path(__file__).parents[2]
HERE = ROOT / "infra" / "windows"
SCRIPTS = sorted(HERE.glob("*.ps1"))
LIBRARY = HERE / "lib.ps1"
# Of Windows PowerShell 5.1, which Windows Server 2016 and newer bring.
CMDLETS = {
    *("Copy-Item", "ForEach-Object", "Get-ChildItem", "Get-Content", "Get-Date"),
    *("Get-FileHash", "Get-Item", "Get-Service", "Join-Path", "Move-Item", "New-Item"),
    *("Get-Acl", "Get-CimInstance", "New-Object"),
    *("Out-Host", "Out-Null", "Remove-Item", "Set-StrictMode", "Sort-Object"),
    *("Split-Path", "Start-Process", "Start-Sleep", "Test-Path", "Write-Host"),
}
AUTOMATIC = {"$_", "$null", "$true", "$false", "$Matches", "$PSScriptRoot"}
AUTOMATIC |= {"$LASTEXITCODE", "$global:LASTEXITCODE"}
PREFERENCES = {"$ErrorActionPreference", "$ProgressPreference"}


def nodes(node: Node) -> Iterator[Node]:
    yield node
    for child in node.children:
        yield from nodes(child)


def text_of(node: Node) -> str:
    return (node.text or b"").decode()


def tree(path: Path) -> list[Node]:
    parser = Parser(Language(tree_sitter_pwsh.language()))
    return [*nodes(parser.parse(path.read_bytes()).root_node)]


def functions(path: Path) -> dict[str, Node]:
    """Return the functions of a script by their names."""
    found = (node for node in tree(path) if node.type == "function_statement")
    return {text_of(node.children[1]): node for node in found}


def parameters(function: Node) -> set[str]:
    """Return the parameters of a function, as a caller writes them."""
    lists = (node for node in nodes(function) if node.type == "script_parameter")
    return {"-" + text_of(node.children[-1]).removeprefix("$") for node in lists}


def known(path: Path) -> dict[str, Node]:
    """Return the functions that a script may call: its own, and the library's."""
    return {**functions(LIBRARY), **functions(path)}


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_every_command_is_of_powershell_or_of_ours(path: Path) -> None:
    called = {text_of(node) for node in tree(path) if node.type == "command_name"}

    assert called - CMDLETS - known(path).keys() - {"param"} == set()


def test_every_function_of_the_library_is_called() -> None:
    texts = "".join(path.read_text() for path in SCRIPTS)

    for name in functions(LIBRARY):
        assert len(re.findall(rf"(?<![\w-]){name}(?![\w-])", texts)) >= 2, name


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_functions_are_given_parameters_that_they_have(path: Path) -> None:
    ours = {name: parameters(node) for name, node in known(path).items()}
    for node in tree(path):
        if node.type != "command" or text_of(node.children[0]) not in ours:
            continue
        given = {text_of(n) for n in nodes(node) if n.type == "command_parameter"}
        inner = {
            text_of(n)
            for other in nodes(node)
            if other.type == "command" and other != node
            for n in nodes(other)
            if n.type == "command_parameter"
        }
        assert given - inner <= ours[text_of(node.children[0])], text_of(node)


def assigned(path: Path) -> set[str]:
    """Return the variables that a script sets anywhere."""
    found = set[str]()
    for node in tree(path):
        if node.type in {"left_assignment_expression", "script_parameter"}:
            found |= {text_of(n) for n in nodes(node) if n.type == "variable"}
        elif node.type == "foreach_statement":
            found.add(text_of(node.children[2]))
    return found | set(re.findall(r"(?m)^param\(\[\w+\] (\$\w+)", path.read_text()))


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_every_variable_is_set(path: Path) -> None:
    """Set-StrictMode would end the script otherwise, on the machine of a user."""
    names = {text_of(node) for node in tree(path) if node.type == "variable"}
    read = {re.sub(r"^\$\{(\w+)\}$", r"$\1", name) for name in names}
    ours = {name for name in read if not name.startswith(("$env:", "@"))}
    there = assigned(path) | assigned(LIBRARY) | AUTOMATIC | PREFERENCES

    assert {name for name in ours if name not in there} == set()


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_script_is_ascii(path: Path) -> None:
    """Windows PowerShell 5.1 reads a file without a mark as the system's code page."""
    assert path.read_text().isascii()


def test_files_are_where_the_service_looks_for_them() -> None:
    text = LIBRARY.read_text()

    assert home({"PROGRAMDATA": "D"}) == Path("D") / NAME
    assert f'$settings = "$env:ProgramData\\{NAME}"' in text
    assert '$config = "$settings\\bridge.toml"' in text
    fleet = (ROOT / "infra/fleet/vms.py").read_text()
    assert f'$python = "$env:ProgramFiles\\\\{NAME}\\\\python.exe"' in fleet
    assert f'$home_of_python = "$env:ProgramFiles\\{NAME}"' in text
    assert '$python = "$home_of_python\\python.exe"' in text


def test_version_that_is_linked_is_imported_and_its_own_links_are_followed(
    tmp_path: Path,
) -> None:
    """As pywin32 has a ``.pth`` of its own, which must be followed, too."""
    subprocess.run(  # noqa: S603 - our own words
        [sys.executable, "-m", "venv", "--without-pip", tmp_path / "python"], check=True
    )
    (site,) = (tmp_path / "python").glob("lib/*/site-packages")
    version = tmp_path / "versions" / "0123456789ab"
    (version / "win32").mkdir(parents=True)
    (version / "program.py").write_text("import inner\nprint(inner.__file__)")
    (version / "win32" / "inner.py").touch()
    (version / "pywin32.pth").write_text("win32\n")
    (line,) = re.findall(r'\(\$link, "(.+)`n"\)', LIBRARY.read_text())
    linked = line.replace("$versions\\$Version", str(version))
    (site / "sebridge.pth").write_text(f"{linked}\n")

    said = subprocess.run(  # noqa: S603 - our own words
        [tmp_path / "python/bin/python", "-I", "-m", "program"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout

    assert said.strip() == str(version / "win32" / "inner.py")
    (pattern,) = re.findall(r"-match '(.+)'\) \{", LIBRARY.read_text())
    found = re.search(pattern.replace("''", "'"), linked)
    assert found is not None
    assert found[1] == version.name


def test_example_is_accepted_once_its_lines_are_taken(tmp_path: Path) -> None:
    text = (HERE / "bridge.toml").read_text()
    secrets = tmp_path / "sebridge" / "secrets"
    secrets.mkdir(parents=True)
    (secrets / "slack-webhook-url").write_text("https://hooks.slack.com/services/T/B/X")
    path = tmp_path / "bridge.toml"

    path.write_text(text)
    with pytest.raises(ConfigError, match="sinks"):
        config.load(path, {})
    path.write_text(re.sub(r"(?m)^# (?=\[|\w+ = )", "", text))
    found = config.load(path, {"ProgramData": str(tmp_path)})

    assert [sink.name for sink in found.sinks] == ["bus", "ops"]
    assert found.approvals is not None


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the archive from wheels that are made here."""
    folder = tmp_path_factory.mktemp("windows")
    top = kits.source(folder)
    setup = folder / "python-3.13.9-amd64.exe"
    setup.write_bytes(b"an installer")
    return kits.build(
        top, "--only", "windows", "--version", "1.2.3", "--python", str(setup)
    )


def members(archive: Path) -> dict[str, bytes]:
    (path,) = archive.glob("*.zip")
    with zipfile.ZipFile(path) as found:
        return {name: found.read(name) for name in found.namelist()}


@pytest.mark.deploy
def test_archive_has_what_installs_it_and_the_sums_of_all(archive: Path) -> None:
    found = members(archive)
    lines = found["SHA256SUMS"].decode().splitlines()
    sums = {name: value for value, name in (line.split("  ./") for line in lines)}

    assert {path.name for path in SCRIPTS} <= found.keys()
    assert {"bridge.toml", "README.md", "python-3.13.9-amd64.exe"} <= found.keys()
    assert sums.keys() == found.keys() - {"SHA256SUMS"}
    for name, digest in sums.items():
        assert hashlib.sha256(found[name]).hexdigest() == digest
    (path,) = archive.glob("*.zip")
    assert path.name == "scheduled-events-bridge-1.2.3-windows-amd64.zip"


def test_installer_of_something_else_is_refused(tmp_path: Path) -> None:
    found = subprocess.run(  # noqa: S603 - our own script
        ["/bin/bash", ROOT / "infra/build.sh", "--python", ROOT / "LICENSE"],
        capture_output=True,
        text=True,
        env={**os.environ, "HOME": str(tmp_path)},
        check=False,
    )

    assert found.returncode == 2
    assert "--python wants a file python-3." in found.stderr


def wanted(machine: str, lock: str) -> dict[str, set[str]]:
    """Return the names of what each Python gets."""
    code = (
        "import json, sys; sys.path.insert(0, sys.argv[1]); import wheelhouse as w; "
        "print(json.dumps({p: w.wanted(p, *sys.argv[2:]) for p in w.PYTHONS}))"
    )
    said = subprocess.run(  # noqa: S603 - our own words
        [sys.executable, "-c", code, ROOT / "infra/packaging", machine, lock],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    lists: dict[str, list[str]] = json.loads(said)
    return {
        python: {line.split("==")[0] for line in lines}
        for python, lines in lists.items()
    }


def test_windows_gets_what_it_alone_needs() -> None:
    for names in wanted("win_amd64", "requirements-windows.txt").values():
        assert {"pywin32", "aiohttp", "slack-sdk", "jinja2"} <= names
    for names in wanted("x86_64", "requirements-windows.txt").values():
        assert "pywin32" not in names


@pytest.mark.deploy
def test_names_in_the_commands_of_the_application_are_those_of_the_archive(
    archive: Path,
) -> None:
    text = (ROOT / "infra/bicep/modules/application.bicep").read_text()
    parsed: Any = BicepParser().parse(text=text)
    variables = parsed["variables"]
    assert {"windows", "unpack", "script"} <= variables.keys()
    assert "  package: 'sebridge.zip'\n" in text
    assert "-Path sebridge.zip -DestinationPath kit" in text
    (script,) = re.findall(r"-File kit\\\\([\w.-]+)'", text)
    assert script in members(archive)
    assert "'install' {" in members(archive)[script].decode()
    assert "var commands = osType == 'Windows' ? windows : linux" in text


def test_every_place_knows_the_same_systems() -> None:
    bicep = ROOT / "infra/bicep"
    found = [
        re.findall(r"@allowed\(\[(.+)\]\)\nparam osType", (bicep / name).read_text())
        for name in ("application.bicep", "policy.bicep")
    ]

    assert found == [["'Linux', 'Windows'"]] * 2


def test_page_calls_scripts_that_are_there() -> None:
    text = "".join(block.text for block in blocks("infra/windows/README.md"))
    page = (HERE / "README.md").read_text() + (HERE / "kit-readme.md").read_text()

    called = set(re.findall(r"-File ([\w.-]+\.ps1)", text + page))
    assert called == {"install.ps1", "upgrade.ps1", "uninstall.ps1"}
    for name, option in re.findall(r"(\w+\.ps1) -(\w+)", page):
        assert f"param([switch] ${option})" in (HERE / name).read_text()


def body(name: str) -> str:
    return text_of(functions(LIBRARY)[name])


def test_service_may_write_to_its_state_and_its_log_and_only_read_the_rest() -> None:
    rights = dict(re.findall(r"Set-Right (\S+) '(\w+)'", body("Protect-Folder")))

    assert rights == {
        "$settings": "FRFX",
        '"$settings\\secrets"': "FRFX",
        "$kept": "FRFWFXSD",
        "$log": "FRFWFXSD",
    }
    text = LIBRARY.read_text()
    assert '$kept = "$settings\\state"' in text
    assert default_path("win32", {"PROGRAMDATA": "D"}) == r"D\sebridge\state\state.db"
    assert '$log = "$settings\\log"' in text
    marker = (ROOT / "infra/hooks/sqlserver-failover.ps1").read_text()
    assert r"Join-Path $env:ProgramData 'sebridge\state\hooks'" in marker


def test_folder_of_somebody_else_ends_the_installation_before_it_is_used() -> None:
    """Every user may make folders in ProgramData."""
    lines = [line.strip() for line in body("Protect-Folder").splitlines()]

    assert lines[1] == "Assert-Own $settings"
    assert "ReparsePoint" in body("Assert-Own")
    assert "GetOwner" in body("Assert-Own")
    assert "'S-1-5-18', 'S-1-5-32-544'" in LIBRARY.read_text()
    installed = body("Install-Folder").splitlines()
    assert [line.strip() for line in installed][1:3] == [
        "New-Item -ItemType Directory -Force -Path $settings | Out-Null",
        "Protect-Folder",
    ]


def test_answer_is_asked_of_the_port_and_not_of_the_state_file() -> None:
    assert "'status', '--live', '-c'" in body("Test-Answer")


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_programs_are_started_where_a_failed_start_is_a_failure(path: Path) -> None:
    """A program that was not found leaves the exit code of the one before."""
    commands = [text_of(n).strip() for n in tree(path) if n.type == "command"]
    started = {one for one in commands if re.match(r"& |\w+\.exe", one)}

    ours = {"& $Program @Words *> $null", "& $Program @Words", '& "$kit\\install.ps1"'}
    assert started <= ours | {'& "$kit\\uninstall.ps1"'}
    invoke = body("Invoke-Native")
    assert invoke.index("$global:LASTEXITCODE = -1") < invoke.index("& $Program")
    assert "catch {" in invoke


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_names_of_folders_are_no_patterns(path: Path) -> None:
    """A folder may be named ``kit[1]``."""
    for line in path.read_text().splitlines():
        if " -Path " in line:
            assert line.strip().startswith("New-Item "), line


@pytest.mark.parametrize(
    "path",
    [path for path in SCRIPTS if path != LIBRARY],
    ids=lambda path: path.name,
)
def test_two_installations_are_held_apart(path: Path) -> None:
    lines = path.read_text().splitlines()

    assert lines[lines.index("Assert-Administrator") + 1] == "Enter-Setup"
    assert "WaitOne(0)" in body("Enter-Setup")
    assert "Is64BitProcess" in body("Assert-Administrator")


def test_every_command_line_of_powershell_runs_whatever_the_policy_says() -> None:
    """Windows Server runs no script otherwise that was downloaded."""
    found = dict[str, list[str]]()
    for folder in ("bridge", "config", "infra"):
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in {".py", ".md", ".ps1", ".bicep", ".toml"}:
                text = re.sub(r"[\"',`]", "", path.read_text(encoding="utf-8"))
                found[path.name] = re.findall(r"powershell\.exe (-.*)", text)

    calls = [call for calls in found.values() for call in calls]
    assert len(calls) > 8
    for call in calls:
        assert "-ExecutionPolicy Bypass" in call


def test_way_back_is_known_to_the_next_run_too() -> None:
    """An upgrade that was cut off has switched already, and not proved anything."""
    use = body("Use-Version")

    assert use.index('"$versions\\trial", "$last $older"') < use.index("Set-Current")
    assert use.index("Get-Trial") < use.index("Get-Current")
    assert use.count("Remove-Trial") == 3


def test_service_that_dies_again_and_again_is_no_good_version() -> None:
    """Windows starts it again after 3 s: then it runs, as another process."""
    restart = body("Restart-Bridge")

    assert restart.index("$number = Get-ProcessNumber") < restart.index("-Seconds 5")
    assert "(Get-ProcessNumber) -ne $number" in restart


def test_application_fails_where_its_configuration_is_refused() -> None:
    """The first one, too; and whatever ends install.ps1, what was before comes back."""
    path = HERE / "vm-application.ps1"
    install = text_of(functions(path)["Install-Given"])

    assert install.index("Copy-Given") > install.index("try {")
    assert install.index("install.ps1") < install.index("catch {")
    assert "'check', '-c', $config)) -eq 0" in install
    assert "if (-not (Install-Given)) {\n            Undo-Given" in path.read_text()


def test_file_in_use_fails_no_upgrade() -> None:
    remove = body("Remove-OldVersion")

    assert remove.index("try {") < remove.index("Remove-Item") < remove.index("catch {")


def test_half_made_service_is_completed_at_the_next_run() -> None:
    install = body("Install-Service")
    after = install[install.index("else {") :]

    assert "return" not in install
    assert after.index("'install')") < after.index("'failure', 'sebridge'")
