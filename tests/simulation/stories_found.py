"""Stories that a long search has found: run by name, each with a seed of its own.

They stand beside those that every fourth seed tells, so that a new one moves no seed.
"""

import random
from collections.abc import Callable

from tests.simulation.plan import Plan
from tests.simulation.stories import Story, appear, change

FOUND: dict[Story, int] = {}  # with the seed that decides what the story leaves open
_OWN = ["WestNO_0"]


def _story(seed: int) -> Callable[[Story], Story]:
    def add(tell: Story) -> Story:
        FOUND[tell] = seed
        return tell

    return add


@_story(seed=1)
def event_starts_without_this_vm_in_one_document(plan: Plan, _: random.Random) -> None:
    """Found by seed 9457: no step said to the command that it has to undo a thing."""
    plan.troubles = frozenset({"commands"})
    appear(plan, 1.0, "F1", Resources=_OWN)
    change(plan, 40.5, "update", "F1", Resources=["WestNO_1"])
    change(plan, 40.6, "start", "F1")
    change(plan, 90.0, "vanish", "F1")


@_story(seed=5)
def event_is_as_it_was_while_a_hook_runs(plan: Plan, _: random.Random) -> None:
    """Found by seed 6317: the judge took the newest step for the one it overtook."""
    plan.troubles = frozenset({"commands"})
    appear(plan, 1.0, "F1", Resources=_OWN)
    change(plan, 4.0, "update", "F1", DurationInSeconds=4)
    change(plan, 8.0, "update", "F1", DurationInSeconds=5)
    for number in range(10):
        at = 12.0 + 4 * number
        change(plan, at, "update", "F1", DurationInSeconds=3)
        change(plan, at + 2, "update", "F1", DurationInSeconds=5)
    change(plan, 90.0, "vanish", "F1")


@_story(seed=29)
def imds_cannot_be_read_when_all_is_over(plan: Plan, dice: random.Random) -> None:
    """Found by seed 6897: the judge ended a life that had not seen the last change."""
    plan.troubles = frozenset({"commands", "imds-errors"})
    appear(plan, 1.0, "F1", Resources=_OWN)
    change(plan, dice.uniform(81.0, 119.0), "vanish", "F1")


@_story(seed=1)
def kill_comes_while_the_disk_hangs(plan: Plan, _: random.Random) -> None:
    """The forwarder reads on; the next life tells what the disk did not take."""
    plan.troubles = frozenset({"disk-full"})
    plan.full, plan.hangs = (40.0, 44.0), True
    appear(plan, 41.0, "F1", Resources=_OWN)
    change(plan, 90.0, "vanish", "F1")
    plan.kills = [("fetched", 23, 0)]
