"""A sink under load: a slow one gets more at once."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
from msgspec.structs import replace

from bridge.foundation.errors import DeliveryError
from bridge.outbox.records import Delivery
from bridge.outbox.store import Outbox
from tests.pipeline.test_relay import (
    BAD,
    BUSY,
    SLOW_DOWN,
    Rig,
    policy_of,
    relay_of,
    running,
)
from tests.support.builders import outgoing
from tests.support.fakes import FakeClock, RecordingSink, settled


@dataclass
class Receiver:
    """Answers after so many seconds; fails as told.

    Attributes:
        faults: by CloudEvent id: what the first attempt at it fails with.
        most: the most attempts that were in flight at the same time.
    """

    clock: FakeClock
    seconds: float
    faults: dict[str | None, DeliveryError] = field(default_factory=dict)
    taken: list[tuple[str | None, str | None]] = field(default_factory=list)
    flying: int = 0
    most: int = 0

    async def __call__(self, delivery: Delivery) -> None:
        self.flying += 1
        self.most = max(self.most, self.flying)
        try:
            await self.clock.wait(asyncio.Event(), self.seconds)
        finally:
            self.flying -= 1
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
