"""What follows from an attempt: noted in the outbox, counted, and told in the log."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from bridge.foundation.clock import Clock
from bridge.foundation.errors import DeliveryError, Reason
from bridge.outbox.delivery import Delivery
from bridge.outbox.store import Outbox
from bridge.telemetry.counters import Count, Spread
from bridge.telemetry.metrics import Metrics, failure_label

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Settling:
    """Notes what became of the deliveries of one sink."""

    sink: str
    outbox: Outbox
    clock: Clock
    metrics: Metrics
    landed: dict[int, Delivery] = field(default_factory=dict)  # taken, not yet noted
    is_parked: bool = False
    _delivered: Count = field(init=False)
    _seconds: Spread = field(init=False)

    def __post_init__(self) -> None:
        self._delivered = self.metrics.deliveries.labels(self.sink, "delivered")
        self._seconds = self.metrics.delivery_seconds.labels(self.sink)

    def delivered(self, delivery: Delivery) -> None:
        """Count a success; it is on the disk only after ``note_landed``."""
        now = self.clock.now().timestamp()
        self.landed[delivery.id] = delivery
        self._delivered.inc()
        self._seconds.observe(max(0.0, now - delivery.created))
        if delivery.not_before is not None and now > delivery.not_before:
            self.metrics.late.labels(self.sink).inc()
        log.info("delivered", extra=fields_of(delivery))

    def failed(self, error: DeliveryError) -> None:
        """Count an attempt that failed, whatever becomes of the delivery."""
        reason = failure_label(error.reason)
        self.metrics.delivery_failures.labels(self.sink, reason).inc()

    async def note_landed(self, news: Callable[[bool], None]) -> None:
        """Note what the sink has taken, many at a time, while others already fly.

        Args:
            news: told after each lot whether any of it is followed by another of its
                key, which may go now.
        """
        while self.landed:
            landed = tuple(self.landed.values())
            now = self.clock.now().timestamp()
            try:
                is_followed = await self.outbox.delivered(*landed, now=now)
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
        """Have a delivery tried again.

        Args:
            delivery: what failed.
            error: what it failed with.
            delay: seconds until then.
            waits_for_sink: whether it is tried as soon as the sink is back.
            running: by which the deliveries of the sink grow older, now.
        """
        await self.outbox.postpone(
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
        """Tell that the sink is parked, or no longer is; nothing where that is known.

        Args:
            is_parked: whether it is.
            fault: why.
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
        """Tell of an exception that no sink should raise, with its traceback."""
        log.error("sink failed unforeseen", extra=fields_of(delivery), exc_info=error)

    async def dead_letter(
        self, delivery: Delivery, error: DeliveryError, reason: Reason
    ) -> None:
        """Make a delivery a dead letter."""
        now = self.clock.now().timestamp()
        await self.outbox.dead_letter(
            delivery, now=now, error=str(error), reason=reason
        )
        self.metrics.deliveries.labels(self.sink, "dead").inc()
        log.error(
            "dead letter",
            extra={**fields_of(delivery), "fault": str(error), "reason": reason.value},
        )


def fields_of(delivery: Delivery) -> dict[str, object]:
    """Return what names an attempt at a delivery in the log."""
    return {
        "sink": delivery.sink,
        "type": delivery.type,
        "eventId": delivery.event_id,
        "cloudEventId": delivery.cloud_event_id,
        "attempt": delivery.attempts + 1,
    }
