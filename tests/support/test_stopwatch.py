"""The stopwatch of tests with a bound: busy time is taken off."""

from tests.support.stopwatch import Stopwatch, pressure


def watch_of(times: list[float], waited: list[float]) -> Stopwatch:
    return Stopwatch(clock=lambda: times.pop(0), waited=lambda: waited.pop(0))


def test_time_on_an_idle_machine_counts_in_full() -> None:
    assert watch_of([100.0, 104.0], [7.0, 7.0]).seconds == 4.0


def test_time_that_somebody_had_to_wait_is_taken_off() -> None:
    assert watch_of([100.0, 104.0], [7.0, 10.0]).seconds == 1.0


def test_all_time_that_has_passed_is_known_too() -> None:
    assert watch_of([100.0, 104.0], [7.0, 10.0]).wall == 4.0


def test_pressure_never_falls() -> None:
    assert 0.0 <= pressure() <= pressure()
