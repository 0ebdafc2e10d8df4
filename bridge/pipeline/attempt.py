"""Makes one attempt at a delivery; applies its result to the delivery and the sink."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from msgspec import Struct

from bridge.foundation.clock import Clock
from bridge.foundation.errors import (
    DeliveryError,
    NotSentError,
    Reason,
    TransientDeliveryError,
)
from bridge.outbox.records import Delivery
from bridge.outbox.store import Outbox
from bridge.pipeline.circuit import Circuit, RunningTime, is_fault_of_sink
from bridge.pipeline.in_flight import Attempt, Attempts
from bridge.pipeline.policy import ATTEMPT_LIMIT, RelayPolicy, is_urgent, rest_of
from bridge.telemetry.metrics import Metrics, failure_label

# -- Records the result of an attempt: in the outbox, in the metrics, and in the log ---
#
# One success is recorded at once. During a backlog, the successes of 20 ms are recorded
# in one transaction, because each transaction costs a write to the disk. If the process
# is killed in this time, these deliveries are made a second time.


_MOMENT = 0.02  # seconds
_MOST_LANDED = 500  # deliveries per transaction


class Settling:
    """Records the results of attempts at the deliveries of one sink.

    Attributes:
        landed: deliveries that succeeded but are not yet recorded in the outbox; by id.
        is_parked: whether the log and the metrics say that the sink is parked.
    """

    def __init__(
        self, sink: str, outbox: Outbox, clock: Clock, metrics: Metrics
    ) -> None:
        self.sink = sink
        self.outbox = outbox
        self.clock = clock
        self.metrics = metrics
        self.landed = dict[int, Delivery]()
        self.is_parked = False
        self._is_recording = False
        self._has_time = False  # whether the next transaction may wait for more
        self._hurry = asyncio.Event()
        self._delivered = metrics.deliveries.labels(sink, "delivered")
        self._seconds = metrics.delivery_seconds.labels(sink)

    def delivered(self, delivery: Delivery) -> None:
        """Count a success. ``record`` records it in the outbox."""
        now = self.clock.now().timestamp()
        self.landed[delivery.id] = delivery
        self._delivered.inc()
        self._seconds.observe(max(0.0, now - delivery.created))
        if delivery.not_before is not None and now > delivery.not_before:
            self.metrics.late.labels(self.sink).inc()
        if log.isEnabledFor(logging.INFO):  # the fields cost more than the rest
            log.info("delivered", extra=fields_of(delivery))

    def failed(self, error: DeliveryError) -> None:
        """Count a failed attempt."""
        reason = failure_label(error.reason)
        self.metrics.delivery_failures.labels(self.sink, reason).inc()

    def lands(self, *, has_time: bool) -> bool:
        """Note that a success is in ``landed``; return whether to call ``record`` now.

        If ``record`` is running already, it records this success, too.

        Args:
            has_time: whether the record may wait for further successes.
        """
        self._has_time = has_time and len(self.landed) < _MOST_LANDED
        if not self._has_time:
            self._hurry.set()
        is_first, self._is_recording = not self._is_recording, True
        return is_first

    async def record(self, news: Callable[[bool], None]) -> None:
        """Record the deliveries in ``landed`` as delivered in the outbox.

        Args:
            news: called after each transaction; True = a later delivery of the same key
                may be sent now.
        """
        try:
            while self.landed:
                await self._record_once(news)
        finally:
            self._is_recording = False

    async def _record_once(self, news: Callable[[bool], None]) -> None:
        if self._has_time:
            self._hurry.clear()
            await self.clock.wait(self._hurry, _MOMENT)
        landed = tuple(self.landed.values())
        now = self.clock.now().timestamp()
        try:
            is_followed = await self.outbox.deliveries.delivered(*landed, now=now)
        finally:
            for delivery in landed:
                del self.landed[delivery.id]
        news(is_followed)

    async def postpone(
        self,
        delivery: Delivery,
        error: DeliveryError,
        *,
        delay: float,
        waits_for_sink: bool,
        running: float,
    ) -> None:
        """Plan another attempt at a delivery.

        Args:
            delivery: the delivery that failed.
            error: the error of the attempt.
            delay: seconds until the next attempt.
            waits_for_sink: whether to try it as soon as the sink is back.
            running: the running time of the sink, by which the age is counted.
        """
        await self.outbox.deliveries.postpone(
            delivery,
            due=self.clock.now().timestamp() + delay,
            error=str(error),
            reason=error.reason,
            waits_for_sink=waits_for_sink,
            running=running,
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

    def parked(self, *, is_parked: bool, fault: str = "") -> None:
        """Report that the sink is parked, or is no longer; only when that changes.

        Args:
            is_parked: whether the sink is parked now.
            fault: why it is parked.
        """
        if is_parked == self.is_parked:
            return
        self.is_parked = is_parked
        self.metrics.parked.labels(self.sink).set(is_parked)
        if is_parked:
            log.error("sink parked", extra={"sink": self.sink, "fault": fault})
        else:
            log.info("sink takes deliveries again", extra={"sink": self.sink})

    async def dead_letter(
        self, delivery: Delivery, error: DeliveryError, reason: Reason
    ) -> None:
        """Make a delivery a dead letter."""
        now = self.clock.now().timestamp()
        await self.outbox.deliveries.dead_letter(
            delivery, now=now, error=str(error), reason=reason
        )
        self.metrics.deliveries.labels(self.sink, "dead").inc()
        log.error(
            "dead letter",
            extra={**fields_of(delivery), "fault": str(error), "reason": reason.value},
        )


def fields_of(delivery: Delivery) -> dict[str, object]:
    """Return the log fields of an attempt at a delivery."""
    return {
        "sink": delivery.sink,
        "type": delivery.type,
        "eventId": delivery.event_id,
        "cloudEventId": delivery.cloud_event_id,
        "attempt": delivery.attempts + 1,
    }


# -- Corrects due times and ages of a sink's deliveries when the clock is set ----------


_JUMP = 1.0
_KEEP_EVERY = 60.0  # after a crash, ages may be too low by this many seconds


class DueTimes(Struct):
    """Follows the clocks for the pending deliveries of a sink.

    Attributes:
        max_backoff: after a start, every delivery is due within so many seconds.
        has_pending: whether any delivery is pending.
    """

    sink: str
    outbox: Outbox
    clock: Clock
    circuit: Circuit
    max_backoff: float
    has_pending: bool = False
    _offset: float | None = None  # wall clock minus monotonic clock
    _reads: int = 0  # of the state file, that were followed
    _kept_at: float = 0.0

    @property
    def running(self) -> float:
        """The running time of the sink in seconds, by which ages are counted."""
        return self.circuit.running.at(self.clock.monotonic())

    async def follow(self) -> None:
        """Move due times back if the wall clock was set back.

        A clock set forward needs no correction: deliveries are only due sooner. Newer
        deliveries must not be moved into the future.
        """
        now = self.clock.now().timestamp()
        offset = now - self.clock.monotonic()
        if self._offset is None:
            await self._begin()
        elif (back := self._offset - offset) > _JUMP:
            await self.outbox.deliveries.make_earlier(self.sink, back)
        self._offset = offset
        if (reads := self.outbox.state.reads) != self._reads:
            self._reads = reads
            await self.outbox.deliveries.make_due(
                self.sink, beyond=now + self.max_backoff, now=now
            )  # the clock may have been set since an earlier run
            self.circuit.owe_release()  # the sink may be back by now

    async def _begin(self) -> None:
        """Continue after a restart."""
        seconds = await self.outbox.ages.load(self.sink)
        self.circuit.running = RunningTime(seconds)
        self.circuit.running.run(self.clock.monotonic())
        self._kept_at = self.clock.monotonic()
        self.outbox.ages.clocks[self.sink] = lambda: self.running

    async def keep(self, *, is_last: bool = False) -> None:
        """Store the running time: once a minute, and at the end."""
        now = self.clock.monotonic()
        if self.has_pending and (is_last or now >= self._kept_at + _KEEP_EVERY):
            self._kept_at = now
            await self.outbox.ages.save(self.sink, self.running)


# -- Makes one attempt at a delivery; applies its result to the delivery and the sink --


log = logging.getLogger(__name__)

Deliver = Callable[[Delivery], Awaitable[None]]
Probe = Callable[[], Awaitable[None]]
Gather = Callable[[Delivery, asyncio.TaskGroup], asyncio.Future[None]]


class Trying(Struct):
    """Makes the attempts of one relay.

    Attributes:
        deliver: makes one attempt; raises DeliveryError or NotSentError.
        gather: begins an attempt that shares a request with others, and returns the
            future of its result; None = the sink takes one event in a request.
        probe: asks whether the address of the sink answers; None = it cannot be asked.
    """

    deliver: Deliver
    policy: RelayPolicy
    circuit: Circuit
    attempts: Attempts
    settling: Settling
    times: DueTimes
    gather: Gather | None = None
    probe: Probe | None = None

    @property
    def under_way(self) -> set[int]:
        """Ids of deliveries in flight, or delivered but not yet recorded as such."""
        return self.attempts.ids | self.settling.landed.keys()

    async def make(self, attempt: Attempt) -> DeliveryError | None:
        """Make an attempt and settle it; return its error, None after a success."""
        try:
            error = await self._try(attempt)
            self._conclude(attempt, error)
            if error is not None and not attempt.is_void:
                await self._postpone(attempt, error)
        finally:
            self.attempts.end(attempt)
        return error

    def conclude(self, attempt: Attempt) -> DeliveryError | None:
        """Settle an attempt that shared a request and has its result.

        Returns:
            The error with which ``postpone`` must be called; None = all is done.
        """
        error = self._result_of(attempt)
        self._conclude(attempt, error)
        if error is not None and not attempt.is_void:
            return error
        self.attempts.end(attempt)
        return None

    async def postpone(self, attempt: Attempt, error: DeliveryError) -> None:
        """Plan another attempt, or give up, after a failure in a shared request."""
        try:
            await self._postpone(attempt, error)
        finally:
            self.attempts.end(attempt)

    async def beat(self, heartbeat: Attempt, tasks: asyncio.TaskGroup) -> None:
        """Make an attempt at a heartbeat, which is never stored."""
        try:
            error = await self._try(heartbeat, tasks)
        finally:
            self.attempts.end(heartbeat)
        if heartbeat.is_void:
            return
        if error is None:
            self._recovered(heartbeat)
            return
        self.settling.failed(error)
        extra = {"sink": self.settling.sink, "fault": str(error)}
        log.warning("heartbeat not delivered", extra=extra)

    def resume(self) -> None:
        """End parking and all waits, because a person has asked for a retry."""
        self.settling.parked(is_parked=False)
        self.circuit.resume(self.times.clock.monotonic())

    async def _try(
        self, attempt: Attempt, tasks: asyncio.TaskGroup | None = None
    ) -> DeliveryError | None:
        """Make an attempt; with ``tasks`` it may share a request with others."""
        delivery = attempt.delivery
        try:
            async with asyncio.timeout(ATTEMPT_LIMIT) as attempt.scope:
                if tasks is None or self.gather is None:
                    await self.deliver(delivery)
                else:
                    await self.gather(delivery, tasks)
        except Exception as error:  # noqa: BLE001 - logged with its traceback
            return self._meaning(attempt, error)
        finally:
            attempt.scope = None
        return None

    def _meaning(self, attempt: Attempt, error: Exception) -> DeliveryError | None:
        """Convert an exception to a DeliveryError; None = void: nothing was sent."""
        if isinstance(error, DeliveryError):
            return error
        if isinstance(error, NotSentError):
            attempt.is_void = True
            return None
        if isinstance(error, TimeoutError):
            text = f"no answer within {ATTEMPT_LIMIT:.0f} s"
            if attempt.is_cut:
                text = "no answer, while a later attempt got one"
            return TransientDeliveryError(text, Reason.TIMEOUT)
        log.error(
            "sink raised an unexpected error",
            extra=fields_of(attempt.delivery),
            exc_info=error,
        )
        text = f"unforeseen: {type(error).__name__}"
        return TransientDeliveryError(text, Reason.UNFORESEEN)

    def _result_of(self, attempt: Attempt) -> DeliveryError | None:
        """Return the error of an attempt that shared a request; None = no error."""
        assert attempt.answer is not None  # noqa: S101 - for mypy  # nosec B101
        if attempt.answer.cancelled():
            attempt.is_void |= attempt.is_given_up
            return self._meaning(attempt, TimeoutError())
        raised = attempt.answer.exception()
        return self._meaning(attempt, raised) if isinstance(raised, Exception) else None

    def _conclude(self, attempt: Attempt, error: DeliveryError | None) -> None:
        """Update the sink's state by a result, before another attempt begins."""
        if attempt.is_void:
            return  # another attempt settles the delivery, or nothing was sent
        if error is None:
            self._recovered(attempt)
            self.settling.delivered(attempt.delivery)
            self.attempts.decided(attempt)
            self.attempts.widen(attempt)
            return
        self.settling.failed(error)
        if isinstance(error, TransientDeliveryError):
            self.attempts.narrow()
        if not attempt.is_cut:
            self._judge(error, attempt.refusals)

    def _recovered(self, attempt: Attempt) -> None:
        """Mark the sink as working: an attempt has succeeded."""
        is_back = self.circuit.is_unreachable or attempt.is_beside
        self.settling.parked(is_parked=False)
        self.circuit.succeeded(self.times.clock.monotonic(), attempt.began)
        if is_back:
            self.attempts.cut_left_behind(attempt.began)

    def _judge(self, error: DeliveryError, refusals: int) -> None:
        """Update the state of the sink after a failure."""
        now, unit = self.times.clock.monotonic(), self.attempts.chance()
        self.circuit.failed(error, refusals, now=now, unit=unit)
        if self.circuit.is_parked:
            self.settling.parked(is_parked=True, fault=str(error))

    async def _postpone(self, attempt: Attempt, error: DeliveryError) -> None:
        """Plan another attempt at a delivery, or make it a dead letter."""
        if attempt.is_second:
            return  # the first attempt decides
        delivery, running = attempt.delivery, self.times.running
        age = running - delivery.born
        if (reason := self.policy.end_of(delivery, error, age=age)) is not None:
            await self.settling.dead_letter(delivery, error, reason)
            self.attempts.decided(attempt)
            return
        now, unit = self.times.clock.now().timestamp(), self.attempts.chance()
        delay = self.policy.delay(delivery, error, now=now, unit=unit)
        # The sink is there, as far as is known, and may be working on it.
        may_work = self.probe is not None and not (
            self.circuit.is_away or attempt.is_cut or is_urgent(delivery, now)
        )
        took = self.times.clock.monotonic() - attempt.began
        rest = rest_of(error, took) if may_work else 0.0
        await self.settling.postpone(
            delivery,
            error,
            delay=0.0 if attempt.is_cut else rest or delay,
            waits_for_sink=is_fault_of_sink(error) and not rest,
            running=running,
        )
