"""The file sink on a real file system, also a full one, and on standard output."""

import asyncio
import errno
import json
import os
import stat
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace

from bridge.configuration.config import Config
from bridge.configuration.load import parse
from bridge.events.cloudevent import CloudEvent
from bridge.foundation.errors import (
    ConfigError,
    DeliveryError,
    Reason,
    RefusedDeliveryError,
    TransientDeliveryError,
)
from bridge.sinks.base import Resources, Sink
from bridge.sinks.batch import BatchSink
from bridge.sinks.file.sink import STANDARD_OUTPUT
from tests.support.disks import Disk
from tests.support.sink_fixtures import (
    cloud_event,
    config_faults,
    opened_sink,
    sink_config,
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "events.jsonl"


@asynccontextmanager
async def opened(
    resources: Resources, path: Path | str, **more: object
) -> AsyncIterator[Sink]:
    options = {"type": "file", "path": str(path), **more}
    async with opened_sink(resources, options) as sink:
        yield sink


async def failed(attempt: Awaitable[object]) -> DeliveryError:
    with pytest.raises(DeliveryError) as caught:
        await attempt
    return caught.value


def numbered(number: int) -> CloudEvent:
    return replace(cloud_event(), id=f"{number:032x}")


def ids(path: Path) -> list[int]:
    """Return the numbers of the events in a file, all of whose lines must be JSON."""
    return [int(json.loads(line)["id"], 16) for line in path.read_text().splitlines()]


LINE = len(cloud_event().to_json()) + 1


# -- lines ---------------------------------------------------------------------


async def test_each_event_is_a_line_of_structured_json(
    path: Path, resources: Resources
) -> None:
    event = cloud_event(description="line\nbreak \u2028 ☃")
    async with opened(resources, path) as sink:
        await sink.deliver(event)
        await sink.deliver(event)

    assert path.read_bytes() == (event.to_json() + b"\n") * 2
    assert path.read_bytes().count(b"\n") == 2


async def test_event_is_on_the_disk_before_it_is_delivered(
    path: Path, resources: Resources, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[tuple[bool, int]] = []

    def fsync(number: int) -> None:
        status = os.fstat(number)
        synced.append((stat.S_ISDIR(status.st_mode), status.st_size))

    monkeypatch.setattr(os, "fsync", fsync)
    async with opened(resources, path) as sink:
        await sink.deliver(cloud_event())
        await sink.deliver(cloud_event())

    is_folder, sizes = zip(*synced, strict=True)
    assert is_folder == (False, True, False)  # the name of a new file has to last, too
    assert (sizes[0], sizes[2]) == (LINE, 2 * LINE)


@pytest.mark.parametrize(("mode", "expected"), [("0640", 0o640), ("604", 0o604)])
async def test_file_has_the_permissions_that_are_asked_for(
    mode: str, expected: int, path: Path, resources: Resources
) -> None:
    before = os.umask(0o077)
    try:
        async with opened(resources, path, mode=mode) as sink:
            await sink.deliver(cloud_event())
    finally:
        os.umask(before)

    assert stat.S_IMODE(path.stat().st_mode) == expected


async def test_permissions_of_a_file_that_is_there_are_left_alone(
    path: Path, resources: Resources
) -> None:
    path.touch(mode=0o600)
    async with opened(resources, path) as sink:
        await sink.deliver(cloud_event())

    assert stat.S_IMODE(path.stat().st_mode) == 0o600


async def test_line_that_a_crash_has_torn_is_ended(
    path: Path, resources: Resources
) -> None:
    path.write_bytes(b'{"id": "ab')
    async with opened(resources, path) as sink:
        await sink.deliver(numbered(1))

    first, second = path.read_text().splitlines()
    assert first == '{"id": "ab'
    assert json.loads(second)["id"] == numbered(1).id


async def test_file_that_was_moved_away_is_made_anew(
    path: Path, resources: Resources
) -> None:
    """As logrotate does, with and without copytruncate; nobody has to be told."""
    async with opened(resources, path) as sink:
        await sink.deliver(numbered(1))
        path.rename(path.with_name("moved"))
        await sink.deliver(numbered(2))
        await sink.deliver(numbered(3))
        os.truncate(path, 0)
        await sink.deliver(numbered(4))

    assert ids(path.with_name("moved")) == [1]
    assert ids(path) == [4]


# -- several lines ---------------------------------------------------------------


@asynccontextmanager
async def opened_for_many(
    resources: Resources, path: Path | str, **more: object
) -> AsyncIterator[BatchSink]:
    async with opened(resources, path, batch=10, **more) as sink:
        assert isinstance(sink, BatchSink)
        yield sink


async def test_several_events_are_on_the_disk_with_one_sync(
    path: Path, resources: Resources, monkeypatch: pytest.MonkeyPatch
) -> None:
    path.touch()
    sizes: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda number: sizes.append(os.fstat(number)[6]))
    async with opened_for_many(resources, path, max_size=0) as sink:
        found = await sink.deliver_many([numbered(number) for number in range(3)])

    assert found == [None] * 3
    assert ids(path) == [0, 1, 2]
    assert LINE * 3 in sizes


async def test_several_lines_are_never_divided_between_two_files(
    path: Path, resources: Resources
) -> None:
    limits = {"max_size": 3 * LINE, "batch_size": 3 * LINE}
    async with opened_for_many(resources, path, **limits) as sink:
        await sink.deliver_many([numbered(number) for number in range(2)])
        await sink.deliver_many([numbered(number) for number in range(2, 4)])

    assert ids(path.with_name(f"{path.name}.1")) == [0, 1]
    assert ids(path) == [2, 3]


async def test_full_disk_takes_several_lines_or_none(
    disk: Disk, resources: Resources
) -> None:
    path = disk.path / "events.jsonl"
    async with opened_for_many(resources, path, max_size=0) as sink:
        await sink.deliver(numbered(0))
        disk.fill()
        error = await failed(sink.deliver_many([numbered(n) for n in range(1, 9)]))

    assert isinstance(error, TransientDeliveryError)
    assert ids(path) == [0]


def test_file_holds_whole_batches() -> None:
    table = {"type": "file", "path": "/var/log/x", "batch": 2, "max_size": 500_000}

    assert config_faults(table) == [
        "batch_size: must not be more than max_size: a file holds whole batches"
    ]


# -- rotation ------------------------------------------------------------------


async def test_file_is_moved_before_it_is_too_large(
    path: Path, resources: Resources
) -> None:
    async with opened(resources, path, max_size=2 * LINE, keep=2) as sink:
        for number in range(7):
            await sink.deliver(numbered(number))

    files = sorted(path.parent.iterdir())
    assert [file.name for file in files] == [
        path.name,
        f"{path.name}.1",
        f"{path.name}.2",
    ]
    assert [ids(file) for file in files] == [[6], [4, 5], [2, 3]]


async def test_event_larger_than_the_file_may_be_has_one_to_itself(
    path: Path, resources: Resources
) -> None:
    async with opened(resources, path, max_size=10) as sink:
        for number in range(2):
            await sink.deliver(numbered(number))

    assert ids(path) == [1]
    assert ids(path.with_name(f"{path.name}.1")) == [0]


async def test_size_of_nothing_is_no_limit(path: Path, resources: Resources) -> None:
    async with opened(resources, path, max_size=0) as sink:
        for number in range(3):
            await sink.deliver(numbered(number))

    assert ids(path) == [0, 1, 2]


# -- what may go wrong ---------------------------------------------------------


async def test_full_disk_is_transient_and_leaves_no_half_a_line(
    disk: Disk, resources: Resources
) -> None:
    path = disk.path / "events.jsonl"
    large = cloud_event(padding="x" * 50_000)
    async with opened(resources, path) as sink:
        await sink.deliver(numbered(1))
        disk.fill()
        failures = [await failed(sink.deliver(large)) for _ in range(2)]
        left = path.read_bytes()
        disk.clear()
        await sink.deliver(numbered(2))

    assert all(isinstance(failure, TransientDeliveryError) for failure in failures)
    assert failures[0].reason is Reason.SERVER
    assert str(failures[0]) == f"{path} cannot be written to (No space left on device)"
    assert left == numbered(1).to_json() + b"\n"
    assert ids(path) == [1, 2]


async def test_file_system_gone_read_only_is_transient(
    disk: Disk, resources: Resources
) -> None:
    path = disk.path / "events.jsonl"
    async with opened(resources, path) as sink:
        await sink.deliver(numbered(1))
        disk.remount("ro")
        failure = await failed(sink.deliver(numbered(2)))
        disk.remount("rw")

    assert isinstance(failure, TransientDeliveryError)


async def test_disk_that_fails_to_sync_has_not_taken_the_event(
    path: Path, resources: Resources, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fsync(number: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    async with opened(resources, path) as sink:
        await sink.deliver(numbered(1))
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", fsync)
            failure = await failed(sink.deliver(numbered(2)))
        await sink.deliver(numbered(3))

    assert isinstance(failure, TransientDeliveryError)
    assert ids(path) == [1, 3]


async def test_missing_directory_refuses(tmp_path: Path, resources: Resources) -> None:
    """It is not made: on a data disk that is not mounted, it would be the wrong one."""
    path = tmp_path / "missing" / "events.jsonl"
    async with opened(resources, path) as sink:
        failure = await failed(sink.deliver(cloud_event()))

    assert isinstance(failure, RefusedDeliveryError)
    assert failure.reason is Reason.NOT_FOUND
    assert not path.parent.exists()


async def test_symbolic_link_is_not_followed(path: Path, resources: Resources) -> None:
    """Who may write to the directory must not choose what a root process overwrites."""
    target = path.with_name("passwd")
    target.write_text("root\n")
    path.symlink_to(target)
    async with opened(resources, path) as sink:
        failure = await failed(sink.deliver(cloud_event()))

    assert isinstance(failure, RefusedDeliveryError)
    assert str(failure) == f"{path} is a symbolic link"
    assert target.read_text() == "root\n"


async def test_only_a_regular_file_is_written_to(
    path: Path, resources: Resources
) -> None:
    os.mkfifo(path)
    async with opened(resources, path) as sink:
        failure = await failed(sink.deliver(cloud_event()))
    async with opened(resources, path.parent) as sink:
        other = await failed(sink.deliver(cloud_event()))

    assert isinstance(failure, RefusedDeliveryError)
    assert str(failure) == f"{path} is not a regular file"
    assert isinstance(other, RefusedDeliveryError)


async def test_event_waits_while_another_is_written(
    path: Path, resources: Resources
) -> None:
    async with opened(resources, path) as sink:  # as an urgent one does in the relay
        await asyncio.gather(*(sink.deliver(numbered(n)) for n in range(3)))

    assert sorted(ids(path)) == [0, 1, 2]


async def test_disk_that_does_not_answer_holds_up_one_thread(
    path: Path, resources: Resources, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered: list[int] = []
    release = asyncio.Event()
    loop = asyncio.get_running_loop()

    def fsync(number: int) -> None:
        entered.append(number)
        asyncio.run_coroutine_threadsafe(release.wait(), loop).result()

    async with opened(resources, path, timeout="500ms") as sink:
        await sink.deliver(numbered(1))
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", fsync)
            failures = [await failed(sink.deliver(numbered(2))) for _ in range(2)]
            release.set()
        while True:
            try:
                await sink.deliver(numbered(3))
            except TransientDeliveryError:
                await asyncio.sleep(0.01)
            else:
                break

    assert [failure.reason for failure in failures] == [Reason.TIMEOUT] * 2
    assert len(entered) == 1
    assert ids(path) == [1, 2, 3]


HANGING = """
import asyncio, os, pathlib, sys, threading
from bridge.foundation.errors import TransientDeliveryError
from bridge.sinks.file.sink import Appender
from bridge.sinks.file.sink import FileSink
from bridge.foundation import daemon_threads
from tests.support.sink_fixtures import cloud_event

async def main() -> None:
    daemon_threads.lend()  # as the forwarder does
    await FileSink(name="x", target=target, timeout=0.05).deliver(cloud_event())

os.fsync = lambda number: threading.Event().wait()
target = Appender(path=pathlib.Path(sys.argv[1]), max_size=0, keep=1, mode=0o600)
try:
    asyncio.run(main())
except TransientDeliveryError:
    print("the end", flush=True)
"""


@pytest.mark.integration
async def test_disk_that_never_answers_does_not_delay_the_end_of_the_process(
    path: Path,
) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", HANGING, str(path), stdout=asyncio.subprocess.PIPE
    )
    try:
        found, _ = await asyncio.wait_for(process.communicate(), 60)
    finally:
        if process.returncode is None:
            process.kill()

    assert found == b"the end\n"
    assert process.returncode == 0


async def test_reach_does_not_wait_for_a_disk_that_does_not_answer(
    path: Path, resources: Resources, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = threading.Event()
    config = sink_config({"type": "file", "path": str(path), "timeout": "500ms"})
    with monkeypatch.context() as patch:
        patch.setattr(os, "access", lambda *_: release.wait())
        failure = await failed(config.reach(resources))
        release.set()

    assert failure.reason is Reason.TIMEOUT


# -- standard output -----------------------------------------------------------


@contextmanager
def piped() -> Iterator[int]:
    """Lead standard output into a pipe; yields its other end, which does not block.

    No fixture, since pytest leads it elsewhere between a fixture and its test.
    """
    before = os.dup(STANDARD_OUTPUT)
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    os.dup2(writer, STANDARD_OUTPUT)
    os.close(writer)
    try:
        yield reader
    finally:
        os.dup2(before, STANDARD_OUTPUT)
        for number in (reader, before):
            os.close(number)


def hang_up(reader: int) -> None:
    """Close one end of a pipe; its number stands for nothing from then on."""
    with Path(os.devnull).open() as nothing:
        os.dup2(nothing.fileno(), reader)


async def test_dash_is_standard_output(
    resources: Resources, capfd: pytest.CaptureFixture[str]
) -> None:
    event = cloud_event()
    async with opened(resources, "-") as sink:
        await sink.deliver(event)

    assert capfd.readouterr().out == event.to_json().decode() + "\n"


async def test_reader_that_does_not_read_is_a_timeout_and_its_line_is_ended(
    resources: Resources,
) -> None:
    large = cloud_event(padding="x" * 100_000)  # more than a pipe holds
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
    async with opened(resources, "-", timeout="500ms") as sink:
        with piped() as reader:
            failure = await failed(sink.deliver(large))
            await asyncio.to_thread(int)  # once the only thread gave it up, too
            torn = os.read(reader, 1_000_000)
            await sink.deliver(numbered(2))
            then = os.read(reader, 1_000_000)

    assert isinstance(failure, TransientDeliveryError)
    assert failure.reason is Reason.TIMEOUT
    assert large.to_json().startswith(torn)
    assert then == b"\n" + numbered(2).to_json() + b"\n"


async def test_reader_that_is_gone_is_transient(
    resources: Resources,
) -> None:
    async with opened(resources, "-") as sink:
        with piped() as reader:
            hang_up(reader)
            failure = await failed(sink.deliver(cloud_event()))

    assert isinstance(failure, TransientDeliveryError)
    assert failure.reason is Reason.CONNECTION


async def test_standard_output_that_is_closed_refuses(
    resources: Resources, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its number may be that of the state file by now."""
    async with opened(resources, "-") as sink:
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", None)
            failure = await failed(sink.deliver(cloud_event()))

    assert isinstance(failure, RefusedDeliveryError)
    assert str(failure) == "standard output is closed"


# -- without writing -----------------------------------------------------------


async def test_reach_makes_no_file(path: Path, resources: Resources) -> None:
    found = await sink_config({"type": "file", "path": str(path)}).reach(resources)

    assert found == f"{path} can be written to"
    assert not path.exists()


async def test_reach_leaves_a_file_as_it_is(path: Path, resources: Resources) -> None:
    path.write_text("{")
    await sink_config({"type": "file", "path": str(path)}).reach(resources)

    assert path.read_text() == "{"


async def test_reach_says_what_is_wrong(disk: Disk, resources: Resources) -> None:
    config = sink_config({"type": "file", "path": str(disk.path / "a" / "b")})
    missing = await failed(config.reach(resources))
    disk.remount("ro")
    config = sink_config({"type": "file", "path": str(disk.path / "b")})
    unwritable = await failed(config.reach(resources))

    assert "No such file or directory" in str(missing)
    assert "Permission denied" in str(unwritable)


async def test_preview_is_the_line(path: Path, resources: Resources) -> None:
    config = sink_config({"type": "file", "path": str(path)})
    preview = await config.preview(resources, cloud_event())

    assert preview.head == (f"append to {path}",)
    assert preview.body == cloud_event().to_json() + b"\n"


# -- configuration -------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"path": ""}, "path: must be the path of a file, or"),
        ({"path": "/var/log/"}, "path: must be the path of a file, or"),
        ({"path": "/var/\nlog"}, "path: must be the path of a file, or"),
        ({"keep": 0}, "keep: must be 1 to 1000"),
        ({"mode": "rw"}, "mode: must be permissions in octal"),
        ({"mode": "4777"}, "mode: must be permissions in octal"),
        ({"timeout": 0}, "timeout: must be more than 0s"),
    ],
)
def test_fault_is_reported(change: dict[str, object], fault: str) -> None:
    faults = config_faults({"type": "file", "path": "/var/log/x", **change})

    assert any(found.startswith(fault) for found in faults), faults


def config_of(*paths: str, state: str = "/var/lib/sebridge/state.db") -> Config:
    sinks = [
        {"name": f"s{index}", "type": "file", "path": path}
        for index, path in enumerate(paths)
    ]
    tables = {"state": {"path": state}, "sinks": sinks}
    return parse(tables, file="bridge.toml", environ={})


@pytest.mark.parametrize("other", ["/var/log/a", "/var/log/../log/a"])
def test_two_sinks_to_one_file_are_a_fault(other: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config_of("/var/log/a", other)

    assert caught.value.faults == (
        "bridge.toml: sinks.s1.path: is the file of sinks.s0",
    )


def test_two_sinks_to_standard_output_are_a_fault() -> None:
    with pytest.raises(ConfigError, match="is the file of sinks"):
        config_of("-", "-")


def test_sink_to_the_state_file_is_a_fault() -> None:
    with pytest.raises(ConfigError, match="is the file of the state file"):
        config_of("/var/lib/sebridge/state.db")


def test_two_sinks_to_two_files_are_none() -> None:
    assert len(config_of("/var/log/a", "/var/log/b", "-").sinks) == 3


def test_link_to_itself_is_no_fault_of_the_configuration(tmp_path: Path) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to(loop)

    assert len(config_of(str(loop), state=str(loop / "state.db")).sinks) == 1
