"""The format of the log, and the list of all metrics.

A log entry is one JSON object or one line, with a constant message and fields. The
metrics are those of infra/prometheus/README.md. Each forwarder has its own ``Metrics``.
"""

import asyncio
import json
import logging
from collections.abc import Iterable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from traceback import extract_tb
from typing import Literal, TextIO

from msgspec import Struct, field
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Summary,
    disable_created_metrics,
)
from pythonjsonlogger.orjson import OrjsonFormatter

from bridge.events.vocabulary import (
    COMMAND_OUTCOMES,
    EVENT_TYPES,
    OutcomeKind,
    TransitionKind,
)
from bridge.foundation.errors import Reason
from bridge.foundation.printable import printable
from bridge.foundation.sections import Section

# -- Logs errors that no code handled, without their text: it may contain a secret -----
#
# asyncio itself would log the text. An error of aiohttp, for example, names the proxy
# with its password. A server that has no file descriptor left gives the same error
# thousands of times a second: equal ones are logged once a minute.


log = logging.getLogger(__name__)

_MOST_FRAMES = 5


def log_unseen_errors(loop: asyncio.AbstractEventLoop) -> None:
    """Replace the loop's own handler of unhandled errors."""
    seen = _Seen()
    loop.set_exception_handler(lambda loop_, context: seen.write(context, loop_.time()))


class _Seen(Struct):
    """The errors that were logged in the last minute.

    Attributes:
        kinds: when each was logged last, and how many equal ones were left out since.
    """

    kinds: dict[tuple[object, ...], tuple[float, int]] = field(default_factory=dict)

    def write(self, context: dict[str, object], now: float) -> None:
        """Log an error, unless an equal one was logged within a minute."""
        error = context.get("exception")
        task = context.get("task", context.get("future"))
        kind = type(error).__name__ if isinstance(error, BaseException) else None
        name = task.get_name() if isinstance(task, asyncio.Task) else None
        where = _where(error) if isinstance(error, BaseException) else []
        key = (kind, name, *where)
        at, left_out = self.kinds.get(key, (-_EVERY, 0))
        if at <= now < at + _EVERY:
            self.kinds[key] = at, left_out + 1
            return
        if len(self.kinds) >= _MOST_KINDS:
            self.kinds.pop(next(iter(self.kinds)))
        self.kinds[key] = now, 0
        found = {"kind": kind, "task": name, "where": where, "repeated": left_out}
        log.error("unhandled error", extra=found)


def _where(error: BaseException) -> list[str]:
    """Return the innermost lines of the traceback."""
    frames = extract_tb(error.__traceback__)[-_MOST_FRAMES:]
    return [f"{Path(f.filename).name}:{f.lineno} {f.name}" for f in frames]


# -- The format of the log, and the list of all metrics --------------------------------


disable_created_metrics()  # type: ignore[no-untyped-call] # would double the series

_NAMESPACE = "sebridge"  # the beginning of each name
# The bounds of the buckets of histograms.
_SECONDS = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 21600)
_EVENTS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)

OUTCOMES = tuple(kind.value for kind in OutcomeKind)
TYPES = (*EVENT_TYPES, "other")
# The label for each reason of a failed attempt: a small set, for use in alerts.
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
    """``[log]``: how much is logged, and in which format.

    Attributes:
        level: the least severe messages to log.
        format: "json": one JSON object per line; "text": lines for people.
    """

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["json", "text"] = "json"


def configure_logging(
    config: LogConfig,
    stream: TextIO | None = None,
    handler: logging.Handler | None = None,
) -> None:
    """Write this process's log to ``handler`` or ``stream``, else to standard error."""
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
            )
        )
    else:
        handler.setFormatter(TextFormatter())
    handler.addFilter(RepeatFilter())
    logging.basicConfig(level=config.level.upper(), handlers=[handler], force=True)
    # The SDK logs tracebacks of errors for which the bridge logs one line.
    logging.getLogger("azure").setLevel(logging.CRITICAL)
    logging.getLogger("asyncio").setLevel(logging.WARNING)


class JsonFormatter(OrjsonFormatter):
    """Writes one JSON object per line, whatever the fields contain."""

    def formatTime(  # noqa: N802 - logging's own name
        self, record: logging.LogRecord, datefmt: str | None = None
    ) -> str:
        """Return the local time as RFC 3339; its offset has a colon."""
        del datefmt
        moment = datetime.fromtimestamp(record.created, UTC).astimezone()
        return moment.isoformat(timespec="seconds")

    def jsonify_log_record(self, log_data: dict[str, object]) -> str:
        """Return the line. If orjson refuses a value, json writes the line."""
        try:
            return super().jsonify_log_record(log_data)
        except TypeError:  # a number beyond 64 bits, or half a surrogate pair
            return json.dumps(log_data, default=str)


class TextFormatter(logging.Formatter):
    """Writes one line for people: time, level, message, then the fields."""

    _own = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime"}

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's own name
        """Return the line; the fields are the values given as ``extra``."""
        fields = {k: v for k, v in record.__dict__.items() if k not in self._own}
        pairs = "".join(f" {key}={value}" for key, value in fields.items())
        return printable(super().formatMessage(record) + pairs)


class Metrics:
    """Every metric of the forwarder; counters are shown as 0 from the start."""

    def __init__(
        self,
        sinks: Iterable[str],
        version: str,
        acting: Iterable[str] = (),
        *,
        has_traffic: bool = False,
    ) -> None:
        self.registry = registry = CollectorRegistry()
        # The metrics of deliveries alone, for a process that does not poll IMDS.
        self.of_deliveries = CollectorRegistry()
        counter = partial(Counter, namespace=_NAMESPACE, registry=registry)
        gauge = partial(Gauge, namespace=_NAMESPACE, registry=registry)
        histogram = partial(Histogram, namespace=_NAMESPACE, registry=registry)
        self.imds_requests = counter(
            "imds_requests", "Requests to IMDS by outcome.", ["method", "outcome"]
        )
        self.imds_last_success = gauge(
            "imds_last_success_timestamp_seconds",
            "When IMDS last returned a valid document.",
        )
        self.clock_offset = gauge(
            "clock_offset_seconds",
            "How far this VM's clock is ahead of IMDS's; 0 within what a Date shows.",
        )
        self.paused = Summary(
            "paused_seconds",
            "How long this VM, or the bridge, stood still: a pause of 3 s or more.",
            namespace=_NAMESPACE,
            registry=registry,
        )
        self.unsigned = counter(
            "events_unsigned",
            "Events that went out unsigned although events.sign is set.",
        )
        self.incarnation = gauge(
            "document_incarnation", "DocumentIncarnation of the last valid document."
        )
        self.scheduled_events = gauge(
            "scheduled_events",
            "Scheduled events now in the document.",
            ["event_type", "event_status"],
        )
        self.transitions = counter(
            "transitions",
            "Transitions of scheduled events.",
            ["transition", "event_type"],
        )
        self.deliveries = counter(
            "deliveries",
            "Results of attempts, and other ends of deliveries.",
            ["sink", "outcome"],
        )
        self.delivery_failures = counter(
            "delivery_failures",
            "Attempts at a delivery that failed.",
            ["sink", "reason"],
        )
        self.late = counter(
            "deliveries_late", "Events delivered only after NotBefore.", ["sink"]
        )
        self.pending = gauge("outbox_pending", "Deliveries that wait.", ["sink"])
        self.dead = gauge(
            "outbox_dead",
            "Dead letters: deliveries given up, see `sebridge outbox`.",
            ["sink"],
        )
        self.oldest = gauge(
            "outbox_oldest_seconds", "Age of the oldest delivery that waits.", ["sink"]
        )
        self.parked = gauge(
            "sink_parked", "1 while a sink is parked: it refuses everything.", ["sink"]
        )
        self.delivery_seconds = histogram(
            "delivery_seconds",
            "Seconds from observation to delivery.",
            ["sink"],
            buckets=_SECONDS,
        )
        self.batch_events = histogram(
            "batch_events",
            "Events in one request to a sink that takes several.",
            ["sink"],
            buckets=_EVENTS,
        )
        self.start_requests = counter(
            "start_requests", "Approvals by outcome.", ["outcome"]
        )
        self.commands = counter("commands", "Commands by result.", ["sink", "outcome"])
        self.command_seconds = histogram(
            "command_seconds",
            "Seconds that a run of a command took.",
            ["sink"],
            buckets=_SECONDS,
        )
        self.state_degraded = gauge(
            "state_degraded", "1 while the state file cannot be written."
        )
        self.ready = gauge("ready", "1 while /readyz answers 200.")
        # Without a traffic probe nothing sets this gauge; 0 would mean "out".
        self.traffic_in = gauge(
            "traffic_in",
            "1 while this VM is in rotation.",
            registry=registry if has_traffic else None,
        )
        gauge("build_info", "The version.", ["version"]).labels(version).set(1)
        for family in (
            *(self.deliveries, self.delivery_failures, self.late, self.parked),
            self.delivery_seconds,
        ):
            self.of_deliveries.register(family)
        self._start_at_zero(tuple(sinks))
        for sink in acting:
            self.command_seconds.labels(sink)
            for outcome in COMMAND_OUTCOMES:
                self.commands.labels(sink, outcome)

    def _start_at_zero(self, sinks: tuple[str, ...]) -> None:
        for method in ("GET", "POST"):
            self.imds_requests.labels(method, "ok")
        for kind in TransitionKind:
            for event_type in TYPES:
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
    """Return the label for the reason of a failed attempt: one of ``FAILURES``."""
    return _FAILURE_OF.get(reason, _OTHER_FAILURE)


def type_label(event_type: str | None) -> str:
    """Return the label for an event type: one of ``TYPES``, else "other"."""
    return event_type if event_type in EVENT_TYPES else "other"


# -- Shortens repeated log lines of libraries: one line, and the number of
#    repetitions
#
# A server that has no file descriptor left logs a traceback at each try, thousands per
# second. That could fill the disk.


_EVERY = 60.0
_MOST_KINDS = 256
_OWN = "bridge"


class _Kind(Struct):
    """Lines that are treated as equal.

    Attributes:
        first: the line of this kind that was written last.
        left_out: how many lines of this kind were left out since then.
    """

    first: logging.LogRecord
    left_out: int = 0


class RepeatFilter(logging.Filter):
    """Writes equal lines of a library once a minute, with how many were left out.

    Records are equal if they have the same logger, the same level, the same first line
    and the same type of error. Lines of the bridge itself are always written.
    """

    def __init__(self, every: float = _EVERY) -> None:
        super().__init__()
        self._every = every
        self._kinds: dict[tuple[object, ...], _Kind] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether to write a record."""
        if hasattr(record, "repeated"):  # written by _sum_up
            return True
        for key, kind in tuple(self._kinds.items()):
            if self._is_over(kind, record):
                self._sum_up(self._kinds.pop(key))
        if record.name.partition(".")[0] == _OWN:
            return True
        key = _key(record)
        if known := self._kinds.get(key):
            known.left_out += 1
            return False
        if len(self._kinds) >= _MOST_KINDS:
            self._sum_up(self._kinds.pop(next(iter(self._kinds))))
        self._kinds[key] = _Kind(record)
        return True

    def _is_over(self, kind: _Kind, record: logging.LogRecord) -> bool:
        """Return whether a minute has passed, or the clock was set back."""
        return not 0 <= record.created - kind.first.created < self._every

    def _sum_up(self, kind: _Kind) -> None:
        if kind.left_out:
            first = kind.first
            text = str(first.msg).partition("\n")[0]
            logging.getLogger(first.name).log(
                first.levelno, "%s", text, extra={"repeated": kind.left_out}
            )


def _key(record: logging.LogRecord) -> tuple[object, ...]:
    first_line = str(record.msg).partition("\n")[0]
    error = record.exc_info[0] if record.exc_info else None
    return record.name, record.levelno, first_line, error
