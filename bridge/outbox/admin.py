"""Lists, retries and discards deliveries, also while a forwarder runs.

A retry keeps the order: the dead letters of one EventId are sent oldest first. A dead
letter is not sent if a later step of its EventId was already delivered: it would be out
of date.
"""

import sqlite3
from collections.abc import Collection
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from bridge.events.build import rfc3339
from bridge.outbox.delivery import Delivery, select
from bridge.outbox.records import REPLIES, DeliveryState
from bridge.outbox.storage.database import Database
from bridge.outbox.tables import ages, deliveries
from bridge.outbox.tables.values import request_retry

_OF_ITEM = "d.item = ? ORDER BY d.sink"


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
    def condition(self) -> tuple[str, tuple[object, ...]]:
        """The SQL condition, made of constant text only, and its parameters."""
        # Replies are not events: without a sink's name they are left out.
        shown = "d.sink <> ?" if self.sink is None else "d.sink = ?"
        parts, values = [shown], list[object]([self.sink or REPLIES])
        for column, value in (
            ("d.id = ?", self.id),
            ("i.key = ?", self.event_id and self.event_id.upper()),
        ):
            if value is not None:
                parts.append(column)
                values.append(value)
        if self.states is not None:
            parts.append(f"d.state IN ({','.join('?' * len(self.states))})")
            values += self.states
        return " AND ".join(parts), tuple(values)


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


@dataclass(frozen=True, slots=True)
class Ledger:
    """The deliveries of a state file."""

    database: Database

    async def find(self, selection: Selection, limit: int = -1) -> list[Delivery]:
        """Return the selected deliveries, oldest first; -1 = all."""
        condition, values = selection.condition
        ordered = f"{condition} ORDER BY d.id LIMIT ?"
        return await self.database.read(
            lambda db: select(db, ordered, (*values, limit))
        )

    async def newest(
        self, selection: Selection, count: int, *, also: Collection[int] = ()
    ) -> list[Delivery]:
        """Return the newest selected deliveries, oldest first.

        Args:
            selection: selects deliveries.
            count: the most deliveries to return.
            also: ids of deliveries that count as selected, too.
        """
        condition, values = selection.condition
        named = ",".join(map(str, also))
        either = f"({condition}) OR d.id IN ({named}) ORDER BY d.id DESC LIMIT ?"
        found = await self.database.read(
            lambda db: select(db, either, (*values, count))
        )
        return found[::-1]

    async def published(
        self, *, after: int = 0, newest: int, event_id: str | None = None
    ) -> list[Observation]:
        """Return the events that were published after ``after``, oldest first.

        Args:
            after: the number of the last event that was returned before.
            newest: the most events to return; older ones are left out.
            event_id: only events of this EventId.
        """
        key = event_id and event_id.upper()
        query = """SELECT id, body FROM items WHERE kind = 'event' AND id > ?
            AND (? IS NULL OR key = ?) ORDER BY id DESC LIMIT ?"""

        def job(db: sqlite3.Connection) -> list[Observation]:
            found = db.execute(query, (after, key, key, newest)).fetchall()
            return [
                Observation(n, body, tuple(select(db, _OF_ITEM, (n,))))
                for n, body in reversed(found)
            ]

        return await self.database.read(job)

    async def event_ids(self, *, newest: int) -> list[str]:
        """Return the EventIds of published events, newest first."""
        query = """SELECT event_id, max(id) FROM items WHERE kind = 'event'
            AND event_id IS NOT NULL GROUP BY key ORDER BY 2 DESC LIMIT ?"""
        return await self.database.read(
            lambda db: [found for found, _ in db.execute(query, (newest,))]
        )

    async def observed(self, start: str) -> list[str]:
        """Return the EventIds of documents that begin with ``start``, sorted.

        An EventId that only an approval message contains may be wrong: it is left out.
        """
        query = """SELECT event_id, max(id) FROM items WHERE kind = 'event'
            AND type LIKE '%.scheduledevent.%' AND substr(key, 1, ?) = ?
            GROUP BY key ORDER BY key"""
        key = start.upper()
        return await self.database.read(
            lambda db: [found for found, _ in db.execute(query, (len(key), key))]
        )

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
            condition, values = selection.condition
            found = select(db, f"{condition} ORDER BY d.id", values)
            last = {} if force else _last_delivered(db, found)
            sent, late = list[Delivery](), list[Delivery]()
            for delivery in found:
                newest = last.get((delivery.sink, delivery.key), 0)
                (late if newest > delivery.id else sent).append(delivery)
            for delivery in sent:
                _revive(db, delivery, now)
            others = 0 if selection.id is not None else _make_due(db, waiting, now)
            request_retry(db, selection.sink)
            return sent, late, others

        return await self.database.run(job)

    async def discard(self, selection: Selection, *, now: float) -> list[Delivery]:
        """Discard selected deliveries; they can be listed until they are pruned."""

        def job(db: sqlite3.Connection) -> list[Delivery]:
            condition, values = selection.condition
            undelivered = f"{condition} AND d.state IN ('pending', 'dead')"
            found = select(db, f"{undelivered} ORDER BY d.id", values)
            for delivery in found:
                db.execute(
                    """UPDATE deliveries SET state = 'discarded', is_head = 0,
                       settled = ? WHERE id = ?""",
                    (now, delivery.id),
                )
                deliveries.renew_head(db, delivery.sink, delivery.key)
            return found

        return await self.database.run(job)


def _make_due(db: sqlite3.Connection, selection: Selection, now: float) -> int:
    """Make the selected later deliveries due now; return how many there were."""
    condition, values = selection.condition
    changed = db.execute(
        f"""UPDATE deliveries SET due = ? WHERE id IN (
            SELECT d.id FROM deliveries d JOIN items i ON i.id = d.item
            WHERE {condition} AND d.due > ?)""",  # noqa: S608 - our own conditions  # nosec B608
        (now, *values, now),
    )
    return changed.rowcount


def _last_delivered(
    db: sqlite3.Connection, found: list[Delivery]
) -> dict[tuple[str, str | None], int]:
    """Return the newest delivered id of each sink and key, with one query."""
    query = """SELECT sink, key, max(id) FROM deliveries NOT INDEXED
        WHERE id > ? AND state = 'delivered' AND key IS NOT NULL GROUP BY sink, key"""
    oldest = min((delivery.id for delivery in found), default=0)
    return {(sink, key): newest for sink, key, newest in db.execute(query, (oldest,))}


def _revive(db: sqlite3.Connection, delivery: Delivery, now: float) -> None:
    db.execute(
        """UPDATE deliveries SET state = 'pending', attempts = 0, due = ?,
           settled = NULL, is_head = (key IS NULL), born = ? WHERE id = ?""",
        (now, ages.load(db, delivery.sink), delivery.id),
    )
    deliveries.renew_head(db, delivery.sink, delivery.key)


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
