"""Beginnings are spread evenly, and lateness is caught up with only a little."""

from itertools import pairwise

import pytest

from bridge.foundation.rate_limit import Pace


def begun(pace: Pace, *, seconds: float, step: float) -> list[float]:
    """Return when something began, for one who looks every ``step`` seconds."""
    now, moments = 100.0, list[float]()
    while now < 100 + seconds:
        while now >= pace.opens_at and len(moments) < 10_000:
            pace.take(now)
            moments.append(now)
        now += step
    return moments


@pytest.mark.parametrize("rate", [0.5, 1, 7, 20])
def test_gap_is_never_shorter_than_the_rate_says(rate: float) -> None:
    moments = begun(Pace(most=rate), seconds=10, step=0.013)

    gaps = [after - before for before, after in pairwise(moments)]
    assert min(gaps) >= 1 / rate


@pytest.mark.parametrize("rate", [50, 500])
def test_high_rate_is_reached_although_one_is_woken_late(rate: float) -> None:
    moments = begun(Pace(most=rate), seconds=10, step=0.03)

    assert 9.5 * rate <= len(moments) <= 10.1 * rate


def test_idle_time_is_not_saved_up() -> None:
    pace = Pace(most=100)
    begun(pace, seconds=1, step=0.01)

    later, count = 500.0, 0
    while later >= pace.opens_at:
        pace.take(later)
        count += 1

    assert count <= 6


def test_lower_rate_holds_and_none_is_no_limit() -> None:
    assert Pace().rate is None
    assert Pace(most=5).rate == 5
    assert Pace(most=5, granted=1).rate == 1
    assert Pace(granted=3).rate == 3
    unlimited = Pace()
    unlimited.take(1e9)
    assert unlimited.opens_at == 0
