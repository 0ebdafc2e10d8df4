"""Keeps the link of a sender open from one message to the next.

A link may be dead when it is used (detached, token expired, connection dropped). Then,
and only then, a second attempt follows at once, on a new link. After any error that is
not about the message itself, the link is closed.
"""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING

from msgspec import Struct

from bridge.servicebus.errors import failures, leaves_link_whole
from bridge.servicebus.namespace import NamespaceConfig, Timings, open_handle

# -- Packs messages into the SDK's batches, also ahead of time, and sends them ---------


if TYPE_CHECKING:
    from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch
    from azure.servicebus.aio import ServiceBusSender


class Waiting(Struct, eq=False):
    """A message for which a caller of ``send`` waits, and its result."""

    message: "ServiceBusMessage"
    size: int
    pack: "Pack | None" = None
    is_done: bool = False
    error: Exception | None = None

    @property
    def session(self) -> str | None:
        """The SessionId, which is the partition key, too."""
        return self.message.session_id


class Pack(Struct):
    """A batch that was packed while another one was on its way.

    Attributes:
        sender: the link that must send the batch; another link may accept less.
        members: the messages in the batch; ``pack`` of the first one is this batch.
        packed: the batch of the SDK.
    """

    sender: "ServiceBusSender"
    members: list[Waiting]
    packed: "ServiceBusMessageBatch"

    def fits(self, sender: "ServiceBusSender", batch: list[Waiting]) -> bool:
        """Return whether ``batch`` begins with the packed messages, for this link."""
        is_first = batch[: len(self.members)] == self.members
        return sender is self.sender and is_first


async def transfer(
    sender: "ServiceBusSender", batch: list[Waiting], seconds: float
) -> int:
    """Send as many messages as fit into one transfer; return how many.

    Args:
        sender: an open link.
        batch: the messages in their order; at least one.
        seconds: the time limit of the transfer.
    """
    if len(batch) > 1:
        pack, batch[0].pack = batch[0].pack, None
        if pack is None or not pack.fits(sender, batch):
            pack = await _packed(sender, batch)
        count = len(pack.members)
        if count > 1:
            await sender.send_messages(pack.packed, timeout=seconds)
            return count
    await sender.send_messages(batch[0].message, timeout=seconds)
    return 1


async def pack_ahead(sender: "ServiceBusSender", batch: list[Waiting]) -> None:
    """Pack a batch for later; errors show when it is sent."""
    with suppress(*failures()):
        batch[0].pack = await _packed(sender, batch)


async def _packed(sender: "ServiceBusSender", batch: list[Waiting]) -> Pack:
    """Pack as many messages as fit into one transfer."""
    packed, members = await sender.create_message_batch(), list[Waiting]()
    for waiting in batch:
        try:
            packed.add_message(waiting.message)
        except ValueError:  # MessageSizeExceededError, a subclass: the batch is full
            break
        members.append(waiting)
    return Pack(sender, members, packed)


# -- Opens and closes the link of a sender to its entity -------------------------------


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


# -- Keeps the link of a sender open from one message to the next ----------------------


if TYPE_CHECKING:
    from azure.servicebus.aio import ServiceBusSender


class KeptLink:
    """A link that is opened at the first use, and again after errors.

    Only one coroutine may use it at a time.

    Args:
        link: opens a link.
        timings: the time limits of Service Bus; may be replaced later.

    Attributes:
        sender: the open sender of the SDK; None = the link is not open.
    """

    def __init__(
        self, link: Callable[[], Coroutine[None, None, Link]], timings: Timings
    ) -> None:
        self._link = link
        self.timings = timings
        self.sender: ServiceBusSender | None = None
        self._stack = AsyncExitStack()
        self._is_suspect = False
        self._used = float("-inf")

    @property
    def idle(self) -> float:
        """Seconds since the link was used or opened."""
        return _now() - self._used

    async def send(self, batch: list[Waiting]) -> int:
        """Send as many of ``batch`` as fit into one transfer; return how many.

        Raises:
            Exception: as ``bridge.servicebus.errors.failures``.
        """
        if self.sender is None or self._is_suspect:
            return await self._send_anew(batch)
        try:
            async with asyncio.timeout(self.timings.stale):
                return await self._transmit(self.sender, batch)
        except failures() as error:
            if leaves_link_whole(error):
                raise
            return await self._send_anew(batch)

    async def reopen(self) -> None:
        """Open a new link, and send nothing.

        Raises:
            Exception: as ``send``.
        """
        async with asyncio.timeout(self.timings.attempt):
            await self.drop()
            await self._open()

    async def drop(self) -> None:
        """Close the link, and ignore errors."""
        if self.sender is None:
            return
        stack, self._stack = self._stack, AsyncExitStack()
        self.sender, self._is_suspect = None, False
        await close(stack, self.timings)

    async def _send_anew(self, batch: list[Waiting]) -> int:
        await self.drop()
        async with asyncio.timeout(self.timings.attempt):
            return await self._transmit(await self._open(), batch)

    async def _transmit(self, sender: "ServiceBusSender", batch: list[Waiting]) -> int:
        self._is_suspect = True  # stays so after a cancellation, which may break it
        try:
            sent = await transfer(sender, batch, self.timings.attempt)
        except failures() as error:
            self._is_suspect = not leaves_link_whole(error)
            raise
        self._is_suspect = False
        self._used = _now()
        return sent

    async def _open(self) -> "ServiceBusSender":
        self._stack, self.sender = await first_open(self._link, self.timings)
        self._used = _now()
        return self.sender


def _now() -> float:
    return asyncio.get_running_loop().time()
