"""A figure: ours and the bare one measured in turns, the ratio with its spread.

Both are measured one after the other, several times, and who begins changes from turn
to turn. So both meet the same machine, and a slow minute does not decide the ratio.
"""

import statistics
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Self

Measure = Callable[[], Awaitable[Sequence[float]]]
TOO_NOISY = 0.15  # the bare figure against itself
_FEWEST = 3  # turns from which a noise can be known


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One row of the table.

    Attributes:
        what: is measured; the name under which the history keeps the figure.
        ours: one value a turn.
        bare: one value a turn; of the same turn as that of ours.
        unit: of both.
        again: the bare one once more, at the same time as the first: then these two say
            how noisy the machine is. () = it is known from turn to turn.
        wanted: what the ratio is to be: ``<= 3`` or ``>= 0.5``; "" = no aim.
    """

    what: str
    ours: tuple[float, ...]
    bare: tuple[float, ...]
    unit: str
    wanted: str = ""
    again: tuple[float, ...] = ()

    @classmethod
    def once(
        cls, what: str, ours: float, bare: float, unit: str, wanted: str = ""
    ) -> Self:
        """Return a figure that is counted and not timed: one turn is enough."""
        return cls(what=what, ours=(ours,), bare=(bare,), unit=unit, wanted=wanted)

    @property
    def ratios(self) -> list[float]:
        """Ours by bare, turn by turn."""
        pairs = zip(self.ours, self.bare, strict=True)
        return [ours / bare if bare else float("inf") for ours, bare in pairs]

    @property
    def ratio(self) -> float:
        """The median of the ratios."""
        return statistics.median(self.ratios)

    @property
    def spread(self) -> tuple[float, float]:
        """The lowest and the highest ratio."""
        return min(self.ratios), max(self.ratios)

    @property
    def noise(self) -> float:
        """The bare figure against itself, a share: 0.1 = 10 %."""
        if self.again:
            pairs = zip(self.again, self.bare, strict=True)
            return statistics.median(abs(again / bare - 1) for again, bare in pairs)
        steps = [abs(after / before - 1) for before, after in pairwise(self.bare)]
        return statistics.median(steps) if steps else 0.0

    @property
    def is_too_noisy(self) -> bool:
        """Whether the machine was too busy to say anything."""
        return len(self.bare) >= _FEWEST and self.noise > TOO_NOISY

    @property
    def verdict(self) -> str:
        """``ok``, ``missed``, ``too noisy``, or nothing where there is no aim."""
        if self.is_too_noisy:
            return "too noisy"
        if not self.wanted:
            return ""
        sign, limit = self.wanted.split()
        difference = self.ratio - float(limit)
        is_good = difference <= 0 if sign == "<=" else difference >= 0
        return "ok" if is_good else "missed"

    def worse_than(self, before: float, noise: float) -> bool:
        """Whether the ratio is worse than another by more than the noise of both."""
        if not self.wanted:
            return False
        share = self.ratio / before - 1
        if self.wanted.startswith(">="):
            share = before / self.ratio - 1
        return share > max(self.noise, noise, (self.spread[1] - self.spread[0]) / 2)

    def __str__(self) -> str:
        ours, bare = statistics.median(self.ours), statistics.median(self.bare)
        if self.is_too_noisy:
            found = f"{'-':>10} {'-':>10} {self.unit:5} {'-':>6} {'':13}"
        else:
            low, high = self.spread
            found = (
                f"{ours:10.2f} {bare:10.2f} {self.unit:5} {self.ratio:6.2f} "
                f"{f'{low:.2f} - {high:.2f}':13}"
            )
        return (
            f"{self.what:52} {found} {self.noise:5.0%} {self.wanted:7} {self.verdict}"
        )

    def as_json(self) -> dict[str, Any]:
        """Return all of it, with the values of each turn."""
        return {
            "what": self.what,
            "unit": self.unit,
            "ours": self.ours,
            "bare": self.bare,
            "ratio": self.ratio,
            "spread": self.spread,
            "noise": self.noise,
            "wanted": self.wanted,
            "verdict": self.verdict,
        }


HEAD = (
    f"{'':52} {'ours':>10} {'bare':>10} {'':5} {'ratio':>6} {'from - to':13} "
    f"{'noise':>5} wanted"
)


async def in_turns(ours: Measure, bare: Measure, turns: int) -> list[list[Any]]:
    """Measure both so many times.

    Returns:
        For each value that a measurement returns: ``(ours, bare)``, each a tuple with
        one value a turn.
    """
    found: tuple[list[Sequence[float]], list[Sequence[float]]] = ([], [])
    sides = [(ours, found[0]), (bare, found[1])]
    for _ in range(turns):
        for measure, values in sides:
            values.append(await measure())
        sides.reverse()
    columns = [list(zip(*values, strict=True)) for values in found]
    return [list(pair) for pair in zip(*columns, strict=True)]
