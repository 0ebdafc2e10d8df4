"""Work in the background that never ends unseen.

begun ──fails, or returns although it should not──▶ logged ──a pause──▶ begun anew
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
    """Run ``work`` as long as the context is open, again and again if it fails.

    Args:
        work: what is run.
        name: of the task, in the log too.
        clock: measures the pause.
        pause: seconds until it is begun anew.
        may_end: whether it is done once it returns.
    """
    tending = asyncio.create_task(
        _tend(work, name, clock, pause, may_end=may_end), name=f"{name}: tended"
    )
    try:
        yield
    finally:
        await cancel_all(tending)


async def _tend(
    work: Work, name: str, clock: Clock, pause: float, *, may_end: bool
) -> None:
    never = asyncio.Event()
    while True:
        # In a task of its own: a CancelledError that a library lets out, although
        # nobody has cancelled anything, is a fault as any other.
        working = asyncio.create_task(work(), name=name)
        try:
            await asyncio.wait({working})
        finally:
            await cancel_all(working)
        fault = None if working.cancelled() else working.exception()
        if may_end and fault is None and not working.cancelled():
            return
        log.error(
            "background task ended: it is begun anew",
            extra={"task": name},
            exc_info=fault,
        )
        await clock.wait(never, pause)
