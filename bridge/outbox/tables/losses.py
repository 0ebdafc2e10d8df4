"""What the outbox itself gives up: damaged rows, and events that do not fit."""

import logging
import sqlite3

from bridge.events.build import OutgoingEvent
from bridge.foundation.errors import OutboxFullError, Reason
from bridge.outbox.records import Delivery
from bridge.outbox.tables import deliveries, observations

log = logging.getLogger(__name__)


def dead_letter(db: sqlite3.Connection, delivery: Delivery, now: float) -> str | None:
    """Dead-letter a damaged delivery, and have its event published again.

    Returns:
        The key of its EventId; None if the event cannot be made again from a document.
    """
    error = (delivery.damage or "", Reason.DAMAGED.value)
    deliveries.settle(db, delivery, "dead", now=now, error=error)
    is_step = delivery.kind != "reply" and ".startrequest." not in delivery.type
    if not is_step or delivery.key is None:
        return None
    observations.publish_again(db, delivery.key)
    return delivery.key


def log_damage(delivery: Delivery) -> None:
    """Log a damaged delivery with the same line as the relay's dead letters."""
    log.error(
        "dead letter",
        extra={
            "sink": delivery.sink,
            "type": delivery.type,
            "eventId": delivery.event_id,
            "cloudEventId": delivery.cloud_event_id,
            "attempt": delivery.attempts,
            "fault": delivery.damage,
            "reason": Reason.DAMAGED.value,
        },
    )


def log_drop(outgoing: OutgoingEvent, error: OutboxFullError) -> None:
    """Log an event for which there is no room."""
    log.error(
        "event dropped",
        extra={
            "type": outgoing.event.type,
            "eventId": outgoing.key,
            "fault": str(error),
        },
    )
