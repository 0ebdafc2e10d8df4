"""Runs background work, and logs it when the work ends unexpectedly.

running ──fails, or returns although it should not──▶ logged ──pause──▶ running again
└────the context is left──▶ cancelled, and waited for
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager

from bridge.foundation.clock import Clock
from bridge.foundation.workers import cancel_all

log = logging.getLogger(__name__)

_PAUSE = 10.0

Work = Callable[[], Coroutine[object, object, None]]


@asynccontextmanager
async def in_background(
    work: Work, *, name: str, clock: Clock, pause: float = _PAUSE, may_end: bool = False
) -> AsyncIterator[None]:
    """Run ``work`` while the context is open; run it again if it fails.

    Args:
        work: returns the coroutine to run.
        name: the name of the task, also in the log.
        clock: measures the pause.
        pause: seconds between a failure and the next run.
        may_end: whether ``work`` may return. If not, it is run again then, too.
    """
    supervising = asyncio.create_task(
        _supervise(work, name, clock, pause, may_end=may_end), name=f"{name}: tended"
    )
    try:
        yield
    finally:
        await cancel_all(supervising)


async def _supervise(
    work: Work, name: str, clock: Clock, pause: float, *, may_end: bool
) -> None:
    never = asyncio.Event()
    while True:
        # In a task of its own, so that a stray CancelledError of a library is seen as
        # a fault of the work, and does not cancel this loop.
        working = asyncio.create_task(work(), name=name)
        try:
            await asyncio.wait({working})
        finally:
            await cancel_all(working)
        fault = None if working.cancelled() else working.exception()
        if may_end and fault is None and not working.cancelled():
            return
        log.error(
            "background task ended: it is started again",
            extra={"task": name},
            exc_info=fault,
        )
        await clock.wait(never, pause)
