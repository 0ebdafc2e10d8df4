"""The broker in its own thread, as tests of other programs use it."""

import asyncio
import gc
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import azure.servicebus as sdk
import pytest
from azure.servicebus import ServiceBusMessage, aio
from azure.servicebus.exceptions import (
    MessageLockLostError,
    MessagingEntityDisabledError,
    ServiceBusError,
    ServiceBusQuotaExceededError,
    ServiceBusServerBusyError,
)

from bridge.simulator.emulator import Emulator, background_loop, emulator
from bridge.simulator.servicebus.backlog import Counts
from bridge.simulator.servicebus.config import ConfigError
from bridge.simulator.servicebus.settings import (
    Entities,
    QueueSettings,
    TopicSettings,
)
from bridge.simulator.servicebus.values import RefusedError

SAMPLE = Path(__file__).parent / "servicebus-config.json"
ENTITIES = Entities(
    queues=(
        QueueSettings(name="orders", lock_duration=timedelta(minutes=1)),
        QueueSettings(name="sessions", requires_session=True),
        QueueSettings(name="late", default_time_to_live=timedelta(minutes=5)),
    ),
    topics=(TopicSettings(name="news"),),
)


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    with background_loop() as running:
        yield running


@pytest.fixture
def bus(loop: asyncio.AbstractEventLoop) -> Iterator[Emulator]:
    with emulator(loop, ENTITIES) as running:
        yield running


def client(bus: Emulator) -> sdk.ServiceBusClient:
    return sdk.ServiceBusClient.from_connection_string(
        bus.connection_string, retry_total=0
    )


def send(bus: Emulator, text: str = "x", queue: str = "orders") -> None:
    with client(bus) as own, own.get_queue_sender(queue) as sender:
        sender.send_messages(ServiceBusMessage(text, subject="order"))


def test_message_of_a_plain_function_is_seen(bus: Emulator) -> None:
    send(bus, "hello")

    (message,) = bus.messages("orders")
    assert (message.body, message.subject, message.state) == (
        "hello",
        "order",
        "active",
    )
    assert bus.counts("orders") == Counts(active=1)


OWN = {
    "shop": "north",
    "count": 3,
    "price": 2.5,
    "paid": True,
    "note": None,
    "blob": b"\x00",
    "id": UUID(int=7),
    "at": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
    "took": timedelta(minutes=10),
}


def test_application_properties_are_seen_as_they_were_sent(bus: Emulator) -> None:
    with client(bus) as own, own.get_queue_sender("orders") as sender:
        texts: dict[Any, Any] = {"shop": "north", "count": 3, "price": 2.5}
        sender.send_messages(ServiceBusMessage("x", application_properties={**texts}))
    bus.put("orders", b"x", application_properties=OWN)

    sent, put = bus.messages("orders")
    assert sent.application_properties == texts
    assert put.application_properties == OWN


def test_message_that_a_test_puts_has_what_a_client_reads(bus: Emulator) -> None:
    bus.put(
        "sessions",
        b"2 apples",
        subject="order",
        session_id="s1",
        application_properties={"shop": "north"},
    )
    with (
        client(bus) as own,
        own.get_queue_receiver("sessions", session_id="s1") as receiver,
    ):
        (message,) = receiver.receive_messages(1, max_wait_time=30)

    assert (str(message), message.subject) == ("2 apples", "order")
    assert message.application_properties == {b"shop": b"north"}


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        ({1}, "a message cannot have a set there"),
        ([1], "a message cannot have a list there"),
        (2**63, "this value is out of the range of its type int"),
        (datetime(2026, 1, 2), "a message cannot have a datetime there"),  # noqa: DTZ001 - that is what is refused
    ],
)
def test_property_that_no_message_can_have_is_named(
    bus: Emulator, value: object, fault: str
) -> None:
    with pytest.raises(RefusedError, match=f"the application property 'shop': {fault}"):
        bus.put("orders", b"x", application_properties={"shop": value})

    assert bus.counts("orders") == Counts()


def test_text_is_no_body(bus: Emulator) -> None:
    text: Any = "2 apples"

    with pytest.raises(TypeError, match="bytes-like object is required, not 'str'"):
        bus.put("orders", text)

    assert bus.counts("orders") == Counts()


def test_case_of_a_path_does_not_matter(bus: Emulator) -> None:
    bus.put("ORDERS", b"x")

    assert bus.counts("Orders") == Counts(active=1)
    assert len(bus.messages("oRDERS")) == 1


async def test_message_of_a_coroutine_is_seen(bus: Emulator, brisk_sdk: None) -> None:
    async with (
        aio.ServiceBusClient.from_connection_string(bus.connection_string) as own,
        own.get_queue_sender("orders") as sender,
    ):
        await sender.send_messages(ServiceBusMessage("hello"))

    assert [message.body for message in bus.messages("orders")] == ["hello"]


def test_put_message_is_received(bus: Emulator) -> None:
    bus.put("orders", b"hello")
    with client(bus) as own, own.get_queue_receiver("orders") as receiver:
        (message,) = receiver.receive_messages(1, max_wait_time=30)
        assert bus.messages("orders")[0].state == "locked"
        receiver.dead_letter_message(message, reason="bad")

    assert [letter.reason for letter in bus.dead_letters("orders")] == ["bad"]
    assert bus.resubmit("orders") == 1
    assert bus.purge("orders") == 1
    assert bus.counts("orders") == Counts()


def test_time_that_passes_expires_messages_and_locks(bus: Emulator) -> None:
    bus.put("late", b"x")
    bus.put("orders", b"x")
    with client(bus) as own, own.get_queue_receiver("orders") as receiver:
        (message,) = receiver.receive_messages(1, max_wait_time=30)
        bus.advance(61)
        with pytest.raises(MessageLockLostError):
            receiver.complete_message(message)
        assert bus.counts("late") == Counts(active=1)

    bus.advance(240)
    assert bus.counts("late") == Counts()


def test_locks_expire_on_demand(bus: Emulator) -> None:
    bus.put("orders", b"x")
    with client(bus) as own, own.get_queue_receiver("orders") as receiver:
        (message,) = receiver.receive_messages(1, max_wait_time=30)
        bus.expire_locks("orders")
        with pytest.raises(MessageLockLostError):
            receiver.complete_message(message)


def test_faults_of_sends_come_and_go(bus: Emulator) -> None:
    bus.busy_for_sends(1)
    with pytest.raises(ServiceBusServerBusyError):
        send(bus)
    bus.fill("orders")
    with pytest.raises(ServiceBusQuotaExceededError):
        send(bus)
    bus.refuse_attach("orders")
    with pytest.raises(MessagingEntityDisabledError):
        send(bus)

    bus.clear_faults()
    send(bus)
    assert bus.counts("orders") == Counts(active=1)


# The SDK does not close the socket of a connection that was lost.
SOCKETS_ARE_LEFT = pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)


@SOCKETS_ARE_LEFT
def test_connections_and_links_are_broken_on_demand(bus: Emulator) -> None:
    with client(bus) as own, own.get_queue_sender("orders") as sender:
        for fault in (bus.drop_connections, bus.detach_links):
            fault()
            with pytest.raises(ServiceBusError):
                sender.send_messages(ServiceBusMessage("lost"))
            sender.send_messages(ServiceBusMessage("kept"))

    assert bus.counts("orders") == Counts(active=2)
    gc.collect()  # so that the warnings come now, not in another test


@SOCKETS_ARE_LEFT
def test_broker_is_slow_or_silent_on_demand(bus: Emulator) -> None:
    with client(bus) as own, own.get_queue_sender("orders") as sender:
        bus.delay_replies(0.2)
        begun = time.monotonic()
        sender.send_messages(ServiceBusMessage("x"))
        assert time.monotonic() - begun >= 0.2
        bus.clear_faults()
        bus.freeze()
        with pytest.raises(ServiceBusError):
            sender.send_messages(ServiceBusMessage("x"), timeout=0.3)
        bus.clear_faults()
    gc.collect()


def test_each_one_is_fresh_and_begins_in_milliseconds(
    loop: asyncio.AbstractEventLoop,
) -> None:
    seconds = list[float]()
    for _ in range(20):
        begun = time.monotonic()
        with emulator(loop, ENTITIES) as bus:
            assert bus.counts("orders") == Counts()
            bus.put("orders", b"x")
        seconds.append(time.monotonic() - begun)

    # A busy machine delays some starts; the fastest one is not delayed.
    assert min(seconds) < 0.1


@pytest.mark.parametrize("entity", ["nowhere", "news"])
def test_messages_of_what_keeps_none_are_a_key_error(
    bus: Emulator, entity: str
) -> None:
    with pytest.raises(KeyError, match=entity):
        bus.messages(entity)
    with pytest.raises(KeyError, match=entity):
        bus.dead_letters(entity)


def test_unknown_entity_raises_the_error_of_the_broker(bus: Emulator) -> None:
    with pytest.raises(KeyError):
        bus.counts("nowhere")
    for action in (bus.fill, bus.expire_locks, bus.detach_links, bus.purge):
        with pytest.raises(RefusedError, match="'nowhere' could not be found"):
            action("nowhere")


def test_entities_come_from_a_file(
    loop: asyncio.AbstractEventLoop, tmp_path: Path
) -> None:
    with emulator(loop, SAMPLE) as bus:
        assert bus.counts("queue.1") == Counts()
    faulty = tmp_path / "Config.json"
    faulty.write_text("{}")

    with pytest.raises(ConfigError, match="one namespace"), emulator(loop, faulty):
        pass


def test_without_entities_there_are_those_of_the_simulator(
    loop: asyncio.AbstractEventLoop,
) -> None:
    with emulator(loop) as bus:
        assert bus.counts("vm-approvals") == Counts()


def test_sessions_may_be_held_over(bus: Emulator) -> None:
    bus.hold_session_locks()
    bus.drop_connections()
    bus.clear_faults()

    assert bus.counts("orders") == Counts()
