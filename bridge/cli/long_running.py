"""Runs a command until it ends or a signal stops it; shows what it is waiting for."""

import asyncio
import os
import shutil
import signal
import sys
import threading
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import TextIO, TypeVar

from bridge.cli.ending import WRONG, fail, first_of
from bridge.foundation.clock import Bell, Clock
from bridge.foundation.errors import BridgeError, ConfigError
from bridge.foundation.printable import printable
from bridge.foundation.waiting import Waits, looking_on


def until_stopped(work: Callable[[asyncio.Event], Awaitable[None]]) -> None:
    """Run ``work`` until it ends or a signal asks it to stop."""
    try:
        asyncio.run(_until_signal(work))
    except* BridgeError as errors:
        first = first_of(errors)
        if isinstance(first, ConfigError):
            fail(*first.faults, code=WRONG)
        fail(str(first))


async def _until_signal(work: Callable[[asyncio.Event], Awaitable[None]]) -> None:
    stop = Bell()
    loop = asyncio.get_running_loop()
    signals = [signal.SIGINT, signal.SIGTERM]

    def ask() -> None:
        for number in signals:  # so that a second signal ends the process at once
            if sys.platform == "win32":  # pragma: no cover - tests run on POSIX
                signal.signal(number, signal.SIG_DFL)
            else:
                loop.remove_signal_handler(number)
                signal.signal(number, signal.SIG_DFL)  # Python's own prints a traceback
        stop.set()

    for number in signals:
        if sys.platform == "win32":  # pragma: no cover - tests run on POSIX
            signal.signal(number, lambda *_: loop.call_soon_threadsafe(ask))
        else:
            loop.add_signal_handler(number, ask)
    await work(stop)


def raise_file_limit() -> None:
    """Raise the limit of open files and sockets to the maximum that is allowed.

    The default limit is often 1024, because programs with select() need that.
    """
    if sys.platform == "win32":  # pragma: no cover - tests run on POSIX
        return
    import resource  # noqa: PLC0415 - does not exist on Windows

    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):  # macOS has a second, lower limit
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


# -- Runs an asynchronous command to its end, or until Ctrl-C is pressed ---------------


T = TypeVar("T")


def run(work: Coroutine[object, object, T]) -> T:
    """Run ``work`` and return its result.

    At Ctrl-C, ``asyncio.run`` may interrupt Python inside the event loop's own
    functions, which then print a traceback. Here the event loop handles the signal
    between two callbacks. A second Ctrl-C ends the process at once.

    Raises:
        KeyboardInterrupt: Ctrl-C was pressed; ``work`` has been cancelled.
    """
    pressed = list[bool]()
    try:
        return asyncio.run(_until_interrupt(work, pressed))
    except asyncio.CancelledError:
        if pressed:
            raise KeyboardInterrupt from None
        raise


async def _until_interrupt(
    work: Coroutine[object, object, T], pressed: list[bool]
) -> T:
    if sys.platform == "win32":  # pragma: no cover - tests run on POSIX
        return await work
    is_ours = threading.current_thread() is threading.main_thread()
    if not is_ours or signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        return await work  # only the main thread can handle signals
    loop, task = asyncio.get_running_loop(), asyncio.current_task()

    def interrupt() -> None:
        loop.remove_signal_handler(signal.SIGINT)
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # Python's own prints a traceback
        pressed.append(True)
        if task is not None:
            task.cancel()

    loop.add_signal_handler(signal.SIGINT, interrupt)
    try:
        return await work
    finally:
        if not pressed:
            loop.remove_signal_handler(signal.SIGINT)


# -- Shows on the terminal what a slow command is waiting for --------------------------


_EVERY = 1.0  # seconds; also how long a command may take before anything is shown
_CLEAR = "\r\x1b[K"


async def shown(work: Awaitable[T], clock: Clock, stream: TextIO | None = None) -> T:
    """Await ``work``; on a terminal, show each second what it is waiting for.

    Args:
        work: reports what it waits for through ``bridge.foundation.waiting``.
        clock: the source of time.
        stream: where to write; None = standard error.
    """
    stream = stream or sys.stderr
    if not stream.isatty() or os.environ.get("TERM") == "dumb":
        return await work
    waits = Waits(clock)
    showing = asyncio.create_task(_show(waits, clock, stream), name="progress")
    try:
        with looking_on(waits):
            return await work
    finally:
        showing.cancel()
        await asyncio.gather(showing, return_exceptions=True)
        stream.write(_CLEAR)
        stream.flush()


async def _show(waits: Waits, clock: Clock, stream: TextIO) -> None:
    never = asyncio.Event()
    while not await clock.wait(never, _EVERY):
        found = [f"{what} ({sec:.0f} s)" for what, sec in waits.seconds().items()]
        line = printable(f"waiting for {', '.join(found)}") if found else ""
        stream.write(f"{_CLEAR}{line[: shutil.get_terminal_size().columns - 1]}")
        stream.flush()
