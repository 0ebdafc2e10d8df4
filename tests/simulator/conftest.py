"""A running broker and a client of it."""

from collections.abc import AsyncIterator

import pytest
from azure.servicebus._pyamqp.aio import AMQPClientAsync
from azure.servicebus.aio import ServiceBusClient

from bridge.simulator.servicebus.broker import Broker
from tests.simulator.servicebus_fixtures import SDK_ENTITIES


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    async with Broker(SDK_ENTITIES) as running:
        yield running


@pytest.fixture
def broker_without_pings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spare each close the wait for the client's ping task, which looks up once a
    second; no test lasts long enough for a ping."""

    async def no_pings(client: AMQPClientAsync) -> None:
        pass

    monkeypatch.setattr(AMQPClientAsync, "_keep_alive_async", no_pings)


@pytest.fixture
async def broker_client(
    broker: Broker, broker_without_pings: None
) -> AsyncIterator[ServiceBusClient]:
    async with ServiceBusClient.from_connection_string(
        broker.connection_string, retry_total=0
    ) as client:
        yield client
