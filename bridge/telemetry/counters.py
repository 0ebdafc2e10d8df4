"""Counters, gauges and histograms: how values are counted, not how they are shown.

``exposition`` passes them to prometheus_client on a request for /metrics. That library
needs 1.4 MiB, so it is loaded only then. Only the thread of the event loop may use
these classes.
"""

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, Generic, TypeVar

import msgspec

# The bounds of the buckets of histograms.
SECONDS = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 21600)
EVENTS: tuple[float, ...] = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)


class Count(msgspec.Struct):
    """A number that only grows."""

    value: float = 0.0

    def inc(self, amount: float = 1) -> None:
        """Add 1, or another amount."""
        self.value += amount


class Level(Count):
    """A number that goes up and down."""

    def set(self, value: float) -> None:
        """Set the present value."""
        self.value = float(value)


class Spread(msgspec.Struct):
    """The buckets of one histogram, with the number of values in each.

    Attributes:
        bounds: the upper bounds of the buckets; a bound belongs to its bucket.
        total: the sum of all values.
    """

    bounds: tuple[float, ...]
    total: float = 0.0
    _counts: list[int] = msgspec.field(default_factory=list)

    def __post_init__(self) -> None:
        self._counts = [0] * (len(self.bounds) + 1)

    def observe(self, value: float) -> None:
        """Count a value."""
        self._counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    @property
    def cumulated(self) -> list[int]:
        """For each bound, the number of values up to it; last, the number of all."""
        return list(accumulate(self._counts))


S = TypeVar("S", Count, Level, Spread)


class Family(ABC, Generic[S]):
    """A metric: one series for each combination of label values.

    Args:
        name: the name of the metric.
        about: the help text.
        label_names: the names of the labels.
        registry: the list of all shown metrics, to which this one is added; None = this
            metric is not shown.
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
    def new_series(self) -> S:
        """Return an empty series."""

    def labels(self, *values: str) -> S:
        """Return the series of these label values; create it if there is none.

        Raises:
            ValueError: the number of values is not the number of labels.
        """
        if (found := self.series.get(values)) is not None:
            return found
        if len(values) != len(self.label_names):
            raise ValueError(f"{self.name} has the labels {self.label_names}")
        return self.series.setdefault(values, self.new_series())

    def clear(self) -> None:
        """Remove all series."""
        self.series.clear()


class Counter(Family[Count]):
    """A metric that only grows."""

    def new_series(self) -> Count:
        """Return an empty series."""
        return Count()


class Gauge(Family[Level]):
    """A metric that goes up and down."""

    def new_series(self) -> Level:
        """Return an empty series."""
        return Level()


class Histogram(Family[Spread]):
    """A metric of seconds, in buckets."""

    bounds: tuple[float, ...] = SECONDS

    def new_series(self) -> Spread:
        """Return an empty series."""
        return Spread(self.bounds)


class EventHistogram(Histogram):
    """A metric of numbers of events, in buckets."""

    bounds = EVENTS
