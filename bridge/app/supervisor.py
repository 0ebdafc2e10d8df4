"""Notifies the service manager of the forwarder's state: ready, alive, stopping.

On Linux this is systemd, which gets datagrams at ``$NOTIFY_SOCKET`` (sd_notify(3)).
Elsewhere, or without that variable, no service manager is notified.
"""

import asyncio
import logging
import os
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Protocol

from msgspec import Struct

from bridge.foundation.background import in_background
from bridge.foundation.clock import Bell, Clock

log = logging.getLogger(__name__)

_PER_WATCHDOG = 3  # of three signs of life, one may be late and one may be lost
_LONGEST_INTERVAL = 20.0  # the last sign before a pause of the VM is no older
_LONGEST_SLACK = 1.0


class Supervisor(Protocol):
    """The service manager that started the forwarder."""

    @property
    def interval(self) -> float:
        """Seconds between two signs of life; 0 = none are expected."""
        ...

    def ready(self) -> None:
        """Notify that all parts are open, and that the workers run."""
        ...

    def alive(self) -> None:
        """Notify that the event loop and the thread of the state file still work."""
        ...

    def stopping(self) -> None:
        """Notify that the forwarder is stopping."""
        ...


class Systemd(Struct, frozen=True):
    """systemd, for a unit with ``Type=notify``.

    Attributes:
        address: the address of its socket; "@" stands for the null byte of an abstract
            socket; "" = there is no service manager, and nothing is sent.
        interval: seconds between two signs of life; 0 = none are expected.
    """

    address: str
    interval: float = 0.0

    def ready(self) -> None:
        """Notify that the unit is active."""
        self._send("READY=1")

    def alive(self) -> None:
        """Reset the watchdog."""
        self._send("WATCHDOG=1")

    def stopping(self) -> None:
        """Notify that the unit is deactivating."""
        self._send("STOPPING=1")

    def _send(self, text: str) -> None:
        """Send without waiting, even if systemd does not read from the socket."""
        if not self.address:
            return
        address = self.address.replace("@", "\0", 1)
        try:
            family = socket.AF_UNIX  # type: ignore[attr-defined,unused-ignore]  # POSIX
            with socket.socket(family, socket.SOCK_DGRAM) as out:
                out.settimeout(0)
                out.sendto(text.encode(), address)
        except OSError as error:
            log.warning(
                "service manager cannot be notified",
                extra={"text": text, "fault": error.strerror or str(error)},
            )


NO_SUPERVISOR = Systemd("")


def supervisor_of(environ: Mapping[str, str]) -> Supervisor:
    """Return the service manager that the environment variables of systemd name.

    Source: sd_notify(3), sd_watchdog_enabled(3). ``vsock:`` addresses are for the
    first process of a virtual machine.
    """
    address = environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return NO_SUPERVISOR
    interval = min(_watchdog(environ) / _PER_WATCHDOG, _LONGEST_INTERVAL)
    return Systemd(address, interval)


def _watchdog(environ: Mapping[str, str]) -> float:
    """Return the time limit of systemd's watchdog in seconds; 0 = none."""
    if environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return 0.0  # the watchdog watches another process
    text = environ.get("WATCHDOG_USEC", "")
    return int(text) / 1e6 if text.isascii() and text.isdigit() else 0.0


@asynccontextmanager
async def attended(
    supervisor: Supervisor,
    stop: asyncio.Event,
    clock: Clock,
    is_alive: Callable[[], bool] = lambda: True,
) -> AsyncIterator[None]:
    """Send signs of life while the context is open, and notify of the stop.

    The signs of life go on during the stop, so that a slow stop is not killed.

    Args:
        supervisor: the service manager.
        stop: set when the forwarder is asked to stop.
        clock: measures the interval.
        is_alive: returns whether the thread of the state file still works.
    """
    async with AsyncExitStack() as stack:
        stopping = in_background(
            lambda: _notify_of_stop(stop, supervisor),
            name="stopping",
            clock=clock,
            may_end=True,
        )
        await stack.enter_async_context(stopping)
        if supervisor.interval:
            alive = in_background(
                lambda: _send_signs_of_life(supervisor, clock, is_alive),
                name="alive",
                clock=clock,
                pause=supervisor.interval,
            )
            await stack.enter_async_context(alive)
        yield


async def _notify_of_stop(stop: asyncio.Event, supervisor: Supervisor) -> None:
    await stop.wait()
    supervisor.stopping()


async def _send_signs_of_life(
    supervisor: Supervisor, clock: Clock, is_alive: Callable[[], bool]
) -> None:
    never, interval = Bell(), supervisor.interval
    while True:
        if is_alive():
            supervisor.alive()
        await clock.wait(never, interval, slack=min(interval / 2, _LONGEST_SLACK))
