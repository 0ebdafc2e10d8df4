"""Purge a queue, or resubmit its dead letters. Pure."""

from bridge.simulator.servicebus.errors import Condition, RefusedError
from bridge.simulator.servicebus.queues import Queue


def resubmit(queue: Queue, number: int | None = None) -> int:
    """Move dead letters back into their queue as new messages; return how many.

    Args:
        queue: the queue or subscription that the dead letters come from.
        number: the sequence number of one dead letter; None: all unlocked dead letters.

    Raises:
        RefusedError: this is a dead-letter queue, or no unlocked dead letter has this
            number.
    """
    if queue.dead_letters is None:
        raise RefusedError(
            Condition.NOT_ALLOWED, "a dead-letter queue has no dead letters of its own"
        )
    dead = queue.dead_letters.storage
    moved = [
        entry
        for entry in dead.backlog
        if entry.lock_token is None and number in {None, entry.sequence_number}
    ]
    if number is not None and not moved:
        raise RefusedError(Condition.MESSAGE_NOT_FOUND, f"no free dead letter {number}")
    for entry in moved:
        dead.remove(entry)
        queue.intake.take_in(entry.message)
    return len(moved)


def purge(queue: Queue) -> int:
    """Delete all unlocked messages, and the scheduled ones; return how many."""
    free = [each for each in queue.storage.backlog if each.lock_token is None]
    for entry in free:
        queue.storage.remove(entry)
    return len(free) + queue.intake.clear()
