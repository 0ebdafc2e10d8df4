"""How a person ends a demo: by Ctrl-C (SIGINT) or SIGTERM."""

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def undone_by_signal() -> Iterator[asyncio.Event]:
    """Cancel the block at the first signal; no further signal interrupts its cleanup.

    Yields:
        An event that each signal sets: after the block, a signal does only this.
    """
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    asked, is_undone = asyncio.Event(), False

    def ask() -> None:
        nonlocal is_undone
        if task is not None and not is_undone:
            is_undone = True
            task.cancel()
        asked.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, ask)
    try:
        yield asked
    finally:
        is_undone = True
