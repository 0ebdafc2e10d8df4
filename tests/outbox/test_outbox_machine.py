"""Any sequence of operations: the outbox does what the model of it says."""

import asyncio
import shutil
import tempfile
from datetime import timedelta
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from bridge.events.build import OutgoingEvent
from bridge.foundation.errors import OutboxFullError
from bridge.outbox.records import Delivery, Tally
from tests.outbox.outbox_model import Model, Window, window_of
from tests.support.builders import outgoing
from tests.support.outbox_door import SINKS, Door, is_durable

ROOM = 5
KEYS = st.sampled_from(["K", "L", "M", None])
URGENCIES = st.sampled_from(["calm", "calm", "soon", "later", "started"])
NOTICE = {"soon": 100.0, "later": 2000.0}
ENDS = st.sampled_from(["delivered", "delivered", "dead", "postponed"])
WHICH = st.integers(0, 9)
SINK = st.sampled_from(SINKS)


class OutboxMachine(RuleBasedStateMachine):
    """An outbox on a disk that may fail, and the model of it."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="outbox"))
        self.runner = asyncio.Runner()
        self.door = Door(self.folder / "state.db", room=ROOM)
        self.model = Model(ROOM)
        self.count = self.lives = 0
        self.settled = list[Delivery]()
        self.runner.run(self.door.__aenter__())

    def teardown(self) -> None:
        self.runner.run(self.door.__aexit__())
        self.runner.close()
        shutil.rmtree(self.folder)

    # -- commits -------------------------------------------------------------------

    def made(
        self, key: str | None, urgency: str
    ) -> tuple[OutgoingEvent, str | None, Window | None]:
        self.count += 1
        notice, is_started = NOTICE.get(urgency), urgency == "started"
        at = None
        if notice is not None:
            at = self.door.clock.now() + timedelta(seconds=notice)
        event = outgoing(f"{self.count}", key=key, not_before=at, is_started=is_started)
        return event, key, window_of(self.door.now, notice, is_started=is_started)

    def took(self, event: OutgoingEvent, key: str | None, wall: Window | None) -> None:
        self.model.commit(event.event.id, key, self.door.clock.monotonic(), wall)

    @rule(batch=st.lists(st.tuples(KEYS, URGENCIES), min_size=1, max_size=3))
    def commit(self, batch: list[tuple[str | None, str]]) -> None:
        made = [self.made(*one) for one in batch]
        body = b"%d" % self.count
        may, must = (
            self.model.may_refuse(len(made)),
            self.model.must_refuse(len(made)),
        )
        committing = self.door.commit(*(one[0] for one in made), checkpoint=body)
        try:
            self.runner.run(committing)
        except OutboxFullError:
            assert may, "there was room"
            return
        assert not must, "there was no room"
        self.model.checkpoints.append(body)
        for one in made:
            self.took(*one)
        if not self.model.is_failing:
            self.model.checkpoints = self.model.checkpoints[-1:]

    @precondition(lambda self: not self.model.is_failing)
    @rule(
        batches=st.lists(st.tuples(KEYS, URGENCIES), min_size=2, max_size=4),
        cancelled=st.sets(st.integers(0, 3)),
    )
    def commit_at_once(
        self, batches: list[tuple[str | None, str]], cancelled: set[int]
    ) -> None:
        made = [self.made(*one) for one in batches]

        async def together() -> None:
            calls = [asyncio.ensure_future(self.door.commit(one[0])) for one in made]
            await asyncio.sleep(0)  # each has begun
            for index in cancelled:
                if index < len(calls):
                    calls[index].cancel()
            await asyncio.gather(*calls, return_exceptions=True)
            await self.door.written()

        self.runner.run(together())
        for one in made:
            self.took(*one)

    # -- deliveries ----------------------------------------------------------------

    @rule(sink=SINK, which=WHICH, end=ENDS)
    def attempt(self, sink: str, which: int, end: str) -> None:
        found = self.runner.run(self.door.due(sink))
        if not found:
            return
        delivery = found[which % len(found)]
        step = self.model.of(sink, str(delivery.cloud_event_id))
        if end == "postponed":
            self.runner.run(self.door.postpone(delivery, 10.0))
            step.due = self.door.clock.monotonic() + 10.0
            if not self.model.is_failing:
                step.early = step.due
            return
        self.runner.run(self.door.settle(delivery, end))
        step.state = end
        self.settled.append(delivery)

    @precondition(lambda self: self.settled)
    @rule(which=WHICH, end=ENDS)
    def attempt_what_is_settled(self, which: int, end: str) -> None:
        delivery = self.settled[which % len(self.settled)]
        name = (delivery.sink, str(delivery.cloud_event_id))
        known = {(s.sink, s.name): s.state for s in self.model.steps}
        if known.get(name, "pending") == "pending":
            return  # it is retried, or a kill has lost that it was settled
        if end == "postponed":
            self.runner.run(self.door.postpone(delivery, 10.0))
        else:
            self.runner.run(self.door.settle(delivery, end))

    # -- other processes -----------------------------------------------------------

    @precondition(lambda self: not self.model.is_failing)
    @rule(sink=SINK)
    def retry(self, sink: str) -> None:
        wanted = self.model.retry(sink, self.door.clock.monotonic())
        assert self.runner.run(self.door.retry(sink)) == wanted

    @precondition(lambda self: not self.model.is_failing)
    @rule(sink=SINK, key=st.sampled_from(["K", "L"]))
    def discard(self, sink: str, key: str) -> None:
        wanted = self.model.discard(sink, key)
        assert self.runner.run(self.door.discard(sink, key)) == wanted

    # -- the disk, the clock, the process ------------------------------------------

    @precondition(lambda self: not self.model.is_failing)
    @rule(how=st.sampled_from(["hangs", "hangs after", "refuses"]))
    def disk_fails(self, how: str) -> None:
        if how == "refuses":
            self.door.disk.is_full = True
        else:
            self.door.disk.freeze(is_after=how == "hangs after")
        self.model.fails()

    @precondition(lambda self: self.model.is_failing)
    @rule(fails=st.booleans())
    def disk_heals(self, *, fails: bool) -> None:
        self.door.disk.is_full = False
        self.door.disk.thaw(fails=fails)
        self.runner.run(self.door.healed())
        self.model.heals()

    @rule()
    def kill(self) -> None:
        self.lives += 1
        self.runner.run(self.door.kill(self.folder / str(self.lives)))
        self.model.killed(self.runner.run(self.door.states()))
        checkpoint = self.runner.run(self.door.checkpoint())
        assert checkpoint in self.model.checkpoints
        self.model.checkpoints = [checkpoint]

    @precondition(lambda self: not self.model.is_failing)
    @rule()
    def restart(self) -> None:
        self.runner.run(self.door.reopen())

    @rule(seconds=st.sampled_from([1.0, 30.0, 400.0]))
    def time_passes(self, seconds: float) -> None:
        self.door.clock.pass_by(seconds)

    @rule(seconds=st.sampled_from([30.0, -5.0, -3600.0]))
    def clock_is_put_right(self, seconds: float) -> None:
        self.runner.run(self.door.set_clock(seconds))
        self.model.set_clock(seconds)

    # -- what must hold ------------------------------------------------------------

    @invariant()
    def offers_are_right(self) -> None:
        now, wall = self.door.clock.monotonic(), self.door.now
        for sink in SINKS:
            found = self.runner.run(self.door.due(sink))
            names = [str(one.cloud_event_id) for one in found]
            self.model.judge_due(sink, names, now, wall)
            for one in found:
                self.check_row(one)

    def check_row(self, one: Delivery) -> None:
        step = self.model.of(one.sink, str(one.cloud_event_id))
        known = self.model.ids.setdefault((one.sink, step.name), one.id)
        assert known == one.id, f"{step.name} has got another id"
        if step.is_from_memory:
            assert not is_durable(one), f"{step.name} is not on the disk"
        elif not step.is_marked:
            assert is_durable(one), f"{step.name} was on the disk"

    @invariant()
    def ids_follow_the_order(self) -> None:
        for sink in SINKS:
            known = [
                self.model.ids[sink, step.name]
                for step in self.model.steps
                if step.sink == sink and (sink, step.name) in self.model.ids
            ]
            assert known == sorted(set(known)), "an id was given twice or out of order"

    @invariant()
    def counts_are_right(self) -> None:
        tallies = self.runner.run(self.door.tallies())
        for sink in SINKS:
            states = [s.state for s in self.model.steps if s.sink == sink]
            tally = tallies.get(sink, Tally())
            assert {
                "pending": tally.pending,
                "dead": tally.dead,
                "delivered": tally.delivered,
                "discarded": tally.discarded,
            } == {
                state: states.count(state)
                for state in ("pending", "dead", "delivered", "discarded")
            }
        checkpoint = self.runner.run(self.door.checkpoint())
        assert checkpoint == self.model.checkpoints[-1]


TestOutboxMachine = OutboxMachine.TestCase
TestOutboxMachine.settings = settings(max_examples=8, stateful_step_count=20)


def test_nothing_is_urgent_between_the_times_of_two_steps() -> None:
    """A started event is urgent for 5 minutes, one with notice before its NotBefore."""
    machine = OutboxMachine()
    try:
        machine.commit([(None, "calm"), ("K", "later"), ("K", "started")])
        for seconds in (1.0, 400.0, 400.0, 400.0, 400.0, 400.0):
            machine.time_passes(seconds)
            machine.offers_are_right()
    finally:
        machine.teardown()
