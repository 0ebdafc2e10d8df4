"""Sessions under a fake clock."""

import pytest

from bridge.simulator.servicebus.backlog import Counts
from bridge.simulator.servicebus.queues import Queue
from bridge.simulator.servicebus.settings import QueueSettings
from bridge.simulator.servicebus.values import Condition, RefusedError
from tests.simulator.servicebus_fixtures import START, Rig, locked, message, one_queue


class Owner:
    """Somebody who holds sessions, and is told when one is lost."""

    def __init__(self) -> None:
        self.lost = 0

    def accept(self, queue: Queue, session_id: str | None = "s1") -> str | None:
        lock = queue.accept_session(session_id, self, self._lose)
        return None if lock is None else lock.session_id

    def _lose(self) -> None:
        self.lost += 1


def with_sessions(max_delivery_count: int = 10) -> Rig:
    return one_queue(
        QueueSettings(
            name="q", requires_session=True, max_delivery_count=max_delivery_count
        )
    )


def test_message_without_a_session_is_refused() -> None:
    queue = with_sessions().queue()

    with pytest.raises(RefusedError) as error:
        queue.send([message("a", session_id="s1"), message("b")])

    assert error.value.condition == Condition.NOT_ALLOWED
    assert queue.counts() == Counts()


def test_session_holder_gets_the_messages_of_its_session_in_order() -> None:
    queue = with_sessions().queue()
    queue.send([message(name, session_id=name[0]) for name in ("a1", "b1", "a2")])
    Owner().accept(queue, "a")

    received = [locked(queue, "a")[0].message.message_id for _ in range(2)]

    assert received == ["a1", "a2"]
    assert queue.receive("a") is None


def test_held_session_is_refused_to_others() -> None:
    queue = with_sessions().queue()
    Owner().accept(queue)

    with pytest.raises(RefusedError) as error:
        Owner().accept(queue)

    assert error.value.condition == Condition.SESSION_CANNOT_BE_LOCKED


def test_session_without_messages_can_be_held() -> None:
    assert Owner().accept(with_sessions().queue(), "new") == "new"


def test_next_available_session_is_the_one_with_the_oldest_message() -> None:
    queue = with_sessions().queue()
    queue.send([message("1", session_id="z"), message("2", session_id="a")])

    assert [Owner().accept(queue, None) for _ in range(3)] == ["z", "a", None]


def test_session_with_nothing_to_receive_is_not_available() -> None:
    queue = with_sessions().queue()
    queue.send([message(session_id="s1")])
    owner = Owner()
    owner.accept(queue)
    queue.complete(locked(queue, "s1")[1])
    queue.sessions.release("s1", owner)

    assert Owner().accept(queue, None) is None


def test_message_lock_ends_with_the_session_lock() -> None:
    rig = with_sessions()
    queue = rig.queue()
    queue.send([message(session_id="s1")])
    Owner().accept(queue)
    rig.clock.advance(10)

    assert locked(queue, "s1")[0].locked_until == START + 60


def test_expired_session_is_taken_with_its_messages_and_the_holder_told() -> None:
    rig = with_sessions()
    queue = rig.queue()
    queue.send([message(session_id="s1")])
    owner = Owner()
    owner.accept(queue)
    _, token = locked(queue, "s1")

    rig.clock.advance(60)

    assert owner.lost == 1
    with pytest.raises(RefusedError) as error:
        queue.complete(token)
    assert error.value.condition == Condition.SESSION_LOCK_LOST
    Owner().accept(queue)
    assert locked(queue, "s1")[0].delivery_count == 1


def test_renewed_session_lasts_from_the_renewal() -> None:
    rig = with_sessions()
    queue = rig.queue()
    queue.send([message(session_id="s1")])
    owner = Owner()
    owner.accept(queue)
    _, token = locked(queue, "s1")
    rig.clock.advance(50)

    lock = queue.sessions.renew("s1", owner)
    rig.clock.advance(50)

    assert lock.until == START + 110
    queue.complete(token)
    assert owner.lost == 0


@pytest.mark.parametrize("session_id", ["s1", "unknown"])
def test_session_of_somebody_else_cannot_be_renewed(session_id: str) -> None:
    queue = with_sessions().queue()
    Owner().accept(queue)

    with pytest.raises(RefusedError) as error:
        queue.sessions.renew(session_id, Owner())

    assert error.value.condition == Condition.SESSION_LOCK_LOST


def test_session_given_back_does_not_count_as_a_failed_delivery() -> None:
    queue = with_sessions(max_delivery_count=1).queue()
    queue.send([message(session_id="s1")])
    owner = Owner()
    owner.accept(queue)
    locked(queue, "s1")

    queue.sessions.release("s1", owner)
    Owner().accept(queue)

    assert locked(queue, "s1")[0].delivery_count == 0


def test_session_is_not_given_back_by_somebody_else() -> None:
    queue = with_sessions().queue()
    Owner().accept(queue)

    queue.sessions.release("s1", Owner())

    with pytest.raises(RefusedError):
        Owner().accept(queue)


def test_state_stays_with_the_session() -> None:
    queue = with_sessions().queue()
    first, second = Owner(), Owner()
    first.accept(queue)
    queue.sessions.set_state("s1", first, b"half way")
    queue.sessions.release("s1", first)

    second.accept(queue)

    assert queue.sessions.state("s1", second) == b"half way"
    queue.sessions.set_state("s1", second, None)
    assert queue.sessions.state("s1", second) is None


def test_state_is_for_the_holder_only() -> None:
    queue = with_sessions().queue()

    with pytest.raises(RefusedError) as error:
        queue.sessions.state("s1", Owner())

    assert error.value.condition == Condition.SESSION_LOCK_LOST


def test_sessions_are_listed_by_message_or_state() -> None:
    rig = with_sessions()
    queue = rig.queue()
    queue.send([message(session_id="with message")])
    owner = Owner()
    owner.accept(queue, "with state")
    owner.accept(queue, "with neither")
    rig.clock.advance(5)
    queue.sessions.set_state("with state", owner, b"x")

    assert queue.session_ids() == ["with message", "with state"]
    assert queue.session_ids(updated_after=START + 4) == ["with state"]
    assert queue.session_ids(updated_after=START + 5) == []


def test_deferred_message_belongs_to_its_session() -> None:
    queue = with_sessions().queue()
    queue.send([message(session_id="s1")])
    Owner().accept(queue)
    delivery, token = locked(queue, "s1")
    queue.defer(token)

    with pytest.raises(RefusedError):
        queue.receive_deferred([delivery.sequence_number], "s2")

    assert queue.receive_deferred([delivery.sequence_number], "s1")


def test_peek_can_be_limited_to_a_session() -> None:
    queue = with_sessions().queue()
    queue.send([message("a", session_id="s1"), message("b", session_id="s2")])

    found = queue.peek(1, 10, "s2")

    assert [delivery.message.message_id for delivery in found] == ["b"]


def test_dead_letters_of_sessions_are_received_without_one() -> None:
    rig = with_sessions(max_delivery_count=1)
    queue = rig.queue()
    queue.send([message(session_id="s1")])
    Owner().accept(queue)

    queue.abandon(locked(queue, "s1")[1])

    assert locked(rig.dead_letters())[0].message.session_id == "s1"


def test_expiring_all_locks_takes_the_sessions() -> None:
    queue = with_sessions().queue()
    owner = Owner()
    owner.accept(queue)

    queue.expire_locks()

    assert owner.lost == 1
    assert Owner().accept(queue) == "s1"
