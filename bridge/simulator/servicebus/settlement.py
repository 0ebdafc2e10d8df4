"""The outcomes of AMQP and their meaning in Service Bus.

accepted → complete; released → return, not counted; rejected → dead-letter;
modified → abandon, or defer if it is undeliverable here. The message annotations of
modified, and the rest of rejected's information, are application properties to set.
"""

from collections.abc import Mapping
from uuid import UUID

from proton import Delivery

from bridge.simulator.servicebus.queues import Queue
from bridge.simulator.servicebus.values import owned

REASON = "DeadLetterReason"
DESCRIPTION = "DeadLetterErrorDescription"


def apply_outcome(queue: Queue, lock_token: UUID, delivery: Delivery) -> None:
    """Settle a message with its receiver's disposition.

    Raises:
        RefusedError: its lock is lost.
    """
    remote = delivery.remote
    match delivery.remote_state:
        case Delivery.ACCEPTED:
            queue.complete(lock_token)
        case Delivery.RELEASED:
            queue.release(lock_token)
        case Delivery.MODIFIED if remote.undeliverable:
            queue.defer(lock_token, _changes(remote.annotations))
        case Delivery.MODIFIED:
            queue.abandon(lock_token, _changes(remote.annotations))
        case Delivery.REJECTED:
            queue.dead_letter(lock_token, *_reason(delivery))
        case _:
            # Settled without an outcome: the lock will expire.
            return


def _reason(delivery: Delivery) -> tuple[str | None, str | None, Mapping[str, object]]:
    condition = delivery.remote.condition
    if condition is None:
        return None, None, {}
    changes = dict(_changes(condition.info))
    reason = _text(changes.pop(REASON, None))
    description = _text(changes.pop(DESCRIPTION, None))
    return reason, description or condition.description, changes


def _changes(annotations: object) -> Mapping[str, object]:
    found = annotations if isinstance(annotations, dict) else {}
    return {str(name): owned(value) for name, value in found.items()}


def _text(value: object) -> str | None:
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return value if isinstance(value, str) else None
