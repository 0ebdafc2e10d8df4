"""The outbox: everything outward goes through it, and nothing is lost in it.

    pending ──delivered──▶ delivered        (pruned after state.retention)
       │ ▲ └──────dead───▶ dead ──retry──▶ pending
       └─┘ postpone          └──discard──▶ discarded

Invariant: a document's checkpoint, the events that tell its changes and one
delivery per event and sink that is told are committed in one transaction, before
the first attempt to deliver any of them. Rows are never merged by id.
"""

import asyncio
import json
import logging
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from bridge.errors import OutboxFullError, Reason
from bridge.events import Told
from bridge.outbox import rows, statements
from bridge.outbox.connection import Connection
from bridge.outbox.database import Database
from bridge.outbox.records import REPLIES, Checkpoint, Decision, Reply, Tally
from bridge.outbox.rows import Delivery
from bridge.routing import Router

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Outbox:
    """The state file in the house's terms. Times are seconds since the epoch.

    Attributes:
        lost: told the sink of each delivery for which there was no room anywhere.
    """

    database: Database
    router: Router
    lost: Callable[[str], None] = field(default=lambda _: None)
    _news: dict[str, asyncio.Event] = field(default_factory=dict)

    @classmethod
    @asynccontextmanager
    async def open(cls, path: Path, router: Router) -> AsyncIterator["Outbox"]:
        """Open the state file.

        Raises:
            OutboxError: it cannot be opened, read or written.
        """
        async with Database.open(path) as database:
            yield cls(database, router)

    def news(self, sink: str) -> asyncio.Event:
        """Return the event that is set whenever there may be work for ``sink``."""
        return self._news.setdefault(sink, asyncio.Event())

    def wake_all(self) -> None:
        """Tell every relay to look again: another process has changed something."""
        for event in self._news.values():
            event.set()

    # -- what was observed ---------------------------------------------------

    async def load(self, name: str) -> bytes | None:
        """Return what ``commit`` or ``save`` kept under ``name``."""
        return await self.database.read(lambda db: statements.load(db, name))

    async def save(self, values: Mapping[str, bytes]) -> None:
        """Keep values under their names: such as are renewed now and then."""
        await self.database.run(lambda db: statements.save(db, values), is_kept=False)

    async def told(self, causes: Sequence[str]) -> dict[str, int]:
        """Return how often each cause was told, those never told left out."""

        def job(db: sqlite3.Connection) -> dict[str, int]:
            query = """SELECT cause, times FROM told
                WHERE cause IN (SELECT value FROM json_each(?))"""
            return dict(db.execute(query, (json.dumps(list(causes)),)))

        return await self.database.read(job)

    async def was_seen(self, key: str) -> bool:
        """Whether an EventId stood in a document within the retention."""

        def job(db: sqlite3.Connection) -> bool:
            query = "SELECT 1 FROM sightings WHERE key = ?"
            return db.execute(query, (key,)).fetchone() is not None

        return await self.database.read(job)

    async def commit(
        self,
        events: Sequence[Told],
        *,
        now: float,
        checkpoint: Checkpoint | None = None,
        decisions: Sequence[Decision] = (),
        reply: Reply | None = None,
    ) -> None:
        """Keep everything that one look at the world has brought, or nothing of it.

        Where there is no room for an event, neither on disk nor in memory, what was
        decided is kept all the same; but no checkpoint without its events.

        Args:
            events: what is told of it.
            now: seconds since the epoch.
            checkpoint: what is known from now on.
            decisions: what was decided on approvals.
            reply: what is answered to their sender.

        Raises:
            OutboxFullError: there is no room, and the next look tells it again.
        """

        def job(db: Connection) -> set[str]:
            if checkpoint is not None:
                statements.keep(db, checkpoint, now)
            for decision in decisions:
                statements.decide(db, decision, now)
            sinks = set[str]()
            for told in events:
                try:
                    sinks.update(statements.append(db, self.router, told, now))
                except OutboxFullError as error:
                    if checkpoint is not None:
                        raise
                    self._tell_of_loss(told, error)
            if reply is not None:
                statements.append_reply(db, reply, now)
                sinks.add(REPLIES)
            return sinks

        for sink in await self.database.run(job):
            self.news(sink).set()

    def _tell_of_loss(self, told: Told, error: OutboxFullError) -> None:
        sinks = self.router.sinks(told.subject, frozenset())
        log.error(
            "event dropped",
            extra={
                "type": told.event.type,
                "eventId": told.key,
                "fault": str(error),
            },
        )
        for sink in sinks:
            self.lost(sink)

    # -- deliveries ----------------------------------------------------------

    async def due(
        self, sink: str, *, now: float, limit: int, but: Iterable[int] = ()
    ) -> tuple[list[Delivery], float | None]:
        """Return what is due for a sink now, and when the next after that will be.

        Args:
            sink: whose.
            now: seconds since the epoch.
            limit: so many at most.
            but: ids of those that are left out.
        """
        left_out = tuple(but)
        return await self.database.read(
            lambda db: (
                rows.due(db, sink, now, limit, left_out),
                rows.next_due(db, sink, now),
            )
        )

    async def delivered(self, *deliveries: Delivery, now: float) -> bool:
        """Note that the other side has taken them: deliveries of one sink.

        Returns:
            Whether any is followed by another of its key, which may go now.
        """
        return await self.database.run(lambda db: rows.delivered(db, deliveries, now))

    async def bury(
        self, delivery: Delivery, *, now: float, error: str, reason: Reason
    ) -> None:
        """Make it a dead letter: kept, told of, out of the order."""
        await self.database.run(
            lambda db: rows.settle(
                db, delivery, "dead", now=now, error=(error, reason.value)
            )
        )

    async def postpone(
        self, delivery: Delivery, *, due: float, error: str, reason: Reason
    ) -> None:
        """Try again at ``due``."""

        def job(db: sqlite3.Connection) -> None:
            db.execute(
                """UPDATE deliveries SET due = ?, attempts = attempts + 1,
                   last_error = ?, reason = ? WHERE id = ? AND state = 'pending'""",
                (due, error, reason.value, delivery.id),
            )

        await self.database.run(job, is_kept=False)

    async def hasten(self, sink: str, *, beyond: float, now: float) -> None:
        """Make due now what is due later than ``beyond``."""

        def job(db: sqlite3.Connection) -> None:
            db.execute(
                """UPDATE deliveries SET due = ?
                   WHERE sink = ? AND state = 'pending' AND due > ?""",
                (now, sink, beyond),
            )

        await self.database.run(job, is_kept=False)

    async def bring_forward(self, sink: str, seconds: float) -> None:
        """Make everything due so much earlier: the clock was set back."""

        def job(db: sqlite3.Connection) -> None:
            db.execute(
                """UPDATE deliveries SET due = due - ?
                   WHERE sink = ? AND state = 'pending'""",
                (seconds, sink),
            )

        await self.database.run(job, is_kept=False)

    async def find(self, sink: str, cloud_event_id: str) -> list[Delivery]:
        """Return the pending deliveries of one CloudEvent to one sink."""
        condition = """i.cloud_event_id = ? AND d.sink = ? AND d.state = 'pending'
            AND d.id > (SELECT max(id) - 1000 FROM deliveries)"""
        return await self.database.read(
            lambda db: rows.select(db, condition, (cloud_event_id, sink))
        )

    async def retries(self) -> dict[str | None, int]:
        """Return how often a person asked to try a sink, or all (None), at once."""

        def job(db: sqlite3.Connection) -> dict[str | None, int]:
            query = "SELECT key, value FROM meta WHERE key GLOB ?"
            found = db.execute(query, (f"{statements.RETRY}*",))
            return {k.removeprefix(statements.RETRY) or None: int(v) for k, v in found}

        return await self.database.read(job)

    async def tallies(self) -> dict[str, Tally]:
        """Return how each sink stands that ever had a delivery."""
        return await self.database.read(statements.tallies)

    # -- approvals -----------------------------------------------------------

    async def intend(self, decision: Decision, *, now: float) -> None:
        """Keep an intent, or that a POST for it is begun."""
        await self.database.run(lambda db: statements.decide(db, decision, now))

    async def decisions(self, message: str) -> dict[str, Decision]:
        """Return what is kept of a message, by key of the EventId."""

        def job(db: sqlite3.Connection) -> dict[str, Decision]:
            found = statements.decisions(db, "message = ?", (message,))
            return {decision.key: decision for decision in found}

        return await self.database.read(job)

    async def open_initiatives(self) -> list[Decision]:
        """Return the intents of rules of which it is not known what became."""
        condition = "state = 'intent' AND rule IS NOT NULL"
        return await self.database.read(lambda db: statements.decisions(db, condition))

    async def forget(self, message: str, key: str) -> None:
        """Drop an intent that came to nothing here: the message is abandoned."""

        def job(db: sqlite3.Connection) -> None:
            db.execute(
                "DELETE FROM approvals WHERE message = ? AND key = ?", (message, key)
            )

        await self.database.run(job)

    async def posted(self) -> frozenset[str]:
        """Return the keys of events that a POST was begun for within retention."""

        def job(db: sqlite3.Connection) -> frozenset[str]:
            query = "SELECT DISTINCT key FROM approvals WHERE posted"
            return frozenset(key for (key,) in db.execute(query))

        return await self.database.read(job)

    async def recent_outcomes(self, limit: int) -> list[bytes]:
        """Return the data of the last outcomes, newest first."""

        def job(db: sqlite3.Connection) -> list[bytes]:
            query = """SELECT data FROM approvals WHERE data IS NOT NULL
                ORDER BY at DESC LIMIT ?"""
            return [data for (data,) in db.execute(query, (limit,))]

        return await self.database.read(job)

    # -- upkeep --------------------------------------------------------------

    async def prune(
        self, *, before: float, now: float, alive: frozenset[str], limit: int = 500
    ) -> int:
        """Drop what was settled before ``before``.

        Args:
            before: seconds since the epoch.
            now: seconds since the epoch.
            alive: keys of events still in the document: their memory is kept,
                however long they are announced ahead.
            limit: so many items at most, so that nobody waits long.

        Returns:
            How many items went.
        """

        def job(db: sqlite3.Connection) -> int:
            statements.refresh(db, alive, now)
            return statements.prune(db, before, limit)

        return await self.database.run(job, is_kept=False)

    async def shrink(self, *, most: int, limit: int = 500) -> tuple[int, int]:
        """Drop the oldest of what is delivered while the file is too large.

        What is not delivered is never dropped.

        Args:
            most: bytes.
            limit: so many items at most, so that nobody waits long.

        Returns:
            How many items went, and how many bytes are too many now.
        """

        def job(db: sqlite3.Connection) -> tuple[int, int]:
            too_many = statements.size(db) - most
            gone = statements.drop_oldest(db, limit) if too_many > 0 else 0
            return gone, max(statements.size(db) - most, 0)

        return await self.database.run(job, is_kept=False)
