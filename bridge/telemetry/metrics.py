"""Logs and metrics: their form, and nothing of their meaning.

Logs are one object (or line) per event: a constant message and fields. Metrics are
those of DESIGN section 7, those of each forwarder its own.
"""

import json
import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal, TextIO

from pythonjsonlogger.orjson import OrjsonFormatter

from bridge.events.transitions import TransitionKind
from bridge.foundation.errors import Reason
from bridge.foundation.sections import Section
from bridge.telemetry.counters import Counter, Family, Gauge, Histogram
from bridge.telemetry.log_summary import RepeatFilter

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

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
    "withheld",
)
COMMAND_OUTCOMES = ("succeeded", "failed", "skipped")
EVENT_TYPES = ("Freeze", "Reboot", "Redeploy", "Preempt", "Terminate", "other")
# How an attempt at a delivery failed, as a label: few words, so that alerts name them.
_FAILURE_OF = {
    Reason.UNAUTHORIZED: "auth",
    Reason.THROTTLED: "rate-limited",
    Reason.NOT_FOUND: "not-found",
    Reason.REJECTED: "client-error",
    Reason.REDIRECTED: "client-error",
    Reason.TOO_LARGE: "too-large",
    Reason.SERVER: "server-error",
    Reason.CONNECTION: "unreachable",
    Reason.TIMEOUT: "timeout",
}
_OTHER_FAILURE = "other"
FAILURES = (*dict.fromkeys(_FAILURE_OF.values()), _OTHER_FAILURE)


class LogConfig(Section, frozen=True, kw_only=True):
    """``[log]``: how much is logged, and in which form.

    Attributes:
        level: the least severe message that is logged.
        format: "json" is one object on a line; "text" is for people.
    """

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
    handler.addFilter(RepeatFilter())
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

    def __init__(
        self,
        sinks: Iterable[str],
        version: str,
        acting: Iterable[str] = (),
        *,
        has_traffic: bool = False,
    ) -> None:
        self._families = registry = list[Family[Any]]()
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
        ).labels()
        self.incarnation = Gauge(
            "sebridge_document_incarnation",
            "DocumentIncarnation of the last good document.",
            registry=registry,
        ).labels()
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
        self.delivery_failures = Counter(
            "sebridge_delivery_failures",
            "Attempts at a delivery that failed.",
            ["sink", "reason"],
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
            registry=registry,
        )
        self.start_requests = Counter(
            "sebridge_start_requests",
            "Approvals by outcome.",
            ["outcome"],
            registry=registry,
        )
        self.commands = Counter(
            "sebridge_commands",
            "What became of commands.",
            ["sink", "outcome"],
            registry=registry,
        )
        self.command_seconds = Histogram(
            "sebridge_command_seconds",
            "How long a run of a command took.",
            ["sink"],
            registry=registry,
        )
        self.state_degraded = Gauge(
            "sebridge_state_degraded",
            "1 while the state file cannot be written.",
            registry=registry,
        ).labels()
        # One that is not looked after would say that this VM is out.
        self.traffic_in = Gauge(
            "sebridge_traffic_in",
            "1 while this VM is in rotation.",
            registry=registry if has_traffic else None,
        ).labels()
        Gauge(
            "sebridge_build_info", "The version.", ["version"], registry=registry
        ).labels(version).set(1)
        self._start_at_zero(tuple(sinks))
        for sink in acting:
            self.command_seconds.labels(sink)
            for outcome in COMMAND_OUTCOMES:
                self.commands.labels(sink, outcome)

    @property
    def registry(self) -> "CollectorRegistry":
        """All of them, for prometheus_client, which is loaded by that."""
        # Whom nobody asks for /metrics does without.
        from bridge.telemetry.exposition import registry_of  # noqa: PLC0415 - see above

        return registry_of(self._families)

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
            for reason in FAILURES:
                self.delivery_failures.labels(sink, reason)
            for metric in (self.late, self.pending, self.dead, self.oldest):
                metric.labels(sink)
            self.parked.labels(sink)
            self.delivery_seconds.labels(sink)


def failure_label(reason: Reason) -> str:
    """Return why an attempt failed as a label: one of ``FAILURES``."""
    return _FAILURE_OF.get(reason, _OTHER_FAILURE)


def type_label(event_type: str | None) -> str:
    """Return an event type as a label: a closed set, whatever IMDS may say."""
    return event_type if event_type in EVENT_TYPES else "other"
