"""A queue under any sequence of operations: nothing is lost, nothing held twice."""

from datetime import timedelta
from uuid import UUID

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from bridge.simulator.servicebus.message import Delivery
from bridge.simulator.servicebus.settings import QueueSettings
from bridge.simulator.servicebus.values import RefusedError
from tests.simulator.servicebus_fixtures import message, one_queue

LOCK_SECONDS = 60
MAX_DELIVERIES = 3


class QueueMachine(RuleBasedStateMachine):
    """Beside the queue, a model of it: message ids, by where they must be."""

    def __init__(self) -> None:
        super().__init__()
        self.rig = one_queue(
            QueueSettings(
                name="q",
                lock_duration=timedelta(seconds=LOCK_SECONDS),
                max_delivery_count=MAX_DELIVERIES,
            )
        )
        self.queue = self.rig.queue()
        self.sent = 0
        self.waiting: set[str] = set()
        self.deferred: dict[str, int] = {}
        self.completed: set[str] = set()
        self.dead: set[str] = set()
        self.held: dict[str, tuple[UUID, float]] = {}
        self.held_deferred: dict[str, int] = {}
        self.failures: dict[str, int] = {}
        self.lost: list[UUID] = []

    @rule(count=st.integers(1, 3))
    def send(self, count: int) -> None:
        names = [f"m{self.sent + index}" for index in range(count)]
        self.sent += count
        self.queue.send([message(name) for name in names])
        self.waiting |= set(names)

    @rule()
    def receive(self) -> None:
        delivery = self.queue.receive()

        assert (delivery is not None) == bool(self.waiting)
        if delivery is not None:
            self.waiting.remove(delivery.message.message_id)
            self._hold(delivery)

    @precondition(lambda self: self.deferred)
    @rule(data=st.data())
    def receive_deferred(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.deferred)))
        number = self.deferred.pop(name)

        (delivery,) = self.queue.receive_deferred([number])

        assert delivery.message.message_id == name
        self._hold(delivery)
        self.held_deferred[name] = number

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def complete(self, data: st.DataObject) -> None:
        name, token = self._let_go(data)
        self.queue.complete(token)
        self.completed.add(name)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def abandon(self, data: st.DataObject) -> None:
        number = dict(self.held_deferred)
        name, token = self._let_go(data)
        self.queue.abandon(token)
        self._failed(name, number.get(name))

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        number = dict(self.held_deferred)
        name, token = self._let_go(data)
        self.queue.release(token)
        self._returned(name, number.get(name))

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def dead_letter(self, data: st.DataObject) -> None:
        name, token = self._let_go(data)
        self.queue.dead_letter(token)
        self.dead.add(name)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def defer(self, data: st.DataObject) -> None:
        name, token = self._let_go(data)
        (number,) = [
            found.sequence_number
            for found in self.queue.peek(1, self.sent)
            if found.message.message_id == name
        ]
        self.queue.defer(token)
        self.deferred[name] = number

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def renew(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.held)))
        token, _ = self.held[name]

        until = self.queue.renew_lock(token)

        assert until == self.rig.clock.now + LOCK_SECONDS
        self.held[name] = (token, until)

    @rule(seconds=st.integers(1, LOCK_SECONDS))
    def wait(self, seconds: int) -> None:
        self.rig.clock.advance(seconds)
        for name, (token, until) in sorted(self.held.items()):
            if until <= self.rig.clock.now:
                del self.held[name]
                self.lost.append(token)
                self._failed(name, self.held_deferred.pop(name, None))

    @precondition(lambda self: self.lost)
    @rule(data=st.data())
    def settle_too_late(self, data: st.DataObject) -> None:
        token = data.draw(st.sampled_from(self.lost))
        try:
            self.queue.complete(token)
        except RefusedError:
            return
        raise AssertionError("a lost lock settled a message")

    @invariant()
    def every_message_is_in_exactly_one_place(self) -> None:
        counts = self.queue.counts()
        held_deferred = len(self.held_deferred)
        active = len(self.waiting) + len(self.held) - held_deferred
        assert counts.active == active
        assert counts.locked == len(self.held)
        assert counts.deferred == len(self.deferred) + held_deferred
        assert counts.dead == len(self.dead)
        places = [self.waiting, set(self.held), set(self.deferred)]
        places += [self.completed, self.dead]
        assert sum(map(len, places)) == len(set().union(*places)) == self.sent

    @invariant()
    def what_the_queue_shows_is_what_it_holds(self) -> None:
        shown = {found.message.message_id for found in self.queue.peek(1, 1000)}
        assert shown == self.waiting | set(self.held) | set(self.deferred)

    def _hold(self, delivery: Delivery) -> None:
        name = delivery.message.message_id
        assert name not in self.held
        assert delivery.lock_token is not None
        assert delivery.locked_until is not None
        assert delivery.delivery_count == self.failures.get(name, 0)
        self.held[name] = (delivery.lock_token, delivery.locked_until)

    def _let_go(self, data: st.DataObject) -> tuple[str, UUID]:
        name = data.draw(st.sampled_from(sorted(self.held)))
        token, _ = self.held.pop(name)
        self.held_deferred.pop(name, None)
        self.lost.append(token)
        return name, token

    def _failed(self, name: str, deferred_number: int | None) -> None:
        self.failures[name] = self.failures.get(name, 0) + 1
        if self.failures[name] >= MAX_DELIVERIES:
            self.dead.add(name)
        else:
            self._returned(name, deferred_number)

    def _returned(self, name: str, deferred_number: int | None) -> None:
        if deferred_number is None:
            self.waiting.add(name)
        else:
            self.deferred[name] = deferred_number


TestQueueMachine = QueueMachine.TestCase
TestQueueMachine.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None
)
