"""Short plans, each about one thing: every fourth seed tells one of them.

A plan by chance seldom brings together all that shows a fault: a kill between two
commits, a clock that is set back while nobody runs, a disk that hangs with the very
commit that tells an event. A story does, and has little other trouble, so that the
judge may be strict. What it leaves open is chosen by the seed.
"""

import random
from collections.abc import Callable
from email.utils import format_datetime

from tests.simulation.plan import EVENT_TYPES, Plan, PlannedApproval, Scene
from tests.simulation.timeline import true_time

Story = Callable[[Plan, random.Random], None]
STORIES: list[Story] = []
_RESOURCES = ["WestNO_0", "WestNO_1"]


def story(tell: Story) -> Story:
    """Add a story to those that are published."""
    STORIES.append(tell)
    return tell


def appear(plan: Plan, at: float, event_id: str, **fields: object) -> Scene:
    """Let an event appear, with half an hour of notice."""
    notice = fields.pop("notice", 1800.0)
    assert isinstance(notice, float)
    given = {
        "EventType": "Reboot",
        "Resources": _RESOURCES,
        "NotBefore": format_datetime(true_time(at + notice), usegmt=True),
        "DurationInSeconds": 5,
        "Description": "",
        **fields,
    }
    return change(plan, at, "appear", event_id, **given)


def change(plan: Plan, at: float, kind: str, event_id: str, **fields: object) -> Scene:
    """Let something become of an event."""
    scene = Scene(at, kind, event_id, (*fields.items(),))
    plan.scenes.append(scene)
    return scene


def approve(
    plan: Plan, at: float, event_id: str, kind: str = "valid", thinks: float = 0.0
) -> None:
    """Let somebody approve an event, and ask for a reply."""
    name = f"m{len(plan.approvals)}"
    approval = PlannedApproval(at, event_id, kind, name, "replies", thinks)
    plan.approvals.append(approval)


def _names(plan: Plan, dice: random.Random, least: int, most: int) -> list[str]:
    return [f"S{n}-{plan.seed}" for n in range(dice.randint(least, most))]


@story
def killed_while_it_approves(plan: Plan, dice: random.Random) -> None:
    """The process dies before, within and after a POST, and between two commits."""
    plan.troubles = frozenset({"approvals"})
    for name in _names(plan, dice, 1, 3):
        at = dice.uniform(2, 20)
        appear(plan, at, name, EventType=dice.choice(EVENT_TYPES))
        approve(plan, at + dice.uniform(3, 12), name)
        change(plan, at + dice.uniform(50, 70), "vanish", name)
    for number in range(1, dice.randint(2, 4)):
        place = ("posted", number, dice.choice([0, 0, 1, 2, 3, 4, 5, 7]))
        kill = dice.choice([place, place, ("post", number, dice.randint(0, 3))])
        plan.kills.append(kill)


@story
def rule_waits_while_the_event_changes(plan: Plan, dice: random.Random) -> None:
    """A rule's delay begins anew when anything about the event changes."""
    plan.troubles = frozenset({"rules", "approvals"})
    for name in _names(plan, dice, 3, 4):
        at, kind = dice.uniform(1, 30), dice.choice(["Freeze", "Freeze", "Reboot"])
        appear(plan, at, name, EventType=kind)
        if dice.random() < 0.5:
            changes = at + dice.uniform(3, 16)
            change(plan, changes, "update", name, Description="changed")
        if kind == "Reboot":
            approve(plan, at + dice.uniform(0, 5), name)
        change(plan, at + dice.uniform(70, 90), "vanish", name)


@story
def rule_waits_while_the_clock_is_set(plan: Plan, dice: random.Random) -> None:
    """A rule's delay is counted over a jump of the clock and a restart."""
    plan.troubles = frozenset({"rules", "jumps"})
    for name in _names(plan, dice, 1, 2):
        at = dice.uniform(1, 10)
        appear(plan, at, name, EventType="Freeze")
        change(plan, at + dice.uniform(140, 150), "vanish", name)
        jumps = at + dice.uniform(2, 6)
        plan.jumps.append((jumps, dice.choice([90.0, 7200.0, -7200.0])))
        plan.stops.append(jumps + dice.uniform(0.2, 6))
    if dice.random() < 0.4:  # killed in place of stopped
        plan.stops = []
        plan.kills.append(("fetched", dice.randint(5, 9), 0))
    plan.stops.sort()


@story
def clock_is_ahead_while_people_approve(plan: Plan, dice: random.Random) -> None:
    """What expires is judged by IMDS's clock, not by the machine's own."""
    plan.troubles = frozenset({"approvals", "jumps"})
    plan.jumps = [(dice.uniform(2, 8), dice.choice([7200.0, -7200.0, 90.0]))]
    if dice.random() < 0.5:
        plan.jumps.append((dice.uniform(8, 12), dice.choice([7200.0, -7200.0])))
    for name in _names(plan, dice, 2, 4):
        at = dice.uniform(1, 20)
        appear(plan, at, name)
        kind = dice.choice(["soon", "soon", "seen", "expired"])
        approve(plan, at + dice.uniform(12, 20), name, kind)
        change(plan, at + dice.uniform(60, 70), "vanish", name)


@story
def sink_is_away_for_longer_than_things_live(plan: Plan, dice: random.Random) -> None:
    """What is too old is given up, also after a restart."""
    plan.troubles = frozenset({"short-age", "outage"})
    at = dice.uniform(2, 6)
    for name in _names(plan, dice, 1, 2):
        appear(plan, at, name)
        change(plan, at + dice.uniform(190, 200), "vanish", name)
    plan.outage = (at - 1, at + dice.uniform(150, 180), "server")
    if dice.random() < 0.6:
        plan.stops = [at + dice.uniform(30, 45)]
    elif dice.random() < 0.5:
        plan.troubles |= {"disk-full"}
        plan.full = (at + dice.uniform(0, 20), at + dice.uniform(25, 140))


@story
def imds_is_slow_while_many_are_approved(plan: Plan, dice: random.Random) -> None:
    """Each POST goes out on a document that was just read, however long the line."""
    plan.troubles = frozenset({"approvals"})
    plan.latency = dice.choice([0.0, 0.0, 0.7, 1.5])
    plan.slow_marks = dice.choice([0.0, 0.0, 4.0])
    at = dice.uniform(2, 6)
    for name in _names(plan, dice, 4, 6):
        appear(plan, at, name)
        together = plan.latency > 0
        asks = at + (3 + dice.uniform(0, 1) if together else dice.uniform(3, 25))
        approve(plan, asks, name)
        change(plan, at + dice.uniform(50, 60), "vanish", name)


@story
def event_has_changed_since_it_was_seen(plan: Plan, dice: random.Random) -> None:
    """An approval holds for what its sender saw, and not for anything worse."""
    plan.troubles = frozenset({"approvals"})
    worse: list[dict[str, object]] = [
        {"EventType": "Redeploy"},
        {"DurationInSeconds": 9},
        {"DurationInSeconds": -1},
        {"Resources": [*_RESOURCES, "WestNO_2"]},
        {"DurationInSeconds": 0},
        {"Description": "changed"},
    ]
    for name in _names(plan, dice, 2, 3):
        at = dice.uniform(1, 10)
        appear(plan, at, name)
        changes = at + dice.uniform(5, 12)
        change(plan, changes, "update", name, **dice.choice(worse))
        approve(plan, changes + dice.uniform(2.5, 8), name, "seen", thinks=10.5)
        change(plan, at + dice.uniform(50, 60), "vanish", name)


@story
def disk_hangs_with_what_is_published(plan: Plan, dice: random.Random) -> None:
    """What the disk has done is not done again; memory takes what it has room for."""
    plan.troubles = frozenset({"disk-full"})
    at = dice.uniform(2, 6)
    plan.hangs = dice.random() < 0.7
    if dice.random() < 0.6:
        plan.troubles |= {"little-memory", "bursts"}
    many = plan.has("bursts")
    for place, name in enumerate(_names(plan, dice, *((14, 18) if many else (1, 2)))):
        when = at + 2.1 * (place % 4)
        appear(plan, when, name, notice=dice.choice([120.0, 7200.0]))
        change(plan, when + dice.uniform(30, 60), "vanish", name)
    plan.full = (at - 0.01, at + dice.uniform(12, 40))


@story
def event_lives_longer_than_things_are_kept(plan: Plan, dice: random.Random) -> None:
    """What is known of an event that lives is kept, and so is what waits."""
    plan.troubles = frozenset({"short-retention"})
    for name in _names(plan, dice, 1, 2):
        at = dice.uniform(1, 5)
        first = appear(plan, at, name, notice=7200.0)
        if dice.random() < 0.5:
            changes = at + dice.uniform(4, 10)
            change(plan, changes, "update", name, EventType="Freeze")
        change(plan, 205 + at, "vanish", name)
        change(plan, 215 + at, "appear", name, **dict(first.fields))
        change(plan, 225 + at, "vanish", name)
    plan.stops = [dice.uniform(185, 200)]
    if dice.random() < 0.5:
        plan.troubles |= {"outage"}
        plan.outage = (0.0, 208.0, "server")


@story
def clock_is_set_back_while_nobody_runs(plan: Plan, dice: random.Random) -> None:
    """What is due later than it can be is due at the start."""
    plan.troubles = frozenset({"jumps", "outage"})
    at = dice.uniform(2, 6)
    for name in _names(plan, dice, 1, 2):
        appear(plan, at, name, notice=7200.0)
        change(plan, at + dice.uniform(80, 90), "vanish", name)
    plan.stops = [at + dice.uniform(10, 25)]
    plan.jumps = [(plan.stops[0] + 0.5, dice.choice([-7200.0, -600.0]))]
    plan.outage = (at - 1, at + dice.uniform(40, 60), "throttled")
