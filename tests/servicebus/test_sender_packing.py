"""A batch that is packed while another one is on its way: each message arrives once."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from bridge.foundation.errors import PermanentDeliveryError
from bridge.servicebus.namespace import NamespaceConfig
from bridge.servicebus.sender import Sender
from bridge.simulator.servicebus.broker import Broker
from tests.sinks.test_sink_servicebus import message, stored
from tests.support.sink_fixtures import drained

QUEUE = "vm-approvals"


@pytest.fixture
async def sender(namespace: NamespaceConfig) -> AsyncIterator[Sender]:
    opened = Sender(namespace, QUEUE)
    await opened.send(message(0))
    yield opened
    await opened.close()


async def test_batches_that_wait_arrive_in_their_order(
    sender: Sender, broker: Broker
) -> None:
    """The second is packed while the first is sent, and the third as well."""
    batches = [[message(10 * n + m) for m in range(1, 5)] for n in range(3)]

    results = await asyncio.gather(*map(sender.send_many, batches))

    assert [*results] == [[None] * 4] * 3
    found = await drained(broker, QUEUE, count=13)
    expected = ["m-0", *(one.message_id for batch in batches for one in batch)]
    assert [one.message_id for one in found] == expected


async def test_waiting_batch_that_does_not_fit_goes_out_in_several(
    sender: Sender, broker: Broker
) -> None:
    batches = [
        [message(10 * n + m, size=120_000) for m in range(1, 5)] for n in range(2)
    ]

    await asyncio.gather(*map(sender.send_many, batches))

    assert stored(broker, QUEUE) == 9


async def test_message_that_is_too_large_fails_alone_in_a_batch_that_waits(
    sender: Sender, broker: Broker
) -> None:
    first = [message(1), message(2)]
    second = [message(3), message(4, size=3_000_000), message(5)]

    _, results = await asyncio.gather(*map(sender.send_many, (first, second)))

    assert [type(one) for one in results] == [
        type(None),
        PermanentDeliveryError,
        type(None),
    ]
    assert stored(broker, QUEUE) == 5


@pytest.mark.parametrize("fault", ["drop_connections", "detach_links"])
async def test_batch_that_was_packed_for_a_dead_link_is_packed_again(
    fault: str, sender: Sender, broker: Broker
) -> None:
    getattr(broker.faults, fault)()
    batches = [[message(10 * n + m) for m in range(1, 4)] for n in range(2)]

    results = await asyncio.gather(*map(sender.send_many, batches))

    assert [*results] == [[None] * 3] * 2
    assert stored(broker, QUEUE) == 7
