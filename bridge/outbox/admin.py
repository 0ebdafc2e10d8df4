"""Looking at deliveries and acting on them, also while a forwarder runs.

What is told again keeps its order: of the dead letters of one EventId the oldest goes
first, and one that a later step has overtaken is left out, since it would tell old
news after new.
"""

import sqlite3
from collections.abc import Collection
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Literal

from bridge.events.build import rfc3339
from bridge.outbox import deliveries as rows
from bridge.outbox.delivery import Delivery, select
from bridge.outbox.records import REPLIES
from bridge.outbox.statements import ask_to_retry
from bridge.outbox.storage.database import Database

_OF_ITEM = "d.item = ? ORDER BY d.sink"

State = Literal["pending", "dead", "delivered", "discarded", "skipped"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which deliveries are meant; None is no limit."""

    sink: str | None = None
    states: tuple[State, ...] | None = None
    event_id: str | None = None
    id: int | None = None

    @property
    def condition(self) -> tuple[str, tuple[object, ...]]:
        """SQL of ours, and the values for it."""
        # Replies are no events: they show only where they are asked for.
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
    """A CloudEvent that was told, and where it went.

    Attributes:
        number: grows with time.
        body: the CloudEvent, JSON.
    """

    number: int
    body: bytes
    deliveries: tuple[Delivery, ...]


@dataclass(frozen=True, slots=True)
class Ledger:
    """The deliveries of a state file."""

    database: Database

    async def find(self, selection: Selection, limit: int = -1) -> list[Delivery]:
        """Return the deliveries that are meant, oldest first."""
        condition, values = selection.condition
        ordered = f"{condition} ORDER BY d.id LIMIT ?"
        return await self.database.read(
            lambda db: select(db, ordered, (*values, limit))
        )

    async def newest(
        self, selection: Selection, count: int, *, also: Collection[int] = ()
    ) -> list[Delivery]:
        """Return the newest deliveries that are meant, and those named, oldest first.

        Args:
            selection: which are meant.
            count: so many at most.
            also: the ids of others.
        """
        condition, values = selection.condition
        named = ",".join(map(str, also))
        either = f"({condition}) OR d.id IN ({named}) ORDER BY d.id DESC LIMIT ?"
        found = await self.database.read(
            lambda db: select(db, either, (*values, count))
        )
        return found[::-1]

    async def told(
        self, *, after: int = 0, newest: int, event_id: str | None = None
    ) -> list[Observation]:
        """Return what was told since ``after``, oldest first.

        Args:
            after: number of the last one seen.
            newest: so many of the newest at most.
            event_id: only of this EventId.
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
        """Return the EventIds that were told of, newest first."""
        query = """SELECT event_id, max(id) FROM items WHERE kind = 'event'
            AND event_id IS NOT NULL GROUP BY key ORDER BY 2 DESC LIMIT ?"""
        return await self.database.read(
            lambda db: [found for found, _ in db.execute(query, (newest,))]
        )

    async def observed(self, start: str) -> list[str]:
        """Return the EventIds with this start that stood in a document, in order.

        Not those that only an approval named: they are whatever was sent.
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
        """Make deliveries due now, and let relays forget what keeps them waiting.

        What else waits for the same sink and EventId is tried at once too.

        Returns:
            Those that will be sent, those that a later step has overtaken, and how
            many others that waited are tried now.
        """
        waiting = replace(selection, states=("pending",))

        def job(
            db: sqlite3.Connection,
        ) -> tuple[list[Delivery], list[Delivery], int]:
            condition, values = selection.condition
            found = select(db, f"{condition} ORDER BY d.id", values)
            told = {} if force else _last_told(db, found)
            sent, late = list[Delivery](), list[Delivery]()
            for delivery in found:
                newest = told.get((delivery.sink, delivery.key), 0)
                (late if newest > delivery.id else sent).append(delivery)
            for delivery in sent:
                _revive(db, delivery, now)
            hastened = 0 if selection.id is not None else _hasten(db, waiting, now)
            ask_to_retry(db, selection.sink)
            return sent, late, hastened

        return await self.database.run(job)

    async def discard(self, selection: Selection, *, now: float) -> list[Delivery]:
        """Give up what is not delivered yet; it stays to be seen until pruned."""

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
                rows.behead(db, delivery.sink, delivery.key)
            return found

        return await self.database.run(job)


def _hasten(db: sqlite3.Connection, selection: Selection, now: float) -> int:
    """Make due now what is due later; return how many that are."""
    condition, values = selection.condition
    hastened = db.execute(
        f"""UPDATE deliveries SET due = ? WHERE id IN (
            SELECT d.id FROM deliveries d JOIN items i ON i.id = d.item
            WHERE {condition} AND d.due > ?)""",  # noqa: S608 - conditions of ours  # nosec B608
        (now, *values, now),
    )
    return hastened.rowcount


def _last_told(
    db: sqlite3.Connection, found: list[Delivery]
) -> dict[tuple[str, str | None], int]:
    """Return the last delivered one of each sink and key, in one pass."""
    query = """SELECT sink, key, max(id) FROM deliveries NOT INDEXED
        WHERE id > ? AND state = 'delivered' AND key IS NOT NULL GROUP BY sink, key"""
    oldest = min((delivery.id for delivery in found), default=0)
    return {(sink, key): newest for sink, key, newest in db.execute(query, (oldest,))}


def _revive(db: sqlite3.Connection, delivery: Delivery, now: float) -> None:
    db.execute(
        """UPDATE deliveries SET state = 'pending', attempts = 0, due = ?,
           settled = NULL, is_head = (key IS NULL), born = ? WHERE id = ?""",
        (now, rows.load_running(db, delivery.sink), delivery.id),
    )
    rows.behead(db, delivery.sink, delivery.key)


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
