"""The probe of a real forwarder: over restarts and kills, before HAProxy and nginx."""

import asyncio
import json
import os
import shutil
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

import aiohttp
import pytest

from bridge.simulator.imds.lifecycle import EventLife
from bridge.simulator.imds.server import ImdsSimulator
from bridge.simulator.imds.state import ImdsSettings
from bridge.simulator.inbox import Inbox
from tests.support.configurations import Table, approvals, config_text, webhook
from tests.support.ports import free_port
from tests.system.processes import (
    PATIENCE,
    ended,
    forwarder,
    simulator_here,
)

pytestmark = [pytest.mark.slow, pytest.mark.integration]

# What systemd does: the listener is descriptor 3, and the variables say so.
ACTIVATED = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.set_inheritable(3, True)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS="1", LISTEN_FDNAMES="traffic")
os.execv(sys.executable, [sys.executable, "-m", "bridge", "run", "-c", sys.argv[2]])
"""


@dataclass
class Machine:
    """A VM with a forwarder whose probe is asked."""

    imds: ImdsSimulator
    inbox: Inbox
    folder: Path
    port: int = field(default_factory=free_port)
    health: int = field(default_factory=free_port)
    imds_url: str = ""

    def written(self, *sinks: Table, **traffic: str) -> Path:
        path = self.folder / "bridge.toml"
        text = config_text(
            *sinks,
            webhook(f"{self.inbox.url}/siem"),
            imds={
                "endpoint": self.imds_url or self.imds.url,
                "poll_interval": "250ms",
                "request_timeout": "1s",
            },
            state=self.folder / "state.db",
            listen=f"127.0.0.1:{self.health}",
            shutdown_grace="2s",
            traffic={
                "listen": f"127.0.0.1:{self.port}",
                "resume_after": "2s",
                **traffic,
            },
        )
        path.write_text(text)
        return path

    async def start(
        self, *sinks: Table, listener: socket.socket | None = None, **traffic: str
    ) -> asyncio.subprocess.Process:
        config = str(self.written(*sinks, **traffic))
        command = ["-m", "bridge", "run", "-c", config]
        fds: tuple[int, ...] = ()
        if listener is not None:
            fds = (listener.fileno(),)
            command = ["-c", ACTIVATED, str(fds[0]), config]
        with (self.folder / "bridge.log").open("ab") as log:
            return await asyncio.create_subprocess_exec(
                sys.executable, *command, stdout=log, stderr=log, pass_fds=fds
            )

    def schedule(self, notice: float, event_type: str = "Reboot") -> str:
        life = EventLife(
            event_type=event_type,
            resources=(self.imds.vm_name,),
            notice_seconds=notice,
            started_seconds=3,
        )
        return self.imds.schedule(life).event_id

    async def probed(self, port: int | None = None) -> dict[str, object] | None:
        """Return what the probe says; None where nobody answers."""
        url = f"http://127.0.0.1:{port or self.port}/"
        try:
            async with aiohttp.ClientSession() as session, session.get(url) as found:
                answer: dict[str, object] = await found.json()
                assert found.status == (200 if answer["traffic"] == "in" else 503)
                return answer
        except aiohttp.ClientError:
            return None

    async def until(
        self, is_so: Callable[[dict[str, object]], bool]
    ) -> dict[str, object]:
        async with asyncio.timeout(PATIENCE):
            while (found := await self.probed()) is None or not is_so(found):
                await asyncio.sleep(0.05)
            return found

    async def stands(self, what: str) -> dict[str, object]:
        return await self.until(lambda found: found["traffic"] == what)

    async def received(self, count: int) -> list[str]:
        """Wait until so many changes are received; return them."""
        async with asyncio.timeout(PATIENCE):
            while len(found := self._received()) < count:
                await asyncio.sleep(0.05)
        return found

    def _received(self) -> list[str]:
        """Return each change once: after a kill it may come again, by its id."""
        bodies = [m.body for m in self.inbox.messages if isinstance(m.body, dict)]
        kinds = {str(body["id"]): str(body["type"]) for body in bodies}.values()
        return [kind.split(".")[-2] for kind in kinds if ".traffic-" in kind]


@pytest.fixture
async def machine(tmp_path: Path) -> AsyncIterator[Machine]:
    async with ImdsSimulator() as imds, Inbox() as inbox:
        yield Machine(imds, inbox, tmp_path)


@asynccontextmanager
async def stopped_in_the_end(
    process: asyncio.subprocess.Process,
) -> AsyncIterator[None]:
    try:
        yield
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def test_event_takes_it_out_and_its_end_brings_it_back(machine: Machine) -> None:
    process = await machine.start()
    async with stopped_in_the_end(process):
        assert await machine.stands("in") == {"traffic": "in"}
        event_id = machine.schedule(notice=3)

        out = await machine.stands("out")
        assert (out["reason"], out["eventId"]) == ("scheduled", event_id)
        await machine.until(lambda found: found.get("reason") == "started")
        await machine.until(lambda found: found.get("reason") == "over")
        await machine.stands("in")

        assert await machine.received(2) == ["traffic-out", "traffic-in"]
        url = f"http://127.0.0.1:{machine.health}"
        async with aiohttp.ClientSession() as session:
            async with session.get(f"{url}/status") as found:
                assert (await found.json())["traffic"] == {"traffic": "in"}
            async with session.get(f"{url}/metrics") as found:
                assert "sebridge_traffic_in 1.0" in await found.text()
            async with session.get(f"{url}/") as found:
                assert "Traffic" in await found.text()
        assert await ended(process) == 0


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
async def test_known_event_keeps_it_out_while_imds_is_silent_over_a_restart(
    machine: Machine, how: signal.Signals
) -> None:
    process = await machine.start()
    async with stopped_in_the_end(process):
        await machine.stands("in")
        event_id = machine.schedule(notice=60)
        before = await machine.stands("out")
        await machine.received(1)
        process.send_signal(how)
        await process.wait()
        assert await machine.probed() is None  # a stopped forwarder is out

    with socket.create_server(("127.0.0.1", 0), backlog=1) as silent:
        # It takes connections, and never answers: it is not known who this VM is.
        machine.imds_url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        process = await machine.start(on_unknown="in")
        async with stopped_in_the_end(process):
            first = await machine.until(lambda _: True)
            assert first == before | {"reason": first["reason"]}
            assert first["eventId"] == event_id
            for _ in range(20):  # nor later, when it is known that nothing is known
                await asyncio.sleep(0.1)
                assert await machine.probed() == first
            assert machine._received() == ["traffic-out"]


async def test_other_vms_state_file_is_no_reason_to_stay_out(machine: Machine) -> None:
    process = await machine.start()
    async with stopped_in_the_end(process):
        machine.schedule(notice=60)
        await machine.stands("out")
        await ended(process)
    async with ImdsSimulator(ImdsSettings(vm_name="clone")) as other:
        machine.imds_url = other.url
        process = await machine.start()
        async with stopped_in_the_end(process):
            assert await machine.stands("in") == {"traffic": "in"}
            assert await ended(process) == 0


@pytest.mark.skipif(os.name != "posix", reason="descriptors of POSIX")
async def test_listener_of_systemd_refuses_nobody_over_a_restart(
    machine: Machine,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        held = listener.getsockname()[1]
        process = await machine.start(listener=listener)
        async with stopped_in_the_end(process):
            async with asyncio.timeout(PATIENCE):
                assert await machine.probed(held) == {"traffic": "in"}
            assert await machine.probed() is None  # traffic.listen is not opened
            process.kill()
            await process.wait()

        asking = asyncio.create_task(machine.probed(held))
        await asyncio.sleep(0.5)
        assert not asking.done()  # it waits in the backlog
        process = await machine.start(listener=listener)
        async with stopped_in_the_end(process), asyncio.timeout(PATIENCE):
            assert await asking == {"traffic": "in"}
            assert await ended(process) == 0


async def test_probe_answers_before_imds_and_until_the_end(machine: Machine) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=1) as silent:
        machine.imds_url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        process = await machine.start(on_unknown="out")
        async with stopped_in_the_end(process):
            found = await machine.stands("out")
            assert (found["reason"], found["eventId"]) == ("unknown", None)
            assert await ended(process) == 0


def listens(port: int) -> bool:
    """Whether anybody accepts a connection there."""
    try:
        socket.create_connection(("127.0.0.1", port), 5).close()
    except OSError:
        return False
    return True


async def test_probe_closes_last(machine: Machine) -> None:
    """It says out or in as long as anything of the forwarder still works."""
    with socket.create_server(("127.0.0.1", 0), backlog=8) as silent:
        hanging = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        process = await machine.start(webhook(hanging, "hanging", timeout="60s"))
        async with stopped_in_the_end(process):
            await machine.stands("in")
            silent.settimeout(PATIENCE)
            attempt, _ = await asyncio.to_thread(silent.accept)  # it is in flight
            with attempt:
                process.send_signal(signal.SIGTERM)
                began, last, is_odd = time.monotonic(), 0.0, False
                while process.returncode is None:
                    is_probed = await machine.probed() is not None
                    is_healthy = await asyncio.to_thread(listens, machine.health)
                    last = time.monotonic() if is_probed else last
                    is_odd = is_odd or (is_healthy and not is_probed)
                    await asyncio.sleep(0.01)

    assert last - began >= 1.5  # of the grace of 2 s
    assert not is_odd  # the health port was there, and the probe no longer
    assert process.returncode == 0


USER_MADE = {
    "name": "user-made",
    "event_sources": ["User"],
    "action": "auto-approve",
}
FAR_OFF = "00000000-0000-0000-0000-00000000000A"


async def test_machine_leaves_rotation_before_a_rule_approves_its_event(
    tmp_path: Path,
) -> None:
    async with simulator_here() as at, ImdsSimulator() as imds, Inbox() as inbox:
        machine = Machine(imds, inbox, tmp_path)
        config = tmp_path / "bridge.toml"
        config.write_text(
            config_text(
                imds=at.imds,
                state=tmp_path / "state.db",
                approvals=approvals(at.connection_string, rules=[USER_MADE]),
                traffic={"listen": f"127.0.0.1:{machine.port}", "settle": "2s"},
            )
        )
        process = await forwarder(config)
        async with stopped_in_the_end(process):
            await machine.stands("in")
            event = {"type": "Reboot", "source": "User", "resources": ["WestNO_0"]}
            far_off = {**event, "eventId": FAR_OFF, "notBefore": 9000}
            await at.control("POST", "events", far_off)

            out = await machine.stands("out")
            assert (out["reason"], out["eventId"]) == ("approved", FAR_OFF)
            await machine.until(lambda found: found.get("reason") == "started")
            left = datetime.fromisoformat(str(out["since"]))
            assert await decided_at(config) - left > timedelta(seconds=1)  # of two
            assert await ended(process) == 0


async def decided_at(config: Path) -> datetime:
    """Return when the one approval was decided, by the log: in whole seconds."""
    async with asyncio.timeout(PATIENCE):
        while not (found := logged(config, "approval decided")):
            await asyncio.sleep(0.05)
    (one,) = found
    return datetime.fromisoformat(one["time"])


def logged(config: Path, message: str) -> list[dict[str, str]]:
    lines = config.with_suffix(".log").read_text().splitlines()
    found = [json.loads(line) for line in lines if message in line]
    return [line for line in found if line["message"] == message]


def test_who_has_no_probe_does_not_load_it(tmp_path: Path) -> None:
    import subprocess  # noqa: PLC0415 - of this test alone

    code = "import sys, bridge.app.forwarder\n"
    code += "print(*sorted(m for m in sys.modules if m.startswith('bridge.traffic')))"
    found = subprocess.run(  # noqa: S603 - our own words
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )

    assert found.stdout.split() == ["bridge.traffic", "bridge.traffic.config"]


# -- HAProxy and nginx, with the settings of infra/traffic.md -------------------------

PAGE = (Path(__file__).parents[2] / "infra" / "traffic.md").read_text()
HAPROXY = """
global
  stats socket {folder}/admin.sock mode 600 level admin
defaults
  mode http
  timeout connect 1s
  timeout client 5s
  timeout server 5s
frontend front
  bind 127.0.0.1:{front}
  default_backend web
{settings}
"""
NGINX = """
daemon off;
pid {folder}/nginx.pid;
error_log {folder}/nginx.log;
events {{}}
http {{
  access_log off;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  server {{
    listen 127.0.0.1:{front};
    {settings}
  }}
}}
"""


async def answers(url: str, status: int) -> None:
    """Wait until a URL is answered with a status."""
    async with asyncio.timeout(PATIENCE), aiohttp.ClientSession() as session:
        while True:
            try:
                async with session.get(url) as found:
                    if found.status == status:
                        return
            except aiohttp.ClientError:
                pass
            await asyncio.sleep(0.05)


@pytest.mark.skipif(shutil.which("haproxy") is None, reason="HAProxy is not installed")
async def test_haproxy_takes_it_out_and_in_again(machine: Machine) -> None:
    front, app = free_port(), free_port()
    settings = PAGE.split("## HAProxy\n\n```\n")[1].split("```")[0]
    for was, now in (
        ("port 9466 inter 2s", f"port {machine.port} inter 200ms"),
        ("server a 10.0.0.4:80", f"server a 127.0.0.1:{app}"),
        ("  server b 10.0.0.5:80\n", ""),
    ):
        assert was in settings
        settings = settings.replace(was, now)
    config = machine.folder / "haproxy.cfg"
    config.write_text(
        HAPROXY.format(folder=machine.folder, front=front, settings=settings)
    )

    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nhi")
        await writer.drain()
        writer.close()

    url = f"http://127.0.0.1:{front}/"
    server = await asyncio.start_server(serve, "127.0.0.1", app)
    process = await machine.start()
    async with stopped_in_the_end(process), server:
        await machine.stands("in")
        haproxy = await asyncio.create_subprocess_exec(
            *("haproxy", "-db", "-f", str(config)), stderr=asyncio.subprocess.DEVNULL
        )
        async with stopped_in_the_end(haproxy):
            await answers(url, 200)
            machine.schedule(notice=4)
            await answers(url, 503)  # nobody is left to send work to
            await answers(url, 200)
        assert await ended(process) == 0


@pytest.mark.skipif(shutil.which("nginx") is None, reason="nginx is not installed")
async def test_nginx_carries_the_probe_to_a_port_that_is_open(machine: Machine) -> None:
    front = free_port()
    settings = PAGE.split("location = /sebridge {")[1].split("```")[0]
    assert "http://127.0.0.1:9466/" in settings
    settings = settings.replace("9466", str(machine.port))
    config = machine.folder / "nginx.conf"
    config.write_text(
        NGINX.format(
            folder=machine.folder,
            front=front,
            settings=f"location = /sebridge {{{settings}",
        )
    )
    url = f"http://127.0.0.1:{front}/sebridge"
    nginx = await asyncio.create_subprocess_exec(
        *("nginx", "-c", str(config), "-p", str(machine.folder)),
        stderr=asyncio.subprocess.DEVNULL,
    )
    async with stopped_in_the_end(nginx):
        await answers(url, 502)  # a stopped forwarder is out
        process = await machine.start()
        async with stopped_in_the_end(process):
            await answers(url, 200)
            machine.schedule(notice=4)
            await answers(url, 503)
            await answers(url, 200)
            assert await ended(process) == 0
