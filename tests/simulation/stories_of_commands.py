"""Stories of commands: slow and failing hooks, and what comes between."""

import random

from tests.simulation.plan import Plan
from tests.simulation.stories import appear, change, story


def _tell(plan: Plan, dice: random.Random, name: str, notice: float) -> None:
    """Plan one event: it may change while a hook runs, start or not, and goes."""
    at = dice.uniform(1, 30)
    first = appear(plan, at, name, notice=notice)
    changes: list[dict[str, object]] = [
        {"Description": "changed"},
        {"DurationInSeconds": 9},
        {"EventType": "Redeploy"},
        {"EventType": "Freeze"},
        {"Resources": ["WestNO_1"]},
        {"Resources": ["WestNO_0", "WestNO_1", "WestNO_2"]},
    ]
    for _ in range(dice.choice([0, 1, 1, 2])):
        at += dice.uniform(1, 15)
        change(plan, at, "update", name, **dice.choice(changes))
    if dice.random() < 0.4:
        at += dice.uniform(1, 20)
        change(plan, at, "start", name)
    at += dice.uniform(1, 30)
    change(plan, at, "vanish", name)
    if dice.random() < 0.4:
        at += dice.uniform(0.5, 20)
        change(plan, at, "appear", name, **dict(first.fields))
        change(plan, at + dice.uniform(1, 40), "vanish", name)


@story
def hook_runs_while_its_event_changes(plan: Plan, dice: random.Random) -> None:
    """A hook is slow, fails or hangs while its event changes, starts or goes."""
    plan.troubles = frozenset({"commands"})
    for number in range(dice.randint(1, 3)):
        _tell(plan, dice, f"H{number}-{plan.seed}", dice.choice([30.0, 120.0, 900.0]))


@story
def many_hooks_are_due_at_once(plan: Plan, dice: random.Random) -> None:
    """One hook runs at a time, but for what cannot wait."""
    plan.troubles = frozenset({"commands", "bursts"})
    for number in range(dice.randint(4, 6)):
        notice = dice.choice([40.0, 60.0, 1500.0, 7200.0])
        _tell(plan, dice, f"H{number}-{plan.seed}", notice)
    if dice.random() < 0.4:  # IMDS was moved: absence says nothing for a while
        plan.troubles |= {"imds-resets"}
        at = dice.uniform(10, 35)
        change(plan, at, "reset", "")
        change(plan, at + dice.uniform(20, 60), "return", "")


@story
def process_dies_while_a_hook_runs(plan: Plan, dice: random.Random) -> None:
    """The forwarder is killed or stopped before, while and after a hook runs."""
    plan.troubles = frozenset({"commands"})
    for number in range(dice.randint(1, 3)):
        _tell(plan, dice, f"H{number}-{plan.seed}", dice.choice([60.0, 900.0]))
    for number in range(1, dice.randint(2, 5)):
        place = dice.choice(["hook", "hook ends", "hook ends"])
        plan.kills.append((place, number, dice.randint(0, 8)))
    if dice.random() < 0.4:
        plan.stops = [dice.uniform(10, 60)]
