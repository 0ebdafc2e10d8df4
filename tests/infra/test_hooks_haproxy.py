"""The hook that drains a server of HAProxy, with a real one."""

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.infra.hook_stage import PREPARE, RESTORE, Stage

pytestmark = pytest.mark.skipif(
    not (shutil.which("haproxy") and shutil.which("socat")),
    reason="haproxy or socat is missing (Debian: packages of these names)",
)
CONFIG = """
global
  stats socket {folder}/admin.sock mode 600 level admin
defaults
  mode tcp
  timeout connect 5s
  timeout client 60s
  timeout server 60s
listen app
  bind unix@{folder}/front.sock
  server web1 127.0.0.1:{port}
  server web2 127.0.0.1:{port} disabled
"""
PATIENCE = 60


class World:
    """A real HAProxy before a server that accepts, and says nothing."""

    def __init__(self, folder: Path, server: socket.socket) -> None:
        self.folder, self.server = folder, server

    def ask(self, command: str) -> str:
        with socket.socket(socket.AF_UNIX) as asked:
            asked.settimeout(PATIENCE)
            asked.connect(str(self.folder / "admin.sock"))
            asked.sendall(f"{command}\n".encode())
            return "".join(iter(lambda: asked.recv(65536).decode(), ""))

    def state(self, server: str) -> str:
        lines = self.ask("show servers state app").splitlines()
        return next(line.split()[6] for line in lines if f" {server} " in line)

    def session(self) -> ExitStack:
        """Open a session through to the server; closed, it is over on both sides."""
        both = ExitStack()
        client = both.enter_context(socket.socket(socket.AF_UNIX))
        client.connect(str(self.folder / "front.sock"))
        both.enter_context(self.server.accept()[0])
        return both


@pytest.fixture
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("ha")  # a socket's path has to be short
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(PATIENCE)
        config = CONFIG.format(folder=folder, port=server.getsockname()[1])
        (folder / "haproxy.cfg").write_text(config)
        process = subprocess.Popen(  # noqa: S603 - our own configuration
            ["haproxy", "-db", "-f", str(folder / "haproxy.cfg")],  # noqa: S607 - from PATH
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            end = time.monotonic() + PATIENCE
            while not (folder / "front.sock").exists():
                assert time.monotonic() < end
                time.sleep(0.02)
            yield World(folder, server)
        finally:
            process.kill()
            process.wait()


def stage_in(folder: Path, world: World, servers: str = "app/web1") -> Stage:
    settings = f'HAPROXY={world.folder}/admin.sock\nSERVERS="{servers}"\n'
    return Stage(folder, "haproxy-drain", settings)


def test_server_is_drained_and_ready_again(tmp_path: Path, world: World) -> None:
    stage = stage_in(tmp_path, world)

    stage.run(PREPARE)
    assert world.state("web1") == "8"
    stage.run(PREPARE)
    stage.run(RESTORE, SEBRIDGE_OTHER_EVENTS="E-2")
    assert world.state("web1") == "8"

    stage.run(RESTORE)
    assert world.state("web1") == "0"
    assert not stage.marker


def test_last_session_is_waited_for(tmp_path: Path, world: World) -> None:
    """The stand-in for sleep ends the session: the hook must have slept for it."""
    stage = stage_in(tmp_path, world)
    with world.session() as session:
        stage.settings += "WAIT=0"
        assert "sessions are left" in stage.run(PREPARE)
        stage.settings += "WAIT=60"
        holder = stage.world / "slept"
        stage.tool("sleep", f": >{holder}; exec /bin/sleep 0.1")
        process = subprocess.Popen(  # noqa: S603 - our own hook
            [stage.hook], env=stage.environment(PREPARE), stdout=subprocess.PIPE
        )
        end = time.monotonic() + PATIENCE
        while not holder.exists():
            assert time.monotonic() < end
            time.sleep(0.02)
        assert process.poll() is None
        session.close()
        said, _ = process.communicate(timeout=PATIENCE)

    assert process.returncode == 0
    assert b"sessions are left" not in said


def test_server_that_somebody_else_took_out_stays_out(
    tmp_path: Path, world: World
) -> None:
    stage = stage_in(tmp_path, world, "app/web1 app/web2")
    before = world.state("web2")
    assert before != "0"

    assert "app/web2" in stage.run(PREPARE)
    stage.run(RESTORE)

    assert world.state("web2") == before
    assert world.state("web1") == "0"


def test_server_that_somebody_else_changed_since_stays_so(
    tmp_path: Path, world: World
) -> None:
    stage = stage_in(tmp_path, world)
    stage.run(PREPARE)
    world.ask("set server app/web1 state maint")

    assert "not as this hook left it" in stage.run(RESTORE)

    assert world.state("web1") != "0"


def test_server_that_is_not_there_is_reported_at_once(
    tmp_path: Path, world: World
) -> None:
    stage = stage_in(tmp_path, world, "app/web9")

    found = stage.tried(PREPARE)

    assert found.returncode == 1
    assert "has no server app/web9" in found.stderr


def test_haproxy_that_does_not_answer_is_asked_again(
    tmp_path: Path, world: World
) -> None:
    stage = stage_in(tmp_path, world)
    stage.settings += "HAPROXY=/nowhere.sock"

    assert stage.tried(PREPARE).returncode == 75


def test_test_changes_nothing(tmp_path: Path, world: World) -> None:
    stage = stage_in(tmp_path, world)

    said = stage.run(PREPARE, SEBRIDGE_TEST="1")

    assert "set server app/web1 state drain" in said
    assert world.state("web1") == "0"
