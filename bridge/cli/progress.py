"""Show on the terminal what a slow command is waiting for."""

import asyncio
import os
import shutil
import sys
from collections.abc import Awaitable
from typing import TextIO, TypeVar

from bridge.foundation.clock import Clock
from bridge.foundation.printable import printable
from bridge.foundation.waiting import Waits, looking_on

_EVERY = 1.0  # seconds; also how long a command may take before anything is shown
_CLEAR = "\r\x1b[K"

T = TypeVar("T")


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
