"""Stories of rules with ``after``: an approval waits for the success of a command."""

import random

from tests.simulation.plan import Plan
from tests.simulation.stories import Story, appear, approve, change

AFTER: list[Story] = []
_OWN = ["WestNO_0"]
_SHARED = ["WestNO_0", "WestNO_1"]
_LESSER: list[dict[str, object]] = [
    {"Description": "changed"},
    {"DurationInSeconds": 3},
    {"Resources": _OWN},
]
_STILL_MEANT: list[dict[str, object]] = [  # by the rule, but not by the success
    {"DurationInSeconds": 9},
    {"DurationInSeconds": -1},
    {"EventType": "Redeploy"},
]
_MATERIAL: list[dict[str, object]] = [
    *_STILL_MEANT,
    {"EventType": "Preempt"},
    {"EventType": "Freeze"},
    {"Resources": ["WestNO_0", "WestNO_1", "WestNO_2"]},
    {"Resources": ["WestNO_1"]},
]


def _story(tell: Story) -> Story:
    AFTER.append(tell)
    return tell


def _begin(plan: Plan, dice: random.Random) -> None:
    """Plan a rule that waits for the command."""
    plan.troubles = frozenset({"commands", "after"})
    plan.others = dice.choice(["withhold", "withhold", "ignore"])
    plan.after_delay = dice.choice([0.0, 0.0, 6.0, 15.0])


def _names(plan: Plan, dice: random.Random, most: int) -> list[str]:
    return [f"A{n}-{plan.seed}" for n in range(dice.randint(1, most))]


def _tell(
    plan: Plan, dice: random.Random, name: str, resources: list[str], changes: int
) -> None:
    """Plan one event: it changes, perhaps back again, goes, and may come again."""
    at, notice = dice.uniform(1, 15), dice.choice([120.0, 900.0, 1830.0])
    kind = dice.choice(["Reboot", "Redeploy"])
    first = appear(plan, at, name, notice=notice, Resources=resources, EventType=kind)
    for _ in range(changes):
        at += dice.uniform(1, 25)
        fields = dice.choice([_LESSER, _MATERIAL, _MATERIAL])
        change(plan, at, "update", name, **dice.choice(fields))
        if dice.random() < 0.3:
            at += dice.uniform(1, 15)
            change(plan, at, "update", name, **dict(first.fields))
    at += dice.uniform(10, 90)
    change(plan, at, "vanish", name)
    if dice.random() < 0.4:
        at += dice.uniform(0.5, 10)
        change(plan, at, "appear", name, **dict(first.fields) | {"Description": "new"})
        change(plan, at + dice.uniform(5, 60), "vanish", name)


@_story
def rule_waits_for_a_hook(plan: Plan, dice: random.Random) -> None:
    """A hook succeeds, fails or hangs, and its event stays as it is, or changes."""
    _begin(plan, dice)
    for name in _names(plan, dice, 2):
        _tell(plan, dice, name, _OWN, dice.choice([0, 0, 1, 2]))


@_story
def event_changes_after_its_success(plan: Plan, dice: random.Random) -> None:
    """A hook that has succeeded fails when it is run for what the event has become."""
    _begin(plan, dice)
    plan.after_delay, plan.fails_from = 15.0, 1
    name = f"A0-{plan.seed}"
    at = dice.uniform(1, 5)
    first = appear(plan, at, name, Resources=_OWN, notice=900.0)
    at += dice.uniform(6, 12)
    fields = dice.choice([_LESSER, _MATERIAL, _STILL_MEANT, _STILL_MEANT])
    change(plan, at, "update", name, **dice.choice(fields))
    if dice.random() < 0.4:
        at += dice.uniform(1, 20)
        change(plan, at, "update", name, **dict(first.fields))
    change(plan, at + dice.uniform(30, 60), "vanish", name)


@_story
def event_names_other_machines_too(plan: Plan, dice: random.Random) -> None:
    """Others are named from the beginning, or come and go."""
    _begin(plan, dice)
    plan.after_delay = 0.0
    for name in _names(plan, dice, 2):
        _tell(plan, dice, name, dice.choice([_SHARED, _OWN]), dice.randint(0, 2))
    if dice.random() < 0.3:  # a person frees them all
        name = plan.scenes[0].event_id
        approve(plan, plan.scenes[0].at + dice.uniform(3, 30), name)


@_story
def process_dies_around_a_success(plan: Plan, dice: random.Random) -> None:
    """The forwarder dies before and after a success is kept, and around the POST."""
    _begin(plan, dice)
    for name in _names(plan, dice, 2):
        _tell(plan, dice, name, _OWN, dice.choice([0, 0, 1]))
    for number in range(1, dice.randint(2, 4)):
        place = dice.choice(["hook", "hook ends", "hook ends", "post", "posted"])
        plan.kills.append((place, number, dice.randint(0, 12)))
    if dice.random() < 0.3:
        plan.stops = [dice.uniform(5, 40)]


@_story
def rule_waits_among_other_trouble(plan: Plan, dice: random.Random) -> None:
    """IMDS and the disk's machine give trouble, and people approve as well."""
    _begin(plan, dice)
    trouble = ["crashes", "post-errors", "imds-errors", "imds-odd-bodies", "jumps"]
    plan.troubles |= {name for name in trouble if dice.random() < 0.4}
    plan.crash_rate = dice.choice([0.002, 0.006])
    for name in _names(plan, dice, 3):
        _tell(plan, dice, name, dice.choice([_OWN, _OWN, _SHARED]), dice.randint(0, 2))
    if plan.has("jumps"):
        plan.jumps = [(dice.uniform(5, 60), dice.choice([90.0, 7200.0, -7200.0]))]
    if dice.random() < 0.3:
        approve(plan, dice.uniform(5, 60), plan.scenes[0].event_id)
