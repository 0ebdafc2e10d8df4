"""Who does the work on the disk: a thread, because the disk may hang."""

import asyncio
import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

from msgspec import Struct

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
