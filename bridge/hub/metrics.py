"""The metrics of the hub. No label contains an EventId or a person."""

from dataclasses import dataclass, field
from typing import Any

from bridge.hub.bridges import Liveness

OUTCOMES = ("kept", "left-out", "unreadable")


def _registry() -> Any:
    # Loaded when a hub starts, not when this module is imported.
    from prometheus_client import CollectorRegistry  # noqa: PLC0415 - see above

    return CollectorRegistry()


@dataclass(slots=True)
class HubMetrics:
    """Counters and gauges; counters of each source start at 0.

    Attributes:
        sources: the names of the sources.
        version: the version of the hub.
        alarms: the registry with the deliveries of alarms; None = no sinks.
    """

    sources: tuple[str, ...]
    version: str
    alarms: Any = None
    registry: Any = field(default_factory=_registry)
    messages: Any = field(init=False)
    connected: Any = field(init=False)
    drained: Any = field(init=False)
    store_away: Any = field(init=False)
    decisions: Any = field(init=False)
    bridges: Any = field(init=False)
    unreported: Any = field(init=False)
    liveness: tuple[str, ...] = tuple(state.value for state in Liveness)

    def __post_init__(self) -> None:
        from prometheus_client import Counter, Gauge  # noqa: PLC0415 - as above

        of_source: dict[str, Any] = {
            "labelnames": ["source"],
            "registry": self.registry,
        }
        self.messages = Counter(
            "sebridge_hub_messages",
            "Messages received.",
            labelnames=["source", "outcome"],
            registry=self.registry,
        )
        self.connected = Gauge(
            "sebridge_hub_source_connected",
            "1: the source is received from.",
            **of_source,
        )
        self.drained = Gauge(
            "sebridge_hub_source_drained",
            "1: nothing waits in the source.",
            **of_source,
        )
        self.store_away = Gauge(
            "sebridge_hub_store_away", "1: nothing can be kept.", registry=self.registry
        )
        self.decisions = Counter(
            "sebridge_hub_decisions",
            "Decisions, and what became of them.",
            labelnames=["via", "state"],
            registry=self.registry,
        )
        self.bridges = Gauge(
            "sebridge_hub_bridges",
            "Bridges, by how each fares; looked at once a minute.",
            labelnames=["state"],
            registry=self.registry,
        )
        self.unreported = Gauge(
            "sebridge_hub_unreported",
            "Open events of Azure that were not reported by a bridge in time.",
            registry=self.registry,
        )
        build = Gauge(
            "sebridge_hub_build_info", "1.", ["version"], registry=self.registry
        )
        build.labels(self.version).set(1)
        for source in self.sources:
            self.connected.labels(source).set(0)
            self.drained.labels(source).set(0)
            for outcome in OUTCOMES:
                self.messages.labels(source, outcome)
