"""The metrics of the hub. No label contains an EventId or a person."""

from functools import partial
from typing import Any

from bridge.hub.bridges import Liveness

OUTCOMES = ("kept", "left-out", "unreadable")
_SOURCE = ["source"]


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
        counter = partial(Counter, registry=self.registry)
        gauge = partial(Gauge, registry=self.registry)
        self.messages = counter(
            "sebridge_hub_messages", "Messages received.", ["source", "outcome"]
        )
        self.connected = gauge(
            "sebridge_hub_source_connected", "1: the source is received from.", _SOURCE
        )
        self.drained = gauge(
            "sebridge_hub_source_drained", "1: nothing waits in the source.", _SOURCE
        )
        self.store_away = gauge("sebridge_hub_store_away", "1: nothing can be kept.")
        self.decisions = counter(
            "sebridge_hub_decisions",
            "Decisions, and what became of them.",
            ["via", "state"],
        )
        self.bridges = gauge(
            "sebridge_hub_bridges",
            "Bridges, by how each fares; looked at once a minute.",
            ["state"],
        )
        self.unreported = gauge(
            "sebridge_hub_unreported",
            "Open events of Azure that were not reported by a bridge in time.",
        )
        build = gauge("sebridge_hub_build_info", "1.", ["version"])
        build.labels(version).set(1)
        for source in sources:
            self.connected.labels(source).set(0)
            self.drained.labels(source).set(0)
            for outcome in OUTCOMES:
                self.messages.labels(source, outcome)
