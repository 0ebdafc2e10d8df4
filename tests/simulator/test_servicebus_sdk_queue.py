"""Queues and topics as the unmodified azure-servicebus client meets them."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest
from azure.servicebus import (
    ServiceBusMessage,
    ServiceBusMessageState,
    ServiceBusReceivedMessage,
    ServiceBusReceiveMode,
    ServiceBusSubQueue,
)
from azure.servicebus._pyamqp.error import TokenAuthFailure
from azure.servicebus.aio import (
    AutoLockRenewer,
    ServiceBusClient,
    ServiceBusReceiver,
)
from azure.servicebus.amqp import AmqpAnnotatedMessage
from azure.servicebus.exceptions import (
    MessageLockLostError,
    MessageNotFoundError,
    MessageSizeExceededError,
    ServiceBusAuthenticationError,
    ServiceBusError,
    ServiceBusQuotaExceededError,
)

from bridge.simulator.servicebus.backlog import Counts
from bridge.simulator.servicebus.broker import Broker
from tests.simulator.servicebus_fixtures import WAIT, WallClock, opened, receive


async def receive_one(receiver: ServiceBusReceiver) -> ServiceBusReceivedMessage:
    (message,) = await receive(receiver, 1)
    return message


def later(seconds: float) -> datetime:
    return datetime.now(UTC) + timedelta(seconds=seconds)


async def test_message_arrives_as_it_was_sent(broker_client: ServiceBusClient) -> None:
    sender = broker_client.get_queue_sender("plain")
    receiver = broker_client.get_queue_receiver("plain")
    sent = ServiceBusMessage(
        b"body",
        message_id="m1",
        subject="alarm",
        correlation_id="c1",
        content_type="application/json",
        to="you",
        reply_to="me",
        reply_to_session_id="rs",
        time_to_live=timedelta(minutes=5),
        application_properties={"text": "red", "number": 5, "truth": True},
    )

    async with opened(sender, receiver):
        await sender.send_messages(sent)
        message = await receive_one(receiver)
        await receiver.complete_message(message)

    assert str(message) == "body"
    assert (message.message_id, message.subject) == ("m1", "alarm")
    assert (message.correlation_id, message.to) == ("c1", "you")
    assert (message.reply_to, message.reply_to_session_id) == ("me", "rs")
    assert message.content_type == "application/json"
    assert message.time_to_live == timedelta(minutes=5)
    assert message.application_properties == {
        b"text": b"red",
        b"number": 5,
        b"truth": True,
    }
    assert message.sequence_number == 1
    assert message.delivery_count == 0


async def test_body_of_several_sections_stays_in_sections(
    broker_client: ServiceBusClient,
) -> None:
    sender = broker_client.get_queue_sender("plain")
    receiver = broker_client.get_queue_receiver("plain")
    sent = AmqpAnnotatedMessage(
        data_body=[b"two ", b"parts"], annotations={"x-opt-mine": "kept"}
    )

    async with opened(sender, receiver):
        await sender.send_messages(sent)
        message = await receive_one(receiver)

    assert list(message.body) == [b"two ", b"parts"]
    assert message.message_id
    annotations = message.raw_amqp_message.annotations
    assert annotations is not None
    assert annotations[b"x-opt-mine"] == b"kept"


async def test_batch_is_sent_as_its_messages(
    broker: Broker, broker_client: ServiceBusClient
) -> None:
    async with broker_client.get_queue_sender("plain") as sender:
        batch = await sender.create_message_batch()
        for number in range(20):
            batch.add_message(ServiceBusMessage(f"body {number}" * 50))
        await sender.send_messages(batch)
        await sender.send_messages([ServiceBusMessage("a"), ServiceBusMessage("b")])

    assert broker.snapshot()["plain"] == Counts(active=22)


async def test_message_that_looks_like_a_batch_is_none(
    broker: Broker, broker_client: ServiceBusClient
) -> None:
    """Only the message-format tells: the body here is an AMQP message itself."""
    inner = b"\x00\x53\x75\xa0\x05hello"
    sender = broker_client.get_queue_sender("plain")
    receiver = broker_client.get_queue_receiver("plain")

    async with opened(sender, receiver):
        await sender.send_messages(ServiceBusMessage(inner))
        message = await receive_one(receiver)

    assert b"".join(message.body) == inner


async def test_long_message_takes_several_frames(
    broker_client: ServiceBusClient,
) -> None:
    sender = broker_client.get_queue_sender("plain")
    receiver = broker_client.get_queue_receiver("plain")

    async with opened(sender, receiver):
        await sender.send_messages(ServiceBusMessage(b"x" * 250_000))
        message = await receive_one(receiver)

    assert len(b"".join(message.body)) == 250_000


async def test_too_long_message_is_refused(broker_client: ServiceBusClient) -> None:
    async with broker_client.get_queue_sender("plain") as sender:
        with pytest.raises(MessageSizeExceededError):
            await sender.send_messages(ServiceBusMessage(b"x" * 300_000))


async def test_every_way_to_settle(
    broker: Broker, broker_client: ServiceBusClient
) -> None:
    sender = broker_client.get_queue_sender("plain")
    receiver = broker_client.get_queue_receiver("plain")

    async with opened(sender, receiver):
        await sender.send_messages([ServiceBusMessage(str(n)) for n in range(4)])
        messages = await receive(receiver, 4)
        await receiver.complete_message(messages[0])
        await receiver.abandon_message(messages[1])
        await receiver.defer_message(messages[2])
        await receiver.dead_letter_message(messages[3])
        counts = broker.snapshot()["plain"]

    assert counts == Counts(active=1, deferred=1, dead=1)


async def test_abandoned_message_tells_its_failed_deliveries(
    broker_client: ServiceBusClient,
) -> None:
    sender = broker_client.get_queue_sender("plain")
    receiver = broker_client.get_queue_receiver("plain")

    async with opened(sender, receiver):
        await sender.send_messages(ServiceBusMessage("x"))
        await receiver.abandon_message(await receive_one(receiver))
        again = await receive_one(receiver)

    assert again.delivery_count == 1


async def test_receive_and_delete(
    broker: Broker, broker_client: ServiceBusClient
) -> None:
    sender = broker_client.get_queue_sender("plain")
    receiver = broker_client.get_queue_receiver(
        "plain", receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE
    )

    async with opened(sender, receiver):
        await sender.send_messages([ServiceBusMessage("a"), ServiceBusMessage("b")])
        messages = await receive(receiver, 2)

    assert [str(message) for message in messages] == ["a", "b"]
    # The SDK would take a tag for the token of a lock; its own tests look at it.
    assert not any(vars(message)["_delivery_tag"] for message in messages)
    assert broker.snapshot()["plain"] == Counts()


async def test_iterator_gets_what_comes_while_it_waits(
    broker_client: ServiceBusClient,
) -> None:
    sender = broker_client.get_queue_sender("plain")
    receiver = broker_client.get_queue_receiver("plain", prefetch_count=10)
    received: list[str] = []

    async with opened(sender, receiver):
        for name in "abc":
            await sender.send_messages(ServiceBusMessage(name))
        async for message in receiver:
            received.append(str(message))
            await receiver.complete_message(message)
            if len(received) == 3:
                break

    assert received == ["a", "b", "c"]


async def test_dead_letter_tells_reason_and_description(
    broker_client: ServiceBusClient,
) -> None:
    sender = broker_client.get_queue_sender("plain")
    receiver = broker_client.get_queue_receiver("plain")
    dead = broker_client.get_queue_receiver(
        "plain", sub_queue=ServiceBusSubQueue.DEAD_LETTER
    )

    async with opened(sender, receiver, dead):
        await sender.send_messages(ServiceBusMessage("x"))
        await receiver.dead_letter_message(
            await receive_one(receiver), reason="Unreadable", error_description="why"
        )
        letter = await receive_one(dead)
        await dead.complete_message(letter)

    assert letter.dead_letter_reason == "Unreadable"
    assert letter.dead_letter_error_description == "why"
    assert letter.dead_letter_source is None  # it was not forwarded


async def test_message_is_dead_lettered_after_too_many_deliveries(
    broker_client: ServiceBusClient,
) -> None:
    sender = broker_client.get_queue_sender("strict")
    receiver = broker_client.get_queue_receiver("strict")
    dead = broker_client.get_queue_receiver(
        "strict", sub_queue=ServiceBusSubQueue.DEAD_LETTER
    )

    async with opened(sender, receiver, dead):
        await sender.send_messages(ServiceBusMessage("x"))
        for _ in range(2):
            await receiver.abandon_message(await receive_one(receiver))
        letter = await receive_one(dead)

    assert letter.dead_letter_reason == "MaxDeliveryCountExceeded"


async def test_expired_lock_gives_the_message_to_the_next(
    broker_client: ServiceBusClient, wall_clock: WallClock
) -> None:
    """The first lock of a minute begins so long ago that half a second is left."""
    sender = broker_client.get_queue_sender("plain")
    first = broker_client.get_queue_receiver("plain")
    second = broker_client.get_queue_receiver("plain")

    async with opened(sender, first, second):
        await sender.send_messages(ServiceBusMessage("x"))
        wall_clock.ahead = -59.5
        lost = await receive_one(first)
        wall_clock.ahead = 0.0
        again = await receive_one(second)
        with pytest.raises(MessageLockLostError):
            await first.complete_message(lost)
        await second.complete_message(again)

    assert again.delivery_count == 1


async def test_broker_refuses_a_lost_lock(
    broker: Broker, broker_client: ServiceBusClient
) -> None:
    """Unlike above, the client believes in its lock and asks."""
    sender = broker_client.get_queue_sender("plain")
    receiver = broker_client.get_queue_receiver("plain")

    async with opened(sender, receiver):
        await sender.send_messages(ServiceBusMessage("x"))
        message = await receive_one(receiver)
        broker.faults.expire_locks("plain")
        with pytest.raises(MessageLockLostError):
            await receiver.complete_message(message)
        with pytest.raises(MessageLockLostError):
            await receiver.renew_message_lock(message)


async def test_renewed_lock_is_kept(
    broker_client: ServiceBusClient, wall_clock: WallClock
) -> None:
    sender = broker_client.get_queue_sender("plain")
    receiver = broker_client.get_queue_receiver("plain")

    async with opened(sender, receiver):
        await sender.send_messages(ServiceBusMessage("x"))
        message = await receive_one(receiver)
        first_until = message.locked_until_utc
        wall_clock.ahead = 40.0
        until = await receiver.renew_message_lock(message)
        wall_clock.ahead = 80.0
        await receiver.complete_message(message)

    assert first_until is not None
    assert until > first_until


@pytest.mark.slow
async def test_auto_lock_renewer_keeps_the_lock(
    broker: Broker, broker_client: ServiceBusClient, wall_clock: WallClock
) -> None:
    """It renews what has less than ten seconds left, and looks twice a second."""
    sender = broker_client.get_queue_sender("plain")
    receiver = broker_client.get_queue_receiver("plain")

    async with opened(sender, receiver), AutoLockRenewer() as renewer:
        await sender.send_messages(ServiceBusMessage("x"))
        wall_clock.ahead = -55.0
        message = await receive_one(receiver)
        first_until = message.locked_until_utc
        assert first_until is not None
        wall_clock.ahead = 0.0
        renewer.register(receiver, message, max_lock_renewal_duration=60)
        while message.locked_until_utc == first_until:
            await asyncio.sleep(0.05)
        wall_clock.ahead = 50.0
        await receiver.complete_message(message)

    assert broker.snapshot()["plain"] == Counts()


async def test_deferred_message_is_received_by_its_number(
    broker: Broker, broker_client: ServiceBusClient
) -> None:
    sender = broker_client.get_queue_sender("plain")
    receiver = broker_client.get_queue_receiver("plain")

    async with opened(sender, receiver):
        await sender.send_messages(ServiceBusMessage("x"))
        message = await receive_one(receiver)
        await receiver.defer_message(message)
        number = message.sequence_number
        assert number is not None
        (found,) = await receiver.receive_deferred_messages(number)
        await receiver.complete_message(found)
        with pytest.raises(MessageNotFoundError):
            await receiver.receive_deferred_messages(number)

    assert found.state == ServiceBusMessageState.DEFERRED
    assert broker.snapshot()["plain"] == Counts()


async def test_peek_takes_nothing(
    broker: Broker, broker_client: ServiceBusClient
) -> None:
    sender = broker_client.get_queue_sender("plain")
    receiver = broker_client.get_queue_receiver("plain")

    async with opened(sender, receiver):
        assert await receiver.peek_messages(5) == []
        await sender.send_messages([ServiceBusMessage(name) for name in "abc"])
        found = await receiver.peek_messages(2)
        rest = await receiver.peek_messages(5)

    assert [str(message) for message in found] == ["a", "b"]
    assert [str(message) for message in rest] == ["c"]


async def test_duplicate_is_reported_as_sent_and_dropped(
    broker: Broker, broker_client: ServiceBusClient
) -> None:
    async with broker_client.get_queue_sender("unique") as sender:
        for name in ("a", "a", "b"):
            await sender.send_messages(ServiceBusMessage("x", message_id=name))

    assert broker.snapshot()["unique"] == Counts(active=2)


async def test_scheduled_message_comes_at_its_time(
    broker_client: ServiceBusClient,
) -> None:
    sender = broker_client.get_queue_sender("plain")
    receiver = broker_client.get_queue_receiver("plain")

    async with opened(sender, receiver):
        due = later(1)
        await sender.schedule_messages(ServiceBusMessage("x"), due)
        message = await receive_one(receiver)

    enqueued = message.enqueued_time_utc
    assert enqueued is not None
    # The time travels in whole milliseconds; nothing but its time brings it.
    assert timedelta(milliseconds=-1) <= enqueued - due < timedelta(seconds=WAIT)


async def test_message_can_be_sent_with_a_scheduled_time(
    broker: Broker, broker_client: ServiceBusClient
) -> None:
    message = ServiceBusMessage("x", scheduled_enqueue_time_utc=later(60))

    async with broker_client.get_queue_sender("plain") as sender:
        await sender.send_messages(message)

    assert broker.snapshot()["plain"] == Counts(scheduled=1)


async def test_scheduled_messages_can_be_cancelled(
    broker: Broker, broker_client: ServiceBusClient
) -> None:
    async with broker_client.get_topic_sender("news") as sender:
        numbers = await sender.schedule_messages(
            [ServiceBusMessage("a"), ServiceBusMessage("b")], later(60)
        )
        await sender.cancel_scheduled_messages(numbers[0])
        with pytest.raises(MessageNotFoundError):
            await sender.cancel_scheduled_messages(numbers[0])

    assert broker.snapshot()["news"] == Counts(scheduled=1)


async def test_expired_message_is_dead_lettered(
    broker: Broker, broker_client: ServiceBusClient, wall_clock: WallClock
) -> None:
    """A client sends a time to live in whole seconds."""
    message = ServiceBusMessage("x", time_to_live=timedelta(seconds=60))
    dead = broker_client.get_queue_receiver(
        "strict", sub_queue=ServiceBusSubQueue.DEAD_LETTER
    )

    async with broker_client.get_queue_sender("strict") as sender:
        await sender.send_messages(message)
        before = broker.snapshot()["strict"]
        wall_clock.ahead = 61.0
        async with opened(dead):
            letter = await receive_one(dead)

    assert before == Counts(active=1)
    assert letter.dead_letter_reason == "TTLExpiredException"


async def test_subscriptions_get_what_their_filters_admit(
    broker: Broker, broker_client: ServiceBusClient
) -> None:
    messages = [
        ServiceBusMessage(
            "a", subject="alarm", application_properties={"colour": "red"}
        ),
        ServiceBusMessage("b", subject="alarm"),
        ServiceBusMessage("c", application_properties={"colour": "red"}),
    ]
    sender = broker_client.get_topic_sender("news")
    receiver = broker_client.get_subscription_receiver("news", "red")

    async with opened(sender, receiver):
        await sender.send_messages(messages)
        received = await receiver.receive_messages(3, max_wait_time=WAIT)

    assert [str(message) for message in received] == ["a"]
    assert broker.snapshot()["news/Subscriptions/all"].active == 3


async def test_dead_letters_of_a_subscription_can_be_read(
    broker_client: ServiceBusClient,
) -> None:
    sender = broker_client.get_topic_sender("news")
    receiver = broker_client.get_subscription_receiver("news", "all")
    dead = broker_client.get_subscription_receiver(
        "news", "all", sub_queue=ServiceBusSubQueue.DEAD_LETTER
    )

    async with opened(sender, receiver, dead):
        await sender.send_messages(ServiceBusMessage("x"))
        await receiver.dead_letter_message(await receive_one(receiver), reason="R")
        letter = await receive_one(dead)

    assert letter.dead_letter_reason == "R"


async def test_full_queue_refuses_and_the_sender_goes_on(
    broker: Broker, broker_client: ServiceBusClient
) -> None:
    async with broker_client.get_queue_sender("small") as sender:
        with pytest.raises(ServiceBusQuotaExceededError):
            await sender.send_messages(ServiceBusMessage("x" * 300))
        await sender.send_messages(ServiceBusMessage("x"))

    assert broker.snapshot()["small"] == Counts(active=1)


async def test_unknown_entity_is_not_found(broker_client: ServiceBusClient) -> None:
    """The cloud says so when it is shown a token for it: before any link."""
    with pytest.raises(ServiceBusAuthenticationError) as caught:
        async with broker_client.get_queue_receiver("nowhere"):
            pass

    inner = caught.value.inner_exception
    assert isinstance(inner, TokenAuthFailure)
    assert inner.status_code == 404
    assert b"'nowhere' could not be found" in inner.status_description


async def test_unknown_entity_is_not_found_by_proton_without_a_token(
    broker: Broker,
) -> None:
    """As a client of AMQP that is no client of Service Bus."""
    from tests.support.raw_amqp import send_raw, utils  # noqa: PLC0415 - it skips

    with pytest.raises(utils.LinkDetached) as caught:
        await send_raw(broker, "nowhere", [b""])

    assert caught.value.condition == "amqp:not-found"


@pytest.mark.parametrize(
    "path", ["plain", "PLAIN", "news/Subscriptions/all", "plain/$DeadLetterQueue"]
)
async def test_token_for_what_is_there_is_taken(
    path: str, broker_client: ServiceBusClient
) -> None:
    receiver = broker_client.get_queue_receiver(path)
    async with opened(receiver):
        assert await receiver.peek_messages() == []


async def test_topic_is_not_received_from(broker_client: ServiceBusClient) -> None:
    with pytest.raises(ServiceBusError, match="name a subscription"):
        async with broker_client.get_queue_receiver("news"):
            pass


async def test_closed_receiver_gives_back_what_it_has_prefetched(
    broker: Broker, broker_client: ServiceBusClient
) -> None:
    """It drains its credit and releases what came: neither counts as a failure."""
    sender = broker_client.get_queue_sender("plain")
    first = broker_client.get_queue_receiver("plain", prefetch_count=10)
    second = broker_client.get_queue_receiver("plain")

    async with opened(sender):
        await sender.send_messages([ServiceBusMessage(name) for name in "abc"])
        async with opened(first):
            await receive_one(first)
        counts = broker.snapshot()["plain"]
        async with opened(second):
            again = await receive_one(second)

    assert counts == Counts(active=3, locked=1)
    assert (str(again), again.delivery_count) == ("b", 0)


async def test_competing_receivers_share_a_queue(
    broker: Broker, broker_client: ServiceBusClient
) -> None:
    sender = broker_client.get_queue_sender("plain")
    receivers = [broker_client.get_queue_receiver("plain") for _ in range(3)]
    received: list[str] = []

    async def work(receiver: ServiceBusReceiver) -> None:
        while len(received) < 30:
            for message in await receiver.receive_messages(2, max_wait_time=0.5):
                received.append(str(message))
                await receiver.complete_message(message)

    async with opened(sender, *receivers):
        await sender.send_messages([ServiceBusMessage(str(n)) for n in range(30)])
        await asyncio.gather(*map(work, receivers))

    assert sorted(received, key=int) == [str(n) for n in range(30)]
    assert broker.snapshot()["plain"] == Counts()
