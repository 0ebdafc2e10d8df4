"""What a seed decides: the history of IMDS, the approvals, and what goes wrong.

Every question has a name, and its answer depends on the seed and that name alone, so
that it does not matter in which order tasks ask. Each seed switches on some kinds of
trouble and not others: a run with everything at once hides more than it shows.
"""

import random
from dataclasses import dataclass, field
from email.utils import format_datetime
from typing import Any, Literal

from tests.simulation.timeline import true_time

EVENT_TYPES = ("Freeze", "Reboot", "Redeploy", "Preempt")
_BY_CHANCE = (
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
    "bursts",
    "rules",
    "short-age",
    "short-retention",
    "little-memory",
    "outage",
)
TROUBLES = (*_BY_CHANCE, "commands", "after")
_NOT_WITH_COMMANDS = {"disk-full", "little-memory", "short-retention"}
JUMPS = (-7200.0, -90.0, 90.0, 7200.0)
POLL = 2.0
PACE = 0.3
SLOW_PACE = 2.5
FULL_CIRCLE = 1.0  # an approval is posted within it, where nothing goes wrong
AUTO_DELAY = 20.0
ALLOW_DELAY = 10.0
EXPIRES_SOON = 40.0
HOOK_TIMEOUT = 30.0
DRAINED_TYPES = ("Reboot", "Redeploy", "Preempt")
AFTER_TYPES = ("Reboot", "Redeploy")  # that a rule approves after the command

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
    kind: str  # valid | seen | unknown | invalid | expired | soon | again
    message_id: str
    reply_to: str | None = None
    thinks: float = 0.0  # seconds since its sender saw the event


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
    hangs: bool = False  # rather than being full
    crash_rate: float = 0.0  # a moment
    kills: list[tuple[str, int, int]] = field(default_factory=list)  # at which moment,
    # at which of these, and how many moments of any kind after it
    latency: float = 0.02  # of IMDS, at most
    slow_marks: float = 0.0  # seconds that the mark of a POST may take
    outage: tuple[float, float, str] = (0.0, 0.0, "")  # of a sink: from, to, how
    others: Literal["withhold", "ignore"] = "withhold"  # of the rule with ``after``
    after_delay: float = 0.0  # of that rule, from the success on
    fails_from: float = float("inf")  # the run from which on the command always fails
    end: float = 0.0

    def chance(self, *name: object) -> float:
        """Return a number in [0, 1) that the seed has for a question."""
        return random.Random(f"{self.seed}/{name}").random()  # noqa: S311 - a simulation

    def has(self, trouble: str) -> bool:
        """Whether a kind of trouble is switched on."""
        return trouble in self.troubles

    @property
    def pace(self) -> float:
        """How long a sink may take over what it takes."""
        return SLOW_PACE if self.has("bursts") else PACE

    @property
    def max_age(self) -> float:
        """Seconds after which a delivery may be given up."""
        return 60.0 if self.has("short-age") else 86400.0

    @property
    def retention(self) -> float:
        """Seconds for which what is settled is kept."""
        return 150.0 if self.has("short-retention") else 7 * 86400.0

    @property
    def room(self) -> int:
        """How many events may wait in memory."""
        return 4 if self.has("little-memory") else 10_000

    def is_calm(self, *troubles: str) -> bool:
        """Whether none of these kinds of trouble is switched on."""
        return not self.troubles.intersection(troubles)


def plan_of(seed: int) -> Plan:
    """Return what a seed decides."""
    dice = random.Random(seed)  # noqa: S311 - a simulation
    chosen = {name for name in _BY_CHANCE if dice.random() < 0.4}
    if "imds-resets" in chosen:
        chosen -= {"jumps"}  # the five minutes of a reset are then known to nobody
    if "disk-full" in chosen:
        chosen -= {"crashes", "restarts"}  # tests/system kills on a full disk
    if not chosen & _NOT_WITH_COMMANDS and has_commands(seed):
        chosen |= {"commands"}
    plan = Plan(seed, frozenset(chosen))
    plan.crash_rate = dice.choice([0.002, 0.006, 0.02])
    for number in range(dice.randint(1, 4)):
        _live(plan, dice, f"{'Aa'[number % 2]}{number}-{seed}")
    if "bursts" in chosen:
        _burst(plan, dice)
    plan.end = max(scene.at for scene in plan.scenes) + 5
    if "imds-resets" in chosen:
        at = dice.uniform(10, plan.end)
        plan.scenes.append(Scene(at, "reset", ""))
        plan.scenes.append(Scene(at + dice.choice([20, 100, 500]), "return", ""))
        plan.end = max(plan.end, at + 520)
    if "approvals" in chosen:
        _approve(plan, dice)
    if "jumps" in chosen:
        plan.jumps = [(_jump_at(plan, dice), dice.choice(JUMPS)) for _ in range(3)]
    if "restarts" in chosen:
        within = [
            s.at + dice.uniform(1, 15) for s in plan.scenes if s.change == "reset"
        ]
        chosen_times = [dice.uniform(5, plan.end) for _ in range(dice.randint(1, 3))]
        plan.stops = sorted([*chosen_times, *within])
    _fail(plan, dice)
    plan.scenes.sort(key=lambda scene: scene.at)
    return plan


def has_commands(seed: int) -> bool:
    """Whether there is a command, beside whatever else there is."""
    return random.Random(f"{seed}/commands").random() < 0.4  # noqa: S311 - a simulation


def _fail(plan: Plan, dice: random.Random) -> None:
    """Plan when a sink fails whatever is sent to it, and when the disk does."""
    if plan.has("outage"):
        begin = dice.choice([scene.at for scene in plan.scenes]) - dice.uniform(0, 10)
        kind = dice.choice(["server", "unauthorized", "throttled"])
        plan.outage = (begin, begin + dice.uniform(30, 250), kind)
        plan.end = max(plan.end, plan.outage[1])
    if plan.has("disk-full"):
        begin = dice.uniform(0, plan.end)
        plan.full = (begin, begin + dice.uniform(5, 200))
        plan.hangs = plan.chance("hangs") < 0.6


def _jump_at(plan: Plan, dice: random.Random) -> float:
    """Choose when the clock jumps: mostly soon after something has happened."""
    if dice.random() < 0.3:
        return dice.uniform(0, plan.end)
    return dice.choice([scene.at for scene in plan.scenes]) + dice.uniform(0, 10)


def _live(plan: Plan, dice: random.Random, event_id: str) -> None:
    """Plan the life of one event: it appears, may change, starts or not, and goes."""
    at = dice.uniform(0, 120)
    notice = dice.choice([30.0, 60.0, 300.0, 900.0, 7200.0])
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
        plan.scenes.append(Scene(at, "update", event_id, _change(dice, change)))
    if not begun and dice.random() < 0.6:
        at += dice.uniform(1, min(notice, 200.0))
        plan.scenes.append(Scene(at, "start", event_id))
    at += dice.uniform(1, 200)
    plan.scenes.append(Scene(at, "vanish", event_id))
    for _ in range(dice.choice([0, 0, 0, 0, 0, 0, 1, 3])):
        at += dice.uniform(10, 60)
        plan.scenes.append(Scene(at, "appear", event_id, (*fields.items(),)))
        at += dice.uniform(5, 50)
        plan.scenes.append(Scene(at, "vanish", event_id))


def _change(dice: random.Random, number: int) -> tuple[tuple[str, object], ...]:
    """Plan what changes: mostly a word, at times something that matters."""
    kind = dice.random()
    if kind < 0.2:
        return (("EventType", dice.choice(EVENT_TYPES)),)
    if kind < 0.3:
        return (("DurationInSeconds", dice.choice([-1, 0, 9])),)
    if kind < 0.4:
        return (("Resources", ["WestNO_0", "WestNO_1", "WestNO_2", "WestNO_3"]),)
    return (("Description", f"change {number}"),)


def _burst(plan: Plan, dice: random.Random) -> None:
    """Plan many events at once, more than a sink takes at a time."""
    at = dice.uniform(0, 120)
    for number in range(dice.randint(8, 14)):
        event_id, late = f"B{number}-{plan.seed}", at + 2.5 * (number % 3)
        fields = {
            "EventType": dice.choice(EVENT_TYPES),
            "Resources": ["WestNO_0"],
            "NotBefore": format_datetime(
                true_time(late + dice.choice([120.0, 7200.0])), usegmt=True
            ),
            "DurationInSeconds": 5,
        }
        scene = Scene(late, "appear", event_id, (*fields.items(),))
        plan.scenes.append(scene)
        gone = Scene(late + dice.uniform(60, 110), "vanish", event_id)
        plan.scenes.append(gone)


def _approve(plan: Plan, dice: random.Random) -> None:
    event_ids = sorted({scene.event_id for scene in plan.scenes if scene.event_id})
    kinds = ["valid", "valid", "seen", "soon", "unknown", "invalid", "expired", "again"]
    for number in range(dice.randint(1, 6)):
        kind = dice.choice(kinds)
        given = event_id = dice.choice(event_ids)
        if dice.random() < 0.3:
            event_id = event_id.swapcase()
        name = f"m{max(number - 1, 0) if kind == 'again' else number}"
        at = dice.uniform(0, plan.end)
        if dice.random() < 0.8:  # as most people do: soon after it was announced
            shown = [s.at for s in plan.scenes if s.event_id == given and s.fields]
            at = dice.choice(shown) + dice.uniform(1, 20)
        reply_to = dice.choice([None, "replies", "elsewhere", "vm-approvals"])
        plan.approvals.append(PlannedApproval(at, event_id, kind, name, reply_to))
    plan.approvals.sort(key=lambda approval: approval.at)
