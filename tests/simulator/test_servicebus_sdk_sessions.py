"""Sessions as the unmodified azure-servicebus client meets them."""

import asyncio
import gc
from time import monotonic

import pytest
from azure.servicebus import NEXT_AVAILABLE_SESSION, ServiceBusMessage
from azure.servicebus.aio import (
    AutoLockRenewer,
    ServiceBusClient,
    ServiceBusReceiver,
    ServiceBusSession,
)
from azure.servicebus.exceptions import (
    OperationTimeoutError,
    ServiceBusError,
    SessionCannotBeLockedError,
    SessionLockLostError,
)

from bridge.simulator.servicebus.backlog import Counts
from bridge.simulator.servicebus.broker import Broker
from bridge.simulator.servicebus.consumer import Consumer
from tests.simulator.servicebus_fixtures import WallClock, opened

WAIT = 30.0


def in_session(session_id: str, *bodies: str) -> list[ServiceBusMessage]:
    return [ServiceBusMessage(body, session_id=session_id) for body in bodies]


def session_of(receiver: ServiceBusReceiver) -> ServiceBusSession:
    """Return the session, which is its own kind in the asynchronous client."""
    session = receiver.session
    assert isinstance(session, ServiceBusSession)
    return session


def next_available(
    client: ServiceBusClient, wait: float = WAIT, queue: str = "sessions"
) -> ServiceBusReceiver:
    return client.get_queue_receiver(
        queue, session_id=NEXT_AVAILABLE_SESSION, max_wait_time=wait
    )


async def test_receiver_gets_its_session_only(broker_client: ServiceBusClient) -> None:
    sender = broker_client.get_queue_sender("sessions")
    receiver = broker_client.get_queue_receiver("sessions", session_id="b")

    async with opened(sender, receiver):
        await sender.send_messages(in_session("a", "1") + in_session("b", "2", "3"))
        bodies = list[str]()
        while len(bodies) < 2:
            for message in await receiver.receive_messages(5, max_wait_time=WAIT):
                bodies.append(str(message))
                await receiver.complete_message(message)

    assert bodies == ["2", "3"]
    assert session_of(receiver).session_id == "b"


async def test_session_is_held_by_one_receiver(broker_client: ServiceBusClient) -> None:
    async with broker_client.get_queue_receiver("sessions", session_id="a"):
        with pytest.raises(SessionCannotBeLockedError):
            async with broker_client.get_queue_receiver("sessions", session_id="a"):
                pass


async def test_closed_receiver_frees_its_session(
    broker_client: ServiceBusClient,
) -> None:
    for _ in range(2):
        async with broker_client.get_queue_receiver("sessions", session_id="a"):
            pass


async def test_state_is_kept_with_the_session(broker_client: ServiceBusClient) -> None:
    async with broker_client.get_queue_receiver("sessions", session_id="a") as first:
        before = await session_of(first).get_state()
        await session_of(first).set_state("half way")
    async with broker_client.get_queue_receiver("sessions", session_id="a") as second:
        after = await session_of(second).get_state()
        await session_of(second).set_state(None)
        cleared = await session_of(second).get_state()

    states: list[object] = [before, after, cleared]
    assert states == [None, b"half way", None]


async def test_renewed_session_is_kept(
    broker: Broker, broker_client: ServiceBusClient, wall_clock: WallClock
) -> None:
    sender = broker_client.get_queue_sender("sessions")
    receiver = broker_client.get_queue_receiver("sessions", session_id="a")

    async with opened(sender, receiver):
        await sender.send_messages(in_session("a", "1"))
        (message,) = await receiver.receive_messages(1, max_wait_time=WAIT)
        for _ in range(3):
            await session_of(receiver).renew_lock()
            wall_clock.ahead += 40.0
        await receiver.complete_message(message)

    assert broker.snapshot()["sessions"] == Counts()


@pytest.mark.slow
async def test_auto_lock_renewer_keeps_the_session(
    broker: Broker, broker_client: ServiceBusClient, wall_clock: WallClock
) -> None:
    """It renews what has less than ten seconds left, and looks twice a second."""
    wall_clock.ahead = -55.0
    async with AutoLockRenewer() as renewer:
        sender = broker_client.get_queue_sender("sessions")
        receiver = broker_client.get_queue_receiver(
            "sessions", session_id="a", auto_lock_renewer=renewer
        )
        async with opened(sender, receiver):
            first_until = session_of(receiver).locked_until_utc
            assert first_until is not None
            while session_of(receiver).locked_until_utc == first_until:
                await asyncio.sleep(0.05)
            wall_clock.ahead = 0.0
            await sender.send_messages(in_session("a", "1"))
            (message,) = await receiver.receive_messages(1, max_wait_time=WAIT)
            await receiver.complete_message(message)

    assert broker.snapshot()["sessions"] == Counts()


@pytest.mark.slow
async def test_lost_session_ends_the_receiver(broker_client: ServiceBusClient) -> None:
    receiver = broker_client.get_queue_receiver("quick-sessions", session_id="a")

    async with opened(receiver):
        with pytest.raises(SessionLockLostError):
            await receiver.receive_messages(1, max_wait_time=WAIT)


async def test_receiver_that_waits_as_long_as_the_lock_lasts_is_not_told_of_a_loss(
    broker_client: ServiceBusClient,
) -> None:
    """The SDK's own tests do so; and whoever comes next has the session at once."""
    receiver = broker_client.get_queue_receiver("quick-sessions", session_id="a")

    async with opened(receiver):
        assert await receiver.receive_messages(1, max_wait_time=1.2) == []
        async with broker_client.get_queue_receiver("quick-sessions", session_id="a"):
            pass


async def test_lost_session_is_neither_received_from_nor_settled(
    broker: Broker, broker_client: ServiceBusClient, wall_clock: WallClock
) -> None:
    sender = broker_client.get_queue_sender("sessions")
    receiver = broker_client.get_queue_receiver("sessions", session_id="a")
    async with opened(sender, receiver):
        await sender.send_messages(in_session("a", "1"))
        (message,) = await receiver.receive_messages(1, max_wait_time=WAIT)
        wall_clock.ahead += 61.0
        await sender.send_messages(in_session("a", "2"))
        with pytest.raises(SessionLockLostError):
            await receiver.complete_message(message)

    assert broker.snapshot()["sessions"] == Counts(active=2)


async def test_next_available_session_is_one_with_messages(
    broker_client: ServiceBusClient,
) -> None:
    async with broker_client.get_queue_sender("sessions") as sender:
        await sender.send_messages(in_session("b", "1") + in_session("a", "2"))

    async with next_available(broker_client) as receiver:
        (message,) = await receiver.receive_messages(1, max_wait_time=WAIT)

    assert session_of(receiver).session_id == "b"
    assert str(message) == "1"


async def test_next_available_session_is_waited_for(
    broker_client: ServiceBusClient,
) -> None:
    receiver = next_available(broker_client)

    async with broker_client.get_queue_sender("sessions") as sender:
        waiting = asyncio.create_task(receiver.receive_messages(1, WAIT))
        await asyncio.sleep(0.8)
        await sender.send_messages(in_session("a", "1"))
        (message,) = await waiting
        await receiver.close()

    assert str(message) == "1"


async def test_wait_for_a_session_ends_in_time(broker_client: ServiceBusClient) -> None:
    started = monotonic()

    with pytest.raises(OperationTimeoutError):
        async with next_available(broker_client, wait=0.5):
            pass

    assert monotonic() - started < 30  # the client's own time-out is a minute


async def test_links_that_the_broker_has_closed_are_forgotten(
    broker_client: ServiceBusClient,
) -> None:
    """A worker that polls for sessions does so for days, on one connection."""
    async with broker_client.get_queue_receiver("sessions", session_id="s"):
        with pytest.raises(OperationTimeoutError):
            async with next_available(broker_client, wait=0.1):
                pass
        gc.collect()
        kept = [each for each in gc.get_objects() if isinstance(each, Consumer)]

    assert [each.path for each in kept] == ["sessions"]


async def test_workers_share_the_sessions(
    broker: Broker, broker_client: ServiceBusClient
) -> None:
    """Each message once, each session in its order, whoever has it."""
    received: dict[str, list[str]] = {name: [] for name in "abcd"}

    async def work(receiver: ServiceBusReceiver) -> None:
        async with receiver:
            mine = received[str(session_of(receiver).session_id)]
            while len(mine) < 5:
                for message in await receiver.receive_messages(5, max_wait_time=WAIT):
                    received[str(message.session_id)].append(str(message))
                    await receiver.complete_message(message)

    async with broker_client.get_queue_sender("sessions") as sender:
        for number in range(5):
            for name in received:
                await sender.send_messages(in_session(name, str(number)))
    await asyncio.gather(*(work(next_available(broker_client)) for _ in range(4)))

    assert received == {name: ["0", "1", "2", "3", "4"] for name in "abcd"}
    assert broker.snapshot()["sessions"] == Counts()


async def test_deferred_message_of_a_session_comes_back_by_number(
    broker: Broker, broker_client: ServiceBusClient
) -> None:
    sender = broker_client.get_queue_sender("sessions")
    receiver = broker_client.get_queue_receiver("sessions", session_id="a")

    async with opened(sender, receiver):
        await sender.send_messages(in_session("a", "1"))
        (message,) = await receiver.receive_messages(1, max_wait_time=WAIT)
        await receiver.defer_message(message)
        assert message.sequence_number is not None
        (found,) = await receiver.receive_deferred_messages(message.sequence_number)
        await receiver.complete_message(found)

    assert broker.snapshot()["sessions"] == Counts()


async def test_sessions_are_listed(broker_client: ServiceBusClient) -> None:
    async with broker_client.get_queue_sender("sessions") as sender:
        await sender.send_messages(in_session("a", "1") + in_session("b", "2"))

    listed = [name async for name in broker_client.list_queue_sessions("sessions")]

    assert listed == ["a", "b"]


async def test_message_needs_a_session(broker_client: ServiceBusClient) -> None:
    async with broker_client.get_queue_sender("sessions") as sender:
        with pytest.raises(ServiceBusError, match="requires a session id"):
            await sender.send_messages(ServiceBusMessage("x"))


@pytest.mark.parametrize(
    ("queue", "session_id", "words"),
    [
        ("sessions", None, "to create a non-sessionful message receiver"),
        ("plain", "a", "A sessionful message receiver cannot be created"),
    ],
)
async def test_receiver_fits_its_entity(
    broker_client: ServiceBusClient, queue: str, session_id: str | None, words: str
) -> None:
    """The words are those of the cloud, which clients look for."""
    with pytest.raises(ServiceBusError, match=words):
        async with broker_client.get_queue_receiver(queue, session_id=session_id):
            pass
