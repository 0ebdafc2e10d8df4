"""A start that finds something wrong around it: it tells events all the same.

The troubles are real: a disk without room for a file, a folder that may not be written,
a kernel that refuses locks, a port that somebody has.
"""

import asyncio
import errno
import json
import os
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.support.builders import ME
from tests.support.configurations import config_text, webhook
from tests.support.ports import free_port
from tests.support.refusing import refusing_locks
from tests.system.processes import PATIENCE, Addresses, ended, forwarder, simulator_here

pytestmark = [pytest.mark.slow, pytest.mark.integration]

NOBODY = 65534


@dataclass
class Trouble:
    """What is wrong.

    Attributes:
        state: the state file.
        said: what the log and ``/readyz`` say of it.
        end: ends it.
        before: a command that becomes the forwarder.
    """

    state: Path
    said: str
    end: Callable[[], object]
    before: tuple[str, ...] = ()


@contextmanager
def mounted(path: Path, options: str) -> Iterator[None]:
    path.mkdir()
    how = ["mount", "-t", "tmpfs", "-o", f"mode=700,{options}", "tmpfs", str(path)]
    try:
        subprocess.run(how, check=True, capture_output=True)  # noqa: S603 - ours
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("a small disk can be mounted by root only")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)  # noqa: S603, S607 - ours


@contextmanager
def no_inode(folder: Path) -> Iterator[Trouble]:
    """Have a disk on which no file can be made."""
    path = folder / "disk"
    with mounted(path, "size=4m,nr_inodes=9"):
        ballast = [path / str(number) for number in range(8)]
        for one in ballast:
            one.touch()

        def end() -> None:
            for one in ballast:
                one.unlink()

        yield Trouble(path / "state.db", "No space left on device", end)


@contextmanager
def full(folder: Path) -> Iterator[Trouble]:
    path = folder / "disk"
    with mounted(path, "size=1m"):
        ballast = path / "ballast"
        with suppress(OSError):
            ballast.write_bytes(bytes(2**21))
        yield Trouble(path / "state.db", "cannot be used", ballast.unlink)


def as_nobody() -> tuple[str, ...]:
    """Return a command that becomes a process which may read all, and write nothing."""
    if os.getuid() != 0:
        return ()
    if (setpriv := shutil.which("setpriv")) is None:
        pytest.skip("setpriv is needed")
    who = (f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups")
    can = ("--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search")
    return (setpriv, *who, *can)


@contextmanager
def forbidden(folder: Path) -> Iterator[Trouble]:
    """Have a folder that the user of the service may not write."""
    path = folder / "lib"
    path.mkdir(mode=0o555)
    yield Trouble(
        path / "state.db", "Permission denied", lambda: path.chmod(0o777), as_nobody()
    )


@contextmanager
def not_to_be_made(folder: Path) -> Iterator[Trouble]:
    path = folder / "lib"
    path.touch()
    yield Trouble(path / "state.db", "state.db.lock cannot be opened", path.unlink)


@contextmanager
def folder_for_lock(folder: Path) -> Iterator[Trouble]:
    path = folder / "state.db.lock"
    path.mkdir()
    yield Trouble(folder / "state.db", "Is a directory", path.rmdir)


@contextmanager
def link_for_lock(folder: Path) -> Iterator[Trouble]:
    """Have a link to a file of somebody else."""
    path = folder / "state.db.lock"
    (folder / "other").write_text("of somebody else")
    path.symlink_to(folder / "other")
    yield Trouble(folder / "state.db", "state.db.lock cannot be opened", path.unlink)


@contextmanager
def folder_for_file(folder: Path) -> Iterator[Trouble]:
    path = folder / "state.db"
    path.mkdir()
    yield Trouble(path, "is not a file: move it away", path.rmdir)


TROUBLES = (
    *(no_inode, full, forbidden, not_to_be_made, folder_for_lock, link_for_lock),
    folder_for_file,
)


@dataclass
class Scene:
    """A forwarder, its simulator and its log."""

    at: Addresses
    config: Path
    port: int

    @classmethod
    def of(
        cls, at: Addresses, folder: Path, state: Path, port: int = 0, **more: object
    ) -> "Scene":
        port, config = port or free_port(), folder / "bridge.toml"
        config.write_text(
            config_text(
                webhook(f"{at.inbox}/siem"),
                imds=at.imds,
                state=state,
                listen=f"127.0.0.1:{port}",
                identity={"vm_id": ME.vm_id, "vm_name": ME.vm_name},
                **more,
            )
        )
        return cls(at, config, port)

    async def happens(self, number: int) -> None:
        """Have IMDS announce an event, and wait until it is received."""
        event_id = f"FFFFFFFF-0000-0000-0000-{number:012}"
        event = {"type": "Preempt", "resources": [ME.vm_name], "notBefore": 30}
        await self.at.control("POST", "events", {**event, "eventId": event_id})
        async with asyncio.timeout(PATIENCE):
            while event_id not in await self.received():
                await asyncio.sleep(0.05)

    async def received(self) -> list[str]:
        """Return the EventIds that the webhook received."""
        bodies = [one["body"] for one in await self.at.messages("/siem")]
        return [str(body["subject"]) for body in bodies if isinstance(body, dict)]

    async def ready(self) -> tuple[int, list[Any]]:
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"http://127.0.0.1:{self.port}/readyz") as response,
        ):
            return response.status, await response.json()

    async def until_ready(self) -> None:
        async with asyncio.timeout(PATIENCE):
            while (await self.ready())[0] != 200:
                await asyncio.sleep(0.05)

    def faults(self, message: str) -> list[str]:
        """Return the faults of all log lines with a message."""
        lines = self.config.with_suffix(".log").read_text().splitlines()
        found = [json.loads(line) for line in lines if line.startswith("{")]
        return [one["fault"] for one in found if one["message"] == message]


IN_MEMORY = "state file cannot be written: going on in memory"


@pytest.mark.parametrize("trouble", TROUBLES, ids=lambda one: one.__name__)
async def test_event_is_published_and_stored_once_the_trouble_is_over(
    trouble: Callable[[Path], Any], tmp_path: Path
) -> None:
    with trouble(tmp_path) as wrong:
        async with simulator_here() as at:
            scene = Scene.of(at, tmp_path, wrong.state)
            tmp_path.chmod(0o755)
            process = await forwarder(scene.config, before=wrong.before)

            await scene.happens(1)

            status, missing = await scene.ready()
            assert status == 503
            said, *others = missing
            assert said.startswith("state: cannot be written")
            for one in others:  # without the lock, there is no socket
                assert one.startswith("state: commands cannot ask this forwarder: ")
            assert wrong.said in said
            (logged,) = scene.faults(IN_MEMORY)
            assert logged in said
            wrong.end()
            await scene.until_ready()
            assert wrong.state.is_file()
            process.kill()
            await process.wait()
            process = await forwarder(scene.config, before=wrong.before)
            await scene.happens(2)
            await scene.until_ready()
            assert (await scene.received()).count(
                "FFFFFFFF-0000-0000-0000-000000000001"
            ) == 1
            assert await ended(process) == 0


@pytest.mark.parametrize(
    "refusal",
    ["ENOLCK", "EOPNOTSUPP", "EINVAL", "EACCES"],
)
async def test_event_is_published_where_no_lock_is_to_be_had(
    refusal: str, tmp_path: Path
) -> None:
    """As on SMB, and on NFS without lockd."""
    before = refusing_locks(getattr(errno, refusal))
    async with simulator_here() as at:
        scene = Scene.of(at, tmp_path, tmp_path / "state.db")
        process = await forwarder(scene.config, before=before)

        await scene.happens(1)

        status, missing = await scene.ready()
        assert status == 503
        assert "state.db.lock cannot be locked" in missing[0]
        process.kill()
        await process.wait()
        process = await forwarder(scene.config)
        await scene.happens(2)
        await scene.until_ready()
        assert await ended(process) == 0
    assert "already runs on" not in scene.config.with_suffix(".log").read_text()


async def test_garbage_in_the_lock_is_no_trouble(tmp_path: Path) -> None:
    (tmp_path / "state.db.lock").write_bytes(os.urandom(5000))
    async with simulator_here() as at:
        scene = Scene.of(at, tmp_path, tmp_path / "state.db")
        process = await forwarder(scene.config)
        await scene.happens(1)
        await scene.until_ready()
        second = await forwarder(scene.config)

        assert await asyncio.wait_for(second.wait(), PATIENCE) == 1
        assert await ended(process) == 0
    log = scene.config.with_suffix(".log").read_text()
    assert "a forwarder already runs on the state file" in log
    assert f"(process {process.pid})" in log
    assert not scene.faults(IN_MEMORY)


async def until_open(port: int) -> None:
    async with asyncio.timeout(PATIENCE):
        while True:
            with suppress(OSError):
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.close()
                return
            await asyncio.sleep(0.1)


async def test_event_is_published_while_strangers_have_the_ports(
    tmp_path: Path,
) -> None:
    """The ports are served as soon as they are free."""
    async with simulator_here() as at:
        with (
            closing(socket.create_server(("127.0.0.1", 0))) as health,
            closing(socket.create_server(("127.0.0.1", 0))) as probe,
        ):
            ports = [one.getsockname()[1] for one in (health, probe)]
            traffic = {"listen": f"127.0.0.1:{ports[1]}"}
            state = tmp_path / "state.db"
            scene = Scene.of(at, tmp_path, state, ports[0], traffic=traffic)
            process = await forwarder(scene.config)

            await scene.happens(1)
            assert process.returncode is None

        for port in ports:
            await until_open(port)
        await scene.until_ready()
        process.kill()
        await process.wait()
        process = await forwarder(scene.config)
        await until_open(ports[0])
        await scene.until_ready()
        assert await ended(process) == 0
    said = scene.faults("port cannot be listened on: tried again every 5 s")
    assert sorted(said) == [
        f"{key}: cannot listen on 127.0.0.1:{port}: Address already in use"
        for key, port in zip(("http.listen", "traffic.listen"), ports, strict=True)
    ]
