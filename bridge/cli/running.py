"""Runs an asynchronous command to its end, or until Ctrl-C is pressed."""

import asyncio
import signal
import sys
import threading
from collections.abc import Coroutine
from typing import TypeVar

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
