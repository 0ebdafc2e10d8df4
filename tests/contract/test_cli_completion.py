"""What TAB offers: click's own names, and those of the configuration in use."""

import asyncio
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete

from bridge.cli import main
from bridge.outbox.store import Outbox
from tests.builders import router, told

ROOT = Path(__file__).parents[2]
CONFIG = """
[state]
path = "{state}"
[[sinks]]
name = "siem"
type = "webhook"
url = "env:NOT_SET_HERE"
[[sinks]]
name = "ops"
type = "slack"
webhook_url = "env:NOT_SET_HERE"
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """Return a configuration whose secrets are not there, and that knows two events."""
    path = tmp_path / "bridge.toml"
    path.write_text(CONFIG.format(state=(tmp_path / "state.db").as_posix()))

    async def fill() -> None:
        async with Outbox.open(tmp_path / "state.db", router()) as outbox:
            names = [("1", "AB12"), ("2", "CD34"), ("3", "AB12"), ("4", None)]
            await outbox.commit([told(i, key=key) for i, key in names], now=1)

    asyncio.run(fill())
    return path


def offered(*arguments: str, incomplete: str = "") -> list[str]:
    shell = ShellComplete(main, {}, "sebridge", "_SEBRIDGE_COMPLETE")
    return [one.value for one in shell.get_completions(list(arguments), incomplete)]


def test_commands_and_options_are_offered() -> None:
    assert {"run", "check", "status", "outbox"} <= set(offered())
    assert "--connect" in offered("check", incomplete="--")


@pytest.mark.parametrize("command", [("outbox", "list"), ("send-test",), ("render",)])
def test_sinks_of_the_configuration_are_offered(
    command: tuple[str, ...], config: Path
) -> None:
    line = (*command, "-c", str(config), "--sink")

    assert offered(*line) == ["siem", "ops"]
    assert offered(*line, incomplete="o") == ["ops"]


@pytest.mark.parametrize(
    "command", [("approve",), ("outbox", "list", "--event"), ("events", "--event")]
)
def test_event_ids_are_offered_newest_first(
    command: tuple[str, ...], config: Path
) -> None:
    name, *rest = command
    group = [rest.pop(0)] if name == "outbox" else []
    line = (name, *group, "-c", str(config), *rest)

    assert offered(*line) == ["AB12", "CD34"]
    assert offered(*line, incomplete="c") == ["CD34"]


@pytest.mark.parametrize("text", [None, "", "[state]\npath = 'nowhere'", "[[", "[x]"])
def test_nothing_is_offered_and_no_error_told_where_nothing_is_known(
    text: str | None, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "bridge.toml"
    if text is not None:
        path.write_text(text + f"\n[http]\nlisten = ''\n# {tmp_path}")
    before = list(tmp_path.iterdir())

    for option in ("--sink", "--event"):
        assert offered("outbox", "list", "-c", str(path), option) == []
    assert offered("approve") == []
    assert capfd.readouterr() == ("", "")
    assert list(tmp_path.iterdir()) == before


def test_bash_offers_the_same(config: Path) -> None:
    if not (bash := shutil.which("bash")):
        pytest.skip("no bash here")
    program = config.with_name("sebridge")
    program.write_text(
        f"#!{sys.executable}\nfrom bridge.__main__ import main\nmain()\n"
    )
    program.chmod(0o755)
    script = f"""
        eval "$(_SEBRIDGE_COMPLETE=bash_source sebridge)"
        complete -p sebridge | grep -q _sebridge_completion || exit 1
        COMP_WORDS=(sebridge outbox list -c '{config}' --sink s) COMP_CWORD=6
        _sebridge_completion sebridge
        echo "${{COMPREPLY[@]}}"
    """
    path = f"{config.parent}{os.pathsep}{os.environ['PATH']}"
    env = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)}

    done = subprocess.run(  # noqa: S603 - our own arguments
        [bash, "--norc", "-c", script],
        env=env,
        capture_output=True,
        text=True,
        check=True,
    )

    assert done.stdout == "siem\n"
