"""Accept messages for a queue or topic: numbers, duplicates, scheduled messages.

Pure. A scheduled message is not in the queue yet. It already has a sequence number, and
gets a new one when it is enqueued, as in Service Bus.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from itertools import count

from msgspec import Struct

from bridge.simulator.servicebus.backlog import Deadline, Deadlines
from bridge.simulator.servicebus.message import (
    SENT,
    Delivery,
    Message,
    Origin,
    State,
)
from bridge.simulator.servicebus.values import Condition, RefusedError
from bridge.simulator.wire.values import Symbol

MAX_MESSAGE_BYTES = 256 * 1024
"""The limit of the Standard tier: a client that respects it fits all tiers."""


def check_size(encoded: bytes) -> None:
    """Check the size of a message or batch.

    Raises:
        RefusedError: the message or batch is too large.
    """
    if len(encoded) > MAX_MESSAGE_BYTES:
        raise RefusedError(
            Condition.MESSAGE_SIZE_EXCEEDED,
            f"{len(encoded)} bytes are above the limit of {MAX_MESSAGE_BYTES}",
        )


class _Scheduled(Struct, frozen=True):
    message: Message
    accepted_at: float
    deadline: Deadline


class DuplicateWindow:
    """Stores message ids for some time."""

    def __init__(self, window: timedelta | None) -> None:
        self._seconds = None if window is None else window.total_seconds()
        self._seen: OrderedDict[str, float] = OrderedDict()

    def resize(self, window: timedelta | None) -> None:
        """Change for how long ids are stored."""
        self._seconds = None if window is None else window.total_seconds()

    def is_duplicate(self, message_id: str, now: float) -> bool:
        """Return whether the id is stored; if not, store it."""
        if self._seconds is None:
            return False
        while self._seen and next(iter(self._seen.values())) <= now - self._seconds:
            self._seen.popitem(last=False)
        if message_id in self._seen:
            return True
        self._seen[message_id] = now
        return False


class Intake:
    """Accepts messages for one entity, now or at their scheduled time.

    Args:
        clock: returns seconds since the epoch.
        deadlines: where scheduled messages wait.
        window: how long duplicates are detected.
        enqueue: called with each due message, its number and its origin.

    Attributes:
        size_bytes: the size of all scheduled messages.
        activated_at: when a scheduled message was enqueued last; 0: never.
    """

    def __init__(
        self,
        *,
        clock: Callable[[], float],
        deadlines: Deadlines,
        window: timedelta | None,
        enqueue: Callable[[Message, int, Origin], None],
    ) -> None:
        self._clock = clock
        self._deadlines = deadlines
        self._window = DuplicateWindow(window)
        self._enqueue = enqueue
        self._numbers = count(1)
        self._scheduled: dict[int, _Scheduled] = {}
        self.size_bytes = 0
        self.activated_at = 0.0

    def detect_within(self, window: timedelta | None) -> None:
        """Change the window of duplicate detection."""
        self._window.resize(window)

    def accept(self, message: Message, origin: Origin = SENT) -> int | None:
        """Enqueue or schedule the message.

        Returns:
            The sequence number, or None for a duplicate, which is dropped.
        """
        now = self._clock()
        if self._window.is_duplicate(message.message_id, now):
            return None
        number = self.next_number()
        if message.scheduled_for is not None and message.scheduled_for > now:
            self._schedule(number, message, message.scheduled_for)
        else:
            self._enqueue(message, number, origin)
        return number

    def next_number(self) -> int:
        """Return the next sequence number of the entity."""
        return next(self._numbers)

    def cancel(self, numbers: Iterable[int]) -> None:
        """Drop scheduled messages.

        Raises:
            RefusedError: one of them is not scheduled; then none is dropped.
        """
        wanted = list(numbers)
        if missing := [number for number in wanted if number not in self._scheduled]:
            raise RefusedError(
                Condition.MESSAGE_NOT_FOUND, f"no scheduled message {missing[0]}"
            )
        for number in wanted:
            self._drop(number).deadline.cancel()

    def take_in(self, message: Message) -> None:
        """Enqueue a message now, even if it is a duplicate or has a scheduled time."""
        self._enqueue(message, self.next_number(), SENT)

    def clear(self) -> int:
        """Drop all scheduled messages; return how many."""
        numbers = list(self._scheduled)
        self.cancel(numbers)
        return len(numbers)

    def scheduled(self) -> Iterator[Delivery]:
        """Return the messages that are still scheduled, oldest first."""
        for number, entry in self._scheduled.items():
            yield Delivery(
                message=entry.message,
                sequence_number=number,
                enqueued_sequence_number=number,
                enqueued_at=entry.accepted_at,
                state=State.SCHEDULED,
            )

    def __len__(self) -> int:
        return len(self._scheduled)

    def _schedule(self, number: int, message: Message, due: float) -> None:
        deadline = self._deadlines.add(due, lambda: self._activate(number))
        self._scheduled[number] = _Scheduled(message, self._clock(), deadline)
        self.size_bytes += len(message.content)

    def _activate(self, number: int) -> None:
        self.activated_at = self._clock()
        self._enqueue(self._drop(number).message, self.next_number(), SENT)

    def _drop(self, number: int) -> _Scheduled:
        entry = self._scheduled.pop(number)
        self.size_bytes -= len(entry.message.content)
        return entry


# -- Refuse batches that no single partition of a partitioned entity could take. Pure --
#
# This broker has only one partition, so its order is stricter than the cloud's. It
# could take such batches, but refuses them as the cloud does.
#
# Source: Azure Service Bus, partitioned queues and topics: use of partition keys.


_PARTITION_KEY = Symbol("x-opt-partition-key")


def check_partition(path: str, messages: Sequence[Message]) -> None:
    """Check that one partition can take all messages of a batch.

    Args:
        path: the path of the partitioned entity.
        messages: the messages of one batch.

    Raises:
        RefusedError: a session id differs from its partition key, or two messages have
            different keys.
    """
    keys = {_key(path, message) for message in messages} - {None}
    if len(keys) > 1:
        raise RefusedError(
            Condition.NOT_ALLOWED,
            f"{path} is partitioned: all messages of a batch need the same partition "
            "key or session id",
        )


def _key(path: str, message: Message) -> str | None:
    key, session_id = message.annotations.get(_PARTITION_KEY), message.session_id
    if key is None or session_id is None:
        return session_id if key is None else str(key)
    if str(key) != session_id:
        raise RefusedError(
            Condition.NOT_ALLOWED,
            f"{path} is partitioned: the partition key of a message with a session id "
            "has to equal this session id",
        )
    return session_id
