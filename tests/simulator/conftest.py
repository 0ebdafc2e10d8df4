"""A running broker and a client of it."""

from collections.abc import AsyncIterator

import pytest
from azure.servicebus.aio import ServiceBusClient

from bridge.simulator.servicebus.broker import Broker
from tests.simulator.servicebus_fixtures import SDK_ENTITIES, WallClock
from tests.support.brisk import brisk_sdk

__all__ = ["brisk_sdk"]  # a fixture from elsewhere


@pytest.fixture
def wall_clock() -> WallClock:
    return WallClock()


@pytest.fixture
async def broker(wall_clock: WallClock) -> AsyncIterator[Broker]:
    async with Broker(SDK_ENTITIES, clock=wall_clock) as running:
        yield running


@pytest.fixture
async def broker_client(
    broker: Broker, brisk_sdk: None
) -> AsyncIterator[ServiceBusClient]:
    async with ServiceBusClient.from_connection_string(
        broker.connection_string, retry_total=0
    ) as client:
        yield client
