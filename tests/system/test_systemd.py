"""A forwarder as systemd starts it: a notify socket, a watchdog, credentials."""

import asyncio
import signal
import socket
from pathlib import Path

import pytest

from tests.support.configurations import config_text, webhook
from tests.system.processes import PATIENCE, ended, forwarder, simulator_here

pytestmark = [pytest.mark.slow, pytest.mark.integration]


async def test_systemd_hears_of_start_life_freeze_and_stop(tmp_path: Path) -> None:
    manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    manager.bind(str(tmp_path / "notify"))
    manager.settimeout(0)
    loop = asyncio.get_running_loop()

    async def hear() -> str:
        async with asyncio.timeout(PATIENCE):
            return (await loop.sock_recv(manager, 4096)).decode()

    async with simulator_here() as at:
        (tmp_path / "siem-url").write_text(f"{at.inbox}/siem\n")
        config = tmp_path / "bridge.toml"
        siem = webhook("file:${CREDENTIALS_DIRECTORY}/siem-url")
        state = tmp_path / "state.db"
        config.write_text(config_text(siem, imds=at.imds, state=state))
        process = await forwarder(
            config,
            {
                "NOTIFY_SOCKET": str(tmp_path / "notify"),
                "WATCHDOG_USEC": "300000",
                "CREDENTIALS_DIRECTORY": str(tmp_path),
            },
        )
        try:
            heard = [await hear()]
            while heard[-1] != "READY=1":
                heard.append(await hear())
            assert set(heard[:-1]) <= {"WATCHDOG=1"}
            assert b"forwarder started" in config.with_suffix(".log").read_bytes()
            assert [await hear() for _ in range(3)] == ["WATCHDOG=1"] * 3

            process.send_signal(signal.SIGSTOP)
            async with asyncio.timeout(PATIENCE):
                while not is_stopped(process.pid):
                    await asyncio.sleep(0.01)
            while has_mail(manager):
                manager.recv(4096)
            await asyncio.sleep(0.5)
            assert not has_mail(manager)
            process.send_signal(signal.SIGCONT)
            assert await hear() == "WATCHDOG=1"

            assert await ended(process) == 0
            left = []
            while has_mail(manager):
                left.append(manager.recv(4096).decode())
            assert left.count("STOPPING=1") == 1
        finally:
            if process.returncode is None:
                process.kill()
            manager.close()


def is_stopped(pid: int) -> bool:
    return "State:\tT" in Path(f"/proc/{pid}/status").read_text()


def has_mail(manager: socket.socket) -> bool:
    try:
        manager.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return False
    return True
