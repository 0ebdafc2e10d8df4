"""The AMQP port of the broker is never limited: each forwarder stays connected."""

import asyncio
from contextlib import AsyncExitStack

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient

from bridge.simulator.servicebus.broker import Broker
from bridge.simulator.servicebus.endpoints import Wire

pytestmark = pytest.mark.integration
MORE_THAN_THE_HTTP_PORTS_TAKE = 300
AMQP = b"AMQP\x03\x01\x00\x00"  # the header that asks for SASL


async def test_connections_that_stay_silent_are_kept_and_others_served(
    brisk_sdk: None,
    wire: Wire,
) -> None:
    async with Broker(wire=wire) as broker, AsyncExitStack() as stack:
        crowd = [
            await asyncio.open_connection("127.0.0.1", broker.port)
            for _ in range(MORE_THAN_THE_HTTP_PORTS_TAKE)
        ]
        for _, writer in crowd:
            stack.callback(writer.close)
        client = ServiceBusClient.from_connection_string(broker.connection_string)
        await stack.enter_async_context(client)
        async with client.get_topic_sender("scheduled-events") as sender:
            await sender.send_messages(ServiceBusMessage("one of many"))

        for reader, writer in (crowd[0], crowd[-1]):
            writer.write(AMQP)
            async with asyncio.timeout(30):
                assert await reader.readexactly(len(AMQP)) == AMQP
