"""Backoff: full jitter between nothing and a ceiling that doubles."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.foundation.retry import RetryPolicy


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
