"""The sessions of a queue: their holders, the ends of their locks, their states.

Pure. A session lock covers every delivered message of the session.

States: free → accept → held → renew → held
                          held → release → free
                          held → expires → free, and the holder is informed
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from datetime import timedelta

from msgspec import Struct

from bridge.simulator.servicebus.backlog import Deadline, Deadlines
from bridge.simulator.servicebus.values import Condition, RefusedError

_LONGEST_ID = 128


def check_session_id(session_id: str | None) -> None:
    """Check the length of a session id; None is no session, and is accepted.

    Raises:
        RefusedError: the session id is too long.
    """
    if session_id is not None and len(session_id) > _LONGEST_ID:
        raise RefusedError(
            Condition.ARGUMENT_ERROR,
            f"a session id has {_LONGEST_ID} characters at most, not {len(session_id)}",
        )


class SessionLock(Struct, frozen=True):
    """A held session.

    Attributes:
        session_id: the session.
        owner: the holder; compared by identity.
        until: seconds since the epoch.
    """

    session_id: str
    owner: object
    until: float


class _Held(Struct):
    lock: SessionLock
    deadline: Deadline
    on_lost: Callable[[], None]


class _SessionState(Struct, frozen=True):
    value: bytes
    updated_at: float


class Sessions:
    """Session locks and states of one queue.

    Args:
        clock: returns seconds since the epoch.
        deadlines: plans the expiry of locks.
        lock_duration: the duration of a session lock.
        returned: called when a session is free again, with its id, and whether its
            messages count as failed deliveries.

    Attributes:
        lock_seconds: the duration of new locks.
    """

    def __init__(
        self,
        *,
        clock: Callable[[], float],
        deadlines: Deadlines,
        lock_duration: timedelta,
        returned: Callable[[str, bool], None],
    ) -> None:
        self._clock = clock
        self._deadlines = deadlines
        self.lock_seconds = lock_duration.total_seconds()
        self._returned = returned
        self._held: dict[str, _Held] = {}
        self._states: dict[str, _SessionState] = {}

    def accept(
        self, session_id: str, owner: object, on_lost: Callable[[], None]
    ) -> SessionLock:
        """Lock a session.

        Args:
            session_id: the session.
            owner: the new holder.
            on_lost: called when the lock expires.

        Raises:
            RefusedError: another receiver holds the session.
        """
        if session_id in self._held:
            raise RefusedError(
                Condition.SESSION_CANNOT_BE_LOCKED,
                f"the session {session_id!r} is locked by another receiver",
            )
        return self._hold(session_id, owner, on_lost)

    def renew(self, session_id: str, owner: object) -> SessionLock:
        """Lock a session for another lock duration.

        Raises:
            RefusedError: the owner does not hold the session.
        """
        held = self._owned(session_id, owner)
        held.deadline.cancel()
        return self._hold(session_id, owner, held.on_lost)

    def release(self, session_id: str, owner: object) -> None:
        """Release a session; does nothing unless the owner holds it."""
        held = self._held.get(session_id)
        if held is not None and held.lock.owner is owner:
            self._free(session_id, failed=False)

    def expire(self, session_id: str) -> None:
        """Expire the lock on a session."""
        held = self._free(session_id, failed=True)
        if held is not None:
            held.on_lost()

    def until(self, session_id: str) -> float | None:
        """Return when the lock on a session ends, or None if the session is free."""
        held = self._held.get(session_id)
        return None if held is None else held.lock.until

    def held(self) -> Collection[str]:
        """Return the ids of the held sessions."""
        return tuple(self._held)

    def locks(self) -> Mapping[str, SessionLock]:
        """Return the locks on the held sessions by their ids."""
        return {session_id: held.lock for session_id, held in self._held.items()}

    def check_held(self, session_id: str, owner: object) -> None:
        """Check that the owner holds the session.

        Raises:
            RefusedError: the owner does not hold the session.
        """
        self._owned(session_id, owner)

    def state(self, session_id: str, owner: object) -> bytes | None:
        """Return the state of a session.

        Raises:
            RefusedError: the owner does not hold the session.
        """
        self._owned(session_id, owner)
        state = self._states.get(session_id)
        return None if state is None else state.value

    def set_state(self, session_id: str, owner: object, value: bytes | None) -> None:
        """Store the state of a session; None deletes it.

        Raises:
            RefusedError: the owner does not hold the session.
        """
        self._owned(session_id, owner)
        if value is None:
            self._states.pop(session_id, None)
        else:
            self._states[session_id] = _SessionState(value, self._clock())

    def with_state(self, updated_after: float | None = None) -> Iterator[str]:
        """Return the ids of sessions with a state; with a time: set after this time."""
        for session_id, state in self._states.items():
            if updated_after is None or state.updated_at > updated_after:
                yield session_id

    def _hold(
        self, session_id: str, owner: object, on_lost: Callable[[], None]
    ) -> SessionLock:
        until = self._clock() + self.lock_seconds
        deadline = self._deadlines.add(until, lambda: self.expire(session_id))
        lock = SessionLock(session_id, owner, until)
        self._held[session_id] = _Held(lock, deadline, on_lost)
        return lock

    def _free(self, session_id: str, *, failed: bool) -> _Held | None:
        held = self._held.pop(session_id, None)
        if held is not None:
            held.deadline.cancel()
            self._returned(session_id, failed)
        return held

    def _owned(self, session_id: str, owner: object) -> _Held:
        held = self._held.get(session_id)
        if held is None or held.lock.owner is not owner:
            raise RefusedError(
                Condition.SESSION_LOCK_LOST,
                f"the lock on the session {session_id!r} is lost",
            )
        return held
