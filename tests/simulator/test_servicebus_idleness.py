"""AutoDeleteOnIdle: what nobody uses is deleted, and what is used stays."""

from collections.abc import Callable
from datetime import timedelta

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient
from azure.servicebus.exceptions import ServiceBusError
from msgspec.structs import replace

from bridge.simulator.servicebus.broker import Broker
from bridge.simulator.servicebus.entity_actions import EntityActions
from bridge.simulator.servicebus.message import SENT
from bridge.simulator.servicebus.settings import (
    Entities,
    QueueSettings,
    SubscriptionSettings,
    TopicSettings,
)
from bridge.simulator.servicebus.topics import Topic
from tests.simulator.servicebus_fixtures import (
    START,
    Rig,
    WallClock,
    locked,
    message,
    one_queue,
)

FIVE_MINUTES = timedelta(minutes=5)
IDLE = QueueSettings(name="q", auto_delete_on_idle=FIVE_MINUTES)
INNER = "t/Subscriptions/s"


def paths(rig: Rig) -> set[str]:
    return set(rig.namespace.snapshot())


def topic_rig(*, topic: timedelta | None, subscription: timedelta | None) -> Rig:
    inner = SubscriptionSettings(name="s", auto_delete_on_idle=subscription)
    outer = TopicSettings(name="t", auto_delete_on_idle=topic, subscriptions=(inner,))
    return Rig(Entities(topics=(outer,)))


def found_topic(rig: Rig) -> Topic:
    found = rig.namespace.find("t")
    assert isinstance(found, Topic)
    return found


def test_unused_queue_is_deleted_after_its_time_and_not_before() -> None:
    rig = one_queue(IDLE)

    rig.clock.advance(299)
    assert paths(rig) == {"q"}
    rig.clock.advance(1)
    assert paths(rig) == set()


def test_queue_without_the_setting_stays() -> None:
    rig = one_queue()
    rig.clock.advance(10 * 365 * 86400)

    assert paths(rig) == {"q"}


def send(rig: Rig) -> None:
    rig.queue().send([message()])


def update(rig: Rig) -> None:
    rig.namespace.change(rig.queue(), replace(IDLE, max_delivery_count=5))


@pytest.mark.parametrize("use", [send, update])
def test_use_begins_the_time_anew(use: Callable[[Rig], None]) -> None:
    rig = one_queue(IDLE)
    rig.clock.advance(200)
    use(rig)

    rig.clock.advance(299)
    assert paths(rig) == {"q"}
    rig.clock.advance(1)
    assert paths(rig) == set()


def test_update_may_end_or_begin_the_watch() -> None:
    rig = one_queue(IDLE)
    rig.namespace.change(rig.queue(), replace(IDLE, auto_delete_on_idle=None))
    rig.clock.advance(3600)
    assert paths(rig) == {"q"}

    rig.namespace.change(rig.queue(), IDLE)
    rig.clock.advance(300)
    assert paths(rig) == set()


def test_queue_with_a_scheduled_message_stays_and_is_used_when_it_comes() -> None:
    rig = one_queue(IDLE)
    rig.queue().send([message(scheduled_for=START + 1000)])

    rig.clock.advance(1299)
    assert paths(rig) == {"q"}
    rig.clock.advance(1 + 299)  # it is looked at again when it could be idle
    assert paths(rig) == set()


def test_what_forwards_is_in_use_and_so_is_what_it_forwards_to() -> None:
    source = QueueSettings(
        name="source", forward_to="q", auto_delete_on_idle=FIVE_MINUTES
    )
    rig = Rig(Entities(queues=(IDLE, source)))
    rig.clock.advance(200)
    rig.queue("source").send([message()])

    rig.clock.advance(299)
    assert paths(rig) == {"q", "source"}
    rig.clock.advance(1)
    assert paths(rig) == {"source"}
    rig.clock.advance(3600)
    assert paths(rig) == {"source"}


def test_messages_for_a_subscription_are_no_use_of_it() -> None:
    rig = topic_rig(topic=None, subscription=FIVE_MINUTES)
    rig.clock.advance(200)
    found_topic(rig).send([message()])

    rig.clock.advance(100)

    assert paths(rig) == {"t"}


def test_use_of_a_subscription_is_use_of_its_topic() -> None:
    rig = topic_rig(topic=FIVE_MINUTES, subscription=None)
    rig.clock.advance(200)
    rig.queue(INNER).use.touch()

    rig.clock.advance(299)
    assert paths(rig) == {"t", INNER}
    rig.clock.advance(1)
    assert paths(rig) == set()  # a topic takes its subscriptions with it


def test_receiver_keeps_a_subscription_and_its_topic() -> None:
    rig = topic_rig(topic=FIVE_MINUTES, subscription=FIVE_MINUTES)
    rig.queue(INNER).use.begin()
    rig.clock.advance(7200)
    rig.queue(INNER).use.end()

    rig.clock.advance(299)
    assert paths(rig) == {"t", INNER}
    rig.clock.advance(301)
    assert paths(rig) == set()


def test_whoever_reads_dead_letters_uses_their_queue() -> None:
    rig = one_queue(IDLE)
    rig.dead_letters().use.begin()
    rig.clock.advance(3600)

    assert paths(rig) == {"q"}


def test_deleted_entity_is_watched_no_longer() -> None:
    """One of the same name begins anew."""
    rig = one_queue(IDLE)
    rig.clock.advance(200)
    rig.namespace.remove(rig.queue())
    rig.namespace.add_queue(IDLE)

    rig.clock.advance(299)
    assert paths(rig) == {"q"}


def test_message_that_is_locked_when_its_queue_goes_does_no_harm() -> None:
    rig = one_queue(replace(IDLE, lock_duration=FIVE_MINUTES))
    queue = rig.queue()
    queue.accept(message(time_to_live=400.0), SENT)
    locked(queue)

    rig.clock.advance(3600)

    assert paths(rig) == set()


# -- as the SDK meets it -----------------------------------------------------------


async def test_receiver_keeps_its_queue_and_a_silent_sender_does_not(
    wall_clock: WallClock, brisk_sdk: None
) -> None:
    entities = Entities(
        queues=(IDLE, QueueSettings(name="sent", auto_delete_on_idle=FIVE_MINUTES))
    )
    async with Broker(entities, clock=wall_clock) as broker:
        client = ServiceBusClient.from_connection_string(
            broker.connection_string, retry_total=0
        )
        async with client, client.get_queue_sender("sent") as sender:
            await sender.send_messages(ServiceBusMessage("x"))
            async with client.get_queue_receiver("q") as receiver:
                await receiver.receive_messages(1, max_wait_time=0.1)
                later(wall_clock, broker.actions, 3600)

                assert set(broker.snapshot()) == {"q"}
                with pytest.raises(ServiceBusError, match="'sent' could not be found"):
                    await sender.send_messages(ServiceBusMessage("x"))
            later(wall_clock, broker.actions, 299)
            assert set(broker.snapshot()) == {"q"}
            await client.get_queue_receiver("q").peek_messages()  # a look is use, too
            later(wall_clock, broker.actions, 299)
            assert set(broker.snapshot()) == {"q"}


def later(clock: WallClock, actions: EntityActions, seconds: float) -> None:
    clock.ahead += seconds
    actions.turn()
