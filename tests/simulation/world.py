"""Everything that outlives a life of the forwarder."""

from dataclasses import dataclass, field
from pathlib import Path

from tests.simulation.approval_queue import Broker
from tests.simulation.edges import Azure, Shown, Taken, Tried
from tests.simulation.plan import Plan
from tests.simulation.rows import Row
from tests.simulation.timeline import Wall


@dataclass(slots=True)
class World:
    """Everything that outlives a life of the forwarder."""

    plan: Plan
    path: Path
    azure: Azure
    broker: Broker
    wall: Wall = field(default_factory=Wall)
    now: float = 0.0
    crashes: int = 0
    lives: list[tuple[float, float]] = field(default_factory=list)
    ends: list[float] = field(default_factory=list)  # when each began nothing more
    looks: list[Shown] = field(default_factory=list)
    shown: list[Shown] = field(default_factory=list)
    taken: list[Taken] = field(default_factory=list)
    tried: list[Tried] = field(default_factory=list)
    attempts: dict[tuple[str, int], int] = field(default_factory=dict)
    requests: list[tuple[float, int]] = field(default_factory=list)
    rows: dict[int, Row] = field(default_factory=dict)
    last_row: int = 0
    lost: int = 0
    refused: set[tuple[str, int]] = field(default_factory=set)
    faults: list[str] = field(default_factory=list)
    marked: set[str] = field(default_factory=set)
    jumped: int = 0

    def blame(self, what: str) -> None:
        """Note what must never happen."""
        self.faults.append(f"{self.now:.1f} s: {what}")
