"""A running broker and a client of it."""

from collections.abc import AsyncIterator

import pytest
from azure.servicebus.aio import ServiceBusClient

from bridge.simulator.servicebus.broker import Broker
from tests.simulator.servicebus_fixtures import SDK_ENTITIES


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    async with Broker(SDK_ENTITIES) as running:
        yield running


@pytest.fixture
async def broker_client(broker: Broker) -> AsyncIterator[ServiceBusClient]:
    # Without its pings a sender does not wait for the next one when it is closed.
    async with ServiceBusClient.from_connection_string(
        broker.connection_string, retry_total=0, keep_alive=0
    ) as client:
        yield client
