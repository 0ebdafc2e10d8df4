"""Where an approver waits for the reply to what he asked for.

Several approvers may wait at one queue. So replies are looked at without a lock
(peek), and everybody finds his own by its CorrelationId whatever another does
meanwhile. Only a reply that was found is taken from the queue. What had to be locked
to get at it is released: no failed delivery is counted, as one would be for what is
abandoned, and ten such dead-letter a reply that nobody has read. Should a broker count
it all the same, nobody goes past a reply for which it has done so twice. What is not
taken stays until its time to live is over.

A queue that requires sessions cannot be told from another without management rights,
so the wrong kind of receiver is tried first: there, a session of its own is accepted.
"""

import asyncio
import logging
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self
from uuid import uuid4

import orjson

from bridge.foundation.clock import Clock
from bridge.servicebus.decode import body_of, text_of
from bridge.servicebus.errors import as_delivery_error, failures, is_not_allowed
from bridge.servicebus.namespace import NamespaceConfig, open_handle
from bridge.servicebus.undecodable import guarded

if TYPE_CHECKING:
    from azure.servicebus import ServiceBusReceivedMessage
    from azure.servicebus.aio import ServiceBusClient, ServiceBusReceiver

_OPEN_SECONDS = 10.0
_LOOK_SECONDS = 10.0
_LEAST_SECONDS = 2.0  # for a look that begins when time is up
_TAKE_SECONDS = 5.0
_CLOSE_SECONDS = 1.0
_EVERY_SECONDS = 0.25
_MOST_DELIVERED = 2  # of a reply that is locked to get at what stands behind it
_PAGE = 100  # so many are peeked at a time, and may be locked to get at one's own

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Found:
    """A reply that was looked at.

    Attributes:
        before: how many stand before it.
        delivered: how often one of those was delivered at most.
    """

    reply: "ServiceBusReceivedMessage"
    before: int
    delivered: int

    @property
    def may_be_taken(self) -> bool:
        """Whether it does others no harm to get at it."""
        return self.before < _PAGE and self.delivered < _MOST_DELIVERED


class Answers:
    """The replies at one queue, as one approver sees them; opened by ``async with``.

    Args:
        config: how the namespace is reached.
        entity: the queue that replies are sent to.
        clock: to wait by.

    Attributes:
        session: what ReplyToSessionId has to be; None = the queue has no sessions.
        last_error: why the queue could not be read last; None while it can be.
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
            DeliveryError: the queue cannot be received from.
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

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._close()

    async def outcomes(
        self, message_id: str, within: float
    ) -> list[dict[str, object]] | None:
        """Wait for the reply to a message.

        Args:
            message_id: of the approval.
            within: seconds.

        Returns:
            What became of each EventId; None if no reply came.
        """
        end = self._clock.monotonic() + within
        while (found := await self._look(message_id, end)) is None:
            left = end - self._clock.monotonic()
            if left <= 0:
                return None
            await self._clock.wait(asyncio.Event(), min(_EVERY_SECONDS, left))
        with suppress(*failures()):  # it was read: that is what counts
            if found.may_be_taken:
                await self._take(message_id, found.before)
        return _outcomes(found.reply)

    @property
    def _target(self) -> str:
        return f"Service Bus entity {self._entity}"

    async def _look(self, message_id: str, end: float) -> Found | None:
        """Look once, also when time is up; a receiver that broke is closed."""
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
        """Go through all that is there."""
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
        """Complete a reply, and release the ``before`` that stand before it.

        Another approver may just hold it: then it stays.
        """
        async with asyncio.timeout(_TAKE_SECONDS):
            try:
                held = await self._held(before + 1)
            except failures():  # a session is lost while nobody receives from it
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
        """Close the receiver, however it takes it."""
        stack, self._stack = self._stack, AsyncExitStack()
        self._receiver = None
        with suppress(*failures()):
            async with asyncio.timeout(_CLOSE_SECONDS):
                await stack.aclose()


async def _release(
    receiver: "ServiceBusReceiver", message: "ServiceBusReceivedMessage"
) -> None:
    """Unlock a message as if it had never been delivered.

    The SDK does so with what comes while nobody receives, and offers it to nobody else.
    Where the names used here have changed, the message is abandoned.
    """
    handler: Any = receiver._handler  # noqa: SLF001  see above
    try:
        settle = handler.settle_messages_async
        name, tag = message._delivery_id, message._delivery_tag  # noqa: SLF001
    except AttributeError as error:
        log.warning("reply abandoned, not released", extra={"fault": str(error)})
        await receiver.abandon_message(message)
        return
    await settle(name, tag, "released")


def _is_reply(message: "ServiceBusReceivedMessage", message_id: str) -> bool:
    return text_of(message.correlation_id) == message_id


def _outcomes(message: "ServiceBusReceivedMessage") -> list[dict[str, object]]:
    """Return what a reply says; nothing of one that no bridge has written."""
    try:
        body = orjson.loads(body_of(message.body))
    except orjson.JSONDecodeError:
        return []
    outcomes = body.get("outcomes") if isinstance(body, dict) else None
    found = outcomes if isinstance(outcomes, list) else []
    return [one for one in found if isinstance(one, dict)]
