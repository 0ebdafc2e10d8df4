"""The synchronous SDK, whose threads share links, and tasks that share one."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest
from azure.servicebus import (
    AutoLockRenewer,
    ServiceBusClient,
    ServiceBusMessage,
    ServiceBusReceivedMessage,
)
from azure.servicebus.aio import ServiceBusClient as AsyncClient

from bridge.simulator.servicebus.backlog import Counts
from bridge.simulator.servicebus.broker import Broker
from bridge.simulator.servicebus.endpoints import Wire
from bridge.simulator.servicebus.python_wire import PythonEngine
from tests.simulator.servicebus_fixtures import opened, receive

pytestmark = pytest.mark.usefixtures("brisk_sdk")

AT_ONCE = 8


@pytest.fixture
def lenient(wire: Wire) -> None:
    """Proton refuses what the cloud takes: a delivery-id that comes twice."""
    if wire is not PythonEngine:
        pytest.skip("Proton closes the connection: sequencing error")


async def test_synchronous_client_sends_receives_and_settles(broker: Broker) -> None:
    def use() -> list[str]:
        string = broker.connection_string
        with ServiceBusClient.from_connection_string(string) as client:
            with client.get_queue_sender("plain") as sender:
                sender.send_messages([ServiceBusMessage(f"m{n}") for n in range(3)])
                sender.send_messages(ServiceBusMessage("x" * 100_000))
            with client.get_queue_receiver("plain", max_wait_time=30) as receiver:
                found = []
                for message in receiver:
                    receiver.complete_message(message)
                    found.append(str(message)[:3])
                    if len(found) == 4:
                        return found
        return []

    assert await asyncio.to_thread(use) == ["m0", "m1", "m2", "xxx"]
    assert broker.snapshot()["plain"] == Counts()


async def test_threads_of_the_synchronous_client_ask_at_once(
    broker: Broker, lenient: None
) -> None:
    """As AutoLockRenewer does beside whoever peeks or renews.

    The SDK (7.15.0) sends a request before it notes that it waits for the answer: one
    that another thread reads in between is dropped. So it has to ask again after 5 s.
    """

    def use() -> list[int]:
        string = broker.connection_string
        with (
            ServiceBusClient.from_connection_string(string, try_timeout=5) as client,
            client.get_queue_sender("plain") as sender,
            client.get_queue_receiver("plain") as receiver,
            AutoLockRenewer(max_workers=2) as renewer,
            ThreadPoolExecutor(AT_ONCE) as pool,
        ):
            sender.send_messages([ServiceBusMessage("x") for _ in range(AT_ONCE)])
            taken = list[ServiceBusReceivedMessage]()
            while len(taken) < AT_ONCE:  # it returns fewer on a busy machine
                left = AT_ONCE - len(taken)
                taken += receiver.receive_messages(left, max_wait_time=30)
            for message in taken:
                renewer.register(receiver, message)
            peeks = [
                pool.submit(receiver.peek_messages, AT_ONCE, sequence_number=1)
                for _ in range(20)
            ]
            found = [len(peek.result(timeout=60)) for peek in peeks]
            for message in taken:
                receiver.complete_message(message)
            return found

    assert await asyncio.to_thread(use) == [AT_ONCE] * 20
    assert broker.snapshot()["plain"] == Counts()


async def test_tasks_that_ask_at_once_are_all_answered(
    broker_client: AsyncClient,
) -> None:
    sender = broker_client.get_queue_sender("plain")
    receiver = broker_client.get_queue_receiver("plain")
    async with opened(sender, receiver):
        await sender.send_messages([ServiceBusMessage("x") for _ in range(AT_ONCE)])
        taken = await receive(receiver, AT_ONCE)
        await receiver.peek_messages(1)  # the link for requests is open now

        async with asyncio.timeout(60):
            renewed = await asyncio.gather(*map(receiver.renew_message_lock, taken))

    assert len(taken) == AT_ONCE
    assert all(until is not None for until in renewed)
