"""The judge of ages: what is too old is given up, whatever came between."""

from typing import TYPE_CHECKING

from tests.simulation.oracle_time import (
    LONGEST_HANG,
    SINK,
    alive,
    by_delivery,
    is_refusing,
)

if TYPE_CHECKING:
    from tests.simulation.edges import Tried
    from tests.simulation.world import World

_HEALED_WITHIN = 4.0  # what was tried in memory only is forgotten until then


def judge_ages(world: "World") -> None:
    """Compare how old each delivery became with how old it may become."""
    tries = sorted(world.tried, key=lambda one: one.at)
    for sink in {one.sink for one in tries}:
        judge_age(world, [one for one in tries if one.sink == sink])


def judge_age(world: "World", tries: list["Tried"]) -> None:
    """What is too old is given up; memory does not keep how often it was tried."""
    if is_refusing(world):
        return
    begin, end = world.plan.full
    for mine in by_delivery(tries):
        kept = [t for t in mine if not begin <= t.ended < end + _HEALED_WITHIN]
        within = [t for t in mine[2:] if begin <= t.ended < end]
        for one in (*kept[2:], *within):
            since = world.rows[one.delivery].at
            age = alive(world, since, one.ended)
            is_failure = one.error in SINK | {"throttled"} and one is not mine[-1]
            most = world.plan.max_age + _forgotten_age(world, since, one.ended)
            if is_failure and age > most:
                world.blame(f"{one} is {age:.0f} s old, and not given up")


def _forgotten_age(world: "World", since: float, until: float) -> float:
    """Return how much less old a delivery may be held for than it is.

    How old it is, is kept once a minute and at a stop, unless an attempt hangs in it.
    """
    hangs = world.plan.has("sink-hangs")
    ended = [
        is_clean and not hangs
        for (_, end), is_clean in zip(world.lives, world.clean, strict=True)
        if since < end < until
    ]
    return 5 + LONGEST_HANG * hangs + sum(3 if was else 65 for was in ended)
