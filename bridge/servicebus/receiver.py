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
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from msgspec import Struct

from bridge.foundation.clock import Clock
from bridge.foundation.errors import (
    ApprovalQueueError,
    Reason,
    RefusedDeliveryError,
    TransientDeliveryError,
)
from bridge.foundation.workers import cancel_all
from bridge.servicebus.decode import (
    COMPLETE,
    ReceivedMessage,
    Settlement,
    guarded,
    read,
)
from bridge.servicebus.errors import (
    as_delivery_error,
    failures,
    is_held_elsewhere,
    is_lock_lost,
)
from bridge.servicebus.namespace import (
    TIMINGS,
    ApprovalSource,
    NamespaceConfig,
    Timings,
    open_handle,
)

if TYPE_CHECKING:
    from azure.servicebus import ServiceBusReceivedMessage
    from azure.servicebus.aio import ServiceBusClient, ServiceBusReceiver

log = logging.getLogger(__name__)

_POLL_SECONDS = 30.0
_LEAST_POLL_SECONDS = 20.0  # a shorter wait means that the receiver is broken
_TICK_SECONDS, _TICK_SLACK = 1.25, 0.5  # about each second, together with the IMDS poll
_LONGEST_REASON = 1024
_CUT_SHORT = "the SDK has given up receiving, without an error"


_SESSION = "session"
_NEVER = datetime.max.replace(tzinfo=UTC)
_LAPSED = "the lock of the session was not renewed for longer than it lasts"


# -- An open receiver: the messages that it has given out, and their locks -------------
#
# It lives from the opening of the receiver to the first error. Nothing of it outlives
# an error: the messages that are not settled by then are delivered again.


def receiver_of(
    client: "ServiceBusClient", source: ApprovalSource
) -> "ServiceBusReceiver":
    """Return a receiver of the SDK, which is not open yet."""
    session = source.session
    if source.queue:
        return guarded(client.get_queue_receiver(source.queue, session_id=session))
    return guarded(
        client.get_subscription_receiver(
            source.topic, source.subscription, session_id=session
        )
    )


class Attachment:
    """A receiver, from its opening to the first error.

    Args:
        receiver: the open receiver.
        has_session: whether it receives from a session, whose lock covers all messages.
        timings: the time limits of Service Bus.

    Attributes:
        began: when the receiver was opened, in monotonic seconds.
    """

    def __init__(
        self,
        receiver: "ServiceBusReceiver",
        *,
        has_session: bool,
        clock: Clock,
        timings: Timings,
    ) -> None:
        self.receiver = receiver
        self.began = clock.monotonic()
        self._has_session = has_session
        self._timings = timings
        self._locks = Locks(clock, timings)
        self._held: dict[str, ServiceBusReceivedMessage] = {}

    def begin(self) -> float | None:
        """Begin to renew the session's lock; without a session, to look at the queue.

        Returns:
            How long the session stays locked, in seconds; None = there is no session.
        """
        receiver = self.receiver
        if not self._has_session:
            self._locks.repeat(
                "look",
                lambda limit: receiver.peek_messages(timeout=limit),
                self._timings.look,
            )
            return None
        session = receiver.session
        return self._locks.keep(
            _SESSION,
            lambda limit: session.renew_lock(timeout=limit),
            session.locked_until_utc,
        )

    def hold(self, message: "ServiceBusReceivedMessage") -> ReceivedMessage:
        """Hold a message that was received, and begin to renew its lock."""
        received = read(message)
        self._held[received.lock_token] = message
        if not self._has_session:
            self._locks.keep(
                received.lock_token,
                lambda limit: self.receiver.renew_message_lock(message, timeout=limit),
                received.locked_until,
            )
        return received

    def let_go(self, lock_token: str) -> "ServiceBusReceivedMessage | None":
        """Stop holding a message, and return it; None = its lock is lost.

        The SDK compares the end of the lock with the clock of this machine, and refuses
        to settle if that is ahead. Only the broker knows whether the lock has ended,
        and its answer says so.
        """
        self._locks.drop(lock_token)
        held = self._held.pop(lock_token, None)
        if held is not None:
            held._expiry = _NEVER  # noqa: SLF001 - see above
        return held

    @property
    def are_locks_due(self) -> bool:
        """Whether any lock must be renewed now."""
        return self._locks.are_due

    async def renew_some(self) -> None:
        """Renew some of the due locks, and let go the messages whose locks are lost.

        Raises:
            Exception: one of ``failures()``: the receiver is broken.
        """
        if self._locks.has_lapsed(_SESSION):
            raise TransientDeliveryError(_LAPSED, Reason.TIMEOUT)
        for lost in await self._locks.renew_due():
            self._held.pop(lost, None)


# -- Renews the locks of messages, or of a session -------------------------------------
#
# The SDK's own renewer is not used, because it ends silently when its receiver dies.
# Each lock is renewed three times in its lock time, by the monotonic clock. The lock
# time is the difference between the end that the broker states and the clock of this
# machine. If that clock is wrong, locks are renewed more often than necessary.
#
# The SDK itself ends a renewal that takes too long. If it was cancelled, a task of the
# SDK might go on, and fail where nobody waits for it: so it is cancelled later only.


_AT_ONCE = 20  # renewals; then messages can be settled before the next ones
_SHORTEST_PERIOD, _LONGEST_PERIOD = 0.5, 20.0
_SHORTEST_LIFE, _LONGEST_LIFE = 5.0, 300.0  # the limits of Service Bus
_UNKNOWN_LIFE = 20.0  # shorter: too many connections; longer: approvals come too late

_LATER = 1.0  # seconds after which a renewal is cancelled that the SDK did not end

Renew = Callable[[float], Awaitable[object]]  # gets its time limit in seconds


class LockTime(Struct):
    """How long a session stays locked; the same for all sessions of an entity.

    Attributes:
        seconds: the lock time; None until a session of the entity was locked.
    """

    seconds: float | None = None

    @property
    def quarter(self) -> float:
        """Seconds until a session that another bridge has is requested again."""
        return (self.seconds or _UNKNOWN_LIFE) / 4


class _Lock(Struct):
    renew: Renew
    life: float
    period: float
    renewed: float

    @property
    def due(self) -> float:
        return self.renewed + self.period


class Locks:
    """The locks by name, and when to renew each of them."""

    def __init__(self, clock: Clock, timings: Timings = TIMINGS) -> None:
        self._clock = clock
        self._timings = timings
        self._locks: dict[str, _Lock] = {}

    def keep(self, name: str, renew: Renew, until: datetime | None) -> float:
        """Begin to renew a lock that ends at ``until``; return its time in seconds."""
        life = (until - self._clock.now()).total_seconds() if until else 0.0
        if not 0 < life <= _LONGEST_LIFE:
            life = _SHORTEST_LIFE
        period = min(max(life / 3, _SHORTEST_PERIOD), _LONGEST_PERIOD)
        self._locks[name] = _Lock(renew, life, period, self._clock.monotonic())
        return life

    def repeat(self, name: str, renew: Renew, period: float) -> None:
        """Begin to call ``renew`` every ``period`` seconds."""
        self._locks[name] = _Lock(renew, math.inf, period, self._clock.monotonic())

    def has_lapsed(self, name: str) -> bool:
        """Return whether a lock was not renewed for longer than its lock time."""
        lock = self._locks.get(name)
        return lock is not None and self._clock.monotonic() > lock.renewed + lock.life

    def drop(self, name: str) -> None:
        """Stop renewing a lock."""
        self._locks.pop(name, None)

    def clear(self) -> None:
        """Stop renewing all locks."""
        self._locks.clear()

    @property
    def are_due(self) -> bool:
        """Whether any lock must be renewed now."""
        now = self._clock.monotonic()
        return any(lock.due <= now for lock in self._locks.values())

    async def renew_due(self) -> list[str]:
        """Renew some of the due locks, those that are due longest first.

        Returns:
            The names of the locks that are lost.

        Raises:
            Exception: one of ``failures()``: the receiver is broken.
        """
        lost = []
        now = self._clock.monotonic()
        due = [item for item in self._locks.items() if item[1].due <= now]
        due.sort(key=lambda item: item[1].due)
        for name, lock in due[:_AT_ONCE]:
            limit = self._limit(lock)
            try:
                async with asyncio.timeout(limit + _LATER):
                    await lock.renew(limit)
            except failures() as error:
                if not is_lock_lost(error):
                    raise
                self.drop(name)
                lost.append(name)
            lock.renewed = self._clock.monotonic()
        return lost

    def _limit(self, lock: _Lock) -> float:
        """Return the time limit of one renewal; it is shorter for a short lock."""
        timings = self._timings
        return min(timings.renew, max(lock.period, timings.least_renew))


# -- The queue: a receiver that is opened again after errors --------------------------


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

    async def settle(
        self, message: ReceivedMessage, settlement: Settlement = COMPLETE
    ) -> None:
        """Complete, abandon or dead-letter a message.

        Raises:
            ApprovalQueueError: it was not settled, and will be delivered again.
        """
        async with self._guard:
            attachment = self._attachment
            if attachment is None:
                raise _lock_lost(self._source)
            held = attachment.let_go(message.lock_token)
            if held is None or self._broken.is_set():
                raise _lock_lost(self._source)
            try:
                async with asyncio.timeout(self._timings.settle):
                    await _settle(attachment.receiver, held, settlement)
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


async def _settle(
    receiver: "ServiceBusReceiver", held: "ServiceBusReceivedMessage", how: Settlement
) -> None:
    if how.verdict == "complete":
        await receiver.complete_message(held)
    elif how.verdict == "abandon":
        await receiver.abandon_message(held)
    else:
        words = how.words[:_LONGEST_REASON]
        await receiver.dead_letter_message(
            held, reason=how.reason, error_description=words
        )


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
