"""Store the messages of a queue; return, expire, forward and dead-letter them.

Pure. This module handles unlocked messages; queues.py handles receiving and settling.

Source: Azure Service Bus, overview of dead-letter queues (reasons, hop count),
        message expiration and message deferral.
"""

from collections.abc import Callable, Sequence
from heapq import nsmallest
from typing import Protocol

from msgspec.structs import replace

from bridge.simulator.servicebus.backlog import Backlog, Deadlines, Entry
from bridge.simulator.servicebus.message import DeadLetter, Message, Origin
from bridge.simulator.servicebus.settings import QueueSettings
from bridge.simulator.servicebus.values import Condition, RefusedError
from bridge.simulator.servicebus.wire import cap_time_to_live

# -- Record when an entity was used last, and whether receivers are attached. Pure -----


class Use:
    """The use of one entity.

    Args:
        clock: returns seconds since the epoch.

    Attributes:
        at: the time of the last use; at first, the time of creation.
        accessed_at: the time of the last use; None: it was never used.
        parent: the use of the topic, which the use of a subscription counts for; None:
            this is not a subscription.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._holders = 0
        self.at = clock()
        self.accessed_at: float | None = None
        self.parent: Use | None = None

    @property
    def is_held(self) -> bool:
        """Whether a receiver is attached."""
        return self._holders > 0

    def restart(self) -> None:
        """Begin to measure the idle time again; this is no use of the entity."""
        self.at = self._clock()
        if self.parent is not None:
            self.parent.restart()

    def touch(self) -> None:
        """Record a use of the entity."""
        self.at = self.accessed_at = self._clock()
        if self.parent is not None:
            self.parent.touch()

    def begin(self) -> None:
        """Record that a receiver is attached."""
        self._holders += 1
        self.accessed_at = self._clock()
        if self.parent is not None:
            self.parent.begin()

    def end(self) -> None:
        """Record that a receiver is detached; its use ends now."""
        self._holders -= 1
        self.at = self.accessed_at = self._clock()
        if self.parent is not None:
            self.parent.end()


# -- Store the messages of a queue; return, expire, forward and dead-letter them -------


_MAX_HOPS = 4
_MOST_DELETED = 4000


class Target(Protocol):
    """A queue or topic that messages can be sent or forwarded to."""

    @property
    def name(self) -> str:
        """The path of the entity."""

    @property
    def use(self) -> Use:
        """When the entity was used."""

    def check(self, messages: Sequence[Message]) -> None:
        """Check that messages of a sender would be accepted.

        Raises:
            RefusedError: they would not.
        """

    def send(self, messages: Sequence[Message]) -> tuple[int | None, ...]:
        """Accept messages from a sender: all or none."""

    def accept(self, message: Message, origin: Origin) -> None:
        """Accept a message from another entity."""

    def cancel_scheduled(self, numbers: Sequence[int]) -> None:
        """Drop scheduled messages."""


class Storage:
    """Stores the messages of one queue, locked or not.

    Args:
        settings: the behaviour of the queue.
        clock: returns seconds since the epoch.
        deadlines: plans the end of times to live.
        ready: called whenever one more message can be received.
        dead_letters: the dead-letter queue; None: this storage belongs to one itself.

    Attributes:
        forward_to: the entity that gets every message instead; set when all entities
            exist.
        backlog: the messages, including locked ones.
    """

    def __init__(
        self,
        settings: QueueSettings,
        *,
        clock: Callable[[], float],
        deadlines: Deadlines,
        ready: Callable[[], None],
        dead_letters: Target | None,
    ) -> None:
        self.forward_to: Target | None = None
        self.backlog = Backlog(by_session=settings.requires_session)
        self._settings = settings
        self._clock = clock
        self._deadlines = deadlines
        self._ready = ready
        self._dead_letters = dead_letters

    def change(self, settings: QueueSettings) -> None:
        """Use other settings from now on."""
        self._settings = settings

    def enqueue(self, message: Message, number: int, origin: Origin) -> None:
        """Store a message, or forward it."""
        entry = Entry(
            message=message,
            sequence_number=number,
            enqueued_sequence_number=origin.sequence_number or number,
            enqueued_at=self._clock(),
            dead_letter=origin.dead_letter,
            hops=origin.hops,
            delivery_count=origin.delivery_count,
        )
        if self.forward_to is not None and entry.hops < _MAX_HOPS:
            self._forward(entry, self.forward_to)
        elif self.forward_to is not None and self._dead_letters is not None:
            self._send_to_dead_letters(entry, "MaxTransferHopCountExceeded", None)
        elif self._settings.requires_session and message.session_id is None:
            self._send_to_dead_letters(entry, "Session ID is null", None)
        else:
            self._limit_time_to_live(entry)
            self.backlog.add(entry)
            self._ready()

    def give_back(self, entry: Entry, *, failed: bool) -> None:
        """Return an entry to its place after its lock has ended.

        It is dead-lettered if it has failed too often, and expires if its time is over.

        Args:
            entry: the entry, which is already unlocked.
            failed: whether this counts as a failed delivery.
        """
        # As in the cloud, deliveries of a dead letter are not counted.
        entry.delivery_count += failed and self._dead_letters is not None
        limit = self._settings.max_delivery_count
        if self._dead_letters is not None and entry.delivery_count >= limit:
            self.dead_letter(
                entry,
                "MaxDeliveryCountExceeded",
                f"Message could not be consumed after {limit} delivery attempts.",
            )
        elif not entry.is_deferred and self._is_expired(entry):
            self._expire(entry)
        elif not entry.is_deferred:
            self.backlog.make_ready(entry)
            self._ready()

    def find_deferred(self, number: int, session_id: str | None) -> Entry:
        """Return a deferred message that is not locked.

        Raises:
            RefusedError: no such message has this number, or it belongs to another
                session, is locked, or has expired.
        """
        entry = self.backlog.get(number)
        if entry is None or not self._is_takeable(entry, session_id):
            raise RefusedError(
                Condition.MESSAGE_NOT_FOUND, f"no deferred message {number}"
            )
        return entry

    def remove(self, entry: Entry) -> None:
        """Remove a message."""
        if entry.expiry is not None:
            entry.expiry.cancel()
        self.backlog.remove(entry)

    def delete_batch(
        self, count: int, before: float, session_id: str | None = None
    ) -> int:
        """Delete active, unlocked messages, the oldest first.

        Args:
            count: the maximum number; 1 to 4000.
            before: delete only messages that were enqueued before this time, in seconds
                since the epoch.
            session_id: delete only messages of this session; None: of all.

        Returns:
            How many were deleted.

        Raises:
            RefusedError: the count is not allowed.
        """
        if not 1 <= count <= _MOST_DELETED:
            raise RefusedError(
                Condition.ARGUMENT_ERROR,
                f"message-count is between 1 and {_MOST_DELETED}, not {count}",
            )
        found = [
            entry
            for entry in self.backlog
            if entry.is_free and entry.enqueued_at < before
            if session_id is None or entry.message.session_id == session_id
        ]
        oldest = nsmallest(count, found, key=lambda entry: entry.sequence_number)
        for entry in oldest:
            self.remove(entry)
        return len(oldest)

    def dead_letter(
        self, entry: Entry, reason: str | None, description: str | None
    ) -> None:
        """Move a message to the dead-letter queue."""
        self.remove(entry)
        self._send_to_dead_letters(entry, reason, description)

    def _forward(self, entry: Entry, target: Target) -> None:
        origin = Origin(
            sequence_number=entry.enqueued_sequence_number,
            dead_letter=_forwarded(entry.dead_letter),
            hops=entry.hops + 1,
        )
        target.use.touch()
        target.accept(entry.message, origin)

    def _limit_time_to_live(self, entry: Entry) -> None:
        """Cap the time to live, which its receiver sees, and plan its end."""
        # The documentation: "time-to-live isn't observed" in a dead-letter queue.
        if self._dead_letters is None:
            return
        default = self._settings.default_time_to_live
        entry.message = cap_time_to_live(entry.message, default)
        seconds = entry.message.time_to_live
        if seconds is None:
            return
        entry.expires_at = entry.enqueued_at + seconds
        entry.expiry = self._deadlines.add(
            entry.expires_at, lambda: self._expire_unless_taken(entry)
        )

    def _expire_unless_taken(self, entry: Entry) -> None:
        # A locked message expires when its lock ends. A deferred message expires when a
        # receiver requests it.
        if entry.lock_token is None and not entry.is_deferred:
            self._expire(entry)

    def _expire(self, entry: Entry) -> None:
        if self._settings.dead_letter_expired:
            self.dead_letter(
                entry,
                "TTLExpiredException",
                "The message expired and was dead lettered.",
            )
        else:
            self.remove(entry)

    def _is_expired(self, entry: Entry) -> bool:
        return entry.expires_at is not None and entry.expires_at <= self._clock()

    def _is_takeable(self, entry: Entry, session_id: str | None) -> bool:
        if not entry.is_deferred or entry.lock_token is not None:
            return False
        if self._settings.requires_session and entry.message.session_id != session_id:
            return False
        if self._is_expired(entry):
            self._expire(entry)
            return False
        return True

    def _send_to_dead_letters(
        self, entry: Entry, reason: str | None, description: str | None
    ) -> None:
        if self._dead_letters is None:
            return
        dead_letter = DeadLetter(
            source=self._settings.name, reason=reason, description=description
        )
        origin = Origin(
            sequence_number=entry.enqueued_sequence_number,
            dead_letter=dead_letter,
            hops=entry.hops,
            delivery_count=entry.delivery_count,
        )
        self._dead_letters.accept(entry.message, origin)


def _forwarded(dead_letter: DeadLetter | None) -> DeadLetter | None:
    return None if dead_letter is None else replace(dead_letter, is_forwarded=True)
