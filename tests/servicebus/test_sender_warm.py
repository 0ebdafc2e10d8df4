"""A sender that is kept warm: whoever sends after an hour of silence does not wait."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from bridge.foundation.values import Secret
from bridge.servicebus.namespace import NamespaceConfig, Timings
from bridge.servicebus.sender import Message, Sender
from bridge.simulator.servicebus.broker import Broker
from tests.sinks.test_sink_servicebus import stored
from tests.system.proxy import Proxy, proxy_to

MESSAGE = Message(body=b"{}", content_type="application/json", message_id="1")


@pytest.fixture
async def cable(broker: Broker) -> AsyncIterator[Proxy]:
    """A cable to the broker, which counts connections."""
    async with proxy_to(broker.port) as cable:
        yield cable


@asynccontextmanager
async def sender_of(broker: Broker, cable: Proxy, idle: float) -> AsyncIterator[Sender]:
    """A sender that is opened again when it was idle for so many seconds."""
    text = broker.connection_string.replace(f":{broker.port};", f":{cable.port};")
    config = NamespaceConfig(connection_string=Secret(text, {}))
    sender = Sender(config, "vm-approvals", Timings(idle=idle))
    try:
        yield sender
    finally:
        await sender.close()


@asynccontextmanager
async def warm(sender: Sender) -> AsyncIterator[None]:
    task = asyncio.create_task(sender.keep_warm())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def until(cable: Proxy, count: int) -> None:
    async with asyncio.timeout(60):
        while cable.opened < count:
            await asyncio.sleep(0.01)


async def test_sender_is_open_before_the_first_message(
    broker: Broker, cable: Proxy
) -> None:
    async with sender_of(broker, cable, 60) as sender, warm(sender):
        await until(cable, 1)
        await sender.send(MESSAGE)

    assert cable.opened == 1
    assert stored(broker, "vm-approvals") == 1


async def test_idle_link_that_died_without_a_word_is_replaced_before_it_is_needed(
    broker: Broker, cable: Proxy
) -> None:
    async with sender_of(broker, cable, 0.3) as sender:
        await sender.send(MESSAGE)
        broker.faults.drop_connections()
        async with warm(sender):
            await until(cable, 2)
            await sender.send(MESSAGE)

    assert cable.opened == 2


async def test_sender_in_use_is_left_alone(broker: Broker, cable: Proxy) -> None:
    async with sender_of(broker, cable, 1.5) as sender, warm(sender):
        for _ in range(10):
            await sender.send(MESSAGE)
            await asyncio.sleep(0.2)

    assert cable.opened == 1


async def test_broker_that_is_away_is_no_reason_to_give_up(
    broker: Broker, cable: Proxy
) -> None:
    await broker.__aexit__(None, None, None)
    async with sender_of(broker, cable, 0.1) as sender, warm(sender):
        await until(cable, 2)
        await broker.__aenter__()
        await sender.send(MESSAGE)

    assert stored(broker, "vm-approvals") == 1


async def test_warmth_ends_at_whatever_moment_it_is_asked_to(
    broker: Broker, cable: Proxy
) -> None:
    """The SDK may swallow that it is cancelled; the stop waited for minutes then."""
    for moment in range(30):
        async with sender_of(broker, cable, 60) as sender:
            task = asyncio.create_task(sender.keep_warm())
            await asyncio.sleep(moment * 0.002)
            task.cancel()
            await asyncio.wait_for(asyncio.gather(task, return_exceptions=True), 60)
