"""What a service manager is told of the forwarder: ready, alive, stopping.

On Linux that is systemd, by datagrams to ``$NOTIFY_SOCKET`` (sd_notify(3)); elsewhere,
and where nobody asked, it is nobody.
"""

import asyncio
import logging
import os
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Protocol

from bridge.foundation.background import in_background
from bridge.foundation.clock import Clock

log = logging.getLogger(__name__)

_PER_WATCHDOG = 3  # one sign of life may be late, and one be lost


class Supervisor(Protocol):
    """Whoever started the forwarder and wants to know how it fares."""

    @property
    def interval(self) -> float:
        """Seconds between two signs of life; 0 = none are wanted."""
        ...

    def ready(self) -> None:
        """All is open, and the workers run."""
        ...

    def alive(self) -> None:
        """The loop turns, and so does what it waits for."""
        ...

    def stopping(self) -> None:
        """A stop was asked for, and what is in flight ends."""
        ...


@dataclass(frozen=True, slots=True)
class Nobody:
    """Nobody asked."""

    interval: float = 0.0

    def ready(self) -> None:
        """Tell nobody."""

    def alive(self) -> None:
        """Tell nobody."""

    def stopping(self) -> None:
        """Tell nobody."""


NOBODY = Nobody()


@dataclass(frozen=True, slots=True)
class Systemd:
    """systemd, of a unit with ``Type=notify``.

    Attributes:
        address: of its socket; "@" stands for the null byte of an abstract one.
        interval: seconds between two signs of life; 0 = none are wanted.
    """

    address: str
    interval: float = 0.0

    def ready(self) -> None:
        """The unit is active."""
        self._send("READY=1")

    def alive(self) -> None:
        """Feed the watchdog."""
        self._send("WATCHDOG=1")

    def stopping(self) -> None:
        """The unit is deactivating."""
        self._send("STOPPING=1")

    def _send(self, text: str) -> None:
        """Send without waiting: who does not listen holds up nothing."""
        address = self.address.replace("@", "\0", 1)
        try:
            family = socket.AF_UNIX  # type: ignore[attr-defined,unused-ignore]  # POSIX
            with socket.socket(family, socket.SOCK_DGRAM) as out:
                out.settimeout(0)
                out.sendto(text.encode(), address)
        except OSError as error:
            log.warning(
                "service manager cannot be told",
                extra={"text": text, "fault": error.strerror or str(error)},
            )


def supervisor_of(environ: Mapping[str, str]) -> Supervisor:
    """Return who is to be told, as systemd writes it into the environment.

    Source: sd_notify(3), sd_watchdog_enabled(3). ``vsock:`` addresses are for the
    first process of a virtual machine.
    """
    address = environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return NOBODY
    return Systemd(address, _watchdog(environ) / _PER_WATCHDOG)


def _watchdog(environ: Mapping[str, str]) -> float:
    """Return after how many seconds without a sign of life this process is killed."""
    if environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return 0.0  # it is meant for another process
    text = environ.get("WATCHDOG_USEC", "")
    return int(text) / 1e6 if text.isascii() and text.isdigit() else 0.0


@asynccontextmanager
async def attended(
    supervisor: Supervisor,
    stop: asyncio.Event,
    clock: Clock,
    is_alive: Callable[[], bool] = lambda: True,
) -> AsyncIterator[None]:
    """Give signs of life as long as the context is open, and tell of the stop.

    They end last of all: a slow stop is no dead loop.

    Args:
        supervisor: who is told.
        stop: set when a stop is asked for.
        clock: when to tell.
        is_alive: whether what the loop waits for is alive, beside the loop itself.
    """
    async with AsyncExitStack() as stack:
        telling = in_background(
            lambda: _tell_of(stop, supervisor),
            name="stopping",
            clock=clock,
            may_end=True,
        )
        await stack.enter_async_context(telling)
        if supervisor.interval:
            living = in_background(
                lambda: _live(supervisor, clock, is_alive),
                name="alive",
                clock=clock,
                pause=supervisor.interval,
            )
            await stack.enter_async_context(living)
        yield


async def _tell_of(stop: asyncio.Event, supervisor: Supervisor) -> None:
    await stop.wait()
    supervisor.stopping()


async def _live(
    supervisor: Supervisor, clock: Clock, is_alive: Callable[[], bool]
) -> None:
    never = asyncio.Event()
    while True:
        if is_alive():
            supervisor.alive()
        await clock.wait(never, supervisor.interval)
