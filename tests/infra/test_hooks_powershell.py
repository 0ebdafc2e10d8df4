"""The hook for Windows: it asks what the one for Linux asks, and runs where pwsh is.

Nobody has run it on Windows: what is known of it stands here. Where there is no pwsh,
a grammar of PowerShell reads it, and what the pages show.
"""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import tree_sitter_pwsh
from tree_sitter import Language, Parser

from bridge.sinks.command.environment import inherited
from tests.docs.pages import every_block
from tests.infra.hook_stage import GIVEN, HOOKS, PREPARE, RESTORE
from tests.infra.hook_worlds import sqlserver

SCRIPT = HOOKS / "sqlserver-failover.ps1"
SETTINGS = "@{{ Group = 'ag1'; Instance = 'sql-a'; State = '{state}'; Wait = 1 }}\n"
needs_pwsh = pytest.mark.skipif(
    shutil.which("pwsh") is None, reason="PowerShell (pwsh) is missing"
)


def statements(text: str) -> list[str]:
    """Return the statements of SQL in a script, in one form."""
    text = text.replace("\\\n", "").replace("$GROUP", "$group")
    found = re.findall(r"(?:SELECT [rs]\.|ALTER [A-Z ]+\[)[^\"@]*", text)
    return sorted(" ".join(statement.split()) for statement in found)


def test_it_asks_what_the_one_for_linux_asks() -> None:
    asked = statements(SCRIPT.read_text())

    assert len(asked) == 3
    assert asked == statements((HOOKS / "sqlserver-failover").read_text())


def faults(text: str) -> list[str]:
    """Return the lines at which a text is no PowerShell."""
    code = text.encode()
    tree = Parser(Language(tree_sitter_pwsh.language())).parse(code)
    found, to_do = list[str](), [tree.root_node]
    while to_do:
        node = to_do.pop()
        if node.type == "ERROR" or node.is_missing:
            found.append(f"line {node.start_point[0] + 1}: {node.text!r}")
        to_do += node.children
    return found


@pytest.mark.parametrize("text", ["if ($a { 1 }", "function f { param($a) ", "@{ a = "])
def test_grammar_finds_what_is_no_powershell(text: str) -> None:
    assert faults(text)


def scripts() -> dict[str, str]:
    """Return every script, and what the pages show, by its name."""
    found = {path.name: path.read_text() for path in HOOKS.parent.rglob("*.ps1")}
    return found | {str(block): block.text for block in every_block("powershell")}


@pytest.mark.parametrize("name", scripts())
def test_script_and_pages_are_powershell(name: str) -> None:
    assert faults(scripts()[name]) == []


WINDOWS = dict.fromkeys(
    (
        *(
            "ALLUSERSPROFILE",
            "APPDATA",
            "COMPUTERNAME",
            "CommonProgramFiles",
            "ComSpec",
        ),
        *("LOCALAPPDATA", "OS", "Path", "PATHEXT", "ProgramData", "ProgramFiles"),
        *("PSModulePath", "PUBLIC", "SystemDrive", "SystemRoot", "TEMP", "TMP"),
        *("USERDOMAIN", "USERNAME", "USERPROFILE", "windir"),
    ),
    "x",
)


@pytest.mark.parametrize("path", [*HOOKS.glob("*.ps1")], ids=lambda path: path.name)
def test_hook_reads_no_variable_that_the_bridge_does_not_give(path: Path) -> None:
    """Of what a service on Windows has, and what the bridge adds."""
    given = {*inherited(WINDOWS), *GIVEN, "SEBRIDGE_TEST"}

    read = set(re.findall(r"\$env:(\w+)", path.read_text()))

    assert read
    assert {name.upper() for name in read} <= given


@needs_pwsh
def test_group_fails_over_once_and_stays(tmp_path: Path) -> None:
    stage = sqlserver(tmp_path)
    shutil.copy(SCRIPT, stage.folder)
    settings = SETTINGS.format(state=stage.state)
    (stage.folder / "sqlserver-failover.psd1").write_text(settings)

    def run(given: dict[str, str]) -> str:
        return subprocess.run(  # noqa: S603 - our own hook
            ["pwsh", "-NoProfile", "-File", stage.folder / SCRIPT.name],  # noqa: S607 - from PATH
            env=stage.environment(given),
            capture_output=True,
            text=True,
            check=True,
        ).stdout

    assert "would run on sql-b" in run({**PREPARE, "SEBRIDGE_TEST": "1"})
    run(PREPARE)
    assert (stage.world / "primary").read_text() == "sql-b\n"
    assert "another event waits" in run({**RESTORE, "SEBRIDGE_OTHER_EVENTS": "E-2"})
    assert "stays secondary" in run(RESTORE)
    assert "nothing to restore" in run(RESTORE)
