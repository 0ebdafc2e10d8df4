"""The messages of one queue: which can be received next, which are locked till when.

Pure data structures: a backlog keeps order and size, and does not interpret locks. The
owner of deadlines asks when the next action is due, and runs the due ones. So a broker
needs only one timer of the event loop, and a test needs none.
"""

import heapq
from collections.abc import Callable, Iterator
from datetime import timedelta
from itertools import count
from uuid import UUID, uuid4

from msgspec import Struct

from bridge.simulator.servicebus.message import (
    DeadLetter,
    Delivery,
    Message,
    State,
)
from bridge.simulator.servicebus.values import Condition, RefusedError

# -- actions for a later time, without a timer for each of them ------------------------

_COMPACT_ABOVE = 256


class Deadline:
    """One planned action, which can be cancelled."""

    __slots__ = ("_owner", "action", "at")

    def __init__(
        self, owner: "Deadlines", at: float, action: Callable[[], None]
    ) -> None:
        self._owner = owner
        self.at = at
        self.action: Callable[[], None] | None = action

    def cancel(self) -> None:
        """Cancel the action."""
        if self.action is not None:
            self.action = None
            self._owner.forget()


class Deadlines:
    """A heap of deadlines."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Deadline]] = []
        self._serial = count()
        self._cancelled = 0

    def add(self, at: float, action: Callable[[], None]) -> Deadline:
        """Plan an action for the given time."""
        deadline = Deadline(self, at, action)
        heapq.heappush(self._heap, (at, next(self._serial), deadline))
        return deadline

    def next_deadline(self) -> float | None:
        """Return when the next action is due, or None when there is none."""
        while self._heap and self._heap[0][2].action is None:
            heapq.heappop(self._heap)
            self._cancelled -= 1
        return self._heap[0][0] if self._heap else None

    def run_due(self, now: float) -> None:
        """Run all actions due by now, in order of time."""
        while (at := self.next_deadline()) is not None and at <= now:
            deadline = heapq.heappop(self._heap)[2]
            action, deadline.action = deadline.action, None
            if action is not None:
                action()

    def forget(self) -> None:
        """Count a cancelled deadline; remove all of them when they are the majority."""
        self._cancelled += 1
        # When a message is settled, the cancelled deadline of its lock would stay here
        # for the rest of the lock duration, e.g. a minute.
        if self._cancelled > max(_COMPACT_ABOVE, len(self._heap) // 2):
            self._heap = [entry for entry in self._heap if entry[2].action is not None]
            heapq.heapify(self._heap)
            self._cancelled = 0


# -- the messages of one queue ---------------------------------------------------------


class Counts(Struct, frozen=True, kw_only=True):
    """How many messages an entity holds.

    Attributes:
        active: ready to be received, or locked by a receiver.
        locked: the active and deferred messages that a receiver has locked.
        deferred: set aside by a receiver.
        scheduled: not enqueued yet.
        dead: in the dead-letter queue.
    """

    active: int = 0
    locked: int = 0
    deferred: int = 0
    scheduled: int = 0
    dead: int = 0


class Entry(Struct, kw_only=True, eq=False):
    """A message in a queue, with its state.

    Attributes:
        hops: how many times the message was forwarded.
        lock_token: set while a receiver has locked the message.
        lock_deadline: when the lock expires; None in a session, which has its own lock.
        expires_at: when the message's time to live ends.
    """

    message: Message
    sequence_number: int
    enqueued_sequence_number: int
    enqueued_at: float
    dead_letter: DeadLetter | None = None
    hops: int = 0
    delivery_count: int = 0
    is_deferred: bool = False
    lock_token: UUID | None = None
    lock_deadline: Deadline | None = None
    expires_at: float | None = None
    expiry: Deadline | None = None

    @property
    def is_free(self) -> bool:
        """Whether the message is neither locked nor deferred."""
        return self.lock_token is None and not self.is_deferred

    def delivery(self, locked_until: float | None = None) -> Delivery:
        """Return the message as a receiver sees it now."""
        return Delivery(
            message=self.message,
            sequence_number=self.sequence_number,
            enqueued_sequence_number=self.enqueued_sequence_number,
            enqueued_at=self.enqueued_at,
            delivery_count=self.delivery_count,
            state=State.DEFERRED if self.is_deferred else State.ACTIVE,
            lock_token=self.lock_token,
            locked_until=locked_until,
            dead_letter=self.dead_letter,
        )


class Backlog:
    """The entries of a queue, and a line of ready entries for each session.

    Args:
        by_session: whether each session has its own line; if not, there is one line.
    """

    def __init__(self, *, by_session: bool) -> None:
        self._by_session = by_session
        self._entries: dict[int, Entry] = {}
        # Each line is a heap of sequence numbers: a released message comes first again.
        self._ready: dict[str | None, list[int]] = {}
        self.size_bytes = 0

    def add(self, entry: Entry) -> None:
        """Add a new entry, ready to be received."""
        self._entries[entry.sequence_number] = entry
        self.size_bytes += len(entry.message.content)
        self.make_ready(entry)

    def remove(self, entry: Entry) -> None:
        """Remove an entry."""
        del self._entries[entry.sequence_number]
        self.size_bytes -= len(entry.message.content)

    def replace(self, entry: Entry, message: Message) -> None:
        """Replace the message of an entry by one of the same session."""
        self.size_bytes += len(message.content) - len(entry.message.content)
        entry.message = message

    def get(self, number: int) -> Entry | None:
        """Return the entry with a sequence number."""
        return self._entries.get(number)

    def make_ready(self, entry: Entry) -> None:
        """Put an entry back in its line, ordered by its number."""
        line = self._ready.setdefault(self._line(entry), [])
        heapq.heappush(line, entry.sequence_number)

    def take_ready(self, session_id: str | None) -> Entry | None:
        """Take the first entry out of a line, or return None."""
        number = self._head(session_id)
        if number is None:
            return None
        heapq.heappop(self._ready[session_id])
        return self._entries[number]

    def next_session(self, held: frozenset[str]) -> str | None:
        """Return the session with the oldest first message, except ``held`` ones."""
        heads = [
            (head, session_id)
            for session_id in list(self._ready)
            if session_id is not None and session_id not in held
            if (head := self._head(session_id)) is not None
        ]
        return min(heads)[1] if heads else None

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries.values())

    def __len__(self) -> int:
        return len(self._entries)

    def _line(self, entry: Entry) -> str | None:
        return entry.message.session_id if self._by_session else None

    def _head(self, session_id: str | None) -> int | None:
        # The number of a removed entry stays in its line, until it is dropped here.
        line = self._ready.get(session_id, [])
        while line and line[0] not in self._entries:
            heapq.heappop(line)
        if not line:
            self._ready.pop(session_id, None)
            return None
        return line[0]


# -- The locks on messages of one queue that receivers hold ----------------------------
#
# Pure. A receiver settles with the lock token; an expired lock is lost.


class Locks:
    """Message locks by token.

    Args:
        clock: returns seconds since the epoch.
        deadlines: plans the expiry of locks.
        lock_duration: the duration of a message lock.
        lost: the error condition for a token that locks no message.
        expired: called with each entry whose lock has expired.

    Attributes:
        lock_seconds: the duration of new locks.
    """

    def __init__(
        self,
        *,
        clock: Callable[[], float],
        deadlines: Deadlines,
        lock_duration: timedelta,
        lost: Condition,
        expired: Callable[[Entry], None],
    ) -> None:
        self._clock = clock
        self._deadlines = deadlines
        self.lock_seconds = lock_duration.total_seconds()
        self._lost = lost
        self._expired = expired
        self._entries: dict[UUID, Entry] = {}

    def lock(self, entry: Entry, session_until: float | None) -> float:
        """Lock an entry; return when the lock ends.

        Args:
            entry: the entry that is delivered.
            session_until: the end of the session lock, which covers the entry; None:
                the entry is not received in a session.
        """
        token = uuid4()
        entry.lock_token = token
        self._entries[token] = entry
        return self._start(entry) if session_until is None else session_until

    def renew(self, token: UUID) -> float:
        """Extend a lock by the lock duration, from now; return when it ends.

        Raises:
            RefusedError: the lock is lost, or belongs to a session.
        """
        entry = self._entries.get(token)
        if entry is None or entry.lock_deadline is None:
            raise self._lock_lost()
        entry.lock_deadline.cancel()
        return self._start(entry)

    def check(self, token: UUID) -> None:
        """Check that a token locks a message.

        Raises:
            RefusedError: the lock is lost.
        """
        if token not in self._entries:
            raise self._lock_lost()

    def take(self, token: UUID) -> Entry:
        """Unlock an entry and return it.

        Raises:
            RefusedError: the lock is lost.
        """
        entry = self._entries.get(token)
        if entry is None:
            raise self._lock_lost()
        self._unlock(entry)
        return entry

    def take_session(self, session_id: str) -> list[Entry]:
        """Unlock and return all entries of a session."""
        found = [
            entry
            for entry in self._entries.values()
            if entry.message.session_id == session_id
        ]
        for entry in found:
            self._unlock(entry)
        return found

    def expire_all(self) -> None:
        """Expire all locks now."""
        for entry in tuple(self._entries.values()):
            self._expire(entry)

    def __len__(self) -> int:
        return len(self._entries)

    def _start(self, entry: Entry) -> float:
        until = self._clock() + self.lock_seconds
        entry.lock_deadline = self._deadlines.add(until, lambda: self._expire(entry))
        return until

    def _expire(self, entry: Entry) -> None:
        self._unlock(entry)
        self._expired(entry)

    def _unlock(self, entry: Entry) -> None:
        if entry.lock_token is not None:
            del self._entries[entry.lock_token]
        if entry.lock_deadline is not None:
            entry.lock_deadline.cancel()
        entry.lock_token = entry.lock_deadline = None

    def _lock_lost(self) -> RefusedError:
        return RefusedError(
            self._lost,
            "The lock supplied is invalid. Either the lock expired, or the message has "
            "already been removed from the queue",
        )
