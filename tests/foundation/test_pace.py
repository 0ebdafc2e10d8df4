"""Pace: beginnings are spread evenly, and lateness is caught up with only a little.

Backoff: full jitter between nothing and a ceiling that doubles.
"""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.foundation.pace import Pace, RetryPolicy


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


@pytest.mark.parametrize(
    ("attempt", "ceiling"),
    [(1, 1.0), (2, 2.0), (3, 4.0), (6, 32.0), (7, 60.0), (10**9, 60.0)],
)
def test_ceiling_doubles_up_to_the_longest_wait(attempt: int, ceiling: float) -> None:
    assert RetryPolicy().delay(attempt, unit=1.0) == ceiling


def test_jitter_is_full() -> None:
    policy = RetryPolicy(first=8.0)

    assert [policy.delay(1, unit=unit) for unit in (0.0, 0.25, 0.5)] == [0.0, 2.0, 4.0]


@pytest.mark.parametrize(
    ("retry_after", "delay"), [(None, 0.5), (0.0, 0.5), (0.4, 0.5), (3600.0, 3600.0)]
)
def test_wish_of_the_other_side_wins_when_longer(
    retry_after: float | None, delay: float
) -> None:
    assert RetryPolicy().delay(1, unit=0.5, retry_after=retry_after) == delay


@given(
    st.integers(1, 10_000),
    st.floats(0, 1, exclude_max=True),
    st.floats(0.001, 10),
    st.floats(0.001, 10_000),
)
def test_wait_is_never_negative_and_never_too_long(
    attempt: int, unit: float, first: float, longest: float
) -> None:
    delay = RetryPolicy(first=first, max_backoff=longest).delay(attempt, unit=unit)

    assert 0 <= delay <= longest
