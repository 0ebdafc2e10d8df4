"""A broker, a web server and what the composition root lends to a sink."""

from collections.abc import AsyncIterator

import pytest

from bridge.events.identity import Identity
from bridge.foundation.values import Secret
from bridge.net.http_client import open_session
from bridge.servicebus.namespace import NamespaceConfig
from bridge.simulator.servicebus.broker import Broker
from bridge.sinks.base import Resources
from tests.support.brisk import brisk_sdk
from tests.support.ports import free_port
from tests.support.sink_fixtures import Inbox

__all__ = ["brisk_sdk"]  # a fixture from elsewhere


@pytest.fixture
async def inbox() -> AsyncIterator[Inbox]:
    async with Inbox().serving() as running:
        yield running


@pytest.fixture
async def broker(brisk_sdk: None) -> AsyncIterator[Broker]:
    async with Broker(port=free_port()) as running:
        yield running


@pytest.fixture
def namespace(broker: Broker) -> NamespaceConfig:
    return NamespaceConfig(connection_string=Secret(broker.connection_string, {}))


@pytest.fixture
async def resources() -> AsyncIterator[Resources]:
    me = Identity(vm_id="vm-1", vm_name="web-0", vm_scale_set_name="Web")
    async with open_session(user_agent="sebridge/test") as http:
        yield Resources(http=http, expand=me.expand, vm_id=me.vm_id)
