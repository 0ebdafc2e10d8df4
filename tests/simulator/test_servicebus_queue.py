"""A queue under a fake clock: no loop, no sockets, no waiting."""

from datetime import timedelta

import pytest

from bridge.simulator.servicebus.backlog import Counts
from bridge.simulator.servicebus.message import State
from bridge.simulator.servicebus.queues import Queue
from bridge.simulator.servicebus.settings import QueueSettings
from bridge.simulator.servicebus.values import Condition, RefusedError
from tests.simulator.servicebus_fixtures import (
    START,
    ids,
    locked,
    message,
    one_queue,
)


def refusal(error: pytest.ExceptionInfo[RefusedError]) -> Condition:
    return error.value.condition


def deferred(queue: Queue) -> int:
    delivery, token = locked(queue)
    queue.defer(token)
    return delivery.sequence_number


def test_messages_are_received_in_the_order_they_were_sent() -> None:
    queue = one_queue().queue()

    numbers = queue.send([message("a"), message("b")])

    assert numbers == (1, 2)
    assert [locked(queue)[0].message.message_id for _ in numbers] == ["a", "b"]
    assert queue.receive() is None


def test_locked_message_is_not_received_again() -> None:
    queue = one_queue().queue()
    queue.send([message()])

    delivery, _ = locked(queue)

    assert queue.receive() is None
    assert delivery.locked_until == START + 60
    assert delivery.delivery_count == 0


def test_completed_message_is_gone() -> None:
    queue = one_queue().queue()
    queue.send([message()])

    queue.complete(locked(queue)[1])

    assert queue.counts() == Counts()


def test_completing_twice_is_refused() -> None:
    queue = one_queue().queue()
    queue.send([message()])
    _, token = locked(queue)
    queue.complete(token)

    with pytest.raises(RefusedError) as error:
        queue.complete(token)

    assert refusal(error) == Condition.MESSAGE_LOCK_LOST


def test_abandoned_message_comes_back_first_and_counted() -> None:
    queue = one_queue().queue()
    queue.send([message("a"), message("b")])

    queue.abandon(locked(queue)[1])

    again, _ = locked(queue)
    assert (again.message.message_id, again.delivery_count) == ("a", 1)


def test_released_message_comes_back_uncounted() -> None:
    queue = one_queue().queue()
    queue.send([message()])

    queue.release(locked(queue)[1])

    assert locked(queue)[0].delivery_count == 0


def test_receive_and_delete_leaves_nothing() -> None:
    queue = one_queue().queue()
    queue.send([message()])

    delivery = queue.receive(delete=True)

    assert delivery is not None
    assert delivery.lock_token is None
    assert queue.counts() == Counts()


def test_lock_expires_at_its_deadline() -> None:
    rig = one_queue()
    queue = rig.queue()
    queue.send([message()])
    _, token = locked(queue)

    assert rig.namespace.next_deadline() == START + 60
    rig.clock.advance(60)

    assert locked(queue)[0].delivery_count == 1
    with pytest.raises(RefusedError) as error:
        queue.complete(token)
    assert refusal(error) == Condition.MESSAGE_LOCK_LOST


def test_renewed_lock_lasts_from_the_renewal() -> None:
    rig = one_queue()
    queue = rig.queue()
    queue.send([message()])
    _, token = locked(queue)
    rig.clock.advance(50)

    until = queue.renew_lock(token)
    rig.clock.advance(50)

    assert until == START + 110
    assert queue.receive() is None
    queue.complete(token)


def test_lost_lock_cannot_be_renewed() -> None:
    rig = one_queue()
    queue = rig.queue()
    queue.send([message()])
    _, token = locked(queue)
    rig.clock.advance(60)

    with pytest.raises(RefusedError) as error:
        queue.renew_lock(token)

    assert refusal(error) == Condition.MESSAGE_LOCK_LOST


def test_message_is_dead_lettered_after_its_last_delivery() -> None:
    rig = one_queue(QueueSettings(name="q", max_delivery_count=2))
    queue = rig.queue()
    queue.send([message()])

    queue.abandon(locked(queue)[1])
    queue.abandon(locked(queue)[1])

    assert queue.counts() == Counts(dead=1)
    dead, _ = locked(rig.dead_letters())
    assert dead.dead_letter is not None
    assert dead.dead_letter.reason == "MaxDeliveryCountExceeded"
    assert dead.dead_letter.source == "q"


def test_dead_letter_keeps_the_reason_its_receiver_gave() -> None:
    rig = one_queue()
    queue = rig.queue()
    queue.send([message()])

    queue.dead_letter(locked(queue)[1], "Unreadable", "no JSON")

    dead, _ = locked(rig.dead_letters())
    assert dead.dead_letter is not None
    assert dead.dead_letter.reason == "Unreadable"
    assert dead.dead_letter.description == "no JSON"


def test_dead_letter_is_never_moved_on_however_often_it_fails() -> None:
    rig = one_queue(QueueSettings(name="q", max_delivery_count=1))
    rig.queue().send([message()])
    rig.queue().abandon(locked(rig.queue())[1])
    dead = rig.dead_letters()

    for _ in range(20):
        dead.abandon(locked(dead)[1])

    assert locked(dead)[0].delivery_count == 1  # as when it was dead-lettered


def test_deliveries_of_a_dead_letter_count_on() -> None:
    rig = one_queue()
    rig.queue().send([message()])
    rig.queue().abandon(locked(rig.queue())[1])

    rig.queue().dead_letter(locked(rig.queue())[1])

    assert locked(rig.dead_letters())[0].delivery_count == 1


def test_dead_letter_cannot_be_dead_lettered() -> None:
    rig = one_queue()
    rig.queue().send([message()])
    rig.queue().dead_letter(locked(rig.queue())[1])
    dead = rig.dead_letters()

    with pytest.raises(RefusedError) as error:
        dead.dead_letter(locked(dead)[1])

    assert refusal(error) == Condition.NOT_ALLOWED


def test_deferred_message_is_received_by_its_number_only() -> None:
    queue = one_queue().queue()
    queue.send([message()])
    number = deferred(queue)

    assert queue.receive() is None
    (found,) = queue.receive_deferred([number])

    assert found.state == State.DEFERRED
    assert found.lock_token is not None
    queue.complete(found.lock_token)
    assert queue.counts() == Counts()


def test_deferred_message_stays_deferred_when_it_is_abandoned() -> None:
    queue = one_queue().queue()
    queue.send([message()])
    number = deferred(queue)
    (found,) = queue.receive_deferred([number])
    assert found.lock_token is not None

    queue.abandon(found.lock_token)

    assert queue.counts() == Counts(deferred=1)
    assert queue.receive_deferred([number])[0].delivery_count == 1


@pytest.mark.parametrize("number", [2, 99])
def test_only_what_is_deferred_is_found_by_number(number: int) -> None:
    queue = one_queue().queue()
    queue.send([message("a"), message("b")])
    first = deferred(queue)

    with pytest.raises(RefusedError) as error:
        queue.receive_deferred([first, number])

    assert refusal(error) == Condition.MESSAGE_NOT_FOUND
    assert queue.counts().locked == 0


def test_expired_message_is_dropped() -> None:
    rig = one_queue()
    rig.queue().send([message(time_to_live=5.0)])

    rig.clock.advance(5)

    assert rig.queue().counts() == Counts()


def test_expired_message_is_dead_lettered_if_the_queue_says_so() -> None:
    rig = one_queue(QueueSettings(name="q", dead_letter_expired=True))
    rig.queue().send([message(time_to_live=5.0)])

    rig.clock.advance(5)

    dead, _ = locked(rig.dead_letters())
    assert dead.dead_letter is not None
    assert dead.dead_letter.reason == "TTLExpiredException"


def test_entity_bounds_the_time_to_live() -> None:
    default = timedelta(seconds=3)
    rig = one_queue(QueueSettings(name="q", default_time_to_live=default))
    rig.queue().send([message("a"), message("b", time_to_live=100.0)])

    rig.clock.advance(3)

    assert rig.queue().counts() == Counts()


def test_locked_message_outlives_its_time_to_live_until_it_comes_back() -> None:
    rig = one_queue()
    queue = rig.queue()
    queue.send([message(time_to_live=5.0)])
    _, token = locked(queue)

    rig.clock.advance(10)
    assert queue.counts().locked == 1
    queue.abandon(token)

    assert queue.counts() == Counts()


def test_deferred_message_expires_only_when_it_is_asked_for() -> None:
    """Azure: "Deferred messages aren't expired ... until a client app attempts to
    receive them"."""
    rig = one_queue(QueueSettings(name="q", dead_letter_expired=True))
    queue = rig.queue()
    queue.send([message(time_to_live=5.0)])
    number = deferred(queue)

    rig.clock.advance(10)
    assert queue.counts() == Counts(deferred=1)
    with pytest.raises(RefusedError):
        queue.receive_deferred([number])

    assert queue.counts() == Counts(dead=1)


def test_dead_letters_do_not_expire() -> None:
    rig = one_queue()
    queue = rig.queue()
    queue.send([message(time_to_live=5.0)])
    queue.dead_letter(locked(queue)[1])

    rig.clock.advance(1000)

    assert queue.counts() == Counts(dead=1)


def test_duplicate_is_dropped_and_reported_as_sent() -> None:
    window = timedelta(seconds=30)
    rig = one_queue(QueueSettings(name="q", duplicate_window=window))
    queue = rig.queue()

    numbers = queue.send([message("a"), message("a"), message("b")])

    assert numbers == (1, None, 2)
    assert queue.counts() == Counts(active=2)


def test_message_id_is_forgotten_after_the_window() -> None:
    window = timedelta(seconds=30)
    rig = one_queue(QueueSettings(name="q", duplicate_window=window))
    queue = rig.queue()
    queue.send([message("a")])
    queue.complete(locked(queue)[1])

    rig.clock.advance(29)
    assert queue.send([message("a")]) == (None,)
    rig.clock.advance(1)

    assert queue.send([message("a")]) != (None,)


def test_scheduled_message_is_enqueued_at_its_time_under_a_new_number() -> None:
    rig = one_queue()
    queue = rig.queue()
    (number,) = queue.send([message(scheduled_for=START + 10)])

    assert queue.counts() == Counts(scheduled=1)
    assert queue.receive() is None
    rig.clock.advance(10)

    delivery, _ = locked(queue)
    assert delivery.sequence_number != number
    assert delivery.enqueued_at == START + 10


def test_time_to_live_of_a_scheduled_message_begins_when_it_is_enqueued() -> None:
    rig = one_queue()
    queue = rig.queue()
    queue.send([message(scheduled_for=START + 10, time_to_live=5.0)])

    rig.clock.advance(14)
    assert queue.counts() == Counts(active=1)
    rig.clock.advance(1)

    assert queue.counts() == Counts()


def test_message_scheduled_for_the_past_is_enqueued_at_once() -> None:
    queue = one_queue().queue()

    queue.send([message(scheduled_for=START - 1)])

    assert queue.counts() == Counts(active=1)


def test_cancelled_message_never_comes() -> None:
    rig = one_queue()
    queue = rig.queue()
    (number,) = queue.send([message(scheduled_for=START + 10)])
    assert number is not None

    queue.cancel_scheduled([number])
    rig.clock.advance(20)

    assert queue.counts() == Counts()


def test_cancelling_what_is_not_scheduled_cancels_nothing() -> None:
    queue = one_queue().queue()
    (number,) = queue.send([message(scheduled_for=START + 10)])
    assert number is not None

    with pytest.raises(RefusedError) as error:
        queue.cancel_scheduled([number, 99])

    assert refusal(error) == Condition.MESSAGE_NOT_FOUND
    assert queue.counts() == Counts(scheduled=1)


def test_peek_shows_all_states_in_order_and_takes_nothing() -> None:
    queue = one_queue().queue()
    queue.send([message("a"), message("b", scheduled_for=START + 9), message("c")])
    deferred(queue)

    found = queue.peek(1, 10)

    assert ids(found) == ["a", "b", "c"]
    assert [delivery.state for delivery in found] == [
        State.DEFERRED,
        State.SCHEDULED,
        State.ACTIVE,
    ]
    assert ids(queue.peek(2, 1)) == ["b"]
    assert queue.counts() == Counts(active=1, deferred=1, scheduled=1)


def test_full_queue_refuses_a_batch_as_a_whole() -> None:
    queue = one_queue(QueueSettings(name="q", max_bytes=25)).queue()
    queue.send([message("a")])

    with pytest.raises(RefusedError) as error:
        queue.send([message("b"), message("c")])

    assert refusal(error) == Condition.RESOURCE_LIMIT_EXCEEDED
    assert queue.counts() == Counts(active=1)


def test_full_queue_takes_messages_again_once_some_are_completed() -> None:
    queue = one_queue(QueueSettings(name="q", max_bytes=15)).queue()
    queue.send([message("a")])

    queue.complete(locked(queue)[1])

    assert queue.send([message("b")]) == (2,)


def test_dead_letters_take_room() -> None:
    queue = one_queue(QueueSettings(name="q", max_bytes=15)).queue()
    queue.send([message("a")])

    queue.dead_letter(locked(queue)[1])

    with pytest.raises(RefusedError):
        queue.send([message("b")])


def test_expiring_all_locks_counts_as_failed_deliveries() -> None:
    queue = one_queue().queue()
    queue.send([message()])
    locked(queue)

    queue.expire_locks()

    assert locked(queue)[0].delivery_count == 1


def test_settled_messages_leave_no_deadlines_behind() -> None:
    """A lock's deadline would otherwise be kept for its whole duration."""
    rig = one_queue(QueueSettings(name="q", default_time_to_live=timedelta(hours=1)))
    queue = rig.queue()

    for number in range(2000):
        queue.send([message(str(number))])
        queue.complete(locked(queue)[1])

    assert rig.namespace.next_deadline() is None
