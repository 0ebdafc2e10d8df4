"""What the cloud does, and what it refuses, as clients of any kind meet it."""

from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageBodyType
from azure.servicebus.exceptions import ServiceBusError

from bridge.simulator.servicebus.backlog import Counts
from bridge.simulator.servicebus.broker import Broker
from tests.simulator.servicebus_fixtures import WallClock, opened, receive
from tests.support.oracle import ORACLE
from tests.support.raw_amqp import (
    encoded,
    in_connection,
    proton,
    request,
    send_raw,
    settled,
    utils,
)

reactor = pytest.importorskip("proton.reactor", reason=ORACLE)

MANAGEMENT = "plain/$management"
LONG = "s" * 129


async def test_lock_token_and_own_annotations_come_with_a_message(
    broker_client: ServiceBusClient,
) -> None:
    sender = broker_client.get_queue_sender("plain")
    receiver = broker_client.get_queue_receiver("plain")
    sent = AmqpAnnotatedMessage(
        data_body=b"x", delivery_annotations={"mine": "kept", "x-opt-lock-token": 1}
    )
    async with opened(sender, receiver):
        await sender.send_messages(sent)
        (message,) = await receiver.receive_messages(1, max_wait_time=30)

    raw = message.raw_amqp_message
    assert raw.body_type is AmqpMessageBodyType.DATA
    assert raw.delivery_annotations == {
        b"mine": b"kept",
        b"x-opt-lock-token": message.lock_token,
    }


async def test_peeked_message_has_no_lock_token(
    broker_client: ServiceBusClient,
) -> None:
    sender = broker_client.get_queue_sender("plain")
    receiver = broker_client.get_queue_receiver("plain")
    async with opened(sender, receiver):
        await sender.send_messages(ServiceBusMessage("x"))
        (message,) = await receiver.peek_messages()

    assert message.raw_amqp_message.delivery_annotations == {}


async def test_settlement_sets_properties(broker: Broker) -> None:
    """Whatever the client: here one that knows AMQP and nothing of Service Bus."""
    await send_raw(broker, "plain", [encoded("x", properties={"old": 1, "kept": 2})])

    def abandon(delivery: Any) -> None:
        changes = {"old": "new", "more": b"bytes"}
        named = {proton.symbol(name): value for name, value in changes.items()}
        delivery.local.annotations = named
        delivery.update(proton.Delivery.MODIFIED)

    await settled(broker, "plain", abandon)
    found = await settled(broker, "plain", lambda d: d.update(proton.Delivery.ACCEPTED))

    assert found.properties == {"old": "new", "kept": 2, "more": b"bytes"}
    assert broker.snapshot()["plain"] == Counts()


# -- session ids -------------------------------------------------------------------


@pytest.mark.parametrize("session_id", [1, 1.5, True])
async def test_session_filter_that_is_no_text_is_refused(
    broker_client: ServiceBusClient, session_id: Any
) -> None:
    with pytest.raises(ServiceBusError, match="a session filter is a text"):
        async with broker_client.get_queue_receiver("sessions", session_id=session_id):
            pass


async def test_session_filter_may_be_a_described_text(broker: Broker) -> None:
    """As AMQP wants a filter to be; the SDKs send it plain."""
    await send_raw(broker, "sessions", [encoded("x", group_id="s1")])
    name = "com.microsoft:session-filter"

    class OneSession(reactor.Filter):  # type: ignore[misc, name-defined]  # without types
        def __init__(self) -> None:
            wanted = proton.Described(proton.symbol(name), "s1")
            super().__init__({proton.symbol(name): wanted})

    def receive(connection: Any) -> str:
        receiver = connection.create_receiver("sessions", options=OneSession())
        return str(receiver.receive(timeout=30).group_id)

    assert await in_connection(broker, receive) == "s1"


async def test_session_id_has_128_characters_at_most(
    broker: Broker, broker_client: ServiceBusClient
) -> None:
    await send_raw(broker, "sessions", [encoded("x", group_id=LONG[1:])])
    async with broker_client.get_queue_receiver("sessions", session_id=LONG[1:]) as one:
        assert len(await one.receive_messages(1, max_wait_time=30)) == 1

    assert await send_raw(broker, "sessions", [encoded("x", group_id=LONG)]) == 0
    with pytest.raises(ServiceBusError, match="128 characters at most, not 129"):
        async with broker_client.get_queue_receiver("sessions", session_id=LONG):
            pass


# -- where nothing can be sent to --------------------------------------------------


@pytest.mark.parametrize("path", ["news/Subscriptions/all", "plain/$DeadLetterQueue"])
async def test_nothing_is_scheduled_where_nothing_can_be_sent_to(
    broker: Broker, path: str
) -> None:
    """The client of JavaScript schedules without a link for sending."""
    reply = await request(
        broker,
        f"{path}/$management",
        {"operation": "com.microsoft:schedule-message"},
        {"messages": [{"message": encoded("x")}]},
    )

    found: Any = reply.properties
    assert found["statusCode"] == 403
    assert "cannot be sent to" in found["statusDescription"]
    assert set(broker.snapshot().values()) == {Counts()}


# -- deleting in a batch -----------------------------------------------------------


async def delete(broker: Broker, count: object, before: object, **more: object) -> Any:
    reply = await request(
        broker,
        f"{more.pop('queue', 'plain')}/$management",
        {"operation": "com.microsoft:batch-delete-messages"},
        {
            "message-count": count,
            "enqueued-time-utc": before,
            **{name.replace("_", "-"): value for name, value in more.items()},
        },
    )
    properties: Any = reply.properties
    body: Any = reply.body or {}
    return properties["statusCode"], body.get("message-count")


def milliseconds(seconds: float) -> Any:
    return proton.timestamp(round(seconds * 1000))


async def test_batch_of_messages_is_deleted(
    broker: Broker, wall_clock: WallClock
) -> None:
    await send_raw(broker, "plain", [encoded(str(n)) for n in range(5)])
    end = milliseconds(wall_clock() + 1)

    assert await delete(broker, 2, end) == (200, 2)
    assert await delete(broker, 4000, end) == (200, 3)
    assert await delete(broker, 1, end) == (204, None)
    assert broker.snapshot()["plain"] == Counts()


async def test_only_what_was_there_before_is_deleted(
    broker: Broker, wall_clock: WallClock
) -> None:
    await send_raw(broker, "plain", [encoded("old")])
    wall_clock.ahead += 60
    await send_raw(broker, "plain", [encoded("new")])

    assert await delete(broker, 10, milliseconds(wall_clock() - 30)) == (200, 1)
    assert broker.snapshot()["plain"] == Counts(active=1)


async def test_locked_and_deferred_messages_are_not_deleted(
    broker: Broker, broker_client: ServiceBusClient, wall_clock: WallClock
) -> None:
    await send_raw(broker, "plain", [encoded(str(n)) for n in range(3)])
    async with broker_client.get_queue_receiver("plain") as receiver:
        locked, deferred = await receive(receiver, 2)
        await receiver.defer_message(deferred)
        assert await delete(broker, 10, milliseconds(wall_clock() + 1)) == (200, 1)
        await receiver.complete_message(locked)

    assert broker.snapshot()["plain"] == Counts(deferred=1)


async def test_messages_of_one_session_are_deleted(
    broker: Broker, wall_clock: WallClock
) -> None:
    await send_raw(
        broker, "sessions", [encoded("x", group_id=each) for each in ("a", "b", "a")]
    )
    end = milliseconds(wall_clock() + 1)
    found = await delete(broker, 9, end, queue="sessions", session_id="a")

    assert found == (200, 2)
    assert broker.snapshot()["sessions"] == Counts(active=1)


@pytest.mark.parametrize(
    ("count", "before"),
    [(0, proton.timestamp(1)), (4001, proton.timestamp(1)), (1, None), ("1", 1)],
)
async def test_faulty_batch_is_refused(
    broker: Broker, count: object, before: object
) -> None:
    assert await delete(broker, count, before) == (400, None)


# -- what this broker does not do --------------------------------------------------


@pytest.mark.parametrize(
    ("properties", "status", "words"),
    [
        ({}, 400, "the request names no operation"),
        ({"operation": "com.microsoft:dance"}, 501, "com.microsoft:dance is not"),
    ],
)
async def test_unknown_request_is_refused_in_words(
    broker: Broker, properties: dict[str, Any], status: int, words: str
) -> None:
    reply = await request(broker, MANAGEMENT, properties)
    found: Any = reply.properties

    assert found["statusCode"] == status
    assert words in found["statusDescription"]


async def test_cbs_knows_one_operation(broker: Broker) -> None:
    found: Any = (await request(broker, "$cbs", {"operation": "take-token"})).properties

    assert found["status-code"] == 501
    assert "'put-token' only, not 'take-token'" in found["status-description"]


async def test_request_without_a_link_for_the_reply_is_refused(broker: Broker) -> None:
    def ask(connection: Any) -> None:
        sender = connection.create_sender(MANAGEMENT)
        sender.send(proton.Message(id="1", properties={"operation": "x"}))

    with pytest.raises(utils.SendException):
        await in_connection(broker, ask)


@pytest.mark.parametrize("kind", ["anonymous", "dynamic"])
async def test_link_to_nothing_is_refused_in_words(broker: Broker, kind: str) -> None:
    words = {
        "anonymous": "has to name a queue",
        "dynamic": "makes no entities",
    }

    def attach(connection: Any) -> None:
        if kind == "dynamic":
            connection.create_receiver(None, dynamic=True)
        else:
            connection.create_sender(None)

    with pytest.raises(utils.LinkDetached, match=words[kind]):
        await in_connection(broker, attach)
