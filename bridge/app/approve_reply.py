"""Waits for the reply to an approval, for ``sebridge approve --wait``.

Several approvers may wait at one queue. So a reply is searched for without locks
(peek), by its CorrelationId. Only the own reply is then received and completed. To
receive it, the replies before it must be locked, too; they are released afterwards.
They are not abandoned, because Service Bus counts that as a failed delivery, and
dead-letters a message after ten of them. Some brokers may also count a release. So a
reply that was delivered twice is not locked again, and the own reply then stays in the
queue until its time to live ends.

Without management rights, it is not known whether a queue requires sessions. So a
receiver without a session is tried first. If it is refused, a session is accepted.
"""

import asyncio
import logging
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING, Any, Self
from uuid import uuid4

import orjson
from msgspec import Struct

from bridge.events.cloudevent import DEEPEST
from bridge.events.document import is_deep
from bridge.foundation.clock import Clock
from bridge.servicebus.decode import body_of, guarded, text_of
from bridge.servicebus.errors import as_delivery_error, failures, is_not_allowed
from bridge.servicebus.namespace import NamespaceConfig, open_handle

if TYPE_CHECKING:
    from azure.servicebus import ServiceBusReceivedMessage
    from azure.servicebus.aio import ServiceBusClient, ServiceBusReceiver

_OPEN_SECONDS = 10.0
_LOOK_SECONDS = 10.0
_LEAST_SECONDS = 2.0  # for the last look, when the time is over
_TAKE_SECONDS = 5.0
_CLOSE_SECONDS = 1.0
_EVERY_SECONDS = 0.25
_MOST_DELIVERED = 2  # a reply of others that was delivered so often is not locked
_PAGE = 100  # messages per peek; and how many may be locked to receive the own reply

log = logging.getLogger(__name__)


class Found(Struct, frozen=True):
    """The reply, found by a peek.

    Attributes:
        reply: the message.
        before: how many messages are before it in the queue.
        delivered: the highest delivery count of these messages.
    """

    reply: "ServiceBusReceivedMessage"
    before: int
    delivered: int

    @property
    def may_be_taken(self) -> bool:
        """Whether the reply can be received without harm to the replies before it."""
        return self.before < _PAGE and self.delivered < _MOST_DELIVERED


class Answers:
    """The replies in one queue; opened by ``async with``.

    Args:
        config: the connection to the namespace.
        entity: the queue that replies are sent to.
        clock: measures the waits.

    Attributes:
        session: the ReplyToSessionId to use; None = the queue has no sessions.
        last_error: why the last look failed; None if it succeeded.
    """

    def __init__(self, config: NamespaceConfig, entity: str, clock: Clock) -> None:
        self._config = config
        self._entity = entity
        self._clock = clock
        self._stack = AsyncExitStack()
        self._receiver: ServiceBusReceiver | None = None
        self.session: str | None = None
        self.last_error: str | None = None

    async def __aenter__(self) -> Self:
        """Open a receiver.

        Raises:
            DeliveryError: messages of the queue cannot be received.
        """
        try:
            try:
                await self._opened()
            except failures() as error:
                if not is_not_allowed(error):
                    raise
                self.session = uuid4().hex
                await self._opened()
        except failures() as error:
            raise as_delivery_error(error, self._target) from error
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._close()

    async def outcomes(
        self, message_id: str, within: float
    ) -> list[dict[str, object]] | None:
        """Wait for the reply to a message.

        Args:
            message_id: the MessageId of the approval.
            within: how many seconds to wait.

        Returns:
            The outcome of each EventId; None if no reply came.
        """
        end = self._clock.monotonic() + within
        while (found := await self._look(message_id, end)) is None:
            left = end - self._clock.monotonic()
            if left <= 0:
                return None
            await self._clock.wait(asyncio.Event(), min(_EVERY_SECONDS, left))
        with suppress(*failures()):  # the reply was read; removing it is optional
            if found.may_be_taken:
                await self._take(message_id, found.before)
        return _outcomes(found.reply)

    @property
    def _target(self) -> str:
        return f"Service Bus entity {self._entity}"

    async def _look(self, message_id: str, end: float) -> Found | None:
        """Search once, even if the time is over; close the receiver after an error."""
        left = max(end - self._clock.monotonic(), _LEAST_SECONDS)
        try:
            async with asyncio.timeout(min(left, _LOOK_SECONDS)):
                found = await self._found(message_id)
        except failures() as error:
            self.last_error = str(as_delivery_error(error, self._target))
            await self._close()
            return None
        self.last_error = None
        return found

    async def _found(self, message_id: str) -> Found | None:
        """Search all messages of the queue for the reply."""
        receiver = await self._opened()
        before, delivered, number = 0, 0, 1
        while page := await receiver.peek_messages(_PAGE, sequence_number=number):
            for message in page:
                if _is_reply(message, message_id):
                    return Found(message, before, delivered)
                before += 1
                delivered = max(delivered, message.delivery_count or 0)
            number = max(message.sequence_number or 0 for message in page) + 1
        return None

    async def _take(self, message_id: str, before: int) -> None:
        """Complete the reply, and release the ``before`` messages before it.

        If another approver has just locked the reply, it stays in the queue.
        """
        async with asyncio.timeout(_TAKE_SECONDS):
            try:
                held = await self._held(before + 1)
            except failures():  # the session's lock may have ended since the last use
                await self._close()
                held = await self._held(before + 1)
            receiver = await self._opened()
            for message in held:
                if _is_reply(message, message_id):
                    await receiver.complete_message(message)
                else:
                    await _release(receiver, message)

    async def _held(self, most: int) -> list["ServiceBusReceivedMessage"]:
        receiver = await self._opened()
        return await receiver.receive_messages(most, max_wait_time=1)

    async def _opened(self) -> "ServiceBusReceiver":
        if self._receiver is None:
            async with asyncio.timeout(_OPEN_SECONDS):
                self._receiver = await self._stack.enter_async_context(
                    open_handle(self._config, self._make)
                )
        return self._receiver

    def _make(self, client: "ServiceBusClient") -> "ServiceBusReceiver":
        return guarded(client.get_queue_receiver(self._entity, session_id=self.session))

    async def _close(self) -> None:
        """Close the receiver, and ignore errors."""
        stack, self._stack = self._stack, AsyncExitStack()
        self._receiver = None
        with suppress(*failures()):
            async with asyncio.timeout(_CLOSE_SECONDS):
                await stack.aclose()


async def _release(
    receiver: "ServiceBusReceiver", message: "ServiceBusReceivedMessage"
) -> None:
    """Unlock a message without counting a delivery.

    The SDK does this internally, but has no public method for it. If the internal names
    used here have changed, the message is abandoned.
    """
    handler: Any = receiver._handler  # noqa: SLF001  see above
    try:
        settle = handler.settle_messages_async
        name, tag = message._delivery_id, message._delivery_tag  # noqa: SLF001 - see above
    except AttributeError as error:
        log.warning("reply abandoned, not released", extra={"fault": str(error)})
        await receiver.abandon_message(message)
        return
    await settle(name, tag, "released")


def _is_reply(message: "ServiceBusReceivedMessage", message_id: str) -> bool:
    return text_of(message.correlation_id) == message_id


def _outcomes(message: "ServiceBusReceivedMessage") -> list[dict[str, object]]:
    """Return the outcomes in a reply; empty if a bridge has not written it."""
    try:
        body = orjson.loads(body_of(message.body))
    except orjson.JSONDecodeError:
        return []
    is_ours = isinstance(body, dict) and not is_deep(body, DEEPEST)
    outcomes = body.get("outcomes") if is_ours else None
    found = outcomes if isinstance(outcomes, list) else []
    return [one for one in found if isinstance(one, dict)]
