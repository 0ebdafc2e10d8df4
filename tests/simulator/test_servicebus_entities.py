"""Topics, filters, forwarding, and finding entities by their paths."""

from datetime import timedelta

import pytest

from bridge.simulator.servicebus.backlog import Counts
from bridge.simulator.servicebus.config import default_entities
from bridge.simulator.servicebus.rules.rule import CorrelationFilter
from bridge.simulator.servicebus.settings import (
    Entities,
    QueueSettings,
    SubscriptionSettings,
    TopicSettings,
)
from bridge.simulator.servicebus.topics import Topic
from bridge.simulator.servicebus.values import Condition, RefusedError
from tests.simulator.servicebus_fixtures import (
    START,
    Rig,
    locked,
    message,
    row,
    rules_for,
)

RED_ALARM = CorrelationFilter(
    properties={"Label": "alarm"}, application_properties={"colour": "red"}
)


def topic_rig(
    *subscriptions: SubscriptionSettings,
    duplicate_window: timedelta | None = None,
    default_time_to_live: timedelta | None = None,
) -> Rig:
    topic = TopicSettings(
        name="t",
        subscriptions=subscriptions or (SubscriptionSettings(name="s"),),
        duplicate_window=duplicate_window,
        default_time_to_live=default_time_to_live,
    )
    return Rig(Entities(topics=(topic,)))


def topic(rig: Rig) -> Topic:
    found = rig.namespace.find("t")
    assert isinstance(found, Topic)
    return found


def path(name: str = "s") -> str:
    return f"t/Subscriptions/{name}"


def forwarding(*queues: tuple[str, str | None]) -> Rig:
    return Rig(
        Entities(
            queues=tuple(
                QueueSettings(name=name, forward_to=target) for name, target in queues
            )
        )
    )


def test_every_subscription_gets_its_own_copy() -> None:
    rig = topic_rig(SubscriptionSettings(name="s1"), SubscriptionSettings(name="s2"))

    topic(rig).send([message()])
    queue = rig.queue(path("s1"))
    queue.complete(locked(queue)[1])

    assert rig.queue(path("s1")).counts() == Counts()
    assert rig.queue(path("s2")).counts() == Counts(active=1)


def test_topic_drops_duplicates_before_its_subscriptions() -> None:
    rig = topic_rig(duplicate_window=timedelta(minutes=1))

    assert topic(rig).send([message("a"), message("a")]) == (1, None)

    assert rig.queue(path()).counts() == Counts(active=1)


def test_topic_bounds_the_time_to_live() -> None:
    rig = topic_rig(default_time_to_live=timedelta(seconds=5))
    topic(rig).send([message("a"), message("b", time_to_live=2.0)])

    rig.clock.advance(2)
    assert rig.queue(path()).counts() == Counts(active=1)
    rig.clock.advance(3)

    assert rig.queue(path()).counts() == Counts()


def test_topic_holds_scheduled_messages_until_their_time() -> None:
    rig = topic_rig()
    topic(rig).send([message(scheduled_for=START + 5)])

    assert rig.namespace.snapshot()["t"] == Counts(scheduled=1)
    assert rig.queue(path()).counts() == Counts()
    rig.clock.advance(5)

    assert rig.queue(path()).counts() == Counts(active=1)


def test_subscription_remembers_the_number_in_the_topic() -> None:
    rig = topic_rig(SubscriptionSettings(name="s", rules=rules_for(RED_ALARM)))
    red = message("b", properties={"Label": "alarm"}, application_properties={})
    topic(rig).send([message("a"), red])
    topic(rig).send(
        [
            message(
                "c",
                properties={"Label": "alarm"},
                application_properties={"colour": "red"},
            )
        ]
    )

    delivery, _ = locked(rig.queue(path()))

    assert delivery.sequence_number == 1
    assert delivery.enqueued_sequence_number == 3


def test_full_subscription_refuses_for_the_topic() -> None:
    small = SubscriptionSettings(name="small", max_bytes=5)
    rig = topic_rig(small, SubscriptionSettings(name="s"))

    with pytest.raises(RefusedError) as error:
        topic(rig).send([message()])

    assert error.value.condition == Condition.RESOURCE_LIMIT_EXCEEDED
    assert rig.queue(path()).counts() == Counts()


def test_message_without_a_session_is_dead_lettered_by_a_session_subscription() -> None:
    """Azure gives this reason in its overview of dead-letter queues."""
    rig = topic_rig(SubscriptionSettings(name="s", requires_session=True))

    topic(rig).send([message()])

    dead, _ = locked(rig.dead_letters(path()))
    assert dead.dead_letter is not None
    assert dead.dead_letter.reason == "Session ID is null"


@pytest.mark.parametrize(
    ("label", "colour", "admitted"),
    [
        ("alarm", "red", True),
        ("alarm", "Red", False),
        ("alarm", None, False),
        ("other", "red", False),
    ],
)
def test_filter_wants_all_of_its_properties(
    label: str,
    colour: object,
    admitted: bool,  # noqa: FBT001  # a parameter by name
) -> None:
    sent = message(
        properties={"Label": label}, application_properties={"colour": colour}
    )

    assert RED_ALARM.matches(row(sent)) is admitted


def test_filter_tells_true_from_one() -> None:
    urgent = CorrelationFilter(application_properties={"urgent": True})

    assert urgent.matches(row(application_properties={"urgent": True}))
    assert not urgent.matches(row(application_properties={"urgent": 1}))


def test_one_matching_filter_of_several_is_enough() -> None:
    blue = CorrelationFilter(application_properties={"colour": "blue"})
    rig = topic_rig(SubscriptionSettings(name="s", rules=rules_for(RED_ALARM, blue)))

    topic(rig).send([message("a", application_properties={"colour": "blue"})])
    topic(rig).send([message("b")])

    assert locked(rig.queue(path()))[0].message.message_id == "a"
    assert rig.queue(path()).counts().active == 1


def test_forwarded_message_ends_up_in_the_target() -> None:
    rig = forwarding(("a", "b"), ("b", None))

    rig.queue("a").send([message("x"), message("y")])

    assert rig.queue("a").counts() == Counts()
    delivery, _ = locked(rig.queue("b"))
    assert delivery.enqueued_sequence_number == 1


def test_forwarding_entity_is_not_received_from() -> None:
    rig = forwarding(("a", "b"), ("b", None))

    with pytest.raises(RefusedError) as error:
        rig.namespace.find_queue("a")

    assert error.value.condition == Condition.NOT_ALLOWED


def test_forwarding_in_a_circle_ends_in_a_dead_letter_queue() -> None:
    rig = forwarding(("a", "b"), ("b", "a"))

    rig.queue("a").send([message()])

    (dead,) = [n for n in ("a", "b") if rig.queue(n).counts() == Counts(dead=1)]
    reason = locked(rig.dead_letters(dead))[0].dead_letter
    assert reason is not None
    assert reason.reason == "MaxTransferHopCountExceeded"


def test_dead_letters_are_forwarded_with_their_reason() -> None:
    queue = QueueSettings(name="a", forward_dead_letters_to="graveyard")
    rig = Rig(Entities(queues=(queue, QueueSettings(name="graveyard"))))
    rig.queue("a").send([message()])

    rig.queue("a").dead_letter(locked(rig.queue("a"))[1], "Unreadable")

    dead, _ = locked(rig.queue("graveyard"))
    assert dead.dead_letter is not None
    assert (dead.dead_letter.source, dead.dead_letter.reason) == ("a", "Unreadable")
    assert rig.queue("a").counts() == Counts()


def test_subscription_can_forward_to_a_queue() -> None:
    subscription = SubscriptionSettings(name="s", forward_to="q")
    rig = Rig(
        Entities(
            queues=(QueueSettings(name="q"),),
            topics=(TopicSettings(name="t", subscriptions=(subscription,)),),
        )
    )

    topic(rig).send([message()])

    assert rig.queue("q").counts() == Counts(active=1)


def test_queue_can_forward_to_a_topic() -> None:
    queue = QueueSettings(name="q", forward_to="t")
    subscription = SubscriptionSettings(name="s")
    rig = Rig(
        Entities(
            queues=(queue,),
            topics=(TopicSettings(name="t", subscriptions=(subscription,)),),
        )
    )

    rig.queue("q").send([message()])

    assert rig.queue(path()).counts() == Counts(active=1)


@pytest.mark.parametrize(
    "spelled",
    ["Q", "q/$deadletterqueue", "q/$DeadLetterQueue", "T/subscriptions/S"],
)
def test_entities_are_found_in_any_case(spelled: str) -> None:
    rig = topic_rig()
    both = Entities(
        queues=(QueueSettings(name="q"),),
        topics=(
            TopicSettings(name="t", subscriptions=(SubscriptionSettings(name="s"),)),
        ),
    )
    rig = Rig(both)

    assert rig.queue(spelled).name.lower() == spelled.lower()


def test_unknown_entity_is_not_found() -> None:
    with pytest.raises(RefusedError) as error:
        topic_rig().namespace.find("nothing")

    assert error.value.condition == Condition.NOT_FOUND


def test_topic_is_not_received_from() -> None:
    with pytest.raises(RefusedError) as error:
        topic_rig().namespace.find_queue("t")

    assert error.value.condition == Condition.NOT_ALLOWED


@pytest.mark.parametrize(
    "spelled", ["t/Subscriptions/s", "t/Subscriptions/s/$DeadLetterQueue"]
)
def test_subscriptions_and_dead_letter_queues_are_not_sent_to(spelled: str) -> None:
    with pytest.raises(RefusedError) as error:
        topic_rig().namespace.find_target(spelled)

    assert error.value.condition == Condition.NOT_ALLOWED


def test_default_entities_serve_a_bridge_and_its_consumers() -> None:
    paths = Rig(default_entities()).namespace.snapshot()

    assert set(paths) == {
        "scheduled-events",
        "scheduled-events/Subscriptions/consumer",
        "vm-approvals",
        "vm-approvals-sessions",
        "replies",
        "azure-events",
    }
