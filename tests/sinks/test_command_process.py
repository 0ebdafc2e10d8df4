"""Real processes: a command that does what it should not harms nothing else."""

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import pytest

from bridge.events.document import Document
from bridge.events.identity import Identity
from bridge.events.watch import Watch
from bridge.foundation.clock import SystemClock
from bridge.foundation.errors import RefusedDeliveryError
from bridge.sinks.acting import Ending, Fate, Step
from bridge.sinks.base import Resources
from bridge.sinks.command import ownership
from bridge.sinks.command.actor import CommandActor
from bridge.sinks.command.process import Exit, ProcessRunner
from bridge.sinks.command.sink import CommandSinkConfig
from tests.support.sink_fixtures import cloud_event, sink_config
from tests.support.stopwatch import Stopwatch

pytestmark = pytest.mark.skipif(os.name != "posix", reason="processes of POSIX")

RUNNER = ProcessRunner(SystemClock(), patience=0.5, linger=0.2)


def hook(folder: Path, text: str, mode: int = 0o700) -> Path:
    path = folder / "hook"
    path.write_text(text)
    path.chmod(mode)
    return path


async def run(
    *command: str | Path,
    given: bytes = b"{}",
    limit: float = 10.0,
    environment: Mapping[str, str] | None = None,
    stop: asyncio.Event | None = None,
    runner: ProcessRunner = RUNNER,
) -> Exit:
    return await runner.run(
        tuple(map(str, command)),
        given=given,
        environment={"PATH": os.environ["PATH"], **(environment or {})},
        limit=limit,
        stop=stop or asyncio.Event(),
    )


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


async def until_gone(pid: int) -> None:
    """Wait for the end of a process that was killed."""
    async with asyncio.timeout(60):
        while is_alive(pid):
            await asyncio.sleep(0.02)


async def test_event_is_its_input_and_its_output_is_kept(tmp_path: Path) -> None:
    path = hook(tmp_path, "#!/bin/sh\ncat; echo out; echo err >&2; exit 3\n")
    found = await run(path, given=b"the event\n")

    assert (found.code, found.output) == (3, "the event\nout\nerr")
    assert not found.timed_out


async def test_environment_is_what_is_given_and_no_more(tmp_path: Path) -> None:
    found = await run(
        sys.executable,
        "-c",
        "import os; print(sorted(os.environ))",
        environment={"SEBRIDGE_ID": "x"},
    )

    names = found.output.strip("[]").replace("'", "").split(", ")
    assert {"PATH", "SEBRIDGE_ID"} <= set(names) <= {"PATH", "SEBRIDGE_ID", "LC_CTYPE"}


@pytest.mark.integration
async def test_flood_of_100_mb_is_read_and_little_of_it_kept(tmp_path: Path) -> None:
    before = memory()
    found = await run(
        "/bin/sh",
        "-c",
        "head -c 100000000 /dev/zero | tr '\\0' 'x'; echo; echo end",
        limit=60.0,
    )

    assert found.code == 0
    assert found.output.startswith("x" * 2048)
    assert found.output.endswith("end")
    assert "bytes left out" in found.output
    assert len(found.output) < 9000
    assert memory() - before < 8 * 1024 * 1024


def memory() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.integration
async def test_flood_leaves_the_others_their_turn(tmp_path: Path) -> None:
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0.01)
            ticks += 1

    ticking = asyncio.create_task(tick())
    await run("/bin/sh", "-c", "yes", limit=1.5)
    ticking.cancel()

    assert ticks > 5


async def test_one_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    path = hook(
        tmp_path, "#!/bin/sh\ntrap '' TERM\necho $$\nwhile :; do sleep 0.1; done\n"
    )
    found = await run(path, limit=1.5)

    assert (found.code, found.timed_out) == (-signal.SIGKILL, True)
    await until_gone(int(found.output.split()[0]))


async def test_timeout_ends_the_whole_group(tmp_path: Path) -> None:
    """The shell goes at once; what it has started gets its time, and then goes too."""
    path = hook(
        tmp_path,
        "#!/bin/sh\nsh -c 'trap \"\" TERM; echo $$; while :; do sleep 0.1; done' &\n"
        "wait\n",
    )
    found = await run(path, limit=1.5)

    assert found.timed_out
    await until_gone(int(found.output.split()[0]))


async def test_child_gets_time_to_end_after_its_parent(tmp_path: Path) -> None:
    done = tmp_path / "done"
    path = hook(
        tmp_path,
        f'#!/bin/sh\nsh -c \'trap "sleep 0.2; echo x >{done}; exit" TERM;'
        " while :; do sleep 0.05; done' &\nwait\n",
    )
    patient = ProcessRunner(SystemClock(), patience=5.0, linger=0.2)
    await run(path, limit=1.5, runner=patient)

    assert done.exists()


async def test_daemon_that_keeps_the_pipes_open_holds_up_nothing(
    tmp_path: Path,
) -> None:
    path = hook(tmp_path, "#!/bin/sh\nsetsid sleep 300 &\necho $!\nexit 0\n")
    watch = Stopwatch()
    found = await run(path)

    assert found.code == 0
    assert watch.seconds < 5
    pid = int(found.output)
    assert is_alive(pid)  # it was started on purpose
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


async def test_input_that_is_closed_unread_is_no_fault(tmp_path: Path) -> None:
    path = hook(tmp_path, "#!/bin/sh\nexec 0<&-\nsleep 0.1\nexit 0\n")
    found = await run(path, given=b"x" * 60_000)

    assert found.code == 0


async def test_script_without_a_first_line_is_reported_so(tmp_path: Path) -> None:
    found = await run(hook(tmp_path, "echo hello\n"))

    assert (found.code, found.is_transient) == (None, False)
    assert found.fault is not None
    assert "#!/bin/sh" in found.fault


async def test_program_that_is_being_replaced_is_run_later(tmp_path: Path) -> None:
    path = tmp_path / "hook"
    path.write_bytes(Path("/bin/true").read_bytes())
    path.chmod(0o700)
    with path.open("ab"):
        found = await run(path)
    again = await run(path)

    assert (found.code, found.is_transient) == (None, True)
    assert again.code == 0


async def test_hook_that_is_replaced_while_it_runs_ends_as_it_began(
    tmp_path: Path,
) -> None:
    begun, go_on = tmp_path / "begun", tmp_path / "go-on"
    waiting = f"touch {begun}\nwhile ! test -e {go_on}; do sleep 0.05; done\n"
    path = hook(tmp_path, f"#!/bin/sh\n{waiting}echo old\n")
    running = asyncio.create_task(run(path, limit=60.0))
    await there(begun)
    other = tmp_path / "new"
    other.write_text("#!/bin/sh\necho new\n")
    other.chmod(0o700)
    other.replace(path)
    go_on.touch()

    assert (await running).output == "old"
    assert (await run(path)).output == "new"


async def test_stop_ends_it_and_says_so(tmp_path: Path) -> None:
    stop, begun = asyncio.Event(), tmp_path / "begun"
    path = hook(tmp_path, f"#!/bin/sh\ntouch {begun}\nexec sleep 300\n")
    running = asyncio.create_task(run(path, limit=300.0, stop=stop))
    await there(begun)
    stop.set()
    found = await running

    assert (found.was_stopped, found.timed_out) == (True, False)
    assert found.code == -signal.SIGTERM


async def there(path: Path) -> None:
    """Wait until there is a file."""
    async with asyncio.timeout(60):
        while not path.exists():
            await asyncio.sleep(0.01)


async def test_cancelling_leaves_nothing_running(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    path = hook(tmp_path, f"#!/bin/sh\ntrap '' TERM\necho $$ >{pid}\nexec sleep 30\n")
    running = asyncio.create_task(run(path))
    while not (pid.exists() and pid.read_text().strip()):
        await asyncio.sleep(0.01)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running

    await until_gone(int(pid.read_text()))


async def test_no_descriptor_is_left_behind(tmp_path: Path) -> None:
    await run("/bin/true")
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(5):
        await run("/bin/true")
        await run("/missing")

    assert len(list(Path("/proc/self/fd").iterdir())) == before


@pytest.mark.slow
async def test_fifty_runs_of_200_ms_each(tmp_path: Path) -> None:
    """One after the other they take no more than they take."""
    path = hook(tmp_path, "#!/bin/sh\nsleep 0.2\n")
    watch = Stopwatch()
    for _ in range(50):
        assert (await run(path)).code == 0

    assert watch.seconds < 40


# -- the actor with real processes -------------------------------------------------


class Here:
    """What is known where no document was read."""

    identity = Identity(vm_name="web-0")
    document: Document | None = None
    watch = Watch()


def actor_of(path: Path, account: int | None = None, **options: object) -> CommandActor:
    config = sink_config({"type": "command", "command": [str(path)], **options})
    assert isinstance(config, CommandSinkConfig)
    return CommandActor(
        terms=config,
        outlook=Here(),
        runner=RUNNER,
        clock=SystemClock(),
        outer=os.environ,
        account=os.geteuid() if account is None else account,
    )


async def acted(actor: CommandActor) -> Ending:
    event = cloud_event()
    step = Step(event=event, key="X", attempts=0, newer=None, asked=0.0)
    return await actor.act(step, asyncio.Event())


async def test_hook_that_others_may_write_is_refused(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    path = hook(tmp_path, f"#!/bin/sh\ntouch {mark}\n")
    path.chmod(0o777)
    found = await acted(actor_of(path))

    assert (found.fate, found.is_transient) == (Fate.FAILED, False)
    assert found.reason == f"{path} may be written by others (0777)"
    assert not mark.exists()


async def test_hook_is_looked_at_before_every_run(tmp_path: Path) -> None:
    path = hook(tmp_path, "#!/bin/sh\nexit 0\n")
    actor = actor_of(path)
    assert (await acted(actor)).fate is Fate.SUCCEEDED
    path.chmod(0o720)

    assert (await acted(actor)).fate is Fate.FAILED


async def test_missing_hook_is_reported(tmp_path: Path) -> None:
    found = await acted(actor_of(tmp_path / "none"))

    assert found.reason == f"{tmp_path}/none cannot be run: No such file or directory"
    assert not found.is_transient


async def test_hook_that_is_not_executable_is_reported(tmp_path: Path) -> None:
    path = hook(tmp_path, "#!/bin/sh\n", mode=0o600)
    found = await acted(actor_of(path))

    assert found.reason == f"{path} cannot be run: Permission denied"
    with pytest.raises(RefusedDeliveryError, match="not executable"):
        await actor_of(path).terms.reach(NOWHERE)


NOWHERE: Resources = None  # type: ignore[assignment]  # it is not looked at


async def test_timeout_and_signal_are_reported_and_tried_again(tmp_path: Path) -> None:
    slow = await acted(
        actor_of(hook(tmp_path, "#!/bin/sh\nsleep 9\n"), timeout="200ms")
    )
    killed = await acted(actor_of(hook(tmp_path, "#!/bin/sh\nkill -9 $$\n")))

    assert (slow.timed_out, slow.is_transient) == (True, True)
    assert slow.reason == "it was ended after 0.2 s (timeout)"
    assert (killed.signal, killed.exit_code, killed.is_transient) == (
        "SIGKILL",
        None,
        True,
    )


async def test_output_goes_to_the_log_without_secrets(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger="bridge.sinks.command.actor")
    words = "Authorization: Bearer s3cr3t-t0ken\\n\\033[31mred\\033[0m"
    text = f"#!/bin/sh\nprintf '{words}'\n"
    found = await acted(actor_of(hook(tmp_path, text)))

    assert found.output == "Authorization: Bearer <secret>\nred"
    lines = [getattr(record, "line", "") for record in caplog.records]
    assert lines == found.output.splitlines()


# -- who may write it --------------------------------------------------------------


def trouble(*command: str | Path, account: int | None = None) -> str | None:
    own = os.geteuid() if account is None else account
    return ownership.trouble_of(tuple(map(str, command)), own)


def test_own_file_in_own_directory_is_fine(tmp_path: Path) -> None:
    assert trouble(hook(tmp_path, "")) is None
    assert trouble("/bin/sh") is None


def test_directory_that_others_may_write_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "open"
    folder.mkdir()
    path = hook(folder, "")
    folder.chmod(0o777)
    assert trouble(path) == f"{folder} may be written by others (0777)"

    folder.chmod(0o1777)  # as /tmp: nobody can move what is another's
    assert trouble(path) is None


def test_link_is_followed_and_all_above_its_end_looked_at(tmp_path: Path) -> None:
    folder = tmp_path / "open"
    folder.mkdir()
    path = hook(folder, "")
    link = tmp_path / "link"
    link.symlink_to(path)
    assert trouble(link) is None

    folder.chmod(0o770)
    assert trouble(link) == f"{folder} may be written by others (0770)"


def test_links_in_a_circle_end(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.symlink_to(two)
    two.symlink_to(one)

    assert "cannot be run" in str(trouble(one))


def test_script_of_an_interpreter_is_looked_at(tmp_path: Path) -> None:
    path = hook(tmp_path, "")
    path.chmod(0o666)

    assert trouble("/bin/sh", path) == f"{path} may be written by others (0666)"
    assert trouble("/bin/sh", "-c", "/no/such/file") is None


@pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root gives files away"
)
def test_file_of_another_account_is_refused(tmp_path: Path) -> None:
    path = hook(tmp_path, "")
    os.chown(path, 12345, -1)

    assert trouble(path) == (
        f"{path} belongs to uid 12345, not to root or the account that runs it"
    )
    assert trouble(path, account=12345) is None


def test_directory_is_no_command(tmp_path: Path) -> None:
    assert trouble(tmp_path) == f"{tmp_path} cannot be run: it is not a regular file"


def test_nothing_is_looked_at_where_files_have_no_such_owner() -> None:
    assert ownership.trouble_of(("C:\\hook.exe",), None) is None


async def test_check_says_what_is_wrong_and_what_is_right(tmp_path: Path) -> None:
    path = hook(tmp_path, "#!/bin/sh\n")
    config = sink_config({"type": "command", "command": [str(path)]})
    assert "can be run" in await config.reach(NOWHERE)

    path.chmod(0o722)
    with pytest.raises(RefusedDeliveryError, match="may be written by others"):
        await config.reach(NOWHERE)
