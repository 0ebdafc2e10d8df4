"""Opens and closes the link of a sender to its entity."""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING

from bridge.servicebus.errors import failures
from bridge.servicebus.namespace import NamespaceConfig, open_handle
from bridge.servicebus.timings import Timings

if TYPE_CHECKING:
    from azure.servicebus.aio import ServiceBusSender

Link = tuple[AsyncExitStack, "ServiceBusSender"]  # the stack closes the link


async def linked(config: NamespaceConfig, entity: str) -> Link:
    """Open a link, and return it with the stack that closes it."""
    handle = open_handle(config, lambda client: client.get_queue_sender(entity))
    async with AsyncExitStack() as stack:
        sender = await stack.enter_async_context(handle)
        return stack.pop_all(), sender


async def close(stack: AsyncExitStack, timings: Timings) -> None:
    """Close a link, and ignore errors."""
    with suppress(*failures()):
        async with asyncio.timeout(timings.close):
            await stack.aclose()


async def first_open(
    link: Callable[[], Coroutine[None, None, Link]], timings: Timings
) -> Link:
    """Begin to open a link every ``timings.beside`` seconds; return the first open one.

    Raises:
        Exception: the error of the first attempt that ends.
    """
    tasks = set[asyncio.Task[Link]]()
    try:
        while True:
            tasks.add(asyncio.create_task(link()))
            ended, _ = await asyncio.wait(
                tasks, timeout=timings.beside, return_when=asyncio.FIRST_COMPLETED
            )
            if ended:
                first = ended.pop()
                tasks.remove(first)
                return first.result()
    finally:
        await _give_up(tasks, timings)


async def _give_up(tasks: set[asyncio.Task[Link]], timings: Timings) -> None:
    """Cancel the openings, and close the links that are open already."""
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=timings.close)
    for task in tasks:
        if not task.done():
            task.add_done_callback(_forget)
        elif not task.cancelled() and task.exception() is None:
            await close(task.result()[0], timings)


def _forget(task: asyncio.Task[Link]) -> None:
    """Read the error of a cancelled opening, so that asyncio does not log it."""
    if not task.cancelled():
        task.exception()
