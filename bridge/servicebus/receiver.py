"""Receives messages from the approval entity, and settles them.

Problems of the SDK, and what this file does about them:

* Any receiver may die. After an error it is closed, and the next ``receive`` opens a
  new one. Messages that are not settled by then are delivered again.
* The SDK treats some of its own errors as a time-out. From then on, it returns an empty
  list at once. So a wait that ends much too early means that the receiver is broken. A
  message that it cannot decode is one cause: see ``bridge.servicebus.decode``.
* A silent peer looks like an empty queue. So a receiver without a session peeks at the
  queue every 20 s and must get an answer. A receiver with a session is closed if its
  lock was not renewed for as long as the lock lasts.
* If a connection dies silently, the broker notices it only after minutes. A message
  sent to it stays locked until the lock ends, and may then be sent to it again. So only
  one message at a time is requested, unless the source says otherwise.
* A session that another bridge serves is not an error. It is requested again after a
  quarter of the lock time, so that this bridge takes over if the other one dies.

    detached --receive--> attached --any error--> broken --receive--> detached
       |  ^
       v  | a quarter of the lock time
     stands by: another bridge has the session
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import TYPE_CHECKING

from bridge.foundation.clock import Clock
from bridge.foundation.errors import (
    ApprovalQueueError,
    Reason,
    RefusedDeliveryError,
    TransientDeliveryError,
)
from bridge.foundation.workers import cancel_all
from bridge.servicebus.attachment import Attachment, LockTime, receiver_of
from bridge.servicebus.errors import (
    as_delivery_error,
    failures,
    is_held_elsewhere,
    is_lock_lost,
)
from bridge.servicebus.message import ReceivedMessage
from bridge.servicebus.namespace import NamespaceConfig, open_handle
from bridge.servicebus.source import ApprovalSource
from bridge.servicebus.timings import TIMINGS, Timings

if TYPE_CHECKING:
    from datetime import datetime

    from azure.servicebus import ServiceBusReceivedMessage
    from azure.servicebus.aio import ServiceBusReceiver

log = logging.getLogger(__name__)

_POLL_SECONDS = 30.0
_LEAST_POLL_SECONDS = 20.0  # a shorter wait means that the receiver is broken
_TICK_SECONDS, _TICK_SLACK = 1.25, 0.5  # about each second, together with the IMDS poll
_LONGEST_REASON = 1024
_CUT_SHORT = "the SDK has given up receiving, without an error"

Settle = Callable[["ServiceBusReceiver", "ServiceBusReceivedMessage"], Awaitable[None]]


class ApprovalQueue:
    """A receiver that is opened at the first use, and again after errors.

    Receiving, settling and renewing share one receiver, and an error of one of them
    breaks all. Only one caller may use ``receive`` at a time; others may settle
    messages meanwhile. Made by ``open_queue``, which also renews the locks.

    Args:
        lock_time: the lock time of the entity; shared by all sessions of it.
        timings: the time limits of Service Bus.

    Attributes:
        last_error: the last error; None while the receiver is attached.
        stands_by: whether another bridge serves the session.
        last_receive: when a message came last; None = none yet.
    """

    def __init__(
        self,
        config: NamespaceConfig,
        source: ApprovalSource,
        clock: Clock,
        lock_time: LockTime | None = None,
        timings: Timings = TIMINGS,
    ) -> None:
        self._config = config
        self._timings = timings
        self._source = source
        self._clock = clock
        self._guard = asyncio.Lock()  # settling and renewing, one at a time
        self._stack = AsyncExitStack()
        self._attachment: Attachment | None = None
        self._broken = asyncio.Event()
        self._lock_time = lock_time or LockTime()
        self.last_error: str | None = None
        self.stands_by = False
        self.last_receive: datetime | None = None

    @property
    def attached(self) -> bool:
        """Whether the receiver is open, as far as is known."""
        return self._attachment is not None and not self._broken.is_set()

    @property
    def link_seconds(self) -> float | None:
        """How long the receiver has been attached; None while it is not."""
        if self._attachment is None or self._broken.is_set():
            return None
        return self._clock.monotonic() - self._attachment.began

    async def reach(self) -> Attachment:
        """Open the receiver unless it is open, and return it; receive nothing.

        Raises:
            ApprovalQueueError: the receiver cannot be opened.
        """
        if self._broken.is_set():
            await self.close()
        if self._attachment is None:
            try:
                async with asyncio.timeout(self._timings.open):
                    self._attachment = await self._open()
            except failures() as error:
                raise self._break(error) from error
            if self.stands_by:
                log.info("session taken over", extra={"source": str(self._source)})
            self.last_error, self.stands_by = None, False
        return self._attachment

    async def receive(self, stop: asyncio.Event) -> list[ReceivedMessage]:
        """Wait for messages, for at most half a minute.

        Returns:
            The messages; none if no message came, ``stop`` was set, or another bridge
            serves the session.

        Raises:
            ApprovalQueueError: messages cannot be received now; the next call opens a
                new receiver.
        """
        if stop.is_set():
            return []
        try:
            attachment = await self.reach()
        except ApprovalQueueError:
            if not self.stands_by:
                raise
            await self._clock.wait(stop, self._lock_time.quarter)
            return []
        began = self._clock.monotonic()
        receiver, most = attachment.receiver, self._source.at_once
        polling = asyncio.create_task(
            receiver.receive_messages(most, max_wait_time=_POLL_SECONDS)
        )
        waits = [asyncio.create_task(e.wait()) for e in (stop, self._broken)]
        try:
            await asyncio.wait([polling, *waits], return_when=asyncio.FIRST_COMPLETED)
        finally:
            await cancel_all(polling, *waits)
        if self._broken.is_set():
            raise ApprovalQueueError(self.last_error or f"{self._source} is lost")
        if polling.cancelled():  # ``stop`` is set; a message in transit is released
            return []
        try:
            messages = polling.result()
        except failures() as error:
            raise self._break(error) from error
        if messages:
            self.last_receive = self._clock.now()
        elif self._clock.monotonic() - began < _LEAST_POLL_SECONDS:
            raise self._break(TransientDeliveryError(_CUT_SHORT, Reason.UNFORESEEN))
        return [attachment.hold(message) for message in messages]

    async def complete(self, message: ReceivedMessage) -> None:
        """Complete the message: it was handled.

        Raises:
            ApprovalQueueError: it was not settled, and will be delivered again.
        """
        await self._settle(message, lambda r, m: r.complete_message(m))

    async def abandon(self, message: ReceivedMessage) -> None:
        """Abandon the message: it is delivered again.

        Raises:
            ApprovalQueueError: it was not settled, and will be delivered again later.
        """
        await self._settle(message, lambda r, m: r.abandon_message(m))

    async def dead_letter(
        self, message: ReceivedMessage, reason: str, description: str
    ) -> None:
        """Dead-letter the message.

        Raises:
            ApprovalQueueError: it was not settled, and will be delivered again.
        """
        words = description[:_LONGEST_REASON]
        await self._settle(
            message,
            lambda r, m: r.dead_letter_message(
                m, reason=reason, error_description=words
            ),
        )

    async def _settle(self, message: ReceivedMessage, settle: Settle) -> None:
        async with self._guard:
            attachment = self._attachment
            if attachment is None:
                raise _lock_lost(self._source)
            held = attachment.let_go(message.lock_token)
            if held is None or self._broken.is_set():
                raise _lock_lost(self._source)
            try:
                async with asyncio.timeout(self._timings.settle):
                    await settle(attachment.receiver, held)
            except failures() as error:
                lost = is_lock_lost(error)
                raise (
                    _lock_lost(self._source) if lost else self._break(error)
                ) from error

    async def _open(self) -> Attachment:
        source = self._source
        handle = open_handle(self._config, lambda client: receiver_of(client, source))
        attachment = Attachment(
            await self._stack.enter_async_context(handle),
            has_session=source.session is not None,
            clock=self._clock,
            timings=self._timings,
        )
        if (seconds := attachment.begin()) is not None:
            self._lock_time.seconds = seconds
        return attachment

    async def keep(self, stop: asyncio.Event) -> None:
        """Renew locks until ``stop`` is set."""
        while not await self._clock.wait(stop, _TICK_SECONDS, slack=_TICK_SLACK):
            await self.renew()

    async def renew(self) -> None:
        """Renew the locks that are due; messages may be settled in between."""
        while self.attached and not await self._renew_some():
            pass

    async def _renew_some(self) -> bool:
        """Renew some of the due locks; return whether no due lock is left."""
        async with self._guard:
            if self._attachment is None:  # closed meanwhile
                return True
            try:
                await self._attachment.renew_some()
            except failures() as error:
                self._break(error)
            return not self._attachment.are_locks_due

    def _break(self, error: Exception) -> ApprovalQueueError:
        """Mark the receiver as broken; return the error to raise."""
        host = self._config.host_if_known
        meant = as_delivery_error(error, f"Service Bus {self._source}", host=host)
        self.last_error = str(meant)
        if is_held_elsewhere(error) and not self.stands_by:
            log.info("session held elsewhere", extra={"source": str(self._source)})
        self.stands_by = is_held_elsewhere(error)
        self._broken.set()
        is_refusal = isinstance(meant, RefusedDeliveryError)
        return ApprovalQueueError(self.last_error, is_refusal=is_refusal)

    async def close(self) -> None:
        """Close the receiver, and ignore errors; the next ``receive`` opens one."""
        async with self._guard:
            if self._attachment is None and not self._broken.is_set():
                return
            stack, self._stack = self._stack, AsyncExitStack()
            self._attachment = None
            self._broken.clear()
            with suppress(*failures()):
                async with asyncio.timeout(self._timings.close):
                    await stack.aclose()


def _lock_lost(source: ApprovalSource) -> ApprovalQueueError:
    return ApprovalQueueError(f"{source}: the lock of a message is lost")


@asynccontextmanager
async def open_queue(
    config: NamespaceConfig,
    source: ApprovalSource,
    clock: Clock,
    lock_time: LockTime | None = None,
    timings: Timings = TIMINGS,
) -> AsyncIterator[ApprovalQueue]:
    """Make a queue and renew its locks; it connects at the first ``receive``."""
    queue = ApprovalQueue(config, source, clock, lock_time, timings)
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(queue.keep(stop), name=f"locks of {source}")
        try:
            yield queue
        finally:
            stop.set()
            await queue.close()
