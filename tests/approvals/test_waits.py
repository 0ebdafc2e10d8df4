"""Waits until an event may be approved; waits for one event are shared."""

import asyncio

import pytest

from bridge.approvals.posting import Waits
from bridge.events.build import EventContext
from bridge.outbox.store import Outbox
from bridge.telemetry.metrics import Metrics
from tests.support.builders import EVENT_ID, observed
from tests.support.fakes import FakeClock, FakeMetadata, turns


@pytest.fixture
def waits(
    metadata: FakeMetadata,
    outbox: Outbox,
    event_context: EventContext,
    clock: FakeClock,
    metrics: Metrics,
) -> Waits:
    poller, _ = observed(metadata, outbox, event_context, clock, metrics)
    return Waits(poller, clock)


async def test_waits_for_one_event_are_shared(clock: FakeClock, waits: Waits) -> None:
    stop = asyncio.Event()
    tasks = [asyncio.create_task(waits.wait(EVENT_ID, 5.0, stop)) for _ in range(50)]
    await turns()

    assert len(clock.waits) == 1
    await clock.advance(5.0)
    assert all(task.done() for task in tasks)


async def test_shorter_wait_for_the_same_event_ends_first(
    clock: FakeClock, waits: Waits
) -> None:
    stop = asyncio.Event()
    long = asyncio.create_task(waits.wait(EVENT_ID, 5.0, stop))
    await turns()
    short = asyncio.create_task(waits.wait(EVENT_ID, 2.0, stop))
    await clock.advance(2.0)

    assert short.done()
    assert not long.done()
    await clock.advance(3.0)
    assert long.done()


async def test_long_wait_outlives_a_shorter_one_that_came_later(
    clock: FakeClock, waits: Waits
) -> None:
    stop = asyncio.Event()
    long = asyncio.create_task(waits.wait(EVENT_ID, 3.0, stop))
    await turns()
    short = asyncio.create_task(waits.wait(EVENT_ID, 2.9, stop))
    await turns()
    stop.set()
    await turns()

    assert long.done()
    assert short.done()


async def test_stop_ends_a_wait_and_all_that_share_it(
    clock: FakeClock, waits: Waits
) -> None:
    stop = asyncio.Event()
    tasks = [asyncio.create_task(waits.wait(EVENT_ID, 60.0, stop)) for _ in range(3)]
    await turns()
    stop.set()
    await turns()

    assert all(task.done() for task in tasks)
