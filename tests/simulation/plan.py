"""What a seed decides: the history of IMDS, the approvals, and what goes wrong.

Every question has a name, and its answer depends on the seed and that name alone, so
that it does not matter in which order tasks ask. Each seed switches on some kinds of
trouble and not others: a run with everything at once hides more than it shows.
"""

import random
from dataclasses import dataclass, field
from email.utils import format_datetime
from typing import Any

from tests.simulation.timeline import true_time

EVENT_TYPES = ("Freeze", "Reboot", "Redeploy", "Preempt")
TROUBLES = (
    "imds-errors",
    "imds-odd-bodies",
    "imds-resets",
    "sink-errors",
    "sink-refusals",
    "sink-hangs",
    "approvals",
    "post-errors",
    "settle-errors",
    "crashes",
    "restarts",
    "jumps",
    "disk-full",
)
POLL = 2.0

Event = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Scene:
    """From when on IMDS shows what: incarnation and events by EventId."""

    at: float
    change: str
    event_id: str
    fields: tuple[tuple[str, object], ...] = ()


@dataclass(frozen=True, slots=True)
class PlannedApproval:
    """A message that somebody puts on the approval queue."""

    at: float
    event_id: str
    kind: str  # valid | seen | unknown | invalid | expired | again
    message_id: str


@dataclass(slots=True)
class Plan:
    """The answers of one seed."""

    seed: int
    troubles: frozenset[str] = frozenset()
    scenes: list[Scene] = field(default_factory=list)
    approvals: list[PlannedApproval] = field(default_factory=list)
    jumps: list[tuple[float, float]] = field(default_factory=list)
    stops: list[float] = field(default_factory=list)
    full: tuple[float, float] = (0.0, 0.0)
    end: float = 0.0

    def chance(self, *name: object) -> float:
        """Return a number in [0, 1) that the seed has for a question."""
        return random.Random(f"{self.seed}/{name}").random()  # noqa: S311 - a simulation

    def has(self, trouble: str) -> bool:
        """Whether a kind of trouble is switched on."""
        return trouble in self.troubles


def plan_of(seed: int) -> Plan:
    """Return what a seed decides."""
    dice = random.Random(seed)  # noqa: S311 - a simulation
    chosen = {name for name in TROUBLES if dice.random() < 0.4}
    if "imds-resets" in chosen:
        chosen -= {"jumps"}  # the five minutes of a reset are then nobody's to tell
    if "disk-full" in chosen:
        chosen -= {"crashes", "restarts"}  # tests/integration kills on a full disk
    plan = Plan(seed, frozenset(chosen))
    for number in range(dice.randint(1, 4)):
        _live(plan, dice, f"{'Aa'[number % 2]}{number}-{seed}")
    plan.end = max(scene.at for scene in plan.scenes) + 5
    if "imds-resets" in chosen:
        at = dice.uniform(10, plan.end)
        plan.scenes.append(Scene(at, "reset", ""))
        plan.scenes.append(Scene(at + dice.choice([20, 100, 500]), "return", ""))
        plan.end = max(plan.end, at + 520)
    if "approvals" in chosen:
        _approve(plan, dice)
    if "jumps" in chosen:
        plan.jumps = [
            (dice.uniform(0, plan.end), dice.choice([-7200.0, -90.0, 90.0, 7200.0]))
            for _ in range(dice.randint(1, 3))
        ]
    if "restarts" in chosen:
        plan.stops = sorted(
            dice.uniform(5, plan.end) for _ in range(dice.randint(1, 3))
        )
    if "disk-full" in chosen:
        begin = dice.uniform(0, plan.end)
        plan.full = (begin, begin + dice.uniform(5, 200))
    plan.scenes.sort(key=lambda scene: scene.at)
    return plan


def _live(plan: Plan, dice: random.Random, event_id: str) -> None:
    """Plan the life of one event: it appears, may change, starts or not, and goes."""
    at = dice.uniform(0, 120)
    notice = dice.choice([30.0, 60.0, 300.0, 900.0])
    fields = {
        "EventType": dice.choice(EVENT_TYPES),
        "Resources": dice.sample(["WestNO_0", "WestNO_1", "WestNO_2"], 2),
        "NotBefore": format_datetime(true_time(at + notice), usegmt=True),
        "DurationInSeconds": dice.choice([-1, 0, 5, 9]),
        "Description": "ö" * dice.randint(0, 3),
    }
    begun = dice.random() < 0.1
    plan.scenes.append(
        Scene(at, "start" if begun else "appear", event_id, (*fields.items(),))
    )
    for change in range(dice.choice([0, 0, 1, 2])):
        at += dice.uniform(1, 40)
        text = (("Description", f"change {change}"),)
        plan.scenes.append(Scene(at, "update", event_id, text))
    if not begun and dice.random() < 0.6:
        at += dice.uniform(1, min(notice, 200.0))
        plan.scenes.append(Scene(at, "start", event_id))
    at += dice.uniform(1, 200)
    plan.scenes.append(Scene(at, "vanish", event_id))
    if dice.random() < 0.1:
        at += dice.uniform(10, 60)
        plan.scenes.append(Scene(at, "appear", event_id, (*fields.items(),)))
        plan.scenes.append(Scene(at + dice.uniform(5, 50), "vanish", event_id))


def _approve(plan: Plan, dice: random.Random) -> None:
    event_ids = sorted({scene.event_id for scene in plan.scenes if scene.event_id})
    kinds = ["valid", "valid", "seen", "unknown", "invalid", "expired", "again"]
    for number in range(dice.randint(1, 5)):
        kind = dice.choice(kinds)
        event_id = dice.choice(event_ids)
        if dice.random() < 0.3:
            event_id = event_id.swapcase()
        name = f"m{max(number - 1, 0) if kind == 'again' else number}"
        at = dice.uniform(0, plan.end)
        plan.approvals.append(PlannedApproval(at, event_id, kind, name))
    plan.approvals.sort(key=lambda approval: approval.at)
