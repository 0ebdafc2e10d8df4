"""The app's side of Service Bus when a connection breaks, or a message is odd."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from azure.core.exceptions import AzureError
from azure.servicebus.aio import ServiceBusClient

from approver import settings
from approver.bus import Bus, Outgoing
from bridge.simulator.servicebus.broker import Broker
from tests.infra.functions_world import ENTITIES
from tests.support.brisk import brisk_sdk
from tests.support.raw_amqp import encoded, nested, section, send_raw
from tests.system.proxy import proxy_to

__all__ = ["brisk_sdk"]  # a fixture

CLICKS, VOTES = "approver-clicks", "approver-votes"
SECONDS = 60.0
NOT_DECODED = {
    "nested 70 deep": section(0x73, ["bad", *[None] * 9, "E-1"]) + nested(70),
    "list as a key": section(0x73, ["bad", *[None] * 9, "E-1"])
    + b"\x00\x53\x77\xc1\x03\x02\x45\x40",
}


@pytest.fixture
async def broker(brisk_sdk: None) -> AsyncIterator[Broker]:
    async with Broker(ENTITIES) as running:
        yield running


@pytest.fixture
async def bus(broker: Broker) -> AsyncIterator[Bus]:
    config = settings.Bus(connection_string=broker.connection_string)
    async with Bus(config) as opened:
        yield opened


def message(number: int) -> Outgoing:
    return Outgoing(
        body=b"{}", message_id=f"m-{number}", content_type="application/json"
    )


async def taken(broker: Broker) -> list[str | None]:
    """Take all that is in the queue of clicks, and return the MessageIds."""
    found: list[str | None] = []
    count = broker.snapshot()[CLICKS].active
    async with (
        ServiceBusClient.from_connection_string(broker.connection_string) as client,
        client.get_queue_receiver(CLICKS, max_wait_time=30) as receiver,
    ):
        while len(found) < count:
            for one in await receiver.receive_messages(count):
                await receiver.complete_message(one)
                found.append(one.message_id)
    return found


async def test_sender_is_kept(broker: Broker, bus: Bus) -> None:
    """Opening one takes half a second and more, and Slack waits three."""
    await bus.send(CLICKS, message(1), SECONDS)
    broker.faults.refuse_attach(CLICKS)  # so that no other can be opened

    await bus.send(CLICKS, message(2), SECONDS)

    assert await opened_again(broker) == ["m-1", "m-2"]


async def opened_again(broker: Broker) -> list[str | None]:
    broker.faults.allow_attach(CLICKS)
    return await taken(broker)


async def test_kept_sender_that_was_dropped_is_replaced_within_the_same_call(
    broker: Broker, bus: Bus
) -> None:
    await bus.send(CLICKS, message(1), SECONDS)
    broker.faults.drop_connections()

    await bus.send(CLICKS, message(2), SECONDS)
    broker.faults.detach_links(CLICKS)
    await bus.send(CLICKS, message(3), SECONDS)

    assert await taken(broker) == ["m-1", "m-2", "m-3"]


async def test_clicks_at_once_over_a_drop_are_all_kept(
    broker: Broker, bus: Bus
) -> None:
    """Two coroutines that use one sender at once break it."""
    await bus.send(CLICKS, message(0), SECONDS)
    broker.faults.drop_connections()

    await asyncio.gather(*(bus.send(CLICKS, message(n), SECONDS) for n in range(1, 6)))

    assert sorted(map(str, await taken(broker))) == [f"m-{n}" for n in range(6)]


async def test_sender_that_could_not_be_replaced_is_forgotten(
    broker: Broker, bus: Bus
) -> None:
    await bus.send(CLICKS, message(1), SECONDS)
    broker.faults.refuse_attach(CLICKS)
    broker.faults.drop_connections()
    with pytest.raises((AzureError, TimeoutError)):
        await bus.send(CLICKS, message(2), 2.0)
    broker.faults.allow_attach(CLICKS)

    await bus.send(CLICKS, message(3), SECONDS)

    assert (await taken(broker))[-1] == "m-3"


async def test_connection_that_went_silent_is_replaced_while_slack_waits(
    broker: Broker,
) -> None:
    """As with a firewall that forgets what was idle: nobody says that it is gone."""
    async with proxy_to(broker.port) as proxy:
        there = broker.connection_string.replace(f":{broker.port}", f":{proxy.port}")
        async with Bus(settings.Bus(connection_string=there)) as bus:
            await bus.send(CLICKS, message(1), SECONDS)
            proxy.silence()
            proxy.forget()

            await bus.send(CLICKS, message(2), 6.0)
            await bus.send(CLICKS, message(3), SECONDS)

        assert proxy.opened == 2
    async with asyncio.timeout(SECONDS):  # until the proxy has let go of all it held
        while len(asyncio.all_tasks()) > 1:
            await asyncio.sleep(0.01)
    assert await taken(broker) == ["m-1", "m-2", "m-3"]


@pytest.mark.parametrize("name", NOT_DECODED)
async def test_message_that_the_sdk_cannot_decode_keeps_no_session_from_the_app(
    name: str, broker: Broker, bus: Bus
) -> None:
    """The app holds sessions for their states. It asks for no message, and so gets none
    whatever lies there: the SDK's receiver would break over one of these.
    """
    odd = [NOT_DECODED[name], encoded("{}", id="good", group_id="E-1")]
    assert await send_raw(broker, VOTES, odd) == 2

    async with asyncio.timeout(SECONDS):
        for expected in (None, b"1", b"2"):
            async with bus.held(VOTES, "E-1") as state:
                assert await state.read() == expected
                await state.write(b"1" if expected is None else b"2")

    assert broker.snapshot()[VOTES].active == 2
