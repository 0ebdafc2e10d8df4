"""Pauses of the VM: which clocks show them, and what only looks like one."""

from dataclasses import dataclass, field
from datetime import datetime, timedelta

import pytest

from bridge.foundation.clock import PauseMeter, ReferenceClock, SystemClock
from tests.support.fakes import START


@dataclass
class Machine:
    """A VM whose clocks go on, jump or stand as a test says; IMDS knows the time.

    Attributes:
        truth: seconds of real time.
        monotonic: seconds of the VM's monotonic clock.
        wall: by how many seconds the wall clock is ahead of real time.
        slept: seconds that only the time since boot has counted.
    """

    truth: float = 0.0
    monotonic: float = 1000.0
    wall: float = 0.0
    slept: float = 0.0
    meter: PauseMeter = field(init=False)
    found: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        clock = SystemClock()
        clock.monotonic = lambda: self.monotonic
        clock.now = lambda: START + timedelta(seconds=self.truth + self.wall)
        clock.asleep = lambda: self.slept
        self.meter = PauseMeter(ReferenceClock(clock), self.found.append)

    def runs(self, seconds: float) -> None:
        self.truth += seconds
        self.monotonic += seconds

    def stands(self, seconds: float, *, is_set: bool = True) -> None:
        """Pause with a monotonic clock that stands; ``is_set``: the wall clock ran."""
        self.truth += seconds
        self.wall -= 0.0 if is_set else seconds

    def polls(self, count: int = 1, *, odd: float = 0.0, has_date: bool = True) -> None:
        for _ in range(count):
            self.runs(1.0)
            at = START + timedelta(seconds=self.truth + odd)
            date: datetime | None = at.replace(microsecond=0) if has_date else None
            self.meter.note(date, self.monotonic)


@pytest.fixture
def machine() -> Machine:
    machine = Machine()
    machine.polls(3)
    return machine


def test_wait_that_ended_late_is_a_pause(machine: Machine) -> None:
    machine.meter.late(33.0)
    machine.polls(3)

    assert machine.found == [33.0]
    assert machine.meter.total == 33.0


def test_wait_that_ended_in_time_is_none(machine: Machine) -> None:
    machine.meter.late(0.0)
    machine.meter.late(2.9)

    assert machine.found == []


def test_pause_in_which_the_monotonic_clock_stood_shows_in_the_date(
    machine: Machine,
) -> None:
    machine.stands(33.0)
    machine.polls(3)

    assert machine.found == [pytest.approx(33.0)]


def test_pause_after_which_the_wall_clock_is_put_right_later_counts_once(
    machine: Machine,
) -> None:
    machine.stands(33.0, is_set=False)
    machine.polls()
    assert machine.found == []  # one Date alone may be odd
    machine.polls()
    machine.wall = 0.0
    machine.polls(3)

    (seconds,) = machine.found
    assert seconds == pytest.approx(33.0, abs=2.5)


@pytest.mark.parametrize("seconds", [60.0, 3600.0, -3600.0])
def test_clock_that_was_set_is_no_pause(machine: Machine, seconds: float) -> None:
    machine.wall += seconds
    machine.polls(5)

    assert machine.found == []


def test_one_odd_date_is_no_pause(machine: Machine) -> None:
    machine.polls(odd=3600.0)
    machine.polls(3)
    machine.polls(odd=-3600.0)
    machine.polls(3)

    assert machine.found == []


def test_without_dates_the_time_since_boot_shows_a_sleep() -> None:
    machine = Machine()
    machine.polls(2, has_date=False)
    machine.stands(600.0)
    machine.slept += 600.0
    machine.polls(3, has_date=False)

    assert machine.found == [pytest.approx(600.0)]


def test_sleep_that_the_date_shows_too_counts_once(machine: Machine) -> None:
    machine.stands(600.0)
    machine.slept += 600.0
    machine.polls(3)

    assert machine.found == [pytest.approx(600.0)]


def test_without_dates_a_clock_that_was_set_is_no_pause() -> None:
    machine = Machine()
    machine.polls(2, has_date=False)
    machine.wall += 600.0
    machine.polls(3, has_date=False)

    assert machine.found == []


def test_pause_is_reported_once_and_not_an_hour_later(machine: Machine) -> None:
    meter = machine.meter
    meter.late(33.0)
    assert meter.since(0.0) == 33.0
    assert meter.since(meter.total) == 0.0

    machine.runs(3601.0)
    assert meter.since(0.0) == 0.0


def test_own_clock_tells_how_long_the_machine_slept() -> None:
    assert SystemClock().asleep() >= -0.01


@pytest.mark.parametrize("off", [50e-6, -50e-6])
@pytest.mark.parametrize("is_set", [True, False])
def test_clock_that_is_a_little_off_shows_no_pause_after_a_day_without_imds(
    machine: Machine, off: float, *, is_set: bool
) -> None:
    """50 ppm are 4 s a day; the wall clock may be put right meanwhile, or not."""
    day = 86_400.0
    machine.truth += day
    machine.monotonic += day * (1 - off)
    machine.wall -= 0.0 if is_set else day * off
    machine.polls(5)

    assert machine.found == []


def test_pause_after_a_day_without_imds_is_found(machine: Machine) -> None:
    machine.runs(86_400.0)
    machine.stands(33.0)
    machine.polls(3)

    assert machine.found == [pytest.approx(33.0)]
