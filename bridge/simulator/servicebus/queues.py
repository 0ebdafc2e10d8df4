"""A queue: peek-lock, settlement, deferral, sessions.

Pure: no I/O; the clock is injected and the owner runs the deadlines. A subscription of
a topic and a dead-letter queue are also queues.

States of a message:
    scheduled → active → locked → completed (removed)
                         locked → abandoned, or lock expired → active, one failure more
                         locked → released, session released → active
                         locked → deferred → locked, by sequence number
    active, locked or deferred → dead-lettered, into another queue
Invariant: a message is in exactly one of these states, and has at most one lock.
Not verified against the cloud: a deferred message stays deferred after a failed
    delivery; a dead letter gets a new sequence number.
"""

from collections.abc import Callable, Mapping, Sequence
from heapq import nsmallest
from itertools import chain
from types import MappingProxyType
from uuid import UUID

from bridge.simulator.servicebus.backlog import Counts, Deadlines, Entry, Locks
from bridge.simulator.servicebus.intake import Intake, check_partition
from bridge.simulator.servicebus.message import Delivery, Message, Origin
from bridge.simulator.servicebus.rules.ruleset import RuleSet
from bridge.simulator.servicebus.sessions import SessionLock, Sessions
from bridge.simulator.servicebus.settings import (
    QueueSettings,
    SubscriptionSettings,
    check_sends,
)
from bridge.simulator.servicebus.storage import Storage, Use
from bridge.simulator.servicebus.values import Condition, RefusedError
from bridge.simulator.servicebus.wire import modify

Changes = Mapping[str, object]
_NO_CHANGES: Changes = MappingProxyType({})


class Queue:
    """A queue, a subscription or a dead-letter queue.

    Its parts do the work: storage, intake, locks, sessions.

    Args:
        settings: the behaviour of the queue.
        clock: returns seconds since the epoch.
        deadlines: plans the expiry of locks and times to live.
        wake: called whenever there may be a message to receive.
        dead_letters: its dead-letter queue; None: it is one itself.

    Attributes:
        intake: accepts messages, and holds the scheduled ones.
        sessions: the session locks and states.
        storage: the stored messages.
        rules: which messages of the topic a subscription admits; a queue has no rules.
        use: when the queue was used; shared with its dead-letter queue.
    """

    def __init__(
        self,
        settings: QueueSettings,
        *,
        clock: Callable[[], float],
        deadlines: Deadlines,
        wake: Callable[["Queue"], None],
        dead_letters: "Queue | None" = None,
    ) -> None:
        self.settings = settings
        self.dead_letters = dead_letters
        self.use = Use(clock)
        self.rules = RuleSet(
            settings.rules if isinstance(settings, SubscriptionSettings) else (), clock
        )
        self._wake: Callable[[], None] = lambda: wake(self)
        self.storage = Storage(
            settings,
            clock=clock,
            deadlines=deadlines,
            ready=self._wake,
            dead_letters=dead_letters,
        )
        self.intake = Intake(
            clock=clock,
            deadlines=deadlines,
            window=settings.duplicate_window,
            enqueue=self.storage.enqueue,
        )
        self._locks = Locks(
            clock=clock,
            deadlines=deadlines,
            lock_duration=settings.lock_duration,
            lost=(
                Condition.SESSION_LOCK_LOST
                if settings.requires_session
                else Condition.MESSAGE_LOCK_LOST
            ),
            expired=lambda entry: self.storage.give_back(entry, failed=True),
        )
        self.sessions = Sessions(
            clock=clock,
            deadlines=deadlines,
            lock_duration=settings.lock_duration,
            returned=self._return_session,
        )

    @property
    def name(self) -> str:
        """The path of the queue."""
        return self.settings.name

    def change(self, settings: QueueSettings) -> None:
        """Use other settings from now on; existing locks keep their duration."""
        self.settings = settings
        self.storage.change(settings)
        self.intake.detect_within(settings.duplicate_window)
        seconds = settings.lock_duration.total_seconds()
        self._locks.lock_seconds = self.sessions.lock_seconds = seconds

    def send(self, messages: Sequence[Message]) -> tuple[int | None, ...]:
        """Accept messages from a sender: all or none.

        Returns:
            The sequence number of each; None for a duplicate, which is dropped.

        Raises:
            RefusedError: see ``check``.
        """
        self.check(messages)
        self.use.touch()
        return tuple(self.intake.accept(message) for message in messages)

    def check(self, messages: Sequence[Message]) -> None:
        """Check that messages of a sender would be accepted.

        Raises:
            RefusedError: the queue is full or disabled, or a message lacks its session
                id.
        """
        check_sends(self.name, self.settings.status)
        needs_session = self.settings.requires_session
        if needs_session and any(message.session_id is None for message in messages):
            raise RefusedError(
                Condition.NOT_ALLOWED,
                f"{self.name} requires a session id on each message",
            )
        if self.settings.is_partitioned:
            check_partition(self.name, messages)
        self.check_room(messages)

    def check_room(self, messages: Sequence[Message]) -> None:
        """Check that there is room for messages.

        Raises:
            RefusedError: there is not enough room.
        """
        size = sum(len(message.content) for message in messages)
        if self.size_bytes() + size > self.settings.max_bytes:
            raise RefusedError(
                Condition.RESOURCE_LIMIT_EXCEEDED, f"{self.name} is full"
            )

    def accept(self, message: Message, origin: Origin) -> None:
        """Accept a message from another entity, even if the queue is full.

        A message without a required session id is dead-lettered.
        """
        self.intake.accept(message, origin)

    def cancel_scheduled(self, numbers: Sequence[int]) -> None:
        """Drop scheduled messages.

        Raises:
            RefusedError: one of them is not scheduled; then none is dropped.
        """
        self.intake.cancel(numbers)

    def receive(
        self, session_id: str | None = None, *, delete: bool = False
    ) -> Delivery | None:
        """Take the next message, or return None if there is none.

        Args:
            session_id: the session to receive from; the caller has locked it.
            delete: remove the message at once instead of locking it.
        """
        entry = self.storage.backlog.take_ready(session_id)
        return None if entry is None else self._hand_out(entry, delete=delete)

    def receive_deferred(
        self,
        numbers: Sequence[int],
        session_id: str | None = None,
        *,
        delete: bool = False,
    ) -> tuple[Delivery, ...]:
        """Take deferred messages by their sequence numbers.

        Raises:
            RefusedError: one of them cannot be taken; then none is taken.
        """
        wanted = dict.fromkeys(numbers)
        entries = [self.storage.find_deferred(number, session_id) for number in wanted]
        return tuple(self._hand_out(entry, delete=delete) for entry in entries)

    def check_lock(self, lock_token: UUID) -> None:
        """Check that a lock is not lost.

        Raises:
            RefusedError: the lock is lost.
        """
        self._locks.check(lock_token)

    def complete(self, lock_token: UUID) -> None:
        """Remove a message.

        Raises:
            RefusedError: the lock is lost (also in the settlements below).
        """
        self.storage.remove(self._locks.take(lock_token))

    def abandon(self, lock_token: UUID, changes: Changes = _NO_CHANGES) -> None:
        """Return a message as a failed delivery, and set some of its properties."""
        self.storage.give_back(self._take(lock_token, changes), failed=True)

    def release(self, lock_token: UUID) -> None:
        """Return a message; this does not count as a failed delivery."""
        self.storage.give_back(self._locks.take(lock_token), failed=False)

    def defer(self, lock_token: UUID, changes: Changes = _NO_CHANGES) -> None:
        """Set a message aside; it can be received by its sequence number only."""
        self._take(lock_token, changes).is_deferred = True

    def dead_letter(
        self,
        lock_token: UUID,
        reason: str | None = None,
        description: str | None = None,
        changes: Changes = _NO_CHANGES,
    ) -> None:
        """Move a message to the dead-letter queue.

        Args:
            lock_token: the lock token.
            reason: the dead-letter reason.
            description: the dead-letter description.
            changes: application properties to add to the message.

        Raises:
            RefusedError: the lock is lost, or this is a dead-letter queue itself.
        """
        if self.dead_letters is None:
            raise RefusedError(
                Condition.NOT_ALLOWED, "a dead letter cannot be dead-lettered again"
            )
        entry = self._take(lock_token, changes)
        self.storage.dead_letter(entry, reason, description)

    def renew_lock(self, lock_token: UUID) -> float:
        """Lock a message for another lock duration.

        Returns:
            When the lock ends, in seconds since the epoch.
        """
        return self._locks.renew(lock_token)

    def expire_locks(self) -> None:
        """Expire all locks on messages and sessions."""
        for session_id in self.sessions.held():
            self.sessions.expire(session_id)
        self._locks.expire_all()

    def accept_session(
        self, session_id: str | None, owner: object, on_lost: Callable[[], None]
    ) -> SessionLock | None:
        """Lock a session.

        Args:
            session_id: the session; None: the next one that has messages.
            owner: the new holder.
            on_lost: called when the lock expires.

        Returns:
            The lock, or None if no session is available now.

        Raises:
            RefusedError: another receiver holds the session.
        """
        if session_id is None:
            held = frozenset(self.sessions.held())
            session_id = self.storage.backlog.next_session(held)
        if session_id is None:
            return None
        return self.sessions.accept(session_id, owner, on_lost)

    def session_ids(self, updated_after: float | None = None) -> list[str]:
        """Return the sessions with messages or a state, by name.

        Args:
            updated_after: return sessions with a state set after this time instead.
        """
        found = set(self.sessions.with_state(updated_after))
        if updated_after is None:
            found |= {
                entry.message.session_id
                for entry in self.storage.backlog
                if entry.message.session_id is not None
            }
        return sorted(found)

    def peek(
        self, from_number: int, count: int, session_id: str | None = None
    ) -> list[Delivery]:
        """Return messages from a sequence number on, without taking them."""
        waiting = (entry.delivery() for entry in self.storage.backlog)
        wanted = (
            delivery
            for delivery in chain(waiting, self.intake.scheduled())
            if delivery.sequence_number >= from_number
            if session_id is None or delivery.message.session_id == session_id
        )
        return nsmallest(count, wanted, key=lambda found: found.sequence_number)

    def counts(self) -> Counts:
        """Return how many messages there are, by state."""
        backlog = self.storage.backlog
        deferred = sum(entry.is_deferred for entry in backlog)
        return Counts(
            active=len(backlog) - deferred,
            locked=len(self._locks),
            deferred=deferred,
            scheduled=len(self.intake),
            dead=0 if self.dead_letters is None else self.dead_letters.counts().active,
        )

    def size_bytes(self) -> int:
        """Return the bytes of all content, dead letters included."""
        dead = 0 if self.dead_letters is None else self.dead_letters.size_bytes()
        return dead + self.storage.backlog.size_bytes + self.intake.size_bytes

    def _take(self, lock_token: UUID, changes: Changes) -> Entry:
        entry = self._locks.take(lock_token)
        self.storage.backlog.replace(entry, modify(entry.message, changes))
        return entry

    def _hand_out(self, entry: Entry, *, delete: bool) -> Delivery:
        if delete:
            self.storage.remove(entry)
            return entry.delivery()
        session_id = entry.message.session_id
        in_session = self.settings.requires_session and session_id is not None
        until = self._locks.lock(
            entry, self.sessions.until(session_id or "") if in_session else None
        )
        return entry.delivery(locked_until=until)

    def _return_session(self, session_id: str, failed: bool) -> None:  # noqa: FBT001  # the shape of Sessions' callback
        for entry in self._locks.take_session(session_id):
            self.storage.give_back(entry, failed=failed)
        self._wake()
