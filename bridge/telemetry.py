"""Logs and metrics: their form, and nothing of their meaning.

Logs are one object (or line) per event: a constant message and fields. Metrics are
those of DESIGN section 7, in a registry of this process's own.
"""

import json
import logging
from collections.abc import Iterable
from typing import Literal, TextIO

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
)
from pythonjsonlogger.orjson import OrjsonFormatter

from bridge.options import Section
from bridge.transitions import TransitionKind

OUTCOMES = (
    "invalid",
    "relayed",
    "expired",
    "unknown-event",
    "event-ended",
    "already-started",
    "denied",
    "rejected",
    "failed",
)
EVENT_TYPES = ("Freeze", "Reboot", "Redeploy", "Preempt", "Terminate", "other")
_SECONDS = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 21600)


class LogConfig(Section, frozen=True, kw_only=True):
    """``[log]``: how much is logged, and in which form."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["json", "text"] = "json"


def configure_logging(
    config: LogConfig,
    stream: TextIO | None = None,
    handler: logging.Handler | None = None,
) -> None:
    """Send this process's log to ``handler`` or ``stream``; else to standard error."""
    handler = handler or logging.StreamHandler(stream)
    if config.format == "json":
        handler.setFormatter(
            JsonFormatter(
                "%(asctime)s %(levelname)s %(name)s %(message)s",
                rename_fields={
                    "asctime": "time",
                    "levelname": "level",
                    "name": "logger",
                },
                datefmt="%Y-%m-%dT%H:%M:%S%z",
            )
        )
    else:
        handler.setFormatter(TextFormatter())
    logging.basicConfig(level=config.level.upper(), handlers=[handler], force=True)
    # The SDK prints tracebacks of what we report in one line of our own.
    logging.getLogger("azure").setLevel(logging.CRITICAL)
    logging.getLogger("asyncio").setLevel(logging.WARNING)


class JsonFormatter(OrjsonFormatter):
    """One JSON object a line, whatever the fields hold."""

    def jsonify_log_record(self, log_data: dict[str, object]) -> str:
        """Return the line; what orjson refuses, json writes: no record is lost."""
        try:
            return super().jsonify_log_record(log_data)
        except TypeError:  # a number of more than 64 bits, half of a character
            return json.dumps(log_data, default=str)


class TextFormatter(logging.Formatter):
    """One line for people: time, level, message, then the fields."""

    _own = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime"}

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's own name
        """Return the line; fields are those given as ``extra``."""
        fields = {k: v for k, v in record.__dict__.items() if k not in self._own}
        told = "".join(f" {key}={value}" for key, value in fields.items())
        return printable(super().formatMessage(record) + told)


def printable(text: str) -> str:
    """Return a text with every line break and control character escaped.

    Strangers' words must not forge a line, nor move the cursor of whoever reads it.
    """
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode() for c in text
    )


class Metrics:
    """Every metric of the forwarder; counters stand at 0 from the start."""

    def __init__(self, sinks: Iterable[str], version: str) -> None:
        # A second series for each counter, of no use here.
        disable_created_metrics()  # type: ignore[no-untyped-call]  # theirs
        self.registry = registry = CollectorRegistry()
        self.imds_requests = Counter(
            "sebridge_imds_requests",
            "Requests to IMDS by outcome.",
            ["method", "outcome"],
            registry=registry,
        )
        self.imds_last_success = Gauge(
            "sebridge_imds_last_success_timestamp_seconds",
            "When IMDS last gave a good document.",
            registry=registry,
        )
        self.incarnation = Gauge(
            "sebridge_document_incarnation",
            "DocumentIncarnation of the last good document.",
            registry=registry,
        )
        self.scheduled_events = Gauge(
            "sebridge_scheduled_events",
            "Events now in the document.",
            ["event_type", "event_status"],
            registry=registry,
        )
        self.transitions = Counter(
            "sebridge_transitions",
            "Steps in the life of events.",
            ["transition", "event_type"],
            registry=registry,
        )
        self.deliveries = Counter(
            "sebridge_deliveries",
            "Attempts and decisions on deliveries.",
            ["sink", "outcome"],
            registry=registry,
        )
        self.late = Counter(
            "sebridge_deliveries_late",
            "Deliveries made only after NotBefore.",
            ["sink"],
            registry=registry,
        )
        self.pending = Gauge(
            "sebridge_outbox_pending",
            "Deliveries not made yet.",
            ["sink"],
            registry=registry,
        )
        self.dead = Gauge(
            "sebridge_outbox_dead",
            "Deliveries given up: see `sebridge outbox`.",
            ["sink"],
            registry=registry,
        )
        self.oldest = Gauge(
            "sebridge_outbox_oldest_seconds",
            "Age of the oldest delivery not made yet.",
            ["sink"],
            registry=registry,
        )
        self.parked = Gauge(
            "sebridge_sink_parked",
            "1 while a sink refuses whatever is sent.",
            ["sink"],
            registry=registry,
        )
        self.delivery_seconds = Histogram(
            "sebridge_delivery_seconds",
            "From observed to delivered.",
            ["sink"],
            buckets=_SECONDS,
            registry=registry,
        )
        self.start_requests = Counter(
            "sebridge_start_requests",
            "Approvals by outcome.",
            ["outcome"],
            registry=registry,
        )
        self.state_degraded = Gauge(
            "sebridge_state_degraded",
            "1 while the state file cannot be written.",
            registry=registry,
        )
        Gauge(
            "sebridge_build_info", "The version.", ["version"], registry=registry
        ).labels(version).set(1)
        self._start_at_zero(tuple(sinks))

    def _start_at_zero(self, sinks: tuple[str, ...]) -> None:
        for method in ("GET", "POST"):
            self.imds_requests.labels(method, "ok")
        for kind in TransitionKind:
            for event_type in EVENT_TYPES:
                self.transitions.labels(kind.value, event_type)
        for outcome in OUTCOMES:
            self.start_requests.labels(outcome)
        for sink in sinks:
            for outcome in ("delivered", "postponed", "dead", "discarded"):
                self.deliveries.labels(sink, outcome)
            for metric in (self.late, self.pending, self.dead, self.oldest):
                metric.labels(sink)
            self.parked.labels(sink)
            self.delivery_seconds.labels(sink)


def type_label(event_type: str | None) -> str:
    """Return an event type as a label: a closed set, whatever IMDS may say."""
    return event_type if event_type in EVENT_TYPES else "other"
