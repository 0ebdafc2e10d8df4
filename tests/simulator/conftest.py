"""A running broker and a client of it."""

from collections.abc import AsyncIterator

import pytest
from azure.servicebus.aio import ServiceBusClient

from bridge.simulator.servicebus.broker import Broker
from bridge.simulator.servicebus.endpoints import Wire
from bridge.simulator.servicebus.python_wire import PythonEngine
from tests.simulator.servicebus_fixtures import SDK_ENTITIES, WallClock
from tests.support.brisk import brisk_sdk
from tests.support.oracle import ORACLE

__all__ = ["brisk_sdk"]  # a fixture from elsewhere


@pytest.fixture
def wall_clock() -> WallClock:
    return WallClock()


@pytest.fixture(params=["python", "proton"])
def wire(request: pytest.FixtureRequest) -> Wire:
    """Each AMQP engine in turn: all have to do the same."""
    if request.param == "python":
        return PythonEngine
    pytest.importorskip("proton", reason=ORACLE)
    from tests.support.proton_engine import ProtonEngine  # noqa: PLC0415 - an extra

    return ProtonEngine


@pytest.fixture
async def broker(wall_clock: WallClock, wire: Wire) -> AsyncIterator[Broker]:
    async with Broker(SDK_ENTITIES, clock=wall_clock, wire=wire) as running:
        yield running


@pytest.fixture
async def broker_client(
    broker: Broker, brisk_sdk: None
) -> AsyncIterator[ServiceBusClient]:
    async with ServiceBusClient.from_connection_string(
        broker.connection_string, retry_total=0
    ) as client:
        yield client
