"""Virtual time: an event loop that jumps to the next timer, and a clock that jumps too.

Nothing ever waits. As in FoundationDB's simulator and TigerBeetle's, time passes only
when nobody has anything to do at the present moment, so an hour costs what happens in
it. The loop has no sockets and no threads to be woken by.
"""

import asyncio
import selectors
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TypeVar

T = TypeVar("T")
EPOCH = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)


class StuckError(Exception):
    """Everybody waits for something that nobody will do."""


class _Skipping(selectors.SelectSelector):
    """Selects nothing, and lets the time pass that it would have waited."""

    def __init__(self, now: float) -> None:
        super().__init__()
        self.time = now

    def select(
        self, timeout: float | None = None
    ) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise StuckError
        self.time += max(timeout, 0.0)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose time begins at ``now`` and never waits."""

    def __init__(self, now: float) -> None:
        self._skipping = _Skipping(now)
        super().__init__(self._skipping)

    def time(self) -> float:
        """Return virtual seconds."""
        return self._skipping.time

    def run_in_executor(  # a thread would wake nobody
        self, executor: object, func: Callable[..., T], *args: object
    ) -> asyncio.Future[T]:
        """Do at once what a thread would do."""
        done: asyncio.Future[T] = self.create_future()
        done.set_result(func(*args))
        return done


@dataclass(slots=True)
class Wall:
    """The wall clock of the simulated machine: true time, but for its jumps."""

    offset: float = 0.0

    def at(self, time: float) -> datetime:
        """Return what the clock shows at a virtual second."""
        return true_time(time) + timedelta(seconds=self.offset)


def true_time(time: float) -> datetime:
    """Return what a clock shows that never jumps."""
    return EPOCH + timedelta(seconds=time)


@dataclass(slots=True)
class VirtualClock:
    """The bridge's clock on virtual time."""

    wall: Wall

    def now(self) -> datetime:
        return self.wall.at(self.monotonic())

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()

    async def wait(
        self, event: asyncio.Event, seconds: float, *, slack: float = 0.0
    ) -> bool:
        try:
            # With slack, in the middle of it: about when a poll ends the wait.
            async with asyncio.timeout(max(seconds - slack / 2, 0.0)):
                await event.wait()
        except TimeoutError:
            return event.is_set()
        return True
