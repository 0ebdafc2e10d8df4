"""Service Bus, through its SDK: output bindings cannot set a SessionId.

* Senders are kept open: opening one takes half a second or more, and Slack waits only
  three. A sender breaks if two coroutines use it at once.
* A kept sender may have lost its connection. Then there is a second try with a new one.
* One receiver at a time holds a session, so two clicks cannot overwrite each other's
  changes of its state. A session needs no message to have a state.
* No message of a session is ever received: the SDK's receiver breaks at a message that
  it cannot decode, and anybody who may send to the queue could send one.
"""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from typing import Final, Self

from azure.core.exceptions import AzureError
from azure.identity.aio import ManagedIdentityCredential
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient, ServiceBusSender, ServiceBusSession

from approver import settings

_LONGEST_ID: Final = 128
_STATE_SECONDS: Final = 10.0
_CLOSE_SECONDS: Final = 0.1  # after that, a broken connection is abandoned
_RETRIES: Final = 6  # after 0.2, 0.4 … 6.4 seconds; also while a session is held
_BACKOFF: Final = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Outgoing:
    """A message to be sent; one with a time gets into its queue at that time."""

    body: bytes
    message_id: str
    content_type: str
    session_id: str | None = None
    correlation_id: str | None = None
    at: datetime | None = None


class State:
    """The state of a session that this app holds."""

    def __init__(self, session: ServiceBusSession) -> None:
        self._session = session

    async def read(self) -> bytes | None:
        """Return the stored value, or None."""
        return await self._session.get_state(timeout=_STATE_SECONDS) or None

    async def write(self, value: bytes | None) -> None:
        """Store ``value``; None deletes the state."""
        await self._session.set_state(value, timeout=_STATE_SECONDS)


class Bus:
    """The Service Bus namespace.

    Args:
        config: how to connect.
    """

    def __init__(self, config: settings.Bus) -> None:
        self._stack = AsyncExitStack()
        self._client = self._opened(config)
        self._kept: dict[str, ServiceBusSender] = {}
        self._guards = defaultdict[str, asyncio.Lock](asyncio.Lock)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections."""
        for entity in [*self._kept]:
            await self._drop(entity)
        await self._client.close()
        await self._stack.aclose()

    async def send(self, entity: str, message: Outgoing, seconds: float) -> None:
        """Send a message; return when the broker has stored it.

        Args:
            entity: a queue or a topic: the protocol makes no difference.
            message: the message.
            seconds: how long it may take.

        Raises:
            AzureError: it could not be stored.
            TimeoutError: it is not known whether it is stored.
        """
        async with asyncio.timeout(seconds), self._guards[entity]:
            if entity in self._kept:
                with suppress(AzureError, TimeoutError, ValueError):
                    async with asyncio.timeout(seconds / 4):
                        return await self._send(entity, message)
            return await self._send(entity, message)

    @asynccontextmanager
    async def held(self, queue: str, session_id: str) -> AsyncIterator[State]:
        """Hold a session, and yield its state; other holders wait meanwhile.

        Args:
            queue: a queue with sessions.
            session_id: if longer than 128 characters, its hash is used.

        Raises:
            AzureError: the session could not be held.
        """
        receiver = self._client.get_queue_receiver(queue, session_id=_short(session_id))
        async with receiver:
            session = receiver.session
            if not isinstance(session, ServiceBusSession):
                raise TypeError(f"{queue} is a queue without sessions")
            yield State(session)

    async def _send(self, entity: str, message: Outgoing) -> None:
        is_sent = False
        try:
            if entity not in self._kept:
                self._kept[entity] = self._client.get_queue_sender(entity)
            await self._kept[entity].send_messages(_sdk_message(message))
            is_sent = True
        finally:
            if not is_sent:
                await self._drop(entity)

    async def _drop(self, entity: str) -> None:
        """Close a sender; closing a broken one may fail, or take time."""
        if sender := self._kept.pop(entity, None):
            with suppress(AzureError, TimeoutError, ValueError):
                async with asyncio.timeout(_CLOSE_SECONDS):
                    await sender.close()

    def _opened(self, config: settings.Bus) -> ServiceBusClient:
        if config.connection_string:
            return ServiceBusClient.from_connection_string(
                config.connection_string,
                retry_total=_RETRIES,
                retry_backoff_factor=_BACKOFF,
            )
        credential = ManagedIdentityCredential(client_id=config.client_id or None)
        self._stack.push_async_exit(credential)
        return ServiceBusClient(
            config.namespace,
            credential,
            retry_total=_RETRIES,
            retry_backoff_factor=_BACKOFF,
        )


def _short(value: str) -> str:
    """Return ``value`` in a form that Service Bus accepts as MessageId or SessionId."""
    if len(value) <= _LONGEST_ID:
        return value
    return sha256(value.encode("utf-8", "replace")).hexdigest()[:32]


def _sdk_message(message: Outgoing) -> ServiceBusMessage:
    session, correlation = message.session_id, message.correlation_id
    return ServiceBusMessage(
        message.body,
        message_id=message.message_id,
        content_type=message.content_type,
        session_id=None if session is None else _short(session),
        correlation_id=None if correlation is None else _short(correlation),
        scheduled_enqueue_time_utc=message.at,
    )
