"""What happens in one run besides the hubs: drawn from a seed."""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from bridge.hub.answers import Action, Via
from tests.support.fleet import event

Raw = dict[str, Any]

# In one of so many seeds, somebody refuses right after each approval.
HASTY, HASTY_SEED = 50, 11
END = 700.0  # nothing is on its way any more
PEOPLE = ("ann", "bob", "cat")
TYPES = ("Freeze", "Reboot", "Redeploy")
TWO = ("Reboot", "Redeploy")
NOT_BEFORE = "Mon, 02 Mar 2026 12:05:00 GMT"
SOONER = "Mon, 02 Mar 2026 12:04:00 GMT"
LATER = "Mon, 02 Mar 2026 12:05:30 GMT"


@dataclass(frozen=True, slots=True)
class Step:
    """One step of the event, as bridges tell it."""

    at: float
    kind: str
    raw: Raw
    previous: Raw | None
    life: int


@dataclass(frozen=True, slots=True)
class Act:
    """What a person does."""

    at: float
    thinks: float
    who: str
    action: Action
    via: Via


@dataclass(slots=True)
class Plan:
    """One run.

    Attributes:
        dice: of all that is not planned.
        dies: when each bridge is heard last.
        denies: the types that each bridge's rules deny.
        late: when each bridge tells its rules.
    """

    seed: int
    dice: random.Random = field(init=False)
    crash_rate: float = field(init=False)
    dies: tuple[float, float] = field(init=False)
    denies: tuple[str, str] = field(init=False)
    late: tuple[float, float] = field(init=False)
    steps: list[Step] = field(init=False)
    acts: list[Act] = field(init=False)

    def __post_init__(self) -> None:
        dice = self.dice = random.Random(self.seed)  # noqa: S311 - it is to be the same each time
        self.crash_rate = dice.choice((0.0, 0.02, 0.05))
        is_dead = dice.random() < 0.35
        self.dies = (
            (dice.uniform(0, 20), dice.uniform(0, 20)) if is_dead else (END,) * 2
        )
        self.denies = (_denied(dice), _denied(dice))
        self.late = (dice.choice((0.0, 0.0, 60.0)), dice.choice((0.0, 0.0, 90.0)))
        self.steps = list(self._steps())
        acts = list(self._acts(is_dead=is_dead))
        if self.seed % HASTY == HASTY_SEED:
            acts += list(self._refusals(acts))
        self.acts = sorted(acts, key=lambda act: act.at)

    def _steps(self) -> Iterator[Step]:
        dice = self.dice
        raw = event(EventType=dice.choice(TYPES), NotBefore=NOT_BEFORE)
        raw["DurationInSeconds"] = 9
        yield Step(1.0, "scheduled", raw, None, 0)
        at = 1.0
        for _ in range(dice.choice((0, 0, 1, 2))):
            at += dice.uniform(5, 120)
            if at > 220:
                break
            before, raw = raw, {**raw, **_change(dice)}
            if before != raw:
                yield Step(at, "updated", raw, before, 0)
        if dice.random() < 0.2 and at < 150:
            at += dice.uniform(5, 50)
            yield Step(at, "cancelled", raw, None, 0)
            at += dice.uniform(15, 40)
            yield Step(at, "scheduled", raw, None, 1)
        started = {**raw, "EventStatus": "Started"}
        yield Step(max(at + 5, 300.0), "started", started, None, 1)
        yield Step(max(at + 5, 300.0) + 20, "completed", started, None, 1)

    def _acts(self, *, is_dead: bool) -> Iterator[Act]:
        dice = self.dice
        for _ in range(dice.randint(2, 9)):
            # a bridge counts as silent after three intervals
            is_arm = is_dead and dice.random() < 0.8
            at = dice.uniform(45, 250) if is_arm else dice.uniform(2, 200)
            yield Act(
                at=at,
                thinks=dice.choice((0.0, 1.0, 30.0)),
                who=dice.choice(PEOPLE),
                action="refuse" if dice.random() < 0.12 else "approve",
                via="arm" if is_arm else "bridge",
            )

    def _refusals(self, acts: list[Act]) -> Iterator[Act]:
        """Yield a refusal shortly after each approval, often before it is sent."""
        dice = random.Random(f"refusals of {self.seed}")  # noqa: S311 - the same each time
        for act in acts:
            if act.action == "approve":
                at = act.at + act.thinks + dice.uniform(0.1, 5)
                yield Act(at, 0.0, dice.choice(PEOPLE), "refuse", act.via)


def _denied(dice: random.Random) -> str:
    return dice.choice(("", "", "", *TYPES))


def _change(dice: random.Random) -> Raw:
    changes: tuple[Raw, ...] = (
        {"DurationInSeconds": 90},
        {"DurationInSeconds": -1},
        {"DurationInSeconds": 5},
        {"Description": "again"},
        {"NotBefore": SOONER},
        {"NotBefore": LATER},
        {"EventType": "Reboot"},
        {"EventSource": "User"},
        {"Resources": ["web-0", "web-1", "web-2"]},
        {"Resources": ["web-0"]},
    )
    return dice.choice(changes)
