"""Plants a bug in the forwarder, and looks for a seed that finds it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from tests.simulation.runs import run

Patch = pytest.MonkeyPatch
Plant = Callable[[Patch], None]
BUGS: dict[str, Plant] = {}


def bug(plant: Plant) -> Plant:
    """Add a bug to those that are planted."""
    BUGS[plant.__name__] = plant
    return plant


@contextmanager
def planted(name: str) -> Iterator[None]:
    """Plant a bug until the block is left."""
    with Patch.context() as patch:
        BUGS[name](patch)
        yield


def found_after(most: int, since: int = 0) -> tuple[int, str] | None:
    """Return the first seed that fails, however it does, and how."""
    for seed in range(since, since + most):
        try:
            faults = run(seed).faults
        except BaseException as error:  # noqa: BLE001 - a bug may end it in any way
            return seed, repr(error)
        if faults:
            return seed, faults[0]
    return None
