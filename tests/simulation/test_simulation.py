"""Some hundreds of seeds; ``python -m tests.simulation --seeds 10000`` runs more."""

from dataclasses import asdict

import pytest

from tests.simulation.plan import TROUBLES, Plan
from tests.simulation.runs import run, run_plan
from tests.simulation.stories import Story
from tests.simulation.stories_found import FOUND
from tests.simulation.telling import AFTER, STORIES, planned, story_of, with_story
from tests.simulation.world import World

CHUNK = 20
CHUNKS = 6  # 100 seeds at least: a story of each kind happens in these


LATER = [pytest.param(n, marks=pytest.mark.slow) for n in range(1, CHUNKS)]


@pytest.mark.parametrize("chunk", [0, *LATER])
def test_nothing_lost_nothing_forged_nothing_out_of_order(chunk: int) -> None:
    for seed in range(chunk * CHUNK, (chunk + 1) * CHUNK):
        faults = run(seed).faults
        again = f"replay it: python -m tests.simulation --seed {seed}"
        assert not faults, "\n".join([again, *faults])


@pytest.mark.parametrize(("story", "seed"), FOUND.items())
def test_story_that_was_found_once_comes_to_a_good_end(story: Story, seed: int) -> None:
    assert run_plan(with_story(Plan(seed), story)).faults == []


@pytest.mark.parametrize("seed", [9457, 6897, 6317, 3024])
def test_seed_that_has_failed_once_passes(seed: int) -> None:
    assert run(seed).faults == []


def trace(world: World) -> list[object]:
    """Return everything that happened."""
    return [
        world.lives,
        [asdict(one) for one in world.taken],
        [asdict(one) for one in world.azure.posts],
        [asdict(one) for one in world.shown],
    ]


@pytest.mark.parametrize("seed", [1, 3, 10, 16, 134])
def test_seed_replays_exactly(seed: int) -> None:
    assert trace(run(seed)) == trace(run(seed))


def test_seeds_are_different_histories() -> None:
    assert trace(run(5)) != trace(run(13))


def test_every_trouble_is_met_in_the_seeds_that_are_run() -> None:
    met = {t for seed in range(CHUNK * CHUNKS) for t in planned(seed).troubles}

    assert met == set(TROUBLES)


def test_every_story_happens_in_the_seeds_that_are_run() -> None:
    happened = {story_of(seed) for seed in range(CHUNK * CHUNKS)}

    assert happened >= {*STORIES, *AFTER}
