"""Which seed tells which story."""

import random

from tests.simulation import stories, stories_of_commands
from tests.simulation.plan import Plan, plan_of
from tests.simulation.stories import STORIES, Story
from tests.simulation.stories_of_after import AFTER

__all__ = [
    "AFTER",
    "STORIES",
    "planned",
    "stories",
    "stories_of_commands",
    "story_of",
]

_EVERY = 4
_EVERY_AFTER, _FIRST_AFTER = 20, 17  # of rules that wait for a command


def story_of(seed: int) -> Story | None:
    """Return the story that a seed tells; None where its plan is made by chance."""
    number, place = divmod(seed, _EVERY_AFTER)
    if place == _FIRST_AFTER:
        return AFTER[number % len(AFTER)]
    number, place = divmod(seed, _EVERY)
    return STORIES[number % len(STORIES)] if place == _EVERY - 1 else None


def planned(seed: int) -> Plan:
    """Return what a seed decides: a story, or whatever chance brings."""
    tale = story_of(seed)
    return plan_of(seed) if tale is None else with_story(Plan(seed), tale)


def with_story(plan: Plan, tale: Story) -> Plan:
    """Return a plan in which a story happens."""
    tale(plan, random.Random(f"{plan.seed}/story"))  # noqa: S311 - a simulation
    plan.end = max(scene.at for scene in plan.scenes) + 5
    plan.scenes.sort(key=lambda scene: scene.at)
    plan.approvals.sort(key=lambda approval: approval.at)
    return plan
