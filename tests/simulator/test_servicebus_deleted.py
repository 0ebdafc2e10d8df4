"""Senders to an entity that is deleted or disabled are told so by their next message.

A client that only sends looks at its link when it sends: a detach that came before
loses the message, and the SDK calls that an unknown error.
"""

import asyncio
from collections.abc import AsyncIterator

import azure.servicebus as sync_sdk
import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient, ServiceBusSender
from azure.servicebus.exceptions import (
    MessagingEntityDisabledError,
    MessagingEntityNotFoundError,
)
from msgspec.structs import replace

from bridge.simulator.servicebus.broker import Broker
from bridge.simulator.servicebus.queues import Queue
from bridge.simulator.servicebus.settings import QueueSettings, Status

GONE = "'plain' could not be found: it was deleted Error condition: amqp:not-found"


@pytest.fixture
async def sender(broker_client: ServiceBusClient) -> AsyncIterator[ServiceBusSender]:
    async with broker_client.get_queue_sender("plain") as opened:
        await opened.send_messages(ServiceBusMessage("before"))
        yield opened


def queue(broker: Broker) -> Queue:
    found = broker.changes.namespace.find("plain")
    assert isinstance(found, Queue)
    return found


async def test_deleted_queue_is_not_found(
    broker: Broker, sender: ServiceBusSender
) -> None:
    broker.changes.remove(queue(broker))

    with pytest.raises(MessagingEntityNotFoundError, match=GONE):
        await sender.send_messages(ServiceBusMessage("after"))


async def test_deleted_queue_is_not_found_by_the_sync_sdk(broker: Broker) -> None:
    loop = asyncio.get_running_loop()

    def use() -> None:
        client = sync_sdk.ServiceBusClient.from_connection_string(
            broker.connection_string, retry_total=0
        )
        with client, client.get_queue_sender("plain") as sender:
            sender.send_messages(ServiceBusMessage("before"))
            deleted = asyncio.run_coroutine_threadsafe(delete(), loop)
            deleted.result(30)
            with pytest.raises(MessagingEntityNotFoundError, match=GONE):
                sender.send_messages(ServiceBusMessage("after"))

    async def delete() -> None:
        broker.changes.remove(queue(broker))

    await asyncio.to_thread(use)


async def test_sender_reaches_a_queue_that_was_made_again(
    broker: Broker, sender: ServiceBusSender
) -> None:
    """The message that was refused is not in it."""
    broker.changes.remove(queue(broker))
    broker.changes.namespace.add_queue(QueueSettings(name="plain"))

    with pytest.raises(MessagingEntityNotFoundError):
        await sender.send_messages(ServiceBusMessage("lost"))
    await sender.send_messages(ServiceBusMessage("found"))

    assert broker.snapshot()["plain"].active == 1


async def test_disabled_queue_says_so_until_it_is_enabled(
    broker: Broker, sender: ServiceBusSender
) -> None:
    found = queue(broker)
    disabled = replace(found.settings, status=Status.SEND_DISABLED)
    broker.changes.change(found, disabled)

    with pytest.raises(MessagingEntityDisabledError, match="SendDisabled"):
        await sender.send_messages(ServiceBusMessage("after"))
    broker.changes.change(found, replace(disabled, status=Status.ACTIVE))
    await sender.send_messages(ServiceBusMessage("again"))

    assert broker.snapshot()["plain"].active == 2
