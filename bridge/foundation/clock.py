"""The clock of the whole program: no other file reads the time."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """Returns the time, and waits.

    ``now`` is the wall clock, which may be set back or forward. ``monotonic`` never
    goes back; only differences of its values mean something. Every wait in the
    forwarder uses ``wait``.
    """

    def now(self) -> datetime:
        """Return the present time in UTC, with its time zone."""
        ...

    def monotonic(self) -> float:
        """Return seconds since a fixed but unknown time."""
        ...

    async def wait(
        self, event: asyncio.Event, seconds: float, *, slack: float = 0.0
    ) -> bool:
        """Wait until ``event`` is set (True) or ``seconds`` have passed (False).

        Args:
            event: ends the wait.
            seconds: the longest wait.
            slack: how many seconds earlier the wait may end, together with another
                one: each time that the process need not wake up saves CPU.
        """
        ...


class Bell(asyncio.Event):
    """An event for which a clock waits without a cancellation, which costs more CPU.

    Use it where a wait begins with every poll.
    """

    def __init__(self) -> None:
        super().__init__()
        self._ears = set[asyncio.Future[bool]]()

    def set(self) -> None:
        """Set the event, and end the waits for it."""
        super().set()
        for ear in self._ears:
            if not ear.done():
                ear.set_result(True)

    @contextmanager
    def heard(self) -> Iterator["asyncio.Future[bool]"]:
        """Yield a future that is True when the event is set."""
        ear: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._ears.add(ear)
        try:
            yield ear
        finally:
            self._ears.discard(ear)


class SystemClock:
    """The clock of this machine."""

    def __init__(self) -> None:
        # The waits that may end together with others, and from when on.
        self._patient: dict[asyncio.Future[bool], float] = {}

    def now(self) -> datetime:
        """Return the present time in UTC, with its time zone."""
        return datetime.now(UTC)

    def monotonic(self) -> float:
        """Return seconds since a fixed but unknown time."""
        return time.monotonic()

    async def wait(
        self, event: asyncio.Event, seconds: float, *, slack: float = 0.0
    ) -> bool:
        """Wait until ``event`` is set (True) or ``seconds`` have passed (False).

        A wait with ``slack`` ends earlier only if its event is a ``Bell``, and only
        together with a wait for a ``Bell`` without slack.
        """
        if event.is_set():
            return True
        if isinstance(event, Bell):
            return await self._listen(event, max(seconds, 0.0), slack)
        try:
            async with asyncio.timeout(max(seconds, 0.0)):
                await event.wait()
        except TimeoutError:
            return event.is_set()
        return True

    async def _listen(self, bell: Bell, seconds: float, slack: float) -> bool:
        with bell.heard() as ear:
            if slack:
                self._patient[ear] = time.monotonic() + seconds - slack
            loop = asyncio.get_running_loop()
            timer = loop.call_later(seconds, self._end, ear, slack)
            try:
                return await ear or bell.is_set()
            finally:
                timer.cancel()
                self._patient.pop(ear, None)

    def _end(self, ear: "asyncio.Future[bool]", slack: float) -> None:
        """End a wait whose time is over, and those that may end with it."""
        _give_up(ear)
        if slack:
            return
        now = time.monotonic()
        for other, earliest in self._patient.items():
            if earliest <= now:
                _give_up(other)


def _give_up(ear: "asyncio.Future[bool]") -> None:
    if not ear.done():
        ear.set_result(False)
