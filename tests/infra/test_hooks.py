"""What holds for every hook to take, run among stand-ins of the tools that it calls."""

import asyncio
import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.infra.hook_stage import HOOKS, PREPARE, RESTORE
from tests.infra.hook_worlds import CHANGES

SHELL = [path.name for path in HOOKS.iterdir() if path.suffix not in {".md", ".ps1"}]


@pytest.mark.parametrize("name", CHANGES)
def test_test_prints_and_changes_nothing(name: str, tmp_path: Path) -> None:
    make, change = CHANGES[name]
    stage = make(tmp_path)

    said = stage.run(PREPARE, SEBRIDGE_TEST="1")

    assert change in "".join(
        line for line in said.splitlines() if line.startswith("would run: ")
    )
    assert not [call for call in stage.called if change in call]
    assert not stage.state.exists()


@pytest.mark.parametrize("name", CHANGES)
def test_what_it_did_not_do_is_not_restored(name: str, tmp_path: Path) -> None:
    stage = CHANGES[name][0](tmp_path)

    assert "nothing to restore" in stage.run(RESTORE)


@pytest.mark.parametrize("name", CHANGES)
def test_nothing_is_restored_while_another_event_waits(
    name: str, tmp_path: Path
) -> None:
    make, change = CHANGES[name]
    stage = make(tmp_path)
    stage.run(PREPARE)
    assert [call for call in stage.called if change in call]
    stage.forget()

    assert "E-2" in stage.run(RESTORE, SEBRIDGE_OTHER_EVENTS="E-2")

    assert stage.marker
    assert set(stage.called) <= {"crm_node --name"}
    stage.run(RESTORE)
    assert not stage.marker


@pytest.mark.parametrize("name", CHANGES)
def test_second_run_of_the_same_changes_nothing_more(name: str, tmp_path: Path) -> None:
    make, change = CHANGES[name]
    stage = make(tmp_path)
    stage.run(PREPARE)
    before = stage.marker
    stage.forget()

    assert "somebody else" not in stage.run(PREPARE)

    assert not [call for call in stage.called if f" {change}" in call]
    assert stage.marker == before
    stage.run(RESTORE)
    stage.forget()
    assert "nothing to restore" in stage.run(RESTORE)
    assert set(stage.called) <= {"crm_node --name"}


@pytest.mark.parametrize("name", CHANGES)
def test_missing_tool_is_reported(name: str, tmp_path: Path) -> None:
    stage = CHANGES[name][0](tmp_path)
    tool = next(t.name for t in sorted(stage.tools.iterdir()) if t.name != "sleep")
    (stage.tools / tool).unlink()
    empty = tmp_path / "few"
    empty.mkdir()
    for needed in ("sh", "dirname", "id", "find", "grep", "uname", "tr", "cut"):
        (empty / needed).symlink_to(f"/usr/bin/{needed}")

    found = stage.tried(PREPARE, PATH=f"{stage.tools}:{empty}")

    assert found.returncode == 1
    assert f"{tool} is needed and not installed" in found.stderr


@pytest.mark.parametrize("name", sorted(set(SHELL) - {"hook.sh"}))
def test_hook_is_a_program_that_waits_for_its_turn(name: str) -> None:
    text = (HOOKS / name).read_text()

    assert os.access(HOOKS / name, os.X_OK)
    assert text.startswith("#!/bin/sh\n")
    assert text.endswith('\nhook "$@"\n')


@pytest.mark.skipif(
    not os.access("/usr/bin/shellcheck", os.X_OK), reason="no shellcheck"
)
def test_shellcheck_finds_nothing() -> None:
    found = subprocess.run(  # noqa: S603 - our own files
        ["/usr/bin/shellcheck", "--external-sources", *(HOOKS / n for n in SHELL)],
        cwd=HOOKS.parents[1],
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stdout


ELEVEN = {
    *("run-parts", "stop-services", "kubernetes-drain", "haproxy-drain"),
    *("pacemaker-standby", "slurm-drain", "sqlserver-failover", "azure-lb-drain"),
    *("nomad-drain", "patroni-switchover", "etcd-move-leader"),
}


def test_there_are_eleven_and_each_says_what_it_needs() -> None:
    page = (HOOKS / "README.md").read_text()
    paragraphs = {
        found[1]: found[0]
        for found in re.finditer(r"(?ms)^\*\*`([\w-]+)`\*\*.*?(?=\n\n|\Z)", page)
    }

    assert set(SHELL) - {"hook.sh"} == ELEVEN
    assert set(paragraphs) == ELEVEN
    for name, text in paragraphs.items():
        assert re.search(r"\b[Nn]eeds\b|is needed", text), name


def test_action_that_is_none_is_refused(tmp_path: Path) -> None:
    stage = CHANGES["stop-services"][0](tmp_path)

    assert stage.tried({**PREPARE, "SEBRIDGE_ACTION": "other"}).returncode == 64
    assert stage.called == []


def test_settings_that_others_may_write_are_not_read(tmp_path: Path) -> None:
    stage = CHANGES["stop-services"][0](tmp_path)
    (stage.folder / "drain.conf").chmod(0o666)

    found = stage.tried(PREPARE)

    assert found.returncode == 1
    assert "nobody else may write it" in found.stderr


async def test_one_waits_until_the_other_is_done(tmp_path: Path) -> None:
    """The first is held in the middle of its work by a pipe that nobody writes to."""
    stage = CHANGES["stop-services"][0](tmp_path)
    gate, seen = stage.world / "gate", stage.world / "seen"
    os.mkfifo(gate)
    is_first = '[ -f "$WORLD/seen" ] || { : >"$WORLD/seen"; read -r _ <"$WORLD/gate"; }'
    stage.tool("systemctl", f"{is_first}\necho $PPID >>$WORLD/order\nexit 3")

    async def run() -> int:
        process = await asyncio.create_subprocess_exec(
            stage.hook,
            env=stage.environment(PREPARE),
            stdout=asyncio.subprocess.DEVNULL,
        )
        return await process.wait()

    async with asyncio.TaskGroup() as both, asyncio.timeout(60):
        first = both.create_task(run())
        while not seen.exists():
            await asyncio.sleep(0.02)
        second = both.create_task(run())
        locks = Path("/proc/locks")
        while "-> FLOCK" not in locks.read_text():
            await asyncio.sleep(0.02)
        gate.write_text("go\n")
        assert (await first, await second) == (0, 0)

    order = (stage.world / "order").read_text().split()
    assert order[:2] == [order[0]] * 2
    assert order[2:] == [order[2]] * 2
