"""The relay as it runs, against a model of what it owes: any order of any events.

The relay is woken by nothing but its own news and its own waits, so that a wake-up
that it misses is found: whenever nothing more happens, all that may begin has begun.
"""

import asyncio
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bridge.errors import (
    PermanentDeliveryError,
    Reason,
    RefusedDeliveryError,
    TransientDeliveryError,
)
from bridge.outbox.ledger import Ledger, Selection
from bridge.outbox.rows import Delivery
from bridge.outbox.store import Outbox
from bridge.relay import Relay, RelayPolicy, is_urgent
from bridge.retry import RetryPolicy
from bridge.telemetry import Metrics
from tests.builders import SINK, router, told
from tests.fakes import FakeClock, settled, turns
from tests.workers.test_relay import heartbeat, soon

SLOTS = 2
ANSWERS = (
    None,
    None,
    None,
    TransientDeliveryError("busy", Reason.SERVER),
    TransientDeliveryError("later", Reason.THROTTLED, retry_after=40),
    RefusedDeliveryError("who are you", Reason.UNAUTHORIZED),
    PermanentDeliveryError("what is this", Reason.REJECTED),
)
Step = tuple[str, int, int]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["put"] * 5
            + ["urgent"] * 2
            + ["answer"] * 4
            + ["burst", "pass", "discard", "beat"]
        ),
        st.integers(0, 3),
        st.integers(0, len(ANSWERS) - 1),
    ),
    min_size=5,
    max_size=40,
)


@dataclass
class Held:
    """A sink that holds each attempt until it is told what to answer."""

    clock: FakeClock
    flying: "dict[int, tuple[Delivery, asyncio.Future[None]]]" = field(
        default_factory=dict
    )
    taken: list[Delivery] = field(default_factory=list)
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    wrong: list[str] = field(default_factory=list)
    hold_until: float = 0.0

    async def __call__(self, delivery: Delivery) -> None:
        self.judge(delivery)
        answer = asyncio.get_running_loop().create_future()
        self.flying[delivery.id] = delivery, answer
        try:
            await answer
        finally:
            del self.flying[delivery.id]
        self.taken.append(delivery)

    def judge(self, delivery: Delivery) -> None:
        """Note what is wrong with beginning this now."""
        keys = {d.key for d, _ in self.flying.values() if d.key is not None}
        taken = [d for d in self.taken if d.id and d.id >= delivery.id]
        self.wrong += [
            text
            for text, is_so in (
                ("begun after the stop", self.stop.is_set()),
                ("begun twice", delivery.id in self.flying),
                ("begun again", delivery.id in {d.id for d in taken}),
                ("two steps of one event at a time", delivery.key in keys),
                ("after a later step", delivery.key in {d.key or 0 for d in taken}),
                ("too many at a time", len(self.flying) > SLOTS),
            )
            if is_so
        ]

    def answer(self, place: int, error: Exception | None) -> None:
        """Answer one of those that wait."""
        waiting = [a for _, a in self.flying.values() if not a.done()]
        if not waiting:
            return
        answer = waiting[place % len(waiting)]
        if error is None:
            answer.set_result(None)
            return
        answer.set_exception(error)
        wish = getattr(error, "retry_after", None) or 0.0
        self.hold_until = max(self.hold_until, self.clock.monotonic() + wish)


@dataclass
class World:
    """A relay that runs, and what a test does to it."""

    outbox: Outbox
    clock: FakeClock
    sink: Held
    relay: Relay
    count: int = 0

    async def do(self, step: Step) -> None:
        what, which, answer = step
        now = self.clock.now().timestamp()
        match what:
            case "put" | "urgent":
                self.count += 1
                key = f"K{which}" if which else None
                moment = soon(now + 60 - soon(0).timestamp())
                not_before = moment if what == "urgent" else None
                event = told(str(self.count), key=key, not_before=not_before)
                await self.outbox.commit([event], now=now)
            case "answer":
                self.sink.answer(which, ANSWERS[answer])
            case "burst":
                for _ in range(4):
                    self.sink.answer(0, None)
                    await turns(which)  # one lands while another is noted
                self.outbox.wake_all()
                return
            case "pass":
                await self.clock.advance((0.1, 1.0, 10.0, 50.0)[which])
            case "discard":
                meant = Selection(id=max(1, self.count - which))
                await Ledger(self.outbox.database).discard(meant, now=now)
                self.outbox.wake_all()
            case _:
                self.relay.offer(heartbeat("h"))
        await self.quiet()
        await self.owes_nothing()

    async def quiet(self) -> None:
        before = None
        while (after := (set(self.sink.flying), len(self.sink.taken))) != before:
            before = after
            await settled(self.outbox)

    async def owes_nothing(self) -> None:
        """Check that nothing waits that might fly, unless the sink is in trouble."""
        if self.relay.state != "ok":
            return
        now, flying = self.clock.now().timestamp(), self.sink.flying
        busy = {d.key for d, _ in flying.values() if d.key is not None}
        due, _ = await self.outbox.due(SINK, now=now, limit=99, but=flying)
        due = [d for d in due if d.key not in busy]
        if any(is_urgent(d, now) for d in due):
            assert len(flying) > SLOTS, "an urgent one is held up"
        elif due and self.clock.monotonic() >= self.sink.hold_until:
            ordinary = sum(not is_urgent(d, now) for d, _ in flying.values())
            assert ordinary >= SLOTS or len(flying) > SLOTS, "a wake-up is lost"

    async def end_well(self) -> None:
        """Let the sink take everything, and time pass."""
        for _ in range(2 * self.count + 20):
            while self.sink.flying:
                self.sink.answer(0, None)
                await self.quiet()
            if not await self.pending():
                return
            await self.clock.advance(60)
            await self.quiet()
        pytest.fail("something is left for ever")

    async def pending(self) -> int:
        tally = (await self.outbox.tallies()).get(SINK)
        return tally.pending if tally else 0


@settings(max_examples=40)
@given(steps=STEPS, is_answered=st.booleans())
async def test_whatever_happens_nothing_is_lost_twice_early_late_or_out_of_order(
    tmp_path_factory: pytest.TempPathFactory, steps: list[Step], *, is_answered: bool
) -> None:
    path = tmp_path_factory.mktemp("outbox") / "state.db"
    clock = FakeClock()
    sink = Held(clock)
    async with Outbox.open(path, router()) as outbox, asyncio.TaskGroup() as group:
        relay = Relay(
            sink=SINK,
            deliver=sink,
            outbox=outbox,
            clock=clock,
            metrics=Metrics([SINK], "1"),
            policy=RelayPolicy(backoff=RetryPolicy(), max_age=86400, slots=SLOTS),
            chance=lambda: 0.5,
        )
        world = World(outbox, clock, sink, relay)
        running = group.create_task(relay.run(sink.stop))
        try:
            for step in steps:
                await world.do(step)
            if is_answered:
                await world.end_well()
        finally:
            sink.stop.set()
            while sink.flying:
                sink.answer(0, None)
                await world.quiet()
            await world.quiet()
        assert running.done()
        delivered = (await outbox.tallies()).get(SINK)
        events = {d.id for d in sink.taken if d.id}
        discarded = delivered.discarded if delivered else 0
        noted = delivered.delivered if delivered else 0
        assert noted <= len(events) <= noted + discarded
    assert sink.wrong == []
