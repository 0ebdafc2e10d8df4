"""The relay as it runs, against a model of what it owes: any order of any events.

The relay is woken by nothing but its own news and its own waits, so that a wake-up
that it misses is found: whenever nothing more happens, all that may begin has begun.
The model keeps its own account of the sink (is it there, when was it tried last) and of
the age of each delivery, from nothing but what it answered and let pass.
"""

import asyncio
from dataclasses import dataclass, field

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bridge.foundation.errors import (
    DeliveryError,
    PermanentDeliveryError,
    Reason,
    RefusedDeliveryError,
    TransientDeliveryError,
)
from bridge.foundation.pace import RetryPolicy
from bridge.outbox.questions import Selection
from bridge.outbox.records import Delivery
from bridge.outbox.store import Outbox
from bridge.pipeline.attempt import RelayPolicy, is_urgent
from bridge.pipeline.relay import Relay
from bridge.telemetry.metrics import Metrics
from tests.pipeline.test_relay import heartbeat, soon
from tests.support.book import Book
from tests.support.builders import SINK, outgoing, patient_outbox, router
from tests.support.fakes import FakeClock, settled, turns

SLOTS = 2
BESIDE = 20
MAX_AGE = 40.0
LONGEST_GAP = 3.75
SILENT = 5.0
GONE = TransientDeliveryError("gone", Reason.CONNECTION)
BUSY = TransientDeliveryError("busy", Reason.SERVER)
REFUSED = RefusedDeliveryError("who are you", Reason.UNAUTHORIZED)
ANSWERS: tuple[DeliveryError | None, ...] = (
    None,
    None,
    None,
    BUSY,
    GONE,
    TransientDeliveryError("later", Reason.THROTTLED, retry_after=40),
    REFUSED,
    PermanentDeliveryError("what is this", Reason.REJECTED),
)
Step = tuple[str, int, int]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["put"] * 5
            + ["urgent"] * 2
            + ["answer"] * 4
            + ["pass"] * 3
            + ["down", "up"] * 2
            + ["burst", "discard", "beat", "jump", "hold"]
        ),
        st.integers(0, 3),
        st.integers(0, len(ANSWERS) - 1),
    ),
    min_size=5,
    max_size=40,
)


@dataclass
class Flight:
    """An attempt that waits for its answer.

    Attributes:
        is_beside: whether it may be one that takes no slot.
    """

    delivery: Delivery
    began: float
    is_beside: bool
    answer: "asyncio.Future[None]"


@dataclass
class Held:
    """A sink that holds each attempt until it is told what to answer.

    Attributes:
        fault: what each attempt fails with at once.
        is_quick: whether each attempt is taken at once; else it waits for its answer.
        failed: what has failed since this was looked at last, and with what.
        is_gone: whether the last answer that says so says that it cannot be reached.
        succeeded: when it took something last.
        began: when the last attempt began.
    """

    clock: FakeClock
    repeats: bool = False
    fault: DeliveryError | None = None
    is_quick: bool = False
    failed: dict[int, tuple[Delivery, Exception]] = field(default_factory=dict)
    flying: list[Flight] = field(default_factory=list)
    taken: list[Delivery] = field(default_factory=list)
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    wrong: list[str] = field(default_factory=list)
    hold_until: float = 0.0
    is_gone: bool = False
    succeeded: float = float("-inf")
    began: float = float("-inf")

    async def __call__(self, delivery: Delivery) -> None:
        self.judge(delivery)
        self.began = self.clock.monotonic()
        if self.fault is not None:
            self.fail(delivery, self.fault)
            raise self.fault
        answer = asyncio.get_running_loop().create_future()
        flight = Flight(delivery, self.began, self.is_in_doubt, answer)
        self.flying.append(flight)
        if self.is_quick:
            answer.set_result(None)
        try:
            await answer
        finally:
            self.flying.remove(flight)
        self.taken.append(delivery)
        self.is_gone, self.succeeded = False, self.clock.monotonic()

    @property
    def ids(self) -> set[int]:
        return {flight.delivery.id for flight in self.flying}

    @property
    def is_in_doubt(self) -> bool:
        """Whether more attempts may be made than there are slots, to see if it is."""
        now = self.clock.monotonic()
        return self.is_gone or any(
            now >= flight.began + SILENT and self.succeeded < flight.began
            for flight in self.flying
        )

    @property
    def is_full(self) -> bool:
        return sum(not flight.is_beside for flight in self.flying) > SLOTS

    def judge(self, delivery: Delivery) -> None:
        """Note what is wrong with beginning this now."""
        keys = {f.delivery.key for f in self.flying if f.delivery.id != delivery.id}
        taken = [d for d in self.taken if d.id and d.id >= delivery.id]
        may_repeat = self.repeats and self.is_gone
        self.wrong += [
            text
            for text, is_so in (
                ("begun after the stop", self.stop.is_set()),
                ("begun twice", delivery.id in self.ids and not may_repeat),
                ("begun again", delivery.id in {d.id for d in taken}),
                ("two steps at a time", delivery.key in keys - {None}),
                ("after a later step", delivery.key in {d.key or 0 for d in taken}),
                ("too many at all", len(self.flying) > SLOTS + BESIDE),
                ("too many at a time", self.is_full and not self.is_in_doubt),
            )
            if is_so
        ]

    def answer(self, place: int, error: DeliveryError | None) -> None:
        """Answer one of those that wait."""
        waiting = [f for f in self.flying if not f.answer.done()]
        if not waiting:
            return
        flight = waiting[place % len(waiting)]
        if error is None:
            flight.answer.set_result(None)
            return
        self.fail(flight.delivery, error)
        flight.answer.set_exception(error)

    def go_down(self, fault: DeliveryError) -> None:
        """Let all fail that flies, and whatever is tried from now on."""
        self.fault, self.is_quick = fault, False
        for _ in range(len(self.flying)):
            self.answer(0, fault)

    def fail(self, delivery: Delivery, error: DeliveryError) -> None:
        """Note what follows from a failure."""
        wish = getattr(error, "retry_after", None) or 0.0
        self.hold_until = max(self.hold_until, self.clock.monotonic() + wish)
        if delivery.is_stored:  # a heartbeat says nothing when it fails
            self.is_gone |= is_fault_of_sink(error)
            self.failed[delivery.id] = delivery, error


def is_fault_of_sink(error: Exception) -> bool:
    reasons = {Reason.SERVER, Reason.CONNECTION}
    return isinstance(error, TransientDeliveryError) and error.reason in reasons


@dataclass
class World:
    """A relay that runs, and what a test does to it."""

    outbox: Outbox
    clock: FakeClock
    sink: Held
    relay: Relay
    count: int = 0
    born: dict[int, float] = field(default_factory=dict)
    aged: float = 0.0  # seconds during which deliveries grew older

    async def do(self, step: Step) -> None:
        what, which, answer = step
        now = self.clock.now().timestamp()
        match what:
            case "put" | "urgent":
                await self.put(which, now, is_urgent=what == "urgent")
            case "answer":
                self.sink.answer(which, ANSWERS[answer])
            case "burst":
                for _ in range(4):
                    self.sink.answer(0, None)
                    await turns(which)  # one lands while another is noted
                self.outbox.wakeups.wake_all()
                return
            case "down":
                self.sink.go_down((GONE, GONE, REFUSED, BUSY)[which])
            case "up" | "hold":
                self.sink.fault, self.sink.is_quick = None, what == "up"
            case "pass":
                await self.pass_by((0.1, 1.0, 10.0, 50.0)[which])
            case "discard":
                meant = Selection(id=max(1, self.count - which))
                await Book(self.outbox).discard(meant, now=now)
                self.outbox.wakeups.wake_all()
            case "jump":
                self.clock.jump((-2, 2, 0.5, -0.5)[which] * 86400)
                self.outbox.wakeups.wake_all()
            case _:
                self.relay.offer(heartbeat("h"))
        await self.quiet()
        await self.is_given_up_in_time()
        await self.owes_nothing()

    async def put(self, which: int, now: float, *, is_urgent: bool) -> None:
        """Let an event come: of one of three EventIds, or of none."""
        self.count += 1
        self.born[self.count] = self.aged
        moment = soon(now + 60 - soon(0).timestamp())
        event = outgoing(
            str(self.count),
            key=f"K{which}" if which else None,
            not_before=moment if is_urgent else None,
        )
        await self.outbox.commit([event], now=now)

    async def pass_by(self, seconds: float) -> None:
        """Let time pass, and look that the sink is tried all the while."""
        end = self.clock.monotonic() + seconds
        while (left := end - self.clock.monotonic()) > 1e-6:
            step = min(left, 0.5)
            if self.relay.state != "parked":
                self.aged += step
            await self.clock.advance(step)
            await self.quiet()
            await self.is_given_up_in_time()
            await self.is_tried()
            await self.is_released()

    async def quiet(self) -> None:
        before = None
        while (after := (self.sink.ids, self.sink.began, len(self.sink.taken))) != (
            before
        ):
            before = after
            await settled(self.outbox)

    async def is_tried(self) -> None:
        """Check that a sink that cannot be reached is tried at least every 3 s."""
        now = self.clock.monotonic()
        may_wait = now < self.sink.hold_until or self.relay.state == "parked"
        if not self.sink.is_gone or may_wait or len(self.sink.flying) > BESIDE:
            return
        if now - self.sink.began <= LONGEST_GAP + 0.5:
            return
        if now - self.sink.hold_until <= 0.5:
            return
        assert not await self.candidates(), "the sink is not tried"

    async def candidates(self) -> list[Delivery]:
        """Return what may be tried now to see whether the sink is back."""
        now = self.clock.now().timestamp()
        flying = self.sink.ids
        due, _ = await self.outbox.deliveries.due(SINK, now=now, limit=99, but=flying)
        waiting = await self.outbox.deliveries.waiting_for_sink(
            SINK, now=now, limit=99, but=flying
        )
        busy = {f.delivery.key for f in self.sink.flying} - {None}
        return [d for d in (*due, *waiting) if d.key not in busy]

    async def is_given_up_in_time(self) -> None:
        """Check that what failed is given up for its age if, and only if, it is old."""
        failed, self.sink.failed = self.sink.failed, {}
        for delivery, error in failed.values():
            is_transient = isinstance(error, TransientDeliveryError)
            if not is_transient or delivery.id in self.sink.ids or self.sink.repeats:
                continue
            ledger = Book(self.outbox)
            (row,) = await ledger.find(Selection(id=delivery.id))
            age, tried = self.aged - self.born[delivery.id], delivery.attempts + 1
            if age > MAX_AGE + 1 and tried >= 3:
                assert row.state in {"dead", "discarded"}, "kept beyond its age"
            if age < MAX_AGE - 1 or tried < 3:
                assert row.state != "dead", "given up before its age"

    async def owes_nothing(self) -> None:
        """Check that nothing waits that might fly, unless the sink is in trouble."""
        if self.relay.state not in {"ok", "untried"}:
            return
        now, flying = self.clock.now().timestamp(), self.sink.flying
        busy = {f.delivery.key for f in flying} - {None}
        due, _ = await self.outbox.deliveries.due(
            SINK, now=now, limit=99, but=self.sink.ids
        )
        due = [d for d in due if d.key not in busy]
        if any(is_urgent(d, now) for d in due):
            assert len(flying) > SLOTS, "an urgent one is held up"
        elif due and self.clock.monotonic() >= self.sink.hold_until:
            ordinary = sum(not is_urgent(f.delivery, now) for f in flying)
            assert ordinary >= SLOTS or len(flying) > SLOTS, "a wake-up is lost"

    async def is_released(self) -> None:
        """Check that nothing waits for a sink that is back; it may wish to be held."""
        now, monotonic = self.clock.now().timestamp(), self.clock.monotonic()
        if self.relay.state == "ok" and monotonic > self.sink.succeeded + 2.5:
            flying = self.sink.ids
            waiting = await self.outbox.deliveries.waiting_for_sink(
                SINK, now=now, limit=9, but=flying
            )
            assert not waiting, "the sink is back, and something still waits for it"

    async def end_well(self) -> None:
        """Let the sink take everything, and time pass."""
        self.sink.fault = None
        for _ in range(2 * self.count + 20):
            while self.sink.flying:
                self.sink.answer(0, None)
                await self.quiet()
            if not await self.pending():
                await self.quiet()  # a heartbeat's task may not have begun to run
                return
            await self.clock.advance(60)
            await self.quiet()
        pytest.fail("something is left for ever")

    async def pending(self) -> int:
        tally = (await self.outbox.deliveries.tallies()).get(SINK)
        return tally.pending if tally else 0


@pytest.mark.slow
@settings(max_examples=60)
@example(  # an attempt beside the slots has ended before ``ready`` is looked at again
    steps=[("put", 0, 0), ("put", 0, 0), ("put", 0, 0), ("up", 0, 0), ("pass", 2, 0)],
    is_answered=False,
    repeats=False,
    chance=0.0,
)
@given(
    steps=STEPS,
    is_answered=st.booleans(),
    repeats=st.booleans(),
    chance=st.sampled_from([0.0, 0.5, 0.999]),
)
async def test_whatever_happens_nothing_is_lost_twice_early_late_or_out_of_order(
    tmp_path_factory: pytest.TempPathFactory,
    steps: list[Step],
    *,
    is_answered: bool,
    repeats: bool,
    chance: float,
) -> None:
    path = tmp_path_factory.mktemp("outbox") / "state.db"
    clock = FakeClock()
    sink = Held(clock, repeats)
    async with patient_outbox(path, router()) as outbox, asyncio.TaskGroup() as group:
        relay = Relay(
            sink=SINK,
            deliver=sink,
            outbox=outbox,
            clock=clock,
            metrics=Metrics([SINK], "1"),
            policy=RelayPolicy(
                backoff=RetryPolicy(first=20), max_age=MAX_AGE, slots=SLOTS
            ),
            chance=lambda: chance,
            repeats=repeats,
        )
        world = World(outbox, clock, sink, relay)
        running = group.create_task(relay.run(sink.stop))
        try:
            for step in steps:
                await world.do(step)
            if is_answered:
                await world.end_well()
        finally:
            sink.fault = None
            sink.stop.set()
            while sink.flying:
                sink.answer(0, None)
                await world.quiet()
            await world.quiet()
        assert running.done()
        delivered = (await outbox.deliveries.tallies()).get(SINK)
        events = {d.id for d in sink.taken if d.id}
        discarded = delivered.discarded if delivered else 0
        noted = delivered.delivered if delivered else 0
        assert noted <= len(events) <= noted + discarded
    assert sink.wrong == []
