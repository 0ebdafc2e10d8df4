"""A broker, a web server and what the composition root lends to a sink."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from azure.servicebus._pyamqp.aio import AMQPClientAsync
from azure.servicebus.aio import _servicebus_receiver_async, _servicebus_sender_async

from bridge.events.identity import Identity
from bridge.foundation.values import Secret
from bridge.net.http_client import open_session
from bridge.servicebus.namespace import NamespaceConfig
from bridge.simulator.servicebus.broker import Broker
from bridge.sinks.base import Resources
from tests.contract.sink_fixtures import Inbox
from tests.ports import free_port


@pytest.fixture
async def inbox() -> AsyncIterator[Inbox]:
    async with Inbox().serving() as running:
        yield running


class BriskAsyncio:
    """asyncio as the SDK's modules see it, with naps of a fiftieth of their length."""

    def __getattr__(self, name: str) -> object:
        return getattr(asyncio, name)

    @staticmethod
    async def sleep(delay: float) -> None:
        await asyncio.sleep(delay / 50)


@pytest.fixture
def brisk_sdk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spare each opening ten naps of 50 ms, and each closing the wait for the ping
    task, which looks up once a second; no test here lasts long enough for a ping."""

    async def nothing(client: AMQPClientAsync) -> None:
        pass

    monkeypatch.setattr(AMQPClientAsync, "_keep_alive_async", nothing)
    for module in (_servicebus_sender_async, _servicebus_receiver_async):
        monkeypatch.setattr(module, "asyncio", BriskAsyncio())


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
