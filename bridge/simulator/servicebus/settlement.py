"""The outcomes of AMQP and their meaning in Service Bus.

accepted → complete; released → return, not counted; rejected → dead-letter;
modified → abandon, or defer if it is undeliverable here.
"""

from uuid import UUID

from bridge.simulator.servicebus.queues import Queue
from bridge.simulator.wire.errors import AmqpError
from bridge.simulator.wire.outcomes import (
    Accepted,
    Modified,
    Outcome,
    Rejected,
    Released,
    State,
)


def apply_outcome(queue: Queue, lock_token: UUID, state: State | None) -> None:
    """Settle a message with its receiver's disposition.

    Raises:
        RefusedError: its lock is lost.
    """
    match state:
        case Accepted():
            queue.complete(lock_token)
        case Released():
            queue.release(lock_token)
        case Modified(undeliverable=True):
            queue.defer(lock_token)
        case Modified():
            queue.abandon(lock_token)
        case Rejected(error):
            queue.dead_letter(lock_token, *_reason(error))
        case _:
            # Settled without an outcome: the lock will expire.
            return


def echo(state: State | None) -> Outcome | None:
    """Return the outcome that confirms a client's: a failure would have an error."""
    match state:
        case Rejected():
            return Rejected()
        case Modified(failed, undeliverable):
            return Modified(failed, undeliverable)
        case Accepted() | Released():
            return state
        case _:
            return None


def _reason(error: AmqpError | None) -> tuple[str | None, str | None]:
    if error is None:
        return None, None
    named = {str(key): value for key, value in error.info.items()}
    reason = _text(named.get("DeadLetterReason"))
    description = _text(named.get("DeadLetterErrorDescription"))
    return reason, description or error.description


def _text(value: object) -> str | None:
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return value if isinstance(value, str) else None
