"""Everything that outlives a life of the forwarder."""

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from tests.simulation.approval_queue import Broker
from tests.simulation.edges import Azure, Shown, Taken, Tried
from tests.simulation.hooks import HookRun
from tests.simulation.plan import Plan
from tests.simulation.rows import Row
from tests.simulation.timeline import Wall


@dataclass(frozen=True, slots=True)
class Jump:
    """The wall clock of the machine was set."""

    at: float
    by: float
    life: int | None  # that was running


@dataclass(frozen=True, slots=True)
class Kept:
    """What is known of the document was written to the disk."""

    at: float
    looked_at: float  # when the document was read last
    life: int


@dataclass(slots=True)
class World:
    """Everything that outlives a life of the forwarder."""

    plan: Plan
    path: Path
    azure: Azure
    broker: Broker
    wall: Wall = field(default_factory=Wall)
    now: float = 0.0
    is_alive: bool = False
    crashes: int = 0
    lives: list[tuple[float, float]] = field(default_factory=list)
    ends: list[float] = field(default_factory=list)  # when each began nothing more
    looks: list[Shown] = field(default_factory=list)
    shown: list[Shown] = field(default_factory=list)
    taken: list[Taken] = field(default_factory=list)
    tried: list[Tried] = field(default_factory=list)
    attempts: dict[tuple[str, int], int] = field(default_factory=dict)
    runs: list[HookRun] = field(default_factory=list)
    requests: list[tuple[float, int]] = field(default_factory=list)
    rows: dict[int, Row] = field(default_factory=dict)
    lost: int = 0
    refused: set[tuple[str, int]] = field(default_factory=set)
    faults: list[str] = field(default_factory=list)
    marked: set[str] = field(default_factory=set)
    jumps: list[Jump] = field(default_factory=list)  # that have happened
    clean: list[bool] = field(default_factory=list)  # whether each life was stopped
    kept: list[Kept] = field(default_factory=list)
    met: Counter[str] = field(default_factory=Counter)  # moments, by what they are
    kill_in: int = -1  # so many moments

    def jump(self) -> None:
        """Set the wall clock of the machine as is planned next."""
        _, by = self.planned_jumps[0]
        self.wall.offset += by
        life = len(self.lives) if self.is_alive else None
        self.jumps.append(Jump(self.now, by, life))

    def jump_until_now(self) -> None:
        """Set the clock as often as was planned for a time when nobody ran."""
        while any(at <= self.now for at, _ in self.planned_jumps):
            self.jump()

    @property
    def planned_jumps(self) -> list[tuple[float, float]]:
        """The jumps that are still to come."""
        return sorted(self.plan.jumps)[len(self.jumps) :]

    def is_killed(self, what: str) -> bool:
        """Whether the plan has the process die at this moment."""
        self.met[what] += 1
        places = [p for p in self.plan.kills if p[:2] == (what, self.met[what])]
        if places:
            self.kill_in = places[0][2] + 1
        self.kill_in -= self.kill_in >= 0
        return self.kill_in == 0

    def blame(self, what: str) -> None:
        """Note what must never happen."""
        self.faults.append(f"{self.now:.1f} s: {what}")
