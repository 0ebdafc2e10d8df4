"""The two clocks: the machine's own, and the one that tests move by hand."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from bridge.foundation.clock import Bell, SystemClock
from tests.support.fakes import START, FakeClock, turns

EVENTS = pytest.mark.parametrize("kind", [asyncio.Event, Bell])


def test_system_time_is_aware_and_in_utc() -> None:
    assert SystemClock().now().tzinfo is UTC
    assert abs(SystemClock().now() - datetime.now(UTC)) < timedelta(minutes=1)


def test_system_monotonic_time_never_goes_back() -> None:
    clock = SystemClock()

    assert clock.monotonic() <= clock.monotonic()


@EVENTS
async def test_system_wait_ends_at_once_when_the_event_is_set(
    kind: type[asyncio.Event],
) -> None:
    event = kind()
    event.set()

    assert await SystemClock().wait(event, 3600) is True


@EVENTS
async def test_system_wait_ends_when_the_event_is_set_meanwhile(
    kind: type[asyncio.Event],
) -> None:
    event = kind()
    asyncio.get_running_loop().call_soon(event.set)

    assert await SystemClock().wait(event, 3600) is True


@EVENTS
async def test_system_wait_ends_when_the_time_is_over(
    kind: type[asyncio.Event],
) -> None:
    assert await SystemClock().wait(kind(), 0) is False


@EVENTS
async def test_system_wait_of_a_time_that_has_passed_ends_at_once(
    kind: type[asyncio.Event],
) -> None:
    assert await SystemClock().wait(kind(), -5) is False


@EVENTS
async def test_event_ends_the_waits_of_all(kind: type[asyncio.Event]) -> None:
    clock, event = SystemClock(), kind()
    waits = [asyncio.ensure_future(clock.wait(event, 3600)) for _ in range(3)]
    await turns()
    event.set()
    event.clear()

    assert await asyncio.gather(*waits) == [True] * 3


@EVENTS
async def test_wait_that_is_cancelled_leaves_the_others(
    kind: type[asyncio.Event],
) -> None:
    clock, event = SystemClock(), kind()
    waits = [asyncio.ensure_future(clock.wait(event, 3600)) for _ in range(2)]
    await turns()
    waits[0].cancel()
    await turns()
    event.set()

    assert await waits[1] is True
    assert waits[0].cancelled()


async def test_system_wait_with_slack_ends_together_with_another() -> None:
    clock = SystemClock()
    patient = asyncio.ensure_future(clock.wait(Bell(), 60, slack=60))
    await turns()

    await clock.wait(Bell(), 0)
    await turns()

    assert patient.done()
    assert patient.result() is False


async def test_system_wait_does_not_end_before_its_slack_begins() -> None:
    clock = SystemClock()
    patient = asyncio.ensure_future(clock.wait(Bell(), 120, slack=60))
    await turns()

    await clock.wait(Bell(), 0)
    await turns()

    assert not patient.done()
    patient.cancel()


async def test_system_wait_does_not_end_with_one_that_ends_by_its_event() -> None:
    clock, event = SystemClock(), Bell()
    patient = asyncio.ensure_future(clock.wait(Bell(), 60, slack=60))
    asyncio.get_running_loop().call_soon(event.set)
    await clock.wait(event, 60)
    await turns()

    assert not patient.done()
    patient.cancel()


async def test_system_wait_with_slack_ends_alone_when_the_time_is_over() -> None:
    assert await SystemClock().wait(Bell(), 0.0, slack=1.0) is False


async def test_fake_time_passes_only_when_told(clock: FakeClock) -> None:
    waiting = asyncio.ensure_future(clock.wait(asyncio.Event(), 10))
    await clock.advance(9.9)
    assert not waiting.done()

    await clock.advance(0.1)

    assert await waiting is False
    assert clock.now() == START + timedelta(seconds=10)


async def test_fake_wait_ends_when_the_event_is_set(clock: FakeClock) -> None:
    event = asyncio.Event()
    waiting = asyncio.ensure_future(clock.wait(event, 10))
    await turns()
    event.set()

    assert await waiting is True


async def test_fake_sleepers_wake_in_the_order_of_their_dues(clock: FakeClock) -> None:
    woken = []

    async def sleep(seconds: float) -> None:
        await clock.wait(asyncio.Event(), seconds)
        woken.append((seconds, clock.monotonic()))

    began = clock.monotonic()
    async with asyncio.TaskGroup() as group:
        for seconds in (3, 1, 2):
            group.create_task(sleep(seconds))
        await clock.advance(5)

    assert woken == [(n, began + n) for n in (1, 2, 3)]


def test_fake_jump_moves_only_the_wall_clock(clock: FakeClock) -> None:
    before = clock.monotonic()
    clock.jump(-3600)

    assert (clock.now(), clock.monotonic()) == (START - timedelta(hours=1), before)
