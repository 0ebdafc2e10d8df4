"""Notifications to systemd: real datagrams on a real socket."""

import asyncio
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from bridge.app.supervisor import (
    NO_SUPERVISOR,
    Supervisor,
    Systemd,
    attended,
    supervisor_of,
)
from tests.support.fakes import FakeClock, turns


class Listener:
    """The socket of the service manager."""

    def __init__(self, address: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(address)
        self.socket.settimeout(0)

    def heard(self) -> list[str]:
        """Return the datagrams that came since the last call."""
        found = []
        try:
            while True:
                found.append(self.socket.recv(4096).decode())
        except BlockingIOError:
            return found


@pytest.fixture
def address(tmp_path: Path) -> str:
    return str(tmp_path / "notify")


@pytest.fixture
def listener(address: str) -> Iterator[Listener]:
    opened = Listener(address)
    yield opened
    opened.socket.close()


def test_states_are_sent_in_the_format_of_systemd(
    address: str, listener: Listener
) -> None:
    found = supervisor_of({"NOTIFY_SOCKET": address})

    found.ready()
    found.alive()
    found.stopping()

    assert listener.heard() == ["READY=1", "WATCHDOG=1", "STOPPING=1"]


def test_abstract_socket_gets_notifications() -> None:
    name = f"sebridge-test-{os.getpid()}"
    listener = Listener(f"\0{name}")

    supervisor_of({"NOTIFY_SOCKET": f"@{name}"}).ready()

    assert listener.heard() == ["READY=1"]
    listener.socket.close()


@pytest.mark.parametrize("address", [None, "", "vsock:2:1234", "notify"])
def test_without_a_socket_nothing_is_sent(address: str | None) -> None:
    found = supervisor_of({"NOTIFY_SOCKET": address} if address is not None else {})

    assert found is NO_SUPERVISOR
    found.ready()
    found.alive()
    found.stopping()


def test_missing_socket_is_only_a_warning(
    address: str, caplog: pytest.LogCaptureFixture
) -> None:
    Systemd(address).ready()

    (record,) = caplog.records
    assert record.getMessage() == "service manager cannot be notified"
    assert vars(record)["fault"] == "No such file or directory"


def test_full_socket_does_not_block_the_forwarder(
    address: str, listener: Listener
) -> None:
    found = Systemd(address)

    for _ in range(2000):  # a full queue would block a blocking socket
        found.alive()

    assert listener.heard()


@pytest.mark.parametrize(
    ("environ", "interval"),
    [
        ({}, 0.0),
        ({"WATCHDOG_USEC": "60000000"}, 20.0),
        ({"WATCHDOG_USEC": "60000000", "WATCHDOG_PID": str(os.getpid())}, 20.0),
        ({"WATCHDOG_USEC": "360000000"}, 20.0),
        ({"WATCHDOG_USEC": "60000000", "WATCHDOG_PID": "1"}, 0.0),
        ({"WATCHDOG_USEC": "soon"}, 0.0),
    ],
)
def test_watchdog_gets_three_signs_in_its_limit(
    address: str, environ: dict[str, str], interval: float
) -> None:
    found = supervisor_of({"NOTIFY_SOCKET": address, **environ})

    assert found.interval == pytest.approx(interval)


async def test_signs_of_life_go_on_through_the_stop(
    address: str, listener: Listener, clock: FakeClock
) -> None:
    stop = asyncio.Event()
    found: Supervisor = Systemd(address, interval=20.0)

    async with attended(found, stop, clock):
        await clock.advance(20)
        assert listener.heard() == ["WATCHDOG=1"] * 2
        stop.set()
        await turns()
        assert listener.heard() == ["STOPPING=1"]
        await clock.advance(20)
        assert listener.heard() == ["WATCHDOG=1"]

    await clock.advance(60)
    assert listener.heard() == []


async def test_blocked_loop_sends_no_sign_of_life(
    address: str, listener: Listener, clock: FakeClock
) -> None:
    async with attended(Systemd(address, interval=20.0), asyncio.Event(), clock):
        await turns()
        listener.heard()

        clock.pass_by(60)  # the event loop is blocked

        assert listener.heard() == []


async def test_forwarder_that_is_not_alive_sends_no_sign(
    address: str, listener: Listener, clock: FakeClock
) -> None:
    answers = iter([True, False, True])
    found = Systemd(address, interval=20.0)

    async with attended(found, asyncio.Event(), clock, lambda: next(answers)):
        await turns()
        assert listener.heard() == ["WATCHDOG=1"]
        await clock.advance(20)
        assert listener.heard() == []
        await clock.advance(20)
        assert listener.heard() == ["WATCHDOG=1"]


async def test_without_a_watchdog_only_the_stop_is_sent(
    address: str, listener: Listener, clock: FakeClock
) -> None:
    stop = asyncio.Event()

    async with attended(Systemd(address), stop, clock):
        await clock.advance(600)
        stop.set()
        await turns()

    assert listener.heard() == ["STOPPING=1"]
    assert clock.waits == []


async def test_sign_of_life_that_fails_once_is_not_the_last(
    address: str, listener: Listener, clock: FakeClock
) -> None:
    """Otherwise systemd would kill a healthy forwarder."""
    faults = [KeyError("x")]

    def is_alive() -> bool:
        if faults:
            raise faults.pop()
        return True

    found = Systemd(address, interval=20.0)
    async with attended(found, asyncio.Event(), clock, is_alive):
        await clock.advance(60)

        assert len(listener.heard()) == 3
