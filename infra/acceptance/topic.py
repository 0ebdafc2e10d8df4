"""Receives what the bridge publishes, and records each message as it is."""

import asyncio
import json
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from azure.servicebus import ServiceBusReceivedMessage
from azure.servicebus.aio import ServiceBusClient
from azure.servicebus.exceptions import ServiceBusError

TOPIC, SUBSCRIPTION = "scheduled-events", "acceptance"
_AGAIN = 2.0  # seconds; a new role takes minutes until it holds


@dataclass(frozen=True, slots=True)
class Bus:
    """A namespace.

    Attributes:
        address: its host name, opened with the credentials of ``az login``; or a
            connection string, as that of the simulator.
    """

    address: str = field(repr=False)

    @property
    def has_key(self) -> bool:
        """Whether the address is a connection string."""
        return self.address.startswith("Endpoint=")

    async def client(self, stack: AsyncExitStack) -> ServiceBusClient:
        """Open it for as long as ``stack`` is open."""
        if self.has_key:
            client = ServiceBusClient.from_connection_string(self.address)
        else:
            from azure.identity.aio import DefaultAzureCredential  # noqa: PLC0415 - slow

            credential = await stack.enter_async_context(DefaultAzureCredential())
            client = ServiceBusClient(self.address, credential)
        return await stack.enter_async_context(client)


@dataclass(slots=True)
class Topic:
    """The messages of the subscription.

    Attributes:
        out: gets one line of JSON for each message.
        messages: what was received so far.
    """

    bus: Bus
    out: Path
    messages: list[dict[str, Any]] = field(default_factory=list)
    _news: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def receive(self) -> None:
        """Receive until cancelled; a connection that breaks is opened again."""
        while True:
            try:
                await self._receive()
            except ServiceBusError as error:
                print(f"acceptance: the topic: {type(error).__name__}", flush=True)
                await asyncio.sleep(_AGAIN)

    async def wait(
        self, found: Callable[[Mapping[str, Any]], bool], patience: float
    ) -> dict[str, Any]:
        """Return the first message that fits.

        Raises:
            TimeoutError: there is none in ``patience`` seconds.
        """
        async with asyncio.timeout(patience), self._news:
            await self._news.wait_for(lambda: any(map(found, self.messages)))
            return next(filter(found, self.messages))

    async def _receive(self) -> None:
        async with AsyncExitStack() as stack:
            client = await self.bus.client(stack)
            receiver = client.get_subscription_receiver(TOPIC, SUBSCRIPTION)
            async with receiver:
                async for message in receiver:
                    await self._record(recorded(message))
                    await receiver.complete_message(message)

    async def _record(self, message: dict[str, Any]) -> None:
        with self.out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(message) + "\n")
        print(f"  {message['at'][11:19]}  {message['subject']}", flush=True)
        async with self._news:
            self.messages.append(message)
            self._news.notify_all()


def recorded(message: ServiceBusReceivedMessage) -> dict[str, Any]:
    """Return a message as it is kept: its attributes, properties and body."""
    properties = message.application_properties or {}
    return {
        "at": datetime.now(UTC).isoformat(),
        "sequence": message.sequence_number,
        "messageId": message.message_id,
        "subject": message.subject,
        "contentType": message.content_type,
        "correlationId": message.correlation_id,
        "sessionId": message.session_id,
        "replyTo": message.reply_to,
        "replyToSessionId": message.reply_to_session_id,
        "properties": {_text(name): _text(value) for name, value in properties.items()},
        "body": _json(b"".join(message.body)),
    }


def _text(value: object) -> object:
    return value.decode() if isinstance(value, bytes) else value


def _json(body: bytes) -> object:
    try:
        found: object = json.loads(body)
    except ValueError:
        return body.decode(errors="replace")
    return found
