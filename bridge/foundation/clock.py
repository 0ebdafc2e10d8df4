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
            slack: how many seconds earlier the wait may end, if another wait ends then:
                the process wakes up less often, which saves CPU.
        """
        ...


class Bell(asyncio.Event):
    """An event for which a clock waits with a future instead of ``asyncio.timeout``.

    That needs less CPU, because nothing is cancelled. Use it where a wait begins with
    every poll.

    Attributes:
        waits: the futures of the waits; ``set`` gives each the result True.
    """

    def __init__(self) -> None:
        super().__init__()
        self.waits = set[asyncio.Future[bool]]()

    def set(self) -> None:
        """Set the event, and end the waits for it."""
        super().set()
        for wait in self.waits:
            if not wait.done():
                wait.set_result(True)


class SystemClock:
    """The clock of this machine.

    Both times are read without a function of Python in between: a poll reads them a
    dozen times, and that is most of what it would cost.
    """

    now: Callable[[], datetime] = staticmethod(partial(datetime.now, UTC))
    monotonic: Callable[[], float] = staticmethod(time.monotonic)

    def __init__(self) -> None:
        # The waits with slack, and from when on each of them may end.
        self._with_slack: dict[asyncio.Future[bool], float] = {}

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
            return await self._wait_for_bell(event, seconds, slack)
        try:
            async with asyncio.timeout(max(seconds, 0.0)):
                await event.wait()
        except TimeoutError:
            return event.is_set()
        return True

    async def _wait_for_bell(self, bell: Bell, seconds: float, slack: float) -> bool:
        loop = asyncio.get_running_loop()
        wait: asyncio.Future[bool] = loop.create_future()
        bell.waits.add(wait)
        until = loop.time() + max(seconds, 0.0)
        if slack:
            self._with_slack[wait] = until - slack
        timer = loop.call_at(until, self._end, wait, slack)
        try:
            return await wait or bell.is_set()
        finally:
            bell.waits.discard(wait)
            self._with_slack.pop(wait, None)
            if loop.time() < until:  # later, the timer has already fired
                timer.cancel()

    def _end(self, wait: "asyncio.Future[bool]", slack: float) -> None:
        """End a wait whose time is over, and the waits with slack that may end now."""
        if not wait.done():
            wait.set_result(False)
        if slack:
            return
        now = asyncio.get_running_loop().time()
        for other, earliest in self._with_slack.items():
            if earliest <= now and not other.done():
                other.set_result(False)
