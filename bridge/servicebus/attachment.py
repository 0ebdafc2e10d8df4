"""An open receiver: the messages that it has given out, and their locks.

It lives from the opening of the receiver to the first error. Nothing of it outlives an
error: the messages that are not settled by then are delivered again.
"""

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from bridge.foundation.clock import Clock
from bridge.foundation.errors import Reason, TransientDeliveryError
from bridge.servicebus.decode import guarded, read
from bridge.servicebus.lock_renewal import Locks
from bridge.servicebus.message import ReceivedMessage
from bridge.servicebus.source import ApprovalSource
from bridge.servicebus.timings import Timings

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
