"""Keeps the link of a sender open from one message to the next.

A link may be dead when it is used (detached, token expired, connection dropped). Then,
and only then, a second attempt follows at once, on a new link. After any error that is
not about the message itself, the link is closed.
"""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from bridge.servicebus.errors import failures, leaves_link_whole
from bridge.servicebus.link import Link, close, first_open
from bridge.servicebus.packing import Waiting, transfer
from bridge.servicebus.timings import Timings

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
