"""What the outbox itself gives up: no room for it anywhere, or damaged on the disk."""

import logging
import sqlite3

from bridge.events.build import OutgoingEvent
from bridge.foundation.errors import OutboxFullError, Reason
from bridge.outbox import deliveries as rows
from bridge.outbox import statements
from bridge.outbox.delivery import Delivery

log = logging.getLogger(__name__)


def dead_letter(db: sqlite3.Connection, delivery: Delivery, now: float) -> str | None:
    """Make a dead letter of what is damaged, and have its event told again.

    Returns:
        The key of the event, where a look at the document can make up for it.
    """
    error = (delivery.damage or "", Reason.DAMAGED.value)
    rows.settle(db, delivery, "dead", now=now, error=error)
    is_step = delivery.kind != "reply" and ".startrequest." not in delivery.type
    if not is_step or delivery.key is None:
        return None
    statements.ask_again(db, delivery.key)
    return delivery.key


def tell_of_damage(delivery: Delivery) -> None:
    """Log that a delivery is damaged, as the relay logs what it gives up."""
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


def tell_of_drop(told: OutgoingEvent, error: OutboxFullError) -> None:
    """Log that there is no room for an event."""
    log.error(
        "event dropped",
        extra={"type": told.event.type, "eventId": told.key, "fault": str(error)},
    )
