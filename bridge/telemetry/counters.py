"""Counters, gauges and histograms: what is counted, and not how it is shown.

``exposition`` gives them to prometheus_client when somebody asks for /metrics: that
library brings HTTP servers of its own, 1.4 MiB which is spent only where they are read.
Used by one thread alone, the event loop's.
"""

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Generic, TypeVar

# The bounds of the buckets of every histogram.
SECONDS = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 21600)


@dataclass(slots=True)
class Count:
    """A number that only grows."""

    value: float = 0.0

    def inc(self, amount: float = 1) -> None:
        """Count one, or more."""
        self.value += amount


@dataclass(slots=True)
class Level(Count):
    """A number that goes up and down."""

    def set(self, value: float) -> None:
        """Note how much it is now."""
        self.value = float(value)


@dataclass(slots=True)
class Spread:
    """How many values lie in each of some buckets.

    Attributes:
        bounds: the upper bounds of the buckets; each belongs to its bucket.
        total: the sum of all values.
    """

    bounds: tuple[float, ...]
    total: float = 0.0
    _counts: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self._counts = [0] * (len(self.bounds) + 1)

    def observe(self, value: float) -> None:
        """Count a value."""
        self._counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    @property
    def cumulated(self) -> list[int]:
        """How many values are at most each bound, and at last how many there are."""
        return list(accumulate(self._counts))


S = TypeVar("S", Count, Level, Spread)


class Family(ABC, Generic[S]):
    """A metric: its series by the values of its labels.

    Args:
        name: of the metric.
        about: what it says, for people.
        label_names: the names of its labels.
        registry: all that are shown, to which it is added; None = it is not shown.
    """

    def __init__(
        self,
        name: str,
        about: str,
        label_names: Sequence[str] = (),
        *,
        registry: "list[Family[Any]] | None" = None,
    ) -> None:
        self.name, self.about, self.label_names = name, about, label_names
        self.series: dict[tuple[str, ...], S] = {}
        if registry is not None:
            registry.append(self)

    @abstractmethod
    def begun(self) -> S:
        """Return a series in which nothing was counted."""

    def labels(self, *values: str) -> S:
        """Return the series of these labels, which begins now if there is none.

        Raises:
            ValueError: there are more or fewer values than labels.
        """
        if (found := self.series.get(values)) is not None:
            return found
        if len(values) != len(self.label_names):
            raise ValueError(f"{self.name} has the labels {self.label_names}")
        return self.series.setdefault(values, self.begun())

    def clear(self) -> None:
        """Forget all series."""
        self.series.clear()


class Counter(Family[Count]):
    """A metric that only grows."""

    def begun(self) -> Count:
        """Return a series in which nothing was counted."""
        return Count()


class Gauge(Family[Level]):
    """A metric that goes up and down."""

    def begun(self) -> Level:
        """Return a series in which nothing was counted."""
        return Level()


class Histogram(Family[Spread]):
    """A metric of seconds, in buckets."""

    def begun(self) -> Spread:
        """Return a series in which nothing was counted."""
        return Spread(SECONDS)
