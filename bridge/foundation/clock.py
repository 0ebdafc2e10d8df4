"""The clock of the whole program: no other file reads the time."""

import asyncio
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
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

    Attributes:
        ears: the futures of the waits; each is True when the event is set.
    """

    def __init__(self) -> None:
        super().__init__()
        self.ears = set[asyncio.Future[bool]]()

    def set(self) -> None:
        """Set the event, and end the waits for it."""
        super().set()
        for ear in self.ears:
            if not ear.done():
                ear.set_result(True)


class SystemClock:
    """The clock of this machine.

    Both times are read without a function of Python in between: a poll reads them a
    dozen times, and that is most of what it would cost.
    """

    now: Callable[[], datetime] = staticmethod(partial(datetime.now, UTC))
    monotonic: Callable[[], float] = staticmethod(time.monotonic)

    def __init__(self) -> None:
        # The waits that may end together with others, and from when on.
        self._patient: dict[asyncio.Future[bool], float] = {}

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
            return await self._listen(event, seconds, slack)
        try:
            async with asyncio.timeout(max(seconds, 0.0)):
                await event.wait()
        except TimeoutError:
            return event.is_set()
        return True

    async def _listen(self, bell: Bell, seconds: float, slack: float) -> bool:
        loop = asyncio.get_running_loop()
        ear: asyncio.Future[bool] = loop.create_future()
        bell.ears.add(ear)
        until = loop.time() + max(seconds, 0.0)
        if slack:
            self._patient[ear] = until - slack
        timer = loop.call_at(until, self._end, ear, slack)
        try:
            return await ear or bell.is_set()
        finally:
            bell.ears.discard(ear)
            self._patient.pop(ear, None)
            if loop.time() < until:  # else it has ended the wait
                timer.cancel()

    def _end(self, ear: "asyncio.Future[bool]", slack: float) -> None:
        """End a wait whose time is over, and those that may end with it."""
        if not ear.done():
            ear.set_result(False)
        if slack:
            return
        now = asyncio.get_running_loop().time()
        for other, earliest in self._patient.items():
            if earliest <= now and not other.done():
                other.set_result(False)
