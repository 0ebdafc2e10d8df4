"""A line on the terminal that says what a command waits for, while something hangs."""

import asyncio
import os
import shutil
import sys
from collections.abc import Awaitable
from typing import TextIO, TypeVar

from bridge.foundation.clock import Clock
from bridge.foundation.waiting import Waits, looking_on
from bridge.telemetry.metrics import printable

_EVERY = 1.0  # seconds; what answers sooner is not worth a word
_CLEAR = "\r\x1b[K"

T = TypeVar("T")


async def shown(work: Awaitable[T], clock: Clock, stream: TextIO | None = None) -> T:
    """Await ``work``, and say each second what it waits for: on a terminal alone.

    Args:
        work: notes what it waits for by ``bridge.foundation.waiting``.
        clock: how time passes.
        stream: where to; None = standard error.
    """
    stream = stream or sys.stderr
    if not stream.isatty() or os.environ.get("TERM") == "dumb":
        return await work
    waits = Waits(clock)
    telling = asyncio.create_task(_tell(waits, clock, stream), name="progress")
    try:
        with looking_on(waits):
            return await work
    finally:
        telling.cancel()
        await asyncio.gather(telling, return_exceptions=True)
        stream.write(_CLEAR)
        stream.flush()


async def _tell(waits: Waits, clock: Clock, stream: TextIO) -> None:
    never = asyncio.Event()
    while not await clock.wait(never, _EVERY):
        found = [f"{what} ({sec:.0f} s)" for what, sec in waits.seconds().items()]
        line = printable(f"waiting for {', '.join(found)}") if found else ""
        stream.write(f"{_CLEAR}{line[: shutil.get_terminal_size().columns - 1]}")
        stream.flush()
