"""Who does the work on the disk, a thread since the disk may hang, and who watches it.

idle ──start──▶ busy ──the end──▶ idle
                  └──no answer for ``patience``──▶ hangs ──the end, late──▶ idle
"""

import asyncio
import math
import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

from msgspec import Struct

from bridge.outbox.storage.connection import as_outbox_error

Done = Callable[[Any, BaseException | None], None]


class Timings(Struct, frozen=True):
    """Time limits of the state file, in seconds.

    Attributes:
        patience: a disk that has not answered for this time counts as failed; infinite
            = wait for it without a limit.
        standstill: if the check of the disk is late by more than this, the whole
            machine was paused, and the time of the disk begins again.
        closing: how much longer than ``patience`` closing may take.
        quiet: after this time without work, SQLite's log is written back; infinite =
            never.
    """

    patience: float = 3.0
    standstill: float = 1.0
    closing: float = 2.0
    quiet: float = 0.1


class Ask(Struct, eq=False):
    """A question to the file, or a transaction of its own.

    Attributes:
        work: asks.
        after: the commits up to this number are written first.
        since: when it was asked, by the loop's clock.
        future: of the caller.
        then: called with the result before the caller gets what it returns.
        is_read: whether an error of the disk says that rows cannot be written either;
            a transaction of its own is only tried again by its caller.
    """

    work: Callable[[], Any]
    after: int
    since: float
    future: asyncio.Future[Any]
    then: Callable[[Any], Any]
    is_read: bool = True

    def answer(self, result: Any, error: BaseException | None) -> None:
        """Give the caller the result, or the error."""
        if isinstance(error, Exception):
            if not self.future.done():
                self.future.set_exception(as_outbox_error(error))
            return
        found = self.then(result)
        if not self.future.done():
            self.future.set_result(found)


class Driver(Protocol):
    """Does the work on the disk, one piece at a time."""

    @property
    def is_alive(self) -> bool:
        """Whether it can still do work."""
        ...

    def start(self, work: Callable[[], object], done: Done) -> None:
        """Begin a piece of work; ``done`` is called in the event loop at its end.

        Args:
            work: may hang.
            done: gets the result and None, or None and the error.
        """
        ...

    def stop(self) -> None:
        """End when the work is done."""
        ...


class ThreadDriver:
    """Does the work in a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._queue = queue.SimpleQueue[tuple[Callable[[], object], Done] | None]()
        self._thread = threading.Thread(target=self._run, name="outbox", daemon=True)
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    def start(self, work: Callable[[], object], done: Done) -> None:
        """Begin a piece of work; see ``Driver``."""
        self._queue.put((work, done))

    def stop(self) -> None:
        """End the thread when its work is done."""
        self._queue.put(None)

    def _run(self) -> None:
        while (one := self._queue.get()) is not None:
            work, done = one
            try:
                result, error = work(), None
            except BaseException as fault:  # noqa: BLE001 - passed on to the loop
                result, error = None, fault
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(done, result, error)
            del one, work, done, result, error  # they hold what was written


class Desk:
    """Gives work to a driver, and notices when it is not answered.

    Attributes:
        driver: does the work.
        timings: the limits.
        is_hanging: whether the present work was given up; its end still counts.
        is_closed: whether nothing is watched any more.
        since: returns when the oldest wait began, by the loop's clock; infinite = the
            beginning of the present work counts.
        given_up: called when the work has not been answered for ``patience``.
        gone: called when the driver is dead.
    """

    def __init__(self, driver: Driver, timings: Timings) -> None:
        self.driver = driver
        self.timings = timings
        self.is_hanging = False
        self.is_closed = False
        self.since: Callable[[], float] = lambda: math.inf
        self.given_up: Callable[[str], object] = lambda _: None
        self.gone: Callable[[], object] = lambda: None
        self._loop = asyncio.get_running_loop()
        self._done: Done | None = None
        self._began = 0.0
        self._stood = -math.inf  # when a standstill of the machine ended
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_busy(self) -> bool:
        """Whether work is being done."""
        return self._done is not None

    def start(self, work: Callable[[], object], done: Done) -> None:
        """Begin a piece of work; ``done`` gets its outcome, also after it was given up.

        Nothing else may be being done.
        """
        self._done, self._began = done, self._loop.time()
        if self._timer is None:
            self._look_in(self.timings.patience)
        self.driver.start(work, self._end)

    def close(self) -> None:
        """Watch no longer, and end the driver when its work is done."""
        self.is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        self.driver.stop()

    def _end(self, result: Any, error: BaseException | None) -> None:
        done, self._done = self._done, None
        if done is not None:
            done(result, error)

    def _look_in(self, seconds: float) -> None:
        if seconds != math.inf:
            planned = self._loop.time() + seconds
            self._timer = self._loop.call_at(planned, self._look, planned)

    def _look(self, planned: float) -> None:
        self._timer = None
        if self._done is None or self.is_closed:
            return
        if not self.driver.is_alive:
            self.gone()
            return
        now, patience = self._loop.time(), self.timings.patience
        if now - planned > self.timings.standstill:
            self._stood = now
        left = max(min(self._began, self.since()), self._stood) + patience - now
        if left <= 0 and not self.is_hanging:
            self.is_hanging = True
            self.given_up(f"the disk has not answered for {patience:g} s")
        self._look_in(left if left > 0 else patience)
