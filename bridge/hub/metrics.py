"""The metrics of the hub. No label contains an EventId or a person."""

from typing import Any

from bridge.hub.bridges import Liveness

OUTCOMES = ("kept", "left-out", "unreadable")


class HubMetrics:
    """Counters and gauges; counters of each source start at 0.

    Attributes:
        alarms: the registry with the deliveries of alarms; None = no sinks.
    """

    def __init__(self, sources: tuple[str, ...], version: str) -> None:
        # Loaded when a hub starts, not when this module is imported.
        from prometheus_client import (  # noqa: PLC0415 - see above
            CollectorRegistry,
            Counter,
            Gauge,
        )

        self.alarms: Any = None
        self.liveness = tuple(state.value for state in Liveness)
        self.registry = CollectorRegistry()
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
        build.labels(version).set(1)
        for source in sources:
            self.connected.labels(source).set(0)
            self.drained.labels(source).set(0)
            for outcome in OUTCOMES:
                self.messages.labels(source, outcome)
