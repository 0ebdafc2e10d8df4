"""The outcomes of AMQP and their meaning in Service Bus.

accepted → complete; released → return, not counted; rejected → dead-letter;
modified → abandon, or defer if it is undeliverable here.
"""

from uuid import UUID

from proton import Delivery

from bridge.simulator.servicebus.queues import Queue


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
            queue.defer(lock_token)
        case Delivery.MODIFIED:
            queue.abandon(lock_token)
        case Delivery.REJECTED:
            queue.dead_letter(lock_token, *_reason(delivery))
        case _:
            # Settled without an outcome: the lock will expire.
            return


def _reason(delivery: Delivery) -> tuple[str | None, str | None]:
    condition = delivery.remote.condition
    if condition is None:
        return None, None
    info = condition.info if isinstance(condition.info, dict) else {}
    named = {str(key): value for key, value in info.items()}
    reason = _text(named.get("DeadLetterReason"))
    description = _text(named.get("DeadLetterErrorDescription"))
    return reason, description or condition.description


def _text(value: object) -> str | None:
    if isinstance(value, bytes | memoryview):
        return bytes(value).decode(errors="replace")
    return value if isinstance(value, str) else None
