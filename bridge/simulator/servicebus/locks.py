"""The locks on messages of one queue that receivers hold.

Pure. A receiver settles with the lock token; an expired lock is lost.
"""

from collections.abc import Callable
from datetime import timedelta
from uuid import UUID, uuid4

from bridge.simulator.servicebus.backlog import Entry
from bridge.simulator.servicebus.deadlines import Deadlines
from bridge.simulator.servicebus.errors import Condition, RefusedError


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
