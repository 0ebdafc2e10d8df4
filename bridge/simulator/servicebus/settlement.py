"""The outcomes of AMQP and their meaning in Service Bus.

    accepted                  complete
    released                  return the message, without a failed delivery
    rejected                  dead-letter
    modified                  abandon
    modified, undeliverable   defer

The annotations in modified become application properties. So do the entries in the info
of rejected, except for the dead-letter reason and description.
"""

from collections.abc import Mapping
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
    Transactional,
)


def apply_outcome(queue: Queue, lock_token: UUID, state: State | None) -> None:
    """Settle a message with its receiver's disposition.

    Raises:
        RefusedError: the lock on the message is lost.
    """
    match state:
        case Accepted():
            queue.complete(lock_token)
        case Released():
            queue.release(lock_token)
        case Modified(undeliverable=True, annotations=annotations):
            queue.defer(lock_token, _changes(annotations))
        case Modified(annotations=annotations):
            queue.abandon(lock_token, _changes(annotations))
        case Rejected(error):
            queue.dead_letter(lock_token, *_reason(error))
        case _:
            # Settled without an outcome: the lock will expire.
            return


def echo(state: State | None) -> State | None:
    """Return the state that confirms the client's; an error would mean a failure."""
    match state:
        case Transactional(txn_id, outcome):
            return Transactional(txn_id, _echo(outcome))
        case _:
            return _echo(state)


def _echo(state: State | None) -> Outcome | None:
    match state:
        case Rejected():
            return Rejected()
        case Modified(failed, undeliverable):
            return Modified(failed, undeliverable)
        case Accepted() | Released():
            return state
        case _:
            return None


def _reason(
    error: AmqpError | None,
) -> tuple[str | None, str | None, Mapping[str, object]]:
    if error is None:
        return None, None, {}
    changes = _changes(error.info)
    reason = _text(changes.pop("DeadLetterReason", None))
    description = _text(changes.pop("DeadLetterErrorDescription", None))
    return reason, description or error.description, changes


def _changes(annotations: Mapping[object, object]) -> dict[str, object]:
    return {str(name): value for name, value in annotations.items()}


def _text(value: object) -> str | None:
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return value if isinstance(value, str) else None
