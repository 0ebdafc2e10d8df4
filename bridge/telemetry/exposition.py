"""The metrics in the format of Prometheus; loaded on the first request for them."""

from collections.abc import Iterable, Iterator
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from bridge.telemetry.counters import Counter, Family, Histogram

AnyFamily = Family[Any]


def registry_of(families: Iterable[AnyFamily]) -> CollectorRegistry:
    """Return a registry that always shows the present values of the metrics."""
    registry = CollectorRegistry()
    registry.register(_Shown(tuple(families)))
    return registry


class _Shown(Collector):
    """Converts the metrics to those of prometheus_client, at each request."""

    def __init__(self, families: tuple[AnyFamily, ...]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics."""
        return map(_shown, self._families)


def _shown(family: AnyFamily) -> Metric:
    if isinstance(family, Histogram):
        return _spread(family)
    if isinstance(family, Counter):
        counter = CounterMetricFamily(
            family.name, family.about, None, family.label_names
        )
        for values, count in family.series.items():
            counter.add_metric(values, count.value)
        return counter
    gauge = GaugeMetricFamily(family.name, family.about, None, family.label_names)
    for values, level in family.series.items():
        gauge.add_metric(values, level.value)
    return gauge


def _spread(family: Histogram) -> Metric:
    shown = HistogramMetricFamily(family.name, family.about, labels=family.label_names)
    for values, spread in family.series.items():
        bounds = [*map(floatToGoString, spread.bounds), "+Inf"]
        buckets = list(zip(bounds, spread.cumulated, strict=True))
        shown.add_metric(values, buckets, spread.total)
    return shown
