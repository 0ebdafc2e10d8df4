"""Completion offers click's own names, and names from the configuration in use."""

import asyncio
import os
import shlex
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete

from bridge.cli.main import main
from tests.support.builders import outgoing, patient_outbox, router
from tests.support.configurations import config_text, slack, webhook

ROOT = Path(__file__).parents[2]
SECRET = "env:NOT_SET_HERE"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """Return a configuration without its secrets, whose state file has two events."""
    path = tmp_path / "bridge.toml"
    sinks = webhook(SECRET), slack(SECRET)
    path.write_text(config_text(*sinks, state=tmp_path / "state.db"))

    async def fill() -> None:
        async with patient_outbox(tmp_path / "state.db", router()) as outbox:
            names = [("1", "AB12"), ("2", "CD34"), ("3", "AB12"), ("4", None)]
            await outbox.commit([outgoing(i, key=key) for i, key in names], now=1)

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


def test_event_ids_before_a_gap_are_offered_too(config: Path) -> None:
    """A file that was written anew after damage goes on far above its last number."""
    path = config.with_name("state.db")
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("UPDATE sqlite_sequence SET seq = seq + 1000000")

    async def fill() -> None:
        async with patient_outbox(path, router()) as outbox:
            await outbox.commit([outgoing("5", key="EF56")], now=1)

    asyncio.run(fill())

    assert offered("approve", "-c", str(config)) == ["EF56", "AB12", "CD34"]


@pytest.mark.parametrize("text", [None, "", "[state]\npath = 'nowhere'", "[[", "[x]"])
def test_unreadable_files_offer_nothing_and_print_no_error(
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


# -- the shell runs no foreign text -------------------------------------------------

HOSTILE = [
    "$(touch run-by-bash)",
    "`touch run-by-bash`",
    "AB12;touch run-by-bash",
    "AB12 touch",
    "AB12\ntouch",
    "*",
    "~",
    "a{b,c}",
    "'quoted'",
    "back\\slash",
    "--force",
    "łódź",
    "",
]


@pytest.fixture
def attacked(config: Path) -> Path:
    """Return a configuration whose state file has EventIds that attack a shell."""

    async def fill() -> None:
        async with patient_outbox(config.with_name("state.db"), router()) as outbox:
            events = [outgoing(f"h{n}", key=one) for n, one in enumerate(HOSTILE)]
            await outbox.commit(events, now=2)

    asyncio.run(fill())
    return config


@pytest.mark.parametrize("line", [("approve",), ("events", "--event")])
def test_only_plain_event_ids_are_offered(
    line: tuple[str, ...], attacked: Path
) -> None:
    name, *rest = line

    assert offered(name, "-c", str(attacked), *rest) == ["AB12", "CD34"]


def test_only_plain_names_of_sinks_are_offered(config: Path) -> None:
    """Completion reads a file that ``check`` has not validated."""
    table = '[[sinks]]\nname = "$(touch run-by-bash)"\ntype = "webhook"\n'
    config.write_text(config.read_text() + table)

    assert offered("send-test", "-c", str(config), "--sink") == ["siem", "ops"]


@pytest.mark.integration
def test_bash_offers_the_same(config: Path) -> None:
    words = ["outbox", "list", "-c", str(config), "--sink", "s"]

    assert in_bash(config, words, 'echo "${COMPREPLY[@]}"') == "siem\n"


@pytest.mark.integration
def test_bash_runs_no_offered_text(attacked: Path) -> None:
    """After TAB and Enter, the shell runs the line with the offered word in it."""
    words = ["approve", "-c", str(attacked), ""]

    took = in_bash(attacked, words, 'eval "echo ${COMPREPLY[*]}"')

    assert took == "AB12 CD34\n"
    assert not (attacked.parent / "run-by-bash").exists()


def in_bash(config: Path, words: list[str], then: str) -> str:
    """Press TAB in a real bash after ``words``; return the output of ``then``."""
    if not (bash := shutil.which("bash")):
        pytest.skip("no bash here")
    program = config.with_name("sebridge")
    program.write_text(
        f"#!{sys.executable}\nfrom bridge.__main__ import main\nmain()\n"
    )
    program.chmod(0o755)
    line = " ".join(map(shlex.quote, ["sebridge", *words]))
    script = f"""
        eval "$(_SEBRIDGE_COMPLETE=bash_source sebridge)"
        complete -p sebridge | grep -q _sebridge_completion || exit 1
        COMP_WORDS=({line}) COMP_CWORD={len(words)}
        _sebridge_completion sebridge
        {then}
    """
    path = f"{config.parent}{os.pathsep}{os.environ['PATH']}"
    env = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)}

    done = subprocess.run(  # noqa: S603 - our own arguments
        [bash, "--norc", "-c", script],
        env=env,
        cwd=config.parent,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout
