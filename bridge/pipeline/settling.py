"""Applies the answer to an attempt: to its delivery, and to the state of its sink.

    success ──▶ landed ──▶ delivered        failure ──▶ postponed, or a dead letter

A change of the outbox is made at once, in memory; nothing here waits for the disk.

One success is recorded at once. During a backlog, the successes of 20 ms are recorded
in one transaction, because each transaction costs a write to the disk. If the process
is killed in this time, these deliveries are made a second time.
"""

import logging
from collections.abc import Awaitable, Callable
from typing import Any

from msgspec import Struct, field

from bridge.foundation.clock import Clock
from bridge.foundation.errors import (
    DeliveryError,
    NotSentError,
    Reason,
    TransientDeliveryError,
)
from bridge.outbox.records import Delivery
from bridge.outbox.store import Outbox
from bridge.pipeline.attempt import (
    ATTEMPT_LIMIT,
    Attempt,
    Attempts,
    RelayPolicy,
    is_urgent,
    rest_of,
)
from bridge.pipeline.circuit import Circuit, RunningTime, is_fault_of_sink
from bridge.telemetry.metrics import Metrics, failure_label

log = logging.getLogger(__name__)

_JUMP = 1.0
_KEEP_EVERY = 60.0  # after a crash, ages may be too low by this many seconds
_MOMENT = 0.02  # seconds
_MOST_LANDED = 500  # deliveries per transaction

Probe = Callable[[], Awaitable[None]]


class Settling(Struct):
    """Settles the attempts of one relay, and follows the clocks for what is pending.

    Attributes:
        probe: asks whether the address of the sink answers; None = it cannot be asked.
        landed: deliveries that succeeded but are not yet recorded in the outbox; by id,
            each with the time of its success in monotonic seconds.
        record_at: when they are recorded at the latest, in monotonic seconds.
        is_parked: whether the log and the metrics say that the sink is parked.
        has_pending: whether any delivery is pending.
    """

    sink: str
    outbox: Outbox
    clock: Clock
    metrics: Metrics
    policy: RelayPolicy
    circuit: Circuit
    attempts: Attempts
    probe: Probe | None = None
    landed: dict[int, tuple[Delivery, float]] = field(default_factory=dict)
    record_at: float = 0.0
    is_parked: bool = False
    has_pending: bool = False
    _offset: float | None = None  # wall clock minus monotonic clock
    _reads: int = 0  # of the state file, that were followed
    _kept_at: float = 0.0
    _delivered: Any = None  # metrics of this sink, which cost more to look up
    _seconds: Any = None

    def __post_init__(self) -> None:
        self._delivered = self.metrics.deliveries.labels(self.sink, "delivered")
        self._seconds = self.metrics.delivery_seconds.labels(self.sink)
        self.metrics.parked.labels(self.sink).set(False)  # an earlier one may have been

    def settle(self, attempt: Attempt) -> None:
        """Apply the answer to an attempt at a stored delivery.

        A success is counted, and recorded in the outbox, by ``record``.
        """
        error = self._error_of(attempt)
        if attempt.is_void:
            return  # another attempt settles the delivery, or nothing was sent
        if error is not None:
            self._fail(attempt, error)
            return
        self._recover(attempt)
        now = self.clock.monotonic()
        if not self.landed:
            self.record_at = now + _MOMENT
        self.landed[attempt.delivery.id] = attempt.delivery, now
        if log.isEnabledFor(logging.INFO):  # the fields cost more than the rest
            log.info("delivered", extra=fields_of(attempt.delivery))
        self.attempts.decided(attempt)
        self.attempts.widen(attempt)

    def settle_heartbeat(self, attempt: Attempt) -> None:
        """Apply the answer to an attempt at a heartbeat, which is never stored."""
        error = self._error_of(attempt)
        if attempt.is_void:
            return
        if error is None:
            self._recover(attempt)
            return
        self._count_failure(error)
        extra = {"sink": self.sink, "fault": str(error)}
        log.warning("heartbeat not delivered", extra=extra)

    # -- successes -----------------------------------------------------------

    @property
    def is_overdue(self) -> bool:
        """Whether ``record`` may wait no longer, even during a backlog."""
        is_late = self.clock.monotonic() >= self.record_at
        return is_late or len(self.landed) >= _MOST_LANDED

    def record(self) -> None:
        """Count the deliveries in ``landed``, and record them in the outbox."""
        if self.landed:
            now = self.clock.now().timestamp()
            landed, ahead = self.landed.values(), now - self.clock.monotonic()
            sent, _ = zip(*landed, strict=True)
            self.outbox.deliveries.delivered(*sent, now=now)
            self._delivered.inc(len(landed))
            for delivery, at in landed:
                self._seconds.observe(max(0.0, at + ahead - delivery.created))
                if delivery.not_before is not None and at + ahead > delivery.not_before:
                    self.metrics.late.labels(self.sink).inc()
            self.landed.clear()

    def _recover(self, attempt: Attempt) -> None:
        """Mark the sink as working: an attempt has succeeded."""
        is_back = self.circuit.is_unreachable or attempt.is_beside
        if self.is_parked:
            self._report_parked(is_parked=False)
        self.circuit.succeeded(self.clock.monotonic(), attempt.began)
        if is_back:
            self.attempts.cut_left_behind(attempt.began)

    def resume(self) -> None:
        """End parking and all waits, because a person has asked for a retry."""
        self._report_parked(is_parked=False)
        self.circuit.resume(self.clock.monotonic())

    def _report_parked(self, *, is_parked: bool, fault: str = "") -> None:
        """Report that the sink is parked, or is no longer; only when that changes."""
        if is_parked == self.is_parked:
            return
        self.is_parked = is_parked
        self.metrics.parked.labels(self.sink).set(is_parked)
        if is_parked:
            log.error("sink parked", extra={"sink": self.sink, "fault": fault})
        else:
            log.info("sink takes deliveries again", extra={"sink": self.sink})

    # -- failures ------------------------------------------------------------

    def _error_of(self, attempt: Attempt) -> DeliveryError | None:
        """Return why an attempt failed; None = it has not, or it is void."""
        answer = attempt.answer
        assert answer is not None  # noqa: S101 - for mypy  # nosec B101
        if answer.cancelled():
            attempt.is_void |= not attempt.is_cut  # the relay was cancelled
            raised: BaseException | None = TimeoutError()
        else:
            raised = answer.exception() or answer.result()
        if raised is None or isinstance(raised, DeliveryError):
            return raised
        if isinstance(raised, NotSentError):
            attempt.is_void = True
            return None
        if isinstance(raised, TimeoutError):
            text = f"no answer within {ATTEMPT_LIMIT:.0f} s"
            if attempt.is_cut:
                text = "no answer, while a later attempt got one"
            return TransientDeliveryError(text, Reason.TIMEOUT)
        log.error(
            "sink raised an unexpected error",
            extra=fields_of(attempt.delivery),
            exc_info=raised,
        )
        text = f"unforeseen: {type(raised).__name__}"
        return TransientDeliveryError(text, Reason.UNFORESEEN)

    def _fail(self, attempt: Attempt, error: DeliveryError) -> None:
        """Judge the sink by a failure, and plan what becomes of the delivery."""
        self._count_failure(error)
        if isinstance(error, TransientDeliveryError):
            self.attempts.narrow()
        if not attempt.is_cut:
            now, unit = self.clock.monotonic(), self.attempts.chance()
            self.circuit.failed(error, attempt.refusals, now=now, unit=unit)
            if self.circuit.is_parked:
                self._report_parked(is_parked=True, fault=str(error))
        if not attempt.is_second:  # else the first attempt decides
            self._put_off(attempt, error)

    def _count_failure(self, error: DeliveryError) -> None:
        reason = failure_label(error.reason)
        self.metrics.delivery_failures.labels(self.sink, reason).inc()

    def _put_off(self, attempt: Attempt, error: DeliveryError) -> None:
        """Plan another attempt at a delivery, or make it a dead letter."""
        delivery = attempt.delivery
        age = self.running() - delivery.born
        if (reason := self.policy.end_of(delivery, error, age=age)) is not None:
            self._give_up(delivery, error, reason)
            self.attempts.decided(attempt)
            return
        now, unit = self.clock.now().timestamp(), self.attempts.chance()
        delay = self.policy.delay(delivery, error, now=now, unit=unit)
        # The sink is there, as far as is known, and may be working on it.
        may_work = self.probe is not None and not (
            self.circuit.is_away or attempt.is_cut or is_urgent(delivery, now)
        )
        took = self.clock.monotonic() - attempt.began
        rest = rest_of(error, took) if may_work else 0.0
        self.postpone(
            delivery,
            error,
            delay=0.0 if attempt.is_cut else rest or delay,
            waits_for_sink=is_fault_of_sink(error) and not rest,
        )

    def postpone(
        self,
        delivery: Delivery,
        error: DeliveryError,
        *,
        delay: float,
        waits_for_sink: bool,
    ) -> None:
        """Plan another attempt at a delivery.

        Args:
            delivery: the delivery that failed.
            error: the error of the attempt.
            delay: seconds until the next attempt.
            waits_for_sink: whether to try it as soon as the sink is back.
        """
        self.outbox.deliveries.postpone(
            delivery,
            due=self.clock.now().timestamp() + delay,
            error=str(error),
            reason=error.reason,
            waits_for_sink=waits_for_sink,
            running=self.running(),
        )
        self.metrics.deliveries.labels(self.sink, "postponed").inc()
        log.warning(
            "delivery postponed",
            extra={
                **fields_of(delivery),
                "fault": str(error),
                "seconds": round(delay, 3),
            },
        )

    def _give_up(
        self, delivery: Delivery, error: DeliveryError, reason: Reason
    ) -> None:
        """Make a delivery a dead letter."""
        now = self.clock.now().timestamp()
        self.outbox.deliveries.dead_letter(
            delivery, now=now, error=str(error), reason=reason
        )
        self.metrics.deliveries.labels(self.sink, "dead").inc()
        log.error(
            "dead letter",
            extra={**fields_of(delivery), "fault": str(error), "reason": reason.value},
        )

    # -- the clocks ----------------------------------------------------------

    def running(self) -> float:
        """Return the running time of the sink in seconds: ages are counted by it."""
        return self.circuit.running.at(self.clock.monotonic())

    async def follow(self) -> None:
        """Move due times back if the wall clock was set back; keep the running time.

        A clock set forward needs no correction: deliveries are only due sooner. Newer
        deliveries must not be moved into the future.
        """
        now, monotonic = self.clock.now().timestamp(), self.clock.monotonic()
        offset = now - monotonic
        if monotonic >= self._kept_at + _KEEP_EVERY:
            self.keep()
        if self._offset is None:
            await self._begin()
        elif (back := self._offset - offset) > _JUMP:
            await self.outbox.deliveries.make_earlier(self.sink, back)
        self._offset = offset
        if (reads := self.outbox.state.reads) != self._reads:
            self._reads = reads
            await self.outbox.deliveries.make_due(
                self.sink, beyond=now + self.policy.backoff.max_backoff, now=now
            )  # the clock may have been set since an earlier run
            self.circuit.is_release_owed = True  # the sink may be back by now

    async def _begin(self) -> None:
        """Continue after a restart."""
        seconds = self.outbox.ages.saved(self.sink)
        self.circuit.running = RunningTime(seconds)
        self.circuit.running.run(self.clock.monotonic())
        self._kept_at = self.clock.monotonic()
        self.outbox.ages.clocks[self.sink] = self.running

    def keep(self) -> None:
        """Store the running time if it matters: once a minute, and at the end."""
        if self.has_pending:
            self._kept_at = self.clock.monotonic()
            self.outbox.ages.save(self.sink, self.running())


def fields_of(delivery: Delivery) -> dict[str, object]:
    """Return the log fields of an attempt at a delivery."""
    return {
        "sink": delivery.sink,
        "type": delivery.type,
        "eventId": delivery.event_id,
        "cloudEventId": delivery.cloud_event_id,
        "attempt": delivery.attempts + 1,
    }
