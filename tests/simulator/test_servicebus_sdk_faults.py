"""What a client meets when the broker has a bad day, or is started and stopped."""

import asyncio
import errno
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from time import monotonic

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient
from azure.servicebus.exceptions import (
    MessagingEntityDisabledError,
    OperationTimeoutError,
    ServiceBusConnectionError,
    ServiceBusQuotaExceededError,
    ServiceBusServerBusyError,
    SessionCannotBeLockedError,
    SessionLockLostError,
)

from bridge.simulator.servicebus.backlog import Counts
from bridge.simulator.servicebus.broker import Broker
from bridge.simulator.servicebus.endpoints import Wire
from bridge.simulator.servicebus.values import Condition
from tests.simulator.servicebus_fixtures import SDK_ENTITIES, WallClock, opened
from tests.support.ports import free_port

MESSAGE = ServiceBusMessage("x", session_id="a")


async def test_dropped_connection_fails_a_send_and_the_next_one_works(
    broker: Broker, broker_client: ServiceBusClient
) -> None:
    async with broker_client.get_queue_sender("plain") as sender:
        broker.faults.drop_connections()
        with pytest.raises(ServiceBusConnectionError):
            await sender.send_messages(MESSAGE)
        await sender.send_messages(MESSAGE)

    assert broker.snapshot()["plain"] == Counts(active=1)


async def test_dropped_session_receiver_raises_and_a_new_one_takes_over(
    broker: Broker, broker_client: ServiceBusClient
) -> None:
    receiver = broker_client.get_queue_receiver("sessions", session_id="a")
    async with opened(receiver):
        broker.faults.drop_connections()
        with pytest.raises((ServiceBusConnectionError, SessionLockLostError)):
            await receiver.receive_messages(1, max_wait_time=30)

    async with broker_client.get_queue_receiver("sessions", session_id="a"):
        pass


async def test_held_session_lock_outlives_a_dropped_connection(
    broker: Broker, broker_client: ServiceBusClient, wall_clock: WallClock
) -> None:
    broker.faults.hold_session_locks = True
    async with opened(broker_client.get_queue_receiver("sessions", session_id="a")):
        broker.faults.drop_connections()

        with pytest.raises(SessionCannotBeLockedError):
            async with broker_client.get_queue_receiver("sessions", session_id="a"):
                pass
        wall_clock.ahead = 61.0
        async with broker_client.get_queue_receiver("sessions", session_id="a"):
            pass


async def test_attach_can_be_refused_and_allowed_again(
    broker: Broker, broker_client: ServiceBusClient
) -> None:
    broker.faults.refuse_attach("plain", Condition.ENTITY_DISABLED)
    with pytest.raises(MessagingEntityDisabledError):
        async with broker_client.get_queue_sender("plain"):
            pass

    broker.faults.allow_attach("plain")
    async with broker_client.get_queue_sender("plain") as sender:
        await sender.send_messages(MESSAGE)


async def test_busy_server_refuses_as_many_sends_as_it_is_told(
    broker: Broker, broker_client: ServiceBusClient
) -> None:
    async with broker_client.get_queue_sender("plain") as sender:
        broker.faults.busy_for_sends(1)
        with pytest.raises(ServiceBusServerBusyError):
            await sender.send_messages(MESSAGE)
        await sender.send_messages(MESSAGE)

    assert broker.snapshot()["plain"] == Counts(active=1)


async def test_full_queue_refuses_until_there_is_room(
    broker: Broker, broker_client: ServiceBusClient
) -> None:
    async with broker_client.get_queue_sender("plain") as sender:
        broker.faults.fill("plain")
        with pytest.raises(ServiceBusQuotaExceededError):
            await sender.send_messages(MESSAGE)
        broker.faults.make_room("plain")
        await sender.send_messages(MESSAGE)


async def test_scheduling_is_a_send_to_a_busy_or_full_queue(
    broker: Broker, broker_client: ServiceBusClient
) -> None:
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    async with broker_client.get_queue_sender("plain") as sender:
        broker.faults.busy_for_sends(1)
        with pytest.raises(ServiceBusServerBusyError):
            await sender.schedule_messages(ServiceBusMessage("x"), tomorrow)
        broker.faults.fill("plain")
        with pytest.raises(ServiceBusQuotaExceededError):
            await sender.schedule_messages(ServiceBusMessage("x"), tomorrow)
        broker.faults.clear()
        await sender.schedule_messages(ServiceBusMessage("x"), tomorrow)

    assert broker.snapshot()["plain"] == Counts(scheduled=1)


async def test_replies_are_delayed(
    broker: Broker, broker_client: ServiceBusClient
) -> None:
    async with broker_client.get_queue_sender("plain") as sender:
        broker.faults.delay_replies(timedelta(seconds=0.5))
        started = monotonic()
        await sender.send_messages(MESSAGE)
        took = monotonic() - started
        broker.faults.clear()

    assert took >= 0.5


async def test_send_into_a_black_hole_times_out_and_is_stored_later(
    broker: Broker, broker_client: ServiceBusClient
) -> None:
    """A timeout does not mean "not sent": hence message ids that stay the same."""
    async with broker_client.get_queue_sender("plain") as sender:
        broker.faults.freeze()
        with pytest.raises(OperationTimeoutError):
            await sender.send_messages(MESSAGE, timeout=0.5)
        frozen = broker.snapshot()["plain"]
        broker.faults.thaw()
        async with asyncio.timeout(60):
            while broker.snapshot()["plain"] == Counts():
                await asyncio.sleep(0.01)

    assert frozen == Counts()
    assert broker.snapshot()["plain"] == Counts(active=1)


async def test_black_hole_accepts_connections_and_answers_nothing(
    broker: Broker,
) -> None:
    broker.faults.freeze()

    reader, writer = await asyncio.open_connection("127.0.0.1", broker.port)
    writer.write(b"AMQP\x03\x01\x00\x00")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(reader.read(1), timeout=0.2)
    broker.faults.thaw()

    assert await asyncio.wait_for(reader.read(4), timeout=60) == b"AMQP"
    writer.close()
    await writer.wait_closed()


async def test_expired_lock_makes_a_session_receiver_lose_its_session(
    broker: Broker, broker_client: ServiceBusClient
) -> None:
    receiver = broker_client.get_queue_receiver("sessions", session_id="a")
    async with opened(receiver):
        broker.faults.expire_locks("sessions")
        with pytest.raises(SessionLockLostError):
            await receiver.receive_messages(1, max_wait_time=30)


async def test_detached_sender_recovers_by_itself(broker: Broker) -> None:
    """As after ten idle minutes in the cloud; the connection stays."""
    async with (
        ServiceBusClient.from_connection_string(
            broker.connection_string, retry_backoff_factor=0.1
        ) as client,
        client.get_queue_sender("plain") as sender,
    ):
        broker.faults.detach_links("plain")
        await sender.send_messages(MESSAGE)

    assert broker.snapshot()["plain"] == Counts(active=1)


async def test_detached_session_receiver_raises(
    broker: Broker, broker_client: ServiceBusClient
) -> None:
    receiver = broker_client.get_queue_receiver("sessions", session_id="a")
    async with opened(receiver):
        broker.faults.detach_links()
        with pytest.raises(ServiceBusConnectionError):
            await receiver.receive_messages(1, max_wait_time=30)


async def test_complete_after_a_drop_goes_the_other_way(
    broker: Broker, broker_client: ServiceBusClient
) -> None:
    """The lock is alive, so the client settles by its token on a new connection."""
    sender = broker_client.get_queue_sender("plain")
    receiver = broker_client.get_queue_receiver("plain")
    async with opened(sender, receiver):
        await sender.send_messages(MESSAGE)
        (message,) = await receiver.receive_messages(1, max_wait_time=30)
        broker.faults.detach_links("plain")
        await receiver.complete_message(message)

    assert broker.snapshot()["plain"] == Counts()


async def test_restarted_broker_keeps_port_and_messages(wire: Wire) -> None:
    broker = Broker(SDK_ENTITIES, port=free_port(), wire=wire)
    async with broker:
        connection_string = broker.connection_string
        async with (
            ServiceBusClient.from_connection_string(connection_string) as client,
            client.get_queue_sender("plain") as sender,
        ):
            await sender.send_messages(MESSAGE)

    async with broker:
        assert broker.connection_string == connection_string
        async with (
            ServiceBusClient.from_connection_string(connection_string) as client,
            client.get_queue_receiver("plain") as receiver,
        ):
            assert await receiver.receive_messages(1, max_wait_time=30)


async def test_stopping_closes_open_connections(wire: Wire) -> None:
    async with Broker(SDK_ENTITIES, wire=wire) as broker:
        client = ServiceBusClient.from_connection_string(
            broker.connection_string, retry_total=0
        )
        sender = client.get_queue_sender("plain")
        await sender.__aenter__()

    with pytest.raises(ServiceBusConnectionError):
        await sender.send_messages(MESSAGE)
    await client.close()


async def test_stopping_does_not_wait_for_a_silent_client(wire: Wire) -> None:
    started = monotonic()

    async with Broker(SDK_ENTITIES, wire=wire) as broker:
        broker.faults.delay_replies(timedelta(seconds=60))
        _, writer = await asyncio.open_connection("127.0.0.1", broker.port)
        writer.write(b"AMQP\x03\x01\x00\x00")
        await asyncio.sleep(0.1)

    assert monotonic() - started < 50  # of the 60 that it would answer after
    writer.close()
    with suppress(ConnectionError):
        await writer.wait_closed()


async def test_port_in_use_is_a_clear_error(broker: Broker) -> None:
    listening = rf"cannot listen on 127\.0\.0\.1:{broker.port}"

    with pytest.raises(OSError, match=listening) as error:
        async with Broker(port=broker.port):
            pass

    assert error.value.errno == errno.EADDRINUSE


async def test_connection_string_is_for_the_emulator(broker: Broker) -> None:
    """Clients compare `true` letter by letter, and honour the port only then."""
    assert broker.connection_string == (
        f"Endpoint=sb://127.0.0.1:{broker.port};"
        "SharedAccessKeyName=RootManageSharedAccessKey;"
        "SharedAccessKey=SAS_KEY_VALUE;UseDevelopmentEmulator=true;"
    )


@pytest.mark.parametrize(
    "garbage",
    [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"AMQP\x00\x01\x00\x00" + bytes(64)],
)
async def test_garbage_ends_its_own_connection_only(
    broker: Broker, broker_client: ServiceBusClient, garbage: bytes
) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", broker.port)
    writer.write(garbage)
    await asyncio.wait_for(reader.read(), timeout=60)
    writer.close()
    await writer.wait_closed()

    async with broker_client.get_queue_sender("plain") as sender:
        await sender.send_messages(MESSAGE)
