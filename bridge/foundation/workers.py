"""Workers: named loops that run until they are asked to stop.

    stop is set → begin nothing new → finish what is in flight → return
    grace is over → workers that still run are cancelled (the outbox keeps the rest)

Source: modelled on the lifecycles of kopf and alertmanager, with asyncio.TaskGroup.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Protocol, TypeVar

from bridge.foundation.errors import WorkerExitedError

T = TypeVar("T")


class Worker(Protocol):
    """A named loop."""

    @property
    def name(self) -> str:
        """The name of the worker in logs and tasks."""
        ...

    async def run(self, stop: asyncio.Event) -> None:
        """Work until ``stop`` is set; then finish what is in flight and return."""
        ...


async def run_workers(
    workers: Sequence[Worker], stop: asyncio.Event, *, grace: Callable[[], float]
) -> None:
    """Run workers until ``stop`` is set, then for so many seconds at most.

    Args:
        workers: what runs.
        stop: asks the workers to stop.
        grace: returns after the stop how many seconds the workers have.

    Raises:
        ExceptionGroup: a worker failed, or returned before ``stop`` was set. The
            other workers are cancelled.
    """
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(w.run(stop), name=w.name) for w in workers]
        await _until(stop, tasks)
        _, late = await asyncio.wait(tasks, timeout=grace())
        for task in late:
            task.cancel()


async def _until(stop: asyncio.Event, tasks: Sequence["asyncio.Task[None]"]) -> None:
    """Wait until ``stop`` is set, while the tasks of workers run.

    Raises:
        WorkerExitedError: a worker has returned before.
    """
    stopping = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait((stopping, *tasks), return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopping.cancel()
    if not stop.is_set():
        name = next(task.get_name() for task in tasks if task.done())
        text = f"the worker {name} returned before it was asked to stop"
        raise WorkerExitedError(text)


@asynccontextmanager
async def waking(stop: asyncio.Event, wake: asyncio.Event) -> AsyncIterator[None]:
    """Set ``wake`` when ``stop`` is set, so that a worker waits for ``wake`` only."""

    async def watch() -> None:
        await stop.wait()
        wake.set()

    async with asyncio.TaskGroup() as group:
        watcher = group.create_task(watch())
        try:
            yield
        finally:
            watcher.cancel()


async def unless(stop: asyncio.Event, work: Coroutine[object, object, T]) -> T | None:
    """Return the result of ``work``; None if ``stop`` is set earlier."""
    working, stopping = asyncio.ensure_future(work), asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        working.cancel()
        stopping.cancel()


async def cancel_all(*tasks: "asyncio.Task[object]") -> None:
    """Cancel the tasks that are not done, and wait until all tasks are done."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
