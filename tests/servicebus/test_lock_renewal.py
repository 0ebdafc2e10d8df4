"""What keeps a lock ours: when it is renewed, and when it counts as lost."""

import asyncio
import gc
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import timedelta

import pytest
from azure.servicebus.exceptions import MessageLockLostError

from bridge.servicebus.namespace import Timings
from bridge.servicebus.receiver import Locks, LockTime
from tests.support.fakes import FakeClock


def test_thousand_locks_of_half_a_minute_are_held_all_the_time(
    clock: FakeClock,
) -> None:
    """Each renewal takes 20 ms, as it may over a network: 20 s for all of them."""
    locks, renewed = Locks(clock), dict.fromkeys(range(1000), clock.monotonic())

    def renewal(number: int) -> Callable[[float], Awaitable[None]]:
        async def renew(_limit: float) -> None:
            clock.pass_by(0.02)
            assert clock.monotonic() - renewed[number] < 30.0
            renewed[number] = clock.monotonic()

        return renew

    for number in renewed:
        until = clock.now() + timedelta(seconds=30)
        locks.keep(f"m{number}", renewal(number), until)

    async def ten_minutes() -> None:
        end = clock.monotonic() + 600
        while clock.monotonic() < end:
            before = clock.monotonic()
            await locks.renew_due()
            assert clock.monotonic() - before < 0.5  # who settles waits no longer
            if not locks.are_due:
                clock.pass_by(0.5)

    asyncio.run(ten_minutes())


async def nothing(_limit: float) -> None:
    pass


@pytest.mark.parametrize(
    ("seconds", "life"),
    [(30, 30), (300, 300), (-7200, 5), (0, 5), (7200, 5), (None, 5)],
)
def test_life_of_a_lock_is_what_service_bus_can_have_meant(
    seconds: int | None, life: float, clock: FakeClock
) -> None:
    """A clock that is two hours wrong says nothing of how long a lock lasts."""
    until = None if seconds is None else clock.now() + timedelta(seconds=seconds)

    assert Locks(clock).keep("session", nothing, until) == life


async def test_lock_lapses_when_it_was_not_renewed_for_its_life(
    clock: FakeClock,
) -> None:
    locks = Locks(clock)
    locks.keep("session", nothing, clock.now() + timedelta(seconds=30))
    clock.pass_by(29)
    await locks.renew_due()
    clock.pass_by(29)
    before = locks.has_lapsed("session")
    clock.pass_by(2)

    assert not before
    assert locks.has_lapsed("session")


async def test_renewal_that_is_too_late_fails_where_it_is_awaited(
    clock: FakeClock,
) -> None:
    """The SDK awaits the answer in a task of its own; a busy machine is late for it."""
    unseen = list[object]()
    asyncio.get_running_loop().set_exception_handler(
        lambda _, found: unseen.append(found)
    )

    async def answer() -> None:
        with suppress(asyncio.CancelledError):  # as ``wait_for`` did before Python 3.12
            await asyncio.sleep(60)
        raise MessageLockLostError

    async def renew(limit: float) -> None:
        await asyncio.wait_for(answer(), limit)

    locks = Locks(clock, Timings(renew=0.05, least_renew=0.05))
    locks.keep("m1", renew, clock.now() + timedelta(seconds=30))
    clock.pass_by(15)
    lost = await locks.renew_due()
    gc.collect()

    assert lost == ["m1"]
    assert not unseen


def test_what_is_no_lock_never_lapses(clock: FakeClock) -> None:
    locks = Locks(clock)
    locks.repeat("look", nothing, 60)
    clock.pass_by(3600)

    assert not locks.has_lapsed("look")
    assert not locks.has_lapsed("session")


def test_session_is_asked_for_at_a_quarter_of_its_lock_time() -> None:
    assert LockTime(60).quarter == 15
    assert LockTime().quarter == 5
