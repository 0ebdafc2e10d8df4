"""The figures of a benchmark: ratio, spread, noise, and what was before."""

import asyncio
import itertools
from pathlib import Path

import pytest

from tests.bench.figures import Figure, in_turns
from tests.bench.history import History


def figure(
    ours: tuple[float, ...], bare: tuple[float, ...], wanted: str = "<= 1.5"
) -> Figure:
    return Figure(what="start", ours=ours, bare=bare, unit="ms", wanted=wanted)


def test_ratio_is_the_median_of_the_turns() -> None:
    it = figure((10, 12, 30), (10, 10, 10))
    assert (it.ratio, it.spread, it.noise) == (1.2, (1.0, 3.0), 0.0)
    assert it.verdict == "ok"


@pytest.mark.parametrize(
    ("wanted", "verdict"), [("<= 1.1", "missed"), (">= 1.1", "ok"), ("", "")]
)
def test_verdict_follows_the_aim(wanted: str, verdict: str) -> None:
    assert figure((12, 12, 12), (10, 10, 10), wanted).verdict == verdict


def test_machine_that_is_too_noisy_is_not_reported() -> None:
    it = figure((10, 10, 10), (10, 20, 10))
    assert it.verdict == "too noisy"
    assert "1.00" not in str(it)


def test_bare_one_beside_itself_says_how_noisy_the_machine_is() -> None:
    """What is slower from turn to turn slows down all that runs at the same time."""
    it = Figure(
        what="idle",
        ours=(12, 24, 12),
        bare=(10, 20, 10),
        again=(10.5, 19, 10),
        unit="ms",
        wanted="<= 1.25",
    )
    assert it.noise == pytest.approx(0.05)
    assert it.verdict == "ok"


def test_turns_change_who_begins() -> None:
    calls: list[str] = []
    count = itertools.count()

    async def ours() -> list[float]:
        calls.append("ours")
        return [next(count), 7]

    async def bare() -> list[float]:
        calls.append("bare")
        return [next(count), 8]

    found = asyncio.run(in_turns(ours, bare, 3))
    assert calls == ["ours", "bare", "bare", "ours", "ours", "bare"]
    assert found == [[(0, 3, 4), (1, 2, 5)], [(7, 7, 7), (8, 8, 8)]]


def test_history_shows_what_became_worse_by_more_than_noise(tmp_path: Path) -> None:
    path = tmp_path / "history.json"
    History.read(path).keep("1.0", [figure((10, 10, 10), (10, 10, 10))])
    history = History.read(path)
    assert "WORSE than 1.00" in history.compared(figure((14, 14, 14), (10, 10, 10)))
    within_noise = figure((10, 11, 10), (10, 11, 10))
    assert history.compared(within_noise).endswith("was 1.00")


def test_history_counts_less_as_worse_where_more_is_wanted(tmp_path: Path) -> None:
    path = tmp_path / "history.json"
    History.read(path).keep("1.0", [figure((10, 10, 10), (10, 10, 10), ">= 0.5")])
    less = figure((6, 6, 6), (10, 10, 10), ">= 0.5")
    assert "WORSE than 1.00" in History.read(path).compared(less)


def test_figure_that_is_new_or_too_noisy_is_compared_with_nothing(
    tmp_path: Path,
) -> None:
    path = tmp_path / "history.json"
    noisy = figure((10, 10, 10), (10, 20, 10))
    History.read(path).keep("1.0", [noisy])
    assert History.read(path).versions == {"1.0": {}}
    assert "was" not in History.read(path).compared(figure((1,), (1,)))
