"""Lists, retries and discards deliveries, also while a forwarder runs.

A retry keeps the order: the dead letters of one EventId are sent oldest first. A dead
letter is not sent if a later step of its EventId was already delivered: it would be out
of date.
"""

import sqlite3
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from bridge.events.build import rfc3339
from bridge.outbox import ledger
from bridge.outbox.records import Delivery, DeliveryState
from bridge.outbox.storage.database import Database
from bridge.outbox.storage.meta import request_retry


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Selects deliveries; None = any.

    Attributes:
        sink: only deliveries to this sink; None = to all sinks, without replies.
        states: only deliveries in one of these states.
        event_id: only deliveries of this EventId.
        id: only the delivery with this id.
    """

    sink: str | None = None
    states: tuple[DeliveryState, ...] | None = None
    event_id: str | None = None
    id: int | None = None

    @property
    def condition(self) -> ledger.Condition:
        """The SQL condition, made of constant text only, and its parameters."""
        return ledger.condition(
            sink=self.sink,
            states=self.states,
            event_id=self.event_id,
            number=self.id,
        )


@dataclass(frozen=True, slots=True)
class Observation:
    """A CloudEvent that was published, and its deliveries.

    Attributes:
        number: the id of its item, which grows with time.
        body: the CloudEvent as JSON.
        deliveries: one for each sink, in order of the sinks' names.
    """

    number: int
    body: bytes
    deliveries: tuple[Delivery, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Selects published events.

    Attributes:
        event_id: only events of this EventId; None = of any.
        since: seconds since the epoch; only events stored then or later.
        state: only events with a delivery in this state; None = any.
        fits: whether an event with this body is wanted.
    """

    event_id: str | None = None
    since: float = 0
    state: DeliveryState | None = None
    fits: Callable[[bytes], bool] = lambda _: True

    @property
    def condition(self) -> ledger.Condition:
        """The SQL condition, made of constant text only, and its parameters."""
        return ledger.event_condition(
            event_id=self.event_id, since=self.since, state=self.state
        )


@dataclass(frozen=True, slots=True)
class Ledger:
    """The deliveries of a state file."""

    database: Database

    async def find(self, selection: Selection, limit: int = -1) -> list[Delivery]:
        """Return the selected deliveries, oldest first; -1 = all."""
        chosen = selection.condition
        return await self.database.read(lambda db: ledger.find(db, chosen, limit))

    async def newest(
        self, selection: Selection, count: int, *, also: Collection[int] = ()
    ) -> list[Delivery]:
        """Return the newest selected deliveries, oldest first.

        Args:
            selection: selects deliveries.
            count: the most deliveries to return.
            also: ids of deliveries that count as selected, too.
        """
        chosen = selection.condition
        return await self.database.read(
            lambda db: ledger.newest(db, chosen, count, also)
        )

    async def published(
        self, *, after: int = 0, newest: int, wanted: Wanted | None = None
    ) -> list[Observation]:
        """Return the events that were published after ``after``, oldest first.

        Args:
            after: the number of the last event that was returned before.
            newest: the most events to return; older ones are left out.
            wanted: selects events; None = all.
        """
        asked = wanted or Wanted()

        def job(db: sqlite3.Connection) -> list[Observation]:
            found = ledger.published(
                db, asked.condition, after=after, newest=newest, fits=asked.fits
            )
            return [Observation(n, body, ledger.of_item(db, n)) for n, body in found]

        return await self.database.read(job)

    async def event_ids(self, *, newest: int) -> list[str]:
        """Return the EventIds of published events, newest first."""
        return await self.database.read(lambda db: ledger.event_ids(db, newest))

    async def observed(self, start: str) -> list[str]:
        """Return the EventIds of documents that begin with ``start``, sorted.

        An EventId that only an approval message contains may be wrong: it is left out.
        """
        return await self.database.read(lambda db: ledger.observed(db, start))

    async def retry(
        self, selection: Selection, *, now: float, force: bool
    ) -> tuple[list[Delivery], list[Delivery], int]:
        """Make the selected deliveries pending and due now, and wake the relays.

        If the selection has no ``id``, the pending deliveries of the same sink and
        EventId become due now, too.

        Args:
            selection: selects deliveries.
            now: seconds since the epoch.
            force: whether to send deliveries whose later step was already delivered.

        Returns:
            The deliveries that will be sent, the deliveries that are out of date, and
            how many pending deliveries became due now.
        """
        waiting = replace(selection, states=("pending",))

        def job(
            db: sqlite3.Connection,
        ) -> tuple[list[Delivery], list[Delivery], int]:
            found = ledger.find(db, selection.condition)
            last = {} if force else ledger.last_delivered(db, found)
            sent, late = list[Delivery](), list[Delivery]()
            for delivery in found:
                newest = last.get((delivery.sink, delivery.key), 0)
                (late if newest > delivery.id else sent).append(delivery)
            ledger.revive(db, sent, now)
            is_one = selection.id is not None
            others = 0 if is_one else ledger.make_due(db, waiting.condition, now)
            request_retry(db, selection.sink)
            return sent, late, others

        return await self.database.run(job)

    async def discard(self, selection: Selection, *, now: float) -> list[Delivery]:
        """Discard selected deliveries; they can be listed until they are pruned."""
        chosen = selection.condition
        return await self.database.run(lambda db: ledger.discard(db, chosen, now))


def as_json(delivery: Delivery) -> dict[str, object]:
    """Return a delivery as ``sebridge outbox list --json`` shows it."""
    is_pending = delivery.state == "pending"
    due = datetime.fromtimestamp(delivery.due, UTC)
    return {
        "id": delivery.id,
        "sink": delivery.sink,
        "state": delivery.state,
        "eventId": delivery.event_id,
        "cloudEventId": delivery.cloud_event_id,
        "type": delivery.type,
        "attempts": delivery.attempts,
        "nextAttempt": rfc3339(due) if is_pending else None,
        "lastError": delivery.last_error,
    }
