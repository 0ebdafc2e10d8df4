"""A sink under load: a slow one gets more at once, a busy one is left alone."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
from msgspec.structs import replace

from bridge.foundation.errors import DeliveryError, Reason, TransientDeliveryError
from bridge.foundation.pace import Pause, RetryPolicy
from bridge.outbox.records import Delivery
from bridge.outbox.store import Outbox
from bridge.pipeline.circuit import Circuit
from tests.pipeline.test_relay import (
    BAD,
    BUSY,
    SLOW_DOWN,
    Rig,
    policy_of,
    relay_of,
    running,
    soon,
    throttled,
)
from tests.support.builders import outgoing
from tests.support.fakes import FakeClock, RecordingSink, settled

FULL = TransientDeliveryError("the queue is full", Reason.THROTTLED)
BUSY_NAMESPACE = TransientDeliveryError(
    "the namespace is busy", Reason.THROTTLED, is_shared=True
)


@dataclass
class Receiver:
    """Answers after so many seconds; fails as asked.

    Attributes:
        faults: by CloudEvent id: what the first attempt at it fails with.
        always: what each attempt fails with; None = it is well.
        began: when each attempt began.
        most: the most attempts that were in flight at the same time.
    """

    clock: FakeClock
    seconds: float
    faults: dict[str | None, DeliveryError] = field(default_factory=dict)
    always: DeliveryError | None = None
    began: list[float] = field(default_factory=list)
    taken: list[tuple[str | None, str | None]] = field(default_factory=list)
    flying: int = 0
    most: int = 0

    async def __call__(self, delivery: Delivery) -> None:
        self.flying += 1
        self.began.append(self.clock.monotonic())
        self.most = max(self.most, self.flying)
        try:
            await self.clock.wait(asyncio.Event(), self.seconds)
        finally:
            self.flying -= 1
        if self.always is not None:
            raise self.always
        if fault := self.faults.pop(delivery.cloud_event_id, None):
            raise fault
        self.taken.append((delivery.key, delivery.cloud_event_id))


@asynccontextmanager
async def receiving(
    outbox: Outbox, seconds: float
) -> AsyncIterator[tuple[Rig, Receiver]]:
    """Run a relay of eight to 32 slots."""
    clock = FakeClock()
    receiver = Receiver(clock, seconds)
    policy = replace(policy_of(slots=8), most_slots=32)
    relay = relay_of(outbox, receiver, clock=clock, policy=policy)
    async with asyncio.TaskGroup() as group:
        rig = Rig(outbox, clock, RecordingSink(), relay.metrics, relay, group)
        async with running(rig):
            yield rig, receiver


async def until_taken(rig: Rig, receiver: Receiver, count: int) -> float:
    """Return the seconds until so many events are taken."""
    began = rig.clock.monotonic()
    while len(receiver.taken) < count:
        await rig.clock.advance(0.01)
        await settled(rig.outbox)
        assert rig.clock.monotonic() < began + 60
    return rig.clock.monotonic() - began


async def test_slow_receiver_gets_more_at_once(outbox: Outbox) -> None:
    async with receiving(outbox, 0.2) as (rig, receiver):
        await rig.put(*(outgoing(str(n)) for n in range(100)))
        took = await until_taken(rig, receiver, 100)

    assert took <= 0.95
    assert receiver.most == 32


async def test_quick_receiver_does_not(outbox: Outbox) -> None:
    async with receiving(outbox, 0.04) as (rig, receiver):
        await rig.put(*(outgoing(str(n)) for n in range(100)))
        await until_taken(rig, receiver, 100)

    assert receiver.most == 8


@pytest.mark.parametrize("fault", [BUSY, SLOW_DOWN])
async def test_receiver_that_fails_gets_fewer_at_once_again(
    outbox: Outbox, fault: DeliveryError
) -> None:
    async with receiving(outbox, 0.2) as (rig, receiver):
        receiver.faults["60"] = fault
        await rig.put(*(outgoing(str(n)) for n in range(200)))
        await until_taken(rig, receiver, 100)
        await rig.clock.advance(4)
        receiver.most = 0
        await until_taken(rig, receiver, 200)

    assert receiver.most <= 8


async def test_event_that_is_refused_is_not_the_load(outbox: Outbox) -> None:
    async with receiving(outbox, 0.2) as (rig, receiver):
        receiver.faults["1"] = BAD
        await rig.put(*(outgoing(str(n)) for n in range(100)))
        await until_taken(rig, receiver, 99)

    assert receiver.most == 32


async def test_next_backlog_begins_with_few_at_once(outbox: Outbox) -> None:
    async with receiving(outbox, 0.2) as (rig, receiver):
        await rig.put(*(outgoing(str(n)) for n in range(100)))
        await until_taken(rig, receiver, 100)
        receiver.most = 0
        await rig.put(*(outgoing(f"more {n}") for n in range(20)))
        await settled(rig.outbox)

        assert receiver.most == 8
        await until_taken(rig, receiver, 120)


async def test_order_of_each_key_holds_with_more_at_once(outbox: Outbox) -> None:
    async with receiving(outbox, 0.2) as (rig, receiver):
        await rig.put(*(outgoing(f"{n:03}", key=f"K{n % 40}") for n in range(200)))
        await until_taken(rig, receiver, 200)

    for key in {key for key, _ in receiver.taken}:
        mine = [name for one, name in receiver.taken if one == key]
        assert mine == sorted(name or "" for name in mine)


# -- a sink that is full, busy, or throttles -----------------------------------


async def pass_by(rig: Rig, seconds: float) -> None:
    """Let time pass in small steps."""
    end = rig.clock.monotonic() + seconds
    while (left := end - rig.clock.monotonic()) > 1e-9:
        await rig.clock.advance(min(0.1, left))
        await settled(rig.outbox)


@pytest.mark.parametrize("is_urgent", [False, True])
async def test_busy_sink_is_tried_once_a_second_at_most_and_then_gets_all(
    outbox: Outbox, *, is_urgent: bool
) -> None:
    moment = soon(600) if is_urgent else None
    async with receiving(outbox, 0.02) as (rig, receiver):
        receiver.always = SLOW_DOWN
        await rig.put(*(outgoing(str(n), not_before=moment) for n in range(200)))
        await pass_by(rig, 60)
        tried = receiver.began[9:]  # those of the first moment were in flight

        assert 15 <= len(tried) <= 60
        assert all(b - a >= 0.999 for a, b in itertools.pairwise(tried))
        receiver.always = None
        assert await until_taken(rig, receiver, 200) <= 10


async def test_single_event_finds_the_end_of_the_pause_in_time(outbox: Outbox) -> None:
    async with receiving(outbox, 0.02) as (rig, receiver):
        receiver.always = SLOW_DOWN
        await rig.put(outgoing("1"))
        await pass_by(rig, 300)
        receiver.always = None

        assert await until_taken(rig, receiver, 1) <= 4


async def test_after_the_wait_that_a_busy_sink_asks_for_one_event_is_tried(
    outbox: Outbox,
) -> None:
    async with receiving(outbox, 0.02) as (rig, receiver):
        receiver.always = throttled(20)
        await rig.put(*(outgoing(str(n)) for n in range(100)))
        await pass_by(rig, 19)
        first = len(receiver.began)
        await pass_by(rig, 1.9)
        second = len(receiver.began)
        receiver.always = None
        await pass_by(rig, 18)

        assert first == 8
        assert second == 9
        assert receiver.taken == []
        assert await until_taken(rig, receiver, 100) <= 10


async def test_success_of_an_attempt_from_before_does_not_end_the_pause(
    outbox: Outbox,
) -> None:
    async with receiving(outbox, 0.5) as (rig, receiver):
        receiver.faults = {"0": SLOW_DOWN}
        await rig.put(*(outgoing(str(n)) for n in range(100)))
        await pass_by(rig, 0.6)

        assert len(receiver.taken) == 7
        assert len(receiver.began) == 8
        await until_taken(rig, receiver, 100)


def test_busy_namespace_pauses_all_its_sinks() -> None:
    """A sink that fails because it alone is full does not."""
    busy = Pause()
    other = Circuit(RetryPolicy(), busy)
    mine = Circuit(RetryPolicy(), busy)

    mine.failed(FULL, 0, now=10.0, unit=0.5)
    assert (mine.opens_at, other.opens_at) == (11.0, 0.0)
    mine.failed(BUSY_NAMESPACE, 0, now=20.0, unit=0.5)
    assert (mine.opens_at, other.opens_at) == (21.0, 21.0)
    mine.began(21.0, 0.5)
    assert other.opens_at == 22.0
    other.succeeded(23.0, 22.0)
    assert other.opens_at == 0.0
