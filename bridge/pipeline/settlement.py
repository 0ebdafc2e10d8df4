"""Records the result of an attempt: in the outbox, in the metrics, and in the log.

One success is recorded at once. During a backlog, the successes of 20 ms are recorded
in one transaction, because each transaction costs a write to the disk. If the process
is killed in this time, these deliveries are made a second time.
"""

import asyncio
import logging
from collections.abc import Callable

from bridge.foundation.clock import Clock
from bridge.foundation.errors import DeliveryError, Reason
from bridge.outbox.records import Delivery
from bridge.outbox.store import Outbox
from bridge.telemetry.metrics import Metrics, failure_label

log = logging.getLogger(__name__)

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

    def unforeseen(self, delivery: Delivery, error: Exception) -> None:
        """Log an exception that a sink should not raise, with its traceback."""
        log.error(
            "sink raised an unexpected error", extra=fields_of(delivery), exc_info=error
        )

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
