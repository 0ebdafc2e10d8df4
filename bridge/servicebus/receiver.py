"""Receives from the approval entity, and settles: the Service Bus side of approvals.

What the SDK asks of its users, and what is done about it here:

* A session receiver never reconnects, and any receiver may die: after any error the
  receiver is closed and the next ``receive`` opens a new one. What was handed out
  and not settled by then is simply delivered again.
* It takes some of its own errors for a time-out, and returns nothing, at once, from
  then on: a wait that ends long before its time means a broken receiver. A message
  that it cannot decode would cause one: see ``bridge.servicebus.undecodable``.
* A silent peer looks like an empty queue: a receiver that has no lock to renew looks
  at the queue every 20 s, and has to be answered; one of a session that was not
  renewed for as long as its lock lasts is given up.
* A connection that went dead without a word is alive to the broker for minutes: what is
  handed to it is locked, for nobody, as long as a lock lasts, and may then be handed to
  it once more. One message at a time is asked for, so that this befalls one, once.
* A session that another bridge serves is no fault: it is asked for again at a quarter
  of the lock time, so that it is taken over when the other one dies.
* Settling several messages at once is slower than one after the other.

    detached --receive--> attached --any error--> broken --receive--> detached
       |  ^
       v  | a quarter of the lock time
     stands by: the session is held elsewhere
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
from bridge.servicebus.decode import read
from bridge.servicebus.errors import (
    as_delivery_error,
    failures,
    is_held_elsewhere,
    is_lock_lost,
)
from bridge.servicebus.lock_renewal import RENEW_SECONDS, Locks, LockTime
from bridge.servicebus.message import ReceivedMessage
from bridge.servicebus.namespace import NamespaceConfig, open_handle
from bridge.servicebus.undecodable import guarded

if TYPE_CHECKING:
    from datetime import datetime

    from azure.servicebus import ServiceBusReceivedMessage
    from azure.servicebus.aio import ServiceBusClient, ServiceBusReceiver

from bridge.servicebus.source import ApprovalSource

log = logging.getLogger(__name__)

_OPEN_SECONDS = 10.0
_POLL_SECONDS = 30.0
_LEAST_POLL_SECONDS = 20.0  # what is shorter was no wait for messages
_SETTLE_SECONDS = 10.0
_CLOSE_SECONDS = 1.0
_TICK_SECONDS = 0.5
_LOOK_SECONDS = 20.0
_AT_ONCE = 1
_LONGEST_REASON = 1024
_SESSION = "session"
_CUT_SHORT = "the SDK has given up receiving, without an error"
_LAPSED = "the lock of the session was not renewed for longer than it lasts"

Settle = Callable[["ServiceBusReceiver", "ServiceBusReceivedMessage"], Awaitable[None]]


class ApprovalQueue:
    """A receiver that is opened lazily, and anew when it broke.

    It is one class because receiving, settling and renewing share one receiver, and
    what breaks one of them breaks all. ``receive`` is for one caller at a time; others
    may settle messages meanwhile. Made by ``open_queue``, which also keeps the locks.

    Args:
        lock_time: of the entity, where other queues of it learn and use it too.
        look: seconds between two looks that have to be answered.

    Attributes:
        last_error: why there was no receiver last; None once there is one.
        stands_by: whether another bridge serves the session, as it should be.
        last_receive: when a message came last; None = none has yet.
    """

    def __init__(
        self,
        config: NamespaceConfig,
        source: ApprovalSource,
        clock: Clock,
        lock_time: LockTime | None = None,
        look: float = _LOOK_SECONDS,
    ) -> None:
        self._config = config
        self._look_seconds = look
        self._source = source
        self._clock = clock
        self._guard = asyncio.Lock()  # settling and renewing, one at a time
        self._stack = AsyncExitStack()
        self._receiver: ServiceBusReceiver | None = None
        self._held: dict[str, ServiceBusReceivedMessage] = {}
        self._locks = Locks(clock)
        self._broken = asyncio.Event()
        self._lock_time = lock_time or LockTime()
        self._attached_at = 0.0
        self.last_error: str | None = None
        self.stands_by = False
        self.last_receive: datetime | None = None

    @property
    def attached(self) -> bool:
        """Whether a message would be received now, as far as is known."""
        return self._receiver is not None and not self._broken.is_set()

    @property
    def link_seconds(self) -> float | None:
        """How long the receiver has been attached; None while it is not."""
        if not self.attached:
            return None
        return self._clock.monotonic() - self._attached_at

    async def reach(self) -> None:
        """Attach, and receive nothing.

        Raises:
            ApprovalQueueError: there is no receiver to be had.
        """
        await self._attached()

    async def receive(self, stop: asyncio.Event) -> list[ReceivedMessage]:
        """Wait for messages; none after half a minute or when ``stop`` is set.

        Nor while another bridge serves the session.

        Raises:
            ApprovalQueueError: there is no receiver now; the next call opens one.
        """
        if stop.is_set():
            return []
        try:
            receiver = await self._attached()
        except ApprovalQueueError:
            if not self.stands_by:
                raise
            await self._clock.wait(stop, self._lock_time.quarter)
            return []
        began = self._clock.monotonic()
        polling = asyncio.create_task(
            receiver.receive_messages(_AT_ONCE, max_wait_time=_POLL_SECONDS)
        )
        waits = [asyncio.create_task(e.wait()) for e in (stop, self._broken)]
        try:
            await asyncio.wait([polling, *waits], return_when=asyncio.FIRST_COMPLETED)
        finally:
            await cancel_all(polling, *waits)
        if self._broken.is_set():
            raise ApprovalQueueError(self.last_error or f"{self._source} is lost")
        if polling.cancelled():  # asked to stop; what was on its way is released
            return []
        try:
            messages = polling.result()
        except failures() as error:
            raise self._break(error) from error
        if messages:
            self.last_receive = self._clock.now()
        elif self._clock.monotonic() - began < _LEAST_POLL_SECONDS:
            raise self._break(TransientDeliveryError(_CUT_SHORT, Reason.UNFORESEEN))
        return [self._hold(receiver, message) for message in messages]

    async def complete(self, message: ReceivedMessage) -> None:
        """Take the message from the entity: it was dealt with.

        Raises:
            ApprovalQueueError: it will be delivered again.
        """
        await self._settle(message, lambda r, m: r.complete_message(m))

    async def abandon(self, message: ReceivedMessage) -> None:
        """Give the message back, to be delivered again.

        Raises:
            ApprovalQueueError: it will be delivered again, but later.
        """
        await self._settle(message, lambda r, m: r.abandon_message(m))

    async def dead_letter(
        self, message: ReceivedMessage, reason: str, description: str
    ) -> None:
        """Put the message aside for a person to look at.

        Raises:
            ApprovalQueueError: it will be delivered again.
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
            self._locks.drop(message.lock_token)
            held = self._held.pop(message.lock_token, None)
            if held is None or self._receiver is None or self._broken.is_set():
                raise self._lock_lost()
            try:
                async with asyncio.timeout(_SETTLE_SECONDS):
                    await settle(self._receiver, held)
            except failures() as error:
                lost = is_lock_lost(error)
                raise (self._lock_lost() if lost else self._break(error)) from error

    async def _attached(self) -> "ServiceBusReceiver":
        if self._broken.is_set():
            await self.close()
        if self._receiver is None:
            try:
                async with asyncio.timeout(_OPEN_SECONDS):
                    self._receiver = await self._open()
            except failures() as error:
                raise self._break(error) from error
            if self.stands_by:
                log.info("session taken over", extra={"source": str(self._source)})
            self.last_error, self.stands_by = None, False
            self._attached_at = self._clock.monotonic()
        return self._receiver

    async def _open(self) -> "ServiceBusReceiver":
        handle = open_handle(self._config, self._make)
        receiver = await self._stack.enter_async_context(handle)
        session = receiver.session  # None where there are none, whatever its type says
        if self._source.session is None:
            self._locks.repeat(
                "look",
                lambda: receiver.peek_messages(timeout=RENEW_SECONDS),
                self._look_seconds,
            )
        else:
            self._lock_time.seconds = self._locks.keep(
                _SESSION,
                lambda: session.renew_lock(timeout=RENEW_SECONDS),
                session.locked_until_utc,
            )
        return receiver

    def _make(self, client: "ServiceBusClient") -> "ServiceBusReceiver":
        source, session = self._source, self._source.session
        if source.queue:
            return guarded(client.get_queue_receiver(source.queue, session_id=session))
        return guarded(
            client.get_subscription_receiver(
                source.topic, source.subscription, session_id=session
            )
        )

    def _hold(
        self, receiver: "ServiceBusReceiver", message: "ServiceBusReceivedMessage"
    ) -> ReceivedMessage:
        received = read(message)
        self._held[received.lock_token] = message
        if self._source.session is None:  # else the session's lock is theirs too
            self._locks.keep(
                received.lock_token,
                lambda: receiver.renew_message_lock(message, timeout=RENEW_SECONDS),
                received.locked_until,
            )
        return received

    async def keep(self, stop: asyncio.Event) -> None:
        """Renew locks until ``stop`` is set."""
        while not await self._clock.wait(stop, _TICK_SECONDS):
            await self.renew()

    async def renew(self) -> None:
        """Renew the locks that are due; others may settle in between."""
        while self.attached and not await self._renew_some():
            pass

    async def _renew_some(self) -> bool:
        """Renew some of the locks that are due; return whether none is left."""
        async with self._guard:
            try:
                if self._locks.has_lapsed(_SESSION):
                    raise TransientDeliveryError(_LAPSED, Reason.TIMEOUT)
                for lost in await self._locks.renew_due():
                    self._held.pop(lost, None)
            except failures() as error:
                self._break(error)
            return not self._locks.are_due

    def _lock_lost(self) -> ApprovalQueueError:
        return ApprovalQueueError(f"{self._source}: the lock of a message is lost")

    def _break(self, error: Exception) -> ApprovalQueueError:
        """Note that the receiver is of no use any more, and why."""
        meant = as_delivery_error(error, f"Service Bus {self._source}")
        self.last_error = str(meant)
        if is_held_elsewhere(error) and not self.stands_by:
            log.info("session held elsewhere", extra={"source": str(self._source)})
        self.stands_by = is_held_elsewhere(error)
        self._broken.set()
        is_refusal = isinstance(meant, RefusedDeliveryError)
        return ApprovalQueueError(self.last_error, is_refusal=is_refusal)

    async def close(self) -> None:
        """Close the receiver, however it takes it; the next ``receive`` opens one."""
        async with self._guard:
            if self._receiver is None and not self._broken.is_set():
                return
            stack, self._stack = self._stack, AsyncExitStack()
            self._receiver = None
            self._held.clear()
            self._locks.clear()
            self._broken.clear()
            with suppress(*failures()):
                async with asyncio.timeout(_CLOSE_SECONDS):
                    await stack.aclose()


@asynccontextmanager
async def open_queue(
    config: NamespaceConfig,
    source: ApprovalSource,
    clock: Clock,
    lock_time: LockTime | None = None,
    look: float = _LOOK_SECONDS,
) -> AsyncIterator[ApprovalQueue]:
    """Make a queue and keep its locks; nothing is connected before ``receive``."""
    queue = ApprovalQueue(config, source, clock, lock_time, look)
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(queue.keep(stop), name=f"locks of {source}")
        try:
            yield queue
        finally:
            stop.set()
            await queue.close()
