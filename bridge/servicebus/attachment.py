"""An open receiver: the messages that it has given out, and their locks.

It lives from the opening of the receiver to the first error. Nothing of it outlives an
error: the messages that are not settled by then are delivered again.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from msgspec import Struct

from bridge.foundation.clock import Clock
from bridge.foundation.errors import Reason, TransientDeliveryError
from bridge.servicebus.decode import guarded, read
from bridge.servicebus.errors import failures, is_lock_lost
from bridge.servicebus.message import ReceivedMessage
from bridge.servicebus.source import ApprovalSource
from bridge.servicebus.timings import TIMINGS, Timings

if TYPE_CHECKING:
    from azure.servicebus import ServiceBusReceivedMessage
    from azure.servicebus.aio import ServiceBusClient, ServiceBusReceiver

_SESSION = "session"
_NEVER = datetime.max.replace(tzinfo=UTC)
_LAPSED = "the lock of the session was not renewed for longer than it lasts"


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
        renew, receiver = self._timings.renew, self.receiver
        if not self._has_session:
            self._locks.repeat(
                "look",
                lambda: receiver.peek_messages(timeout=renew),
                self._timings.look,
            )
            return None
        session = receiver.session
        return self._locks.keep(
            _SESSION,
            lambda: session.renew_lock(timeout=renew),
            session.locked_until_utc,
        )

    def hold(self, message: "ServiceBusReceivedMessage") -> ReceivedMessage:
        """Hold a message that was received, and begin to renew its lock."""
        received = read(message)
        self._held[received.lock_token] = message
        if not self._has_session:
            renew = self._timings.renew
            self._locks.keep(
                received.lock_token,
                lambda: self.receiver.renew_message_lock(message, timeout=renew),
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


_AT_ONCE = 20  # renewals; then messages can be settled before the next ones
_SHORTEST_PERIOD, _LONGEST_PERIOD = 0.5, 20.0
_SHORTEST_LIFE, _LONGEST_LIFE = 5.0, 300.0  # the limits of Service Bus
_UNKNOWN_LIFE = 20.0  # shorter: too many connections; longer: approvals come too late

Renew = Callable[[], Awaitable[object]]


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
            try:
                async with asyncio.timeout(self._patience(lock)):
                    await lock.renew()
            except failures() as error:
                if not is_lock_lost(error):
                    raise
                self.drop(name)
                lost.append(name)
            lock.renewed = self._clock.monotonic()
        return lost

    def _patience(self, lock: _Lock) -> float:
        """Return the time limit of one renewal; it is shorter for a short lock."""
        timings = self._timings
        return min(timings.renew, max(lock.period, timings.least_renew))
