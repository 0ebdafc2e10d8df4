"""A hook that root runs for the forwarder: asked for, run by the launcher, reported.

What systemd does (start the service for a request, and tell how it ended) is done by a
stand-in here; tests/system/test_hook_units.py has a real one do it.
"""

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from bridge.sinks.command.process import Exit
from bridge.sinks.command.unit import UnitRunner, path_unit_fault
from tests.sinks.hook_machine import (
    PATIENCE,
    UNIT,
    VARIABLES,
    Machine,
    machine_in,
    run,
    running,
)
from tests.support.fakes import FakeClock

RESTORE = {**VARIABLES, "SEBRIDGE_ID": "cause-2", "SEBRIDGE_ACTION": "restore"}
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="systemd is Linux's")


@pytest.fixture
async def machine(tmp_path: Path) -> AsyncIterator[Machine]:
    async with machine_in(tmp_path) as found:
        yield found


async def until_there(path: Path) -> None:
    async with asyncio.timeout(PATIENCE):
        while not path.exists():
            await asyncio.sleep(0.02)


@pytest.mark.integration
async def test_hook_is_run_with_the_event_and_what_is_known(machine: Machine) -> None:
    machine.has("cat; env | sort; echo Bearer abc.def >&2")

    found = await run(
        machine, {**VARIABLES, "SEBRIDGE_VM_NAME": "a\tb", "LD_PRELOAD": "x"}
    )

    assert (found.code, found.timed_out, found.was_stopped) == (0, False, False)
    lines = found.output.splitlines()
    assert lines[0].startswith('{"id":"1"}')
    names = {line.partition("=")[0] for line in "\n".join(lines)[10:].splitlines()}
    shown = {name for name in names if name.startswith("SEBRIDGE_")}
    assert shown == {n for n in VARIABLES if n != "PATH"} | {"SEBRIDGE_VM_NAME"}
    assert "LD_PRELOAD" not in names
    assert "PATH=/nowhere" not in lines
    assert "SEBRIDGE_VM_NAME=a?b" in lines
    assert lines[-1] == "Bearer <secret>"
    assert not list(machine.requests.iterdir())


@pytest.mark.integration
@pytest.mark.parametrize(("text", "code"), [("exit 75", 75), ("kill -9 $$", -9)])
async def test_how_the_hook_ended_is_reported(
    text: str, code: int, machine: Machine
) -> None:
    machine.has(text)

    assert (await run(machine)).code == code


@pytest.mark.integration
async def test_flood_is_cut_and_holds_up_nobody(machine: Machine) -> None:
    machine.has("echo first; yes x | head -c 5000000; echo last")

    found = await run(machine)

    assert found.output.startswith("first\n")
    assert found.output.endswith("last")
    assert "bytes left out" in found.output
    assert len(found.output) < 10_000


@pytest.mark.integration
async def test_hook_that_takes_too_long_is_ended(machine: Machine) -> None:
    machine.has(f'echo begun >>"{machine.ran}"; exec sleep 600')

    found = await run(machine, limit=0.5)

    assert found.timed_out
    assert found.code == -15


@pytest.mark.integration
async def test_child_gets_time_to_end_after_its_parent(machine: Machine) -> None:
    """The shell goes at once; what it has started has 10 s, as the shell itself has."""
    done, child = machine.root / "done", machine.root / "child"
    child.write_text(
        f"trap 'sleep 0.5; echo x >{done}; exit' TERM\n"
        f'echo begun >>"{machine.ran}"\nwhile :; do sleep 0.05; done\n'
    )
    machine.has(f"sh {child} &\nwait")
    async with running(machine) as (task, stop):
        await machine.until_ran()

        stop.set()
        found = await task

    assert (found.code, found.was_stopped) == (-15, True)
    assert done.read_text() == "x\n"


@pytest.mark.integration
async def test_stop_ends_the_hook(machine: Machine) -> None:
    machine.has(f'echo begun >>"{machine.ran}"; exec sleep 600')
    async with running(machine) as (task, stop):
        await machine.until_ran()

        stop.set()
        found = await task

    assert found.was_stopped
    assert found.code == -15
    assert not list(machine.requests.iterdir())


async def test_request_that_nobody_took_is_taken_back_at_a_stop(
    machine: Machine,
) -> None:
    machine.is_on = False
    async with running(machine) as (task, stop):
        await until_there(machine.requests / "request")
        stop.set()
        assert (await task).was_stopped

    assert not list(machine.requests.iterdir())


@pytest.mark.integration
async def test_run_goes_on_without_the_forwarder_and_is_taken_up(
    machine: Machine,
) -> None:
    gate = machine.root / "gate"
    machine.has(
        f'echo begun >>"{machine.ran}"; until [ -e "{gate}" ]; do :; done; echo ok'
    )
    async with running(machine):
        await machine.until_ran()  # and then it is gone

    async with running(machine) as (task, _):
        gate.touch()
        found = await task

    assert (found.code, found.output) == (0, "ok")
    assert machine.starts == 1


@pytest.mark.integration
async def test_run_that_ended_while_the_forwarder_was_away_counts(
    machine: Machine,
) -> None:
    machine.has(f'echo begun >>"{machine.ran}"; echo away; exit 3')
    async with running(machine):
        await machine.until_ran()
    await until_there(machine.results / "result")

    found = await run(machine)

    assert (found.code, found.output) == (3, "away")
    assert machine.starts == 1
    assert (await run(machine)).code == 3  # and once it was seen it runs anew
    assert machine.starts == 2


@pytest.mark.integration
async def test_other_run_of_an_earlier_life_is_awaited_then_it_is_started_anew(
    machine: Machine,
) -> None:
    gate = machine.root / "gate"
    note = f'echo "$SEBRIDGE_ID begins" >>"{machine.ran}"'
    wait = (
        f'until [ -e "{gate}" ]; do :; done; echo "$SEBRIDGE_ID ends" >>"{machine.ran}"'
    )
    machine.has(f"{note}; {wait}")
    async with running(machine):
        await machine.until_ran()

    async with running(machine, {**VARIABLES, "SEBRIDGE_ID": "cause-2"}) as (task, _):
        gate.touch()
        assert (await task).code == 0

    ends = ["cause-1 begins", "cause-1 ends", "cause-2 begins", "cause-2 ends"]
    assert machine.lines == ends


@pytest.mark.integration
async def test_restore_does_not_wait_for_the_prepare_of_an_event_that_is_over(
    machine: Machine,
) -> None:
    machine.has(
        f'echo "$SEBRIDGE_ACTION" >>"{machine.ran}"\n'
        '[ "$SEBRIDGE_ACTION" = restore ] || exec sleep 600'
    )
    async with running(machine):
        await machine.until_ran()

    assert (await run(machine, RESTORE)).code == 0

    assert machine.lines == ["prepare", "restore"]


@pytest.mark.integration
async def test_prepare_of_an_event_that_is_over_ends_although_its_restore_is_stopped(
    machine: Machine,
) -> None:
    """The launcher looks for the cancellation now and then: here, after the stop."""
    machine.has(f'echo begun >>"{machine.ran}"; exec sleep 600')
    async with running(machine):
        await machine.until_ran()
    assert machine.launcher is not None
    machine.launcher.send_signal(signal.SIGSTOP)
    async with running(machine, RESTORE) as (task, stop):
        await until_there(machine.requests / "cancel")
        stop.set()
        assert (await task).was_stopped
    machine.launcher.send_signal(signal.SIGCONT)

    found = await run(machine, runner=machine.runner())

    assert (found.code, found.was_stopped) == (-15, True)
    assert machine.starts == 1


@pytest.mark.integration
async def test_run_that_ends_too_late_after_a_stop_is_still_cancelled(
    machine: Machine,
) -> None:
    """Its launcher stands still for a while, as when the journal takes nothing."""
    machine.has(f'echo begun >>"{machine.ran}"; exec sleep 600')
    stop, ends_soon = asyncio.Event(), machine.runner(ending=0.3)
    task = asyncio.create_task(run(machine, stop=stop, runner=ends_soon))
    await machine.until_ran()
    assert machine.launcher is not None
    machine.launcher.send_signal(signal.SIGSTOP)
    stop.set()
    late = await task
    next_one = await run(machine, RESTORE, runner=machine.runner(patience=0.3))
    machine.launcher.send_signal(signal.SIGCONT)

    await until_there(machine.results / "result")
    assert "did not say that it ended" in (late.fault or "")
    assert "did not take the request" in (next_one.fault or "")
    assert json.loads((machine.results / "result").read_text())["ended"]["stopped"]
    assert (await run(machine, limit=0.5)).timed_out  # a new run, and not cancelled
    assert not list(machine.requests.iterdir())


@pytest.mark.integration
async def test_two_runs_of_one_life_follow_each_other(machine: Machine) -> None:
    machine.has(f'echo b >>"{machine.ran}"; sleep 0.05; echo e >>"{machine.ran}"')

    await asyncio.gather(
        run(machine), run(machine, {**VARIABLES, "SEBRIDGE_ID": "other"})
    )

    assert machine.lines == ["b", "e", "b", "e"]


async def test_nobody_who_takes_the_request_is_a_clear_error(machine: Machine) -> None:
    machine.is_on = False

    found = await run(machine, runner=machine.runner(patience=0.3))

    assert found.code is None
    assert found.is_transient
    assert found.fault == (
        f"{UNIT} did not take the request within 0.3 s "
        f"(systemctl status sebridge-hook@drain.path {UNIT})"
    )
    assert not (machine.requests / "request").exists()


@pytest.mark.integration
async def test_launcher_that_is_killed_is_reported_by_what_systemd_says(
    machine: Machine,
) -> None:
    machine.has(f'echo begun >>"{machine.ran}"; exec sleep 600')
    async with running(machine) as (task, _):
        await machine.until_ran()
        assert machine.launcher is not None
        machine.launcher.kill()
        found = await task

    assert (found.code, found.is_transient) == (None, True)
    assert found.fault == "its service ended before the hook did: oom-kill (KILL)"


async def test_service_without_its_runtime_directory_is_reported(
    machine: Machine,
) -> None:
    machine.places.requests.parent.rmdir()

    found = await run(machine)

    assert (found.code, found.is_transient) == (None, True)
    assert "No such file or directory (RuntimeDirectory=)" in (found.fault or "")


@pytest.mark.integration
async def test_stop_ends_the_wait_for_another_run(machine: Machine) -> None:
    machine.has(f'echo b >>"{machine.ran}"; exec sleep 600')
    async with running(machine):
        await machine.until_ran()
        other = {**VARIABLES, "SEBRIDGE_ID": "other"}
        async with running(machine, other) as (task, stop):
            stop.set()
            assert (await task).was_stopped

    assert machine.starts == 1


@pytest.mark.integration
async def test_stop_ends_the_wait_for_a_run_of_an_earlier_life(
    machine: Machine,
) -> None:
    machine.has(f'echo b >>"{machine.ran}"; exec sleep 600')
    async with running(machine):
        await machine.until_ran()
    stop = asyncio.Event()
    task = asyncio.create_task(
        run(machine, {**VARIABLES, "SEBRIDGE_ID": "2"}, stop=stop)
    )
    await asyncio.sleep(0)
    stop.set()

    assert (await task).was_stopped
    assert len(machine.lines) == 1


async def test_request_that_vanishes_and_run_that_never_ends_are_reported(
    machine: Machine, clock: FakeClock
) -> None:
    machine.is_on = False
    request, cancel = machine.requests / "request", machine.requests / "cancel"
    runner = UnitRunner(UNIT, clock, machine.places)

    async def requested(stop: asyncio.Event) -> tuple[asyncio.Task[Exit], str]:
        task = asyncio.create_task(run(machine, runner=runner, stop=stop))
        await until_there(request)
        return task, request.read_text()

    async def late(task: asyncio.Task[Exit]) -> Exit:
        while not task.done():  # a thread looks at the files
            await clock.advance(1)
        return await task

    task, _ = await requested(asyncio.Event())
    request.unlink()
    vanished = await late(task)
    stop = asyncio.Event()
    task, asked = await requested(stop)
    run_id = json.loads(asked)["runId"]
    (machine.results / "taken").write_text(json.dumps({"runId": run_id}))
    request.unlink()
    stop.set()
    await until_there(cancel)
    endless = await late(task)

    assert "did not take the request within 30 s" in (vanished.fault or "")
    assert "it was stopped, and" in (endless.fault or "")
    assert endless.was_stopped


async def test_result_of_another_run_is_not_counted(machine: Machine) -> None:
    """Such as one that an earlier life has left behind, or that somebody made up."""
    machine.is_on = False
    request, result = machine.requests / "request", machine.results / "result"
    ended = {
        "code": 0,
        "timedOut": False,
        "stopped": False,
        "seconds": 1.0,
        "head": "",
        "tail": "",
        "count": 0,
    }
    foreign = {"runId": "f" * 32, "result": "success", "ended": ended}
    result.write_text(json.dumps(foreign))
    async with running(machine) as (task, _):
        await until_there(request)
        run_id = json.loads(request.read_text())["runId"]
        (machine.results / "taken").write_text(json.dumps({"runId": run_id}))
        request.unlink()
        await asyncio.sleep(1.0)
        assert not task.done()  # it was looked at some times by now

        own = {**foreign, "runId": run_id, "ended": {**ended, "code": 3}}
        result.write_text(json.dumps(own))

        assert (await task).code == 3


@pytest.mark.integration
@pytest.mark.parametrize("text", ["", "[]", "{", '{"run_id": 1}'])
async def test_note_that_cannot_be_read_is_no_run(text: str, machine: Machine) -> None:
    machine.has("")
    machine.requests.mkdir(parents=True)
    (machine.requests / "run").write_text(text)

    assert (await run(machine)).code == 0


@pytest.mark.parametrize(
    ("says", "is_deaf"), [("inactive", True), ("failed", True), ("active", False)]
)
async def test_check_asks_systemd_whether_requests_are_heard(
    says: str, *, is_deaf: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    systemctl = tmp_path / "systemctl"
    systemctl.write_text(
        f'#!/bin/sh\n[ "$2" = sebridge-hook@drain.path ] && echo {says}\n'
    )
    systemctl.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))

    found = await path_unit_fault(UNIT)

    assert (found is not None) is is_deaf
    systemctl.unlink()
    assert await path_unit_fault(UNIT) is None  # no systemd: nobody knows
