"""Empty a queue, or let its dead letters try again: for people. Pure."""

from bridge.simulator.servicebus.errors import Condition, RefusedError
from bridge.simulator.servicebus.queues import Queue


def resubmit(queue: Queue, number: int | None = None) -> int:
    """Move dead letters back, as new messages; return how many.

    Args:
        queue: the queue or subscription that they come from.
        number: the sequence number of one dead letter; None: all that are free.

    Raises:
        RefusedError: there is no free dead letter with this number.
    """
    if queue.dead_letters is None:
        raise RefusedError(Condition.NOT_ALLOWED, "a dead letter has none itself")
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
    """Delete all messages that nobody has locked; return how many."""
    free = [each for each in queue.storage.backlog if each.lock_token is None]
    for entry in free:
        queue.storage.remove(entry)
    return len(free) + queue.intake.clear()
