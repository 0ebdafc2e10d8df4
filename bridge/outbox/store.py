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
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from bridge.events.build import OutgoingEvent
from bridge.events.routing import Router
from bridge.foundation.errors import OutboxFullError, Reason
from bridge.outbox import clock_jumps, losses, statements, successes
from bridge.outbox import decisions as approvals
from bridge.outbox import deliveries as rows
from bridge.outbox.delivery import Delivery, select_checked
from bridge.outbox.records import (
    REPLIES,
    Checkpoint,
    CommandStanding,
    Decision,
    Reply,
    Success,
    Tally,
    json_of,
)
from bridge.outbox.storage.connection import Connection
from bridge.outbox.storage.database import Database


@dataclass(slots=True)
class Outbox:
    """The state file in the other packages' terms. Times are seconds since the epoch.

    It has one method for each thing that is asked of the file or kept in it, in four
    groups: observations, deliveries, approvals, housekeeping. Each is one transaction.

    Attributes:
        lost: told the sink of each delivery that is given up here: there was no room
            for it anywhere, or its row was damaged on the disk.
        again: keys of the events that are to be told again from the document, since
            what was told of them was damaged before it was delivered.
        ageing: by how much the deliveries of a sink have grown older, by its name.
    """

    database: Database
    router: Router
    lost: Callable[[str], None] = field(default=lambda _: None)
    again: frozenset[str] = frozenset()
    ageing: dict[str, Callable[[], float]] = field(default_factory=dict)
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
        """Return what ``commit`` or ``save`` kept under ``name``: b"" if damaged."""
        return await self.database.read(lambda db: statements.load(db, name))

    async def save(self, values: Mapping[str, bytes]) -> None:
        """Keep values under their names: such as are renewed now and then."""
        await self.database.run(lambda db: statements.save(db, values), is_kept=False)

    async def told(self, causes: Sequence[str]) -> dict[str, int]:
        """Return how often each cause was told, those never told left out."""

        def job(db: sqlite3.Connection) -> dict[str, int]:
            query = """SELECT cause, max(times, 1) FROM told
                WHERE cause IN (SELECT value FROM json_each(?))"""
            return dict(db.execute(query, (json.dumps(list(causes)),)))

        return await self.database.read(job)

    async def was_seen(self, key: str) -> bool:
        """Whether an EventId stood in a document within the retention."""

        def job(db: sqlite3.Connection) -> bool:
            query = "SELECT 1 FROM sightings WHERE key = ?"
            return db.execute(query, (key,)).fetchone() is not None

        return await self.database.read(job)

    async def commit(  # noqa: PLR0913 - all that one commit may hold
        self,
        events: Sequence[OutgoingEvent],
        *,
        now: float,
        checkpoint: Checkpoint | None = None,
        decisions: Sequence[Decision] = (),
        reply: Reply | None = None,
        values: Mapping[str, bytes] | None = None,
        settle: Callable[[Connection], None] | None = None,
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
            values: what is kept under names, see ``load``.
            settle: settles what it is told of.

        Raises:
            OutboxFullError: there is no room, and the next look tells it again.
        """
        dropped = set[int]()  # in memory; so they are dropped on the disk later, too
        running = {sink: seconds() for sink, seconds in self.ageing.items()}

        def job(db: Connection) -> set[str]:
            if settle is not None:
                settle(db)
            if checkpoint is not None:
                statements.keep(db, checkpoint, now)
            statements.save(db, values or {})
            for decision in decisions:
                approvals.keep(db, decision, now)
            is_whole = checkpoint is not None

            def append(told: OutgoingEvent) -> tuple[str, ...]:
                return statements.append(db, self.router, told, now, running)

            sinks = self._append_all(append, events, dropped, is_whole=is_whole)
            if reply is not None:
                statements.append_reply(db, reply, now, running)
                sinks.add(REPLIES)
            return sinks

        sinks = await self.database.run(job)
        if checkpoint is not None:
            self.again -= checkpoint.again
        for sink in sinks:
            self.news(sink).set()

    def _append_all(
        self,
        append: Callable[[OutgoingEvent], tuple[str, ...]],
        events: Sequence[OutgoingEvent],
        dropped: set[int],
        *,
        is_whole: bool,
    ) -> set[str]:
        """Append events; return the sinks that are told.

        Args:
            append: appends one; returns the sinks that are told.
            events: what is told.
            dropped: places of events for which there was no room; added to.
            is_whole: whether all of them are appended, or none.

        Raises:
            OutboxFullError: there is no room, and ``is_whole``.
        """
        sinks = set[str]()
        for place, told in enumerate(events):
            if place in dropped:
                continue
            try:
                sinks.update(append(told))
            except OutboxFullError as error:
                if is_whole:
                    raise
                dropped.add(place)
                self._tell_of_loss(told, error)
        return sinks

    def _tell_of_loss(self, told: OutgoingEvent, error: OutboxFullError) -> None:
        losses.tell_of_drop(told, error)
        for sink in self.router.sinks(told.subject, frozenset()):
            self.lost(sink)

    async def remember_again(self) -> None:
        """Take up from an earlier life which events are to be told again."""
        self.again |= await self.database.read(statements.asked_again)

    # -- deliveries ----------------------------------------------------------

    async def due(
        self, sink: str, *, now: float, limit: int, but: Iterable[int] = ()
    ) -> tuple[list[Delivery], float | None]:
        """Return what is due for a sink now, and when the next after that will be.

        What is damaged on the disk is given up here: it must not be sent.

        Args:
            sink: whose.
            now: seconds since the epoch.
            limit: so many at most.
            but: ids of those that are left out.
        """
        left_out = tuple(but)
        found, next_due = await self.database.read(
            lambda db: (
                rows.due(db, sink, now, limit, left_out),
                rows.next_due(db, sink, now),
            )
        )
        damaged = [delivery for delivery in found if delivery.damage is not None]
        if not damaged:
            return found, next_due
        for delivery in damaged:
            await self.give_up(delivery, now)
        left_out += tuple(delivery.id for delivery in damaged)
        return await self.due(sink, now=now, limit=limit, but=left_out)

    async def give_up(self, delivery: Delivery, now: float) -> None:
        """Make a dead letter of what is damaged, and have its event told again."""
        key = await self.database.run(lambda db: losses.dead_letter(db, delivery, now))
        if key is not None:
            self.again |= {key}
        self.lost(delivery.sink)
        losses.tell_of_damage(delivery)

    async def delivered(self, *deliveries: Delivery, now: float) -> bool:
        """Note that the other side has taken them: deliveries of one sink.

        Returns:
            Whether any is followed by another of its key, which may go now.
        """
        return await self.database.run(lambda db: rows.delivered(db, deliveries, now))

    async def dead_letter(
        self, delivery: Delivery, *, now: float, error: str, reason: Reason
    ) -> None:
        """Make it a dead letter: kept, told of, out of the order."""
        await self.database.run(
            lambda db: rows.settle(
                db, delivery, "dead", now=now, error=(error, reason.value)
            )
        )

    async def postpone(  # noqa: PLR0913 - one per column
        self,
        delivery: Delivery,
        *,
        due: float,
        error: str,
        reason: Reason,
        waits_for_sink: bool = False,
        running: float | None = None,
    ) -> None:
        """Try again at ``due``.

        Args:
            delivery: what failed.
            due: seconds since the epoch.
            error: what it failed with.
            reason: the same as a label.
            waits_for_sink: whether ``release`` makes it due sooner.
            running: by how much the deliveries of the sink have grown older; None:
                what is kept of that stays.
        """

        def job(db: sqlite3.Connection) -> None:
            rows.postpone(
                db,
                delivery,
                due=due,
                error=(error, reason.value),
                waits_for_sink=waits_for_sink,
                running=running,
            )

        await self.database.run(job, is_kept=False)

    async def release(self, sink: str, *, now: float, limit: int) -> int:
        """Make due now what failed for the sink's sake.

        Args:
            sink: whose.
            now: seconds since the epoch.
            limit: so many at most, so that nobody waits long.

        Returns:
            How many were made due.
        """
        return await self.database.run(
            lambda db: rows.release(db, sink, now, limit), is_kept=False
        )

    async def waiting_for(
        self, sink: str, *, now: float, limit: int, but: Iterable[int] = ()
    ) -> list[Delivery]:
        """Return what is not due but would be if the sink were back; see ``due``."""
        left_out = tuple(but)
        return await self.database.read(
            lambda db: rows.waiting_for(db, sink, now, limit, left_out)
        )

    async def running(self, sink: str) -> float:
        """Return by how much the deliveries of a sink had grown older when kept."""
        return await self.database.read(lambda db: rows.load_running(db, sink))

    async def keep_running(self, sink: str, seconds: float) -> None:
        """Keep by how much the deliveries of a sink have grown older."""
        await self.database.run(
            lambda db: rows.save_running(db, sink, seconds), is_kept=False
        )

    async def hasten(self, sink: str, *, beyond: float, now: float) -> None:
        """Make due now what is due later than ``beyond``."""

        def job(db: sqlite3.Connection) -> None:
            db.execute(
                """UPDATE deliveries SET due = ?
                   WHERE sink = ? AND state = 'pending' AND due > ?""",
                (now, sink, beyond),
            )

        await self.database.run(job)  # also on the disk, if it cannot be written now

    async def bring_forward(self, sink: str, seconds: float) -> None:
        """Make everything due so much earlier: the clock was set back."""

        def job(db: sqlite3.Connection) -> None:
            db.execute(
                """UPDATE deliveries SET due = due - ?
                   WHERE sink = ? AND state = 'pending'""",
                (seconds, sink),
            )

        await self.database.run(job)  # also on the disk, if it cannot be written now

    async def find(
        self, sink: str, cloud_event_id: str, *, since: float = 0.0
    ) -> list[Delivery]:
        """Return the pending deliveries of one CloudEvent to one sink.

        Args:
            sink: whose.
            cloud_event_id: of the event.
            since: when it was committed at the earliest, in seconds since the epoch;
                what is older is not looked through.
        """
        condition = """d.sink = ? AND d.state = 'pending' AND d.item IN (
            SELECT id FROM items INDEXED BY items_created
            WHERE created >= ? AND cloud_event_id = ?)"""
        values = (sink, since, cloud_event_id)
        found = await self.database.read(
            lambda db: select_checked(db, condition, values)
        )
        return [delivery for delivery in found if delivery.damage is None]

    async def retries(self) -> dict[str | None, int]:
        """Return how often a person asked to try a sink, or all (None), at once."""

        def job(db: sqlite3.Connection) -> dict[str | None, int]:
            query = "SELECT key, value FROM meta WHERE key GLOB ?"
            found = db.execute(query, (f"{statements.RETRY}*",))
            return {
                name.removeprefix(statements.RETRY) or None: count
                for name, count in found
                if isinstance(count, int)
            }

        return await self.database.read(job)

    async def tallies(self) -> dict[str, Tally]:
        """Return how each sink stands that ever had a delivery."""

        def job(db: sqlite3.Connection) -> dict[str, Tally]:
            jumps = clock_jumps.noted(db)
            return {
                sink: _aged(tally, jumps)
                for sink, tally in statements.tallies(db).items()
            }

        return await self.database.read(job)

    async def command_successes(self, key: str) -> list[Success]:
        """Return the successes of commands for an EventId that still count."""
        return await self.database.read(lambda db: successes.of_event(db, key))

    async def command_standings(
        self, key: str, sinks: Sequence[str]
    ) -> dict[str, CommandStanding]:
        """Return how far each of these commands has come for an EventId, by sink."""
        return await self.database.read(lambda db: successes.standings(db, key, sinks))

    # -- approvals -----------------------------------------------------------

    async def intend(self, decision: Decision, *, now: float) -> None:
        """Keep an intent, or that a POST for it is begun."""
        await self.database.run(lambda db: approvals.keep(db, decision, now))

    async def decisions(
        self, message: str, sequence: int | None = None
    ) -> dict[str, Decision]:
        """Return what is kept of a message, by key of the EventId.

        Args:
            message: what it is known by, as are others of the same content.
            sequence: its own number: what was decided of it goes before all else.
        """
        return await self.database.read(
            lambda db: approvals.of_message(db, message, sequence)
        )

    async def open_initiatives(self) -> list[Decision]:
        """Return the intents of rules of which it is not known what became."""
        condition = "state = 'intent' AND rule IS NOT NULL"
        return await self.database.read(lambda db: approvals.select(db, condition))

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
            last = "data IS NOT NULL ORDER BY at DESC LIMIT ?"
            found = (one.data or b"" for one in approvals.select(db, last, (limit,)))
            return [data for data in found if json_of(data) is not None]

        return await self.database.read(job)

    # -- housekeeping --------------------------------------------------------------

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
            statements.recall_from_future(db, now)
            statements.refresh(db, alive, now)
            clock_jumps.forget(db, before, now)
            written = clock_jumps.written_before(clock_jumps.noted(db), before)
            return statements.prune(db, written, limit)

        return await self.database.run(job, is_kept=False)

    async def follow_clock(self, *, by: float, now: float) -> None:
        """Keep everything as old as it was before the wall clock was set.

        Args:
            by: seconds that it was set forward; less than 0 = back.
            now: seconds since the epoch, by the clock as it is now.
        """
        await self.database.run(lambda db: clock_jumps.note(db, by, now))

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


def _aged(tally: Tally, jumps: clock_jumps.Jumps) -> Tally:
    """Return how a sink stands, by the clock as it is set now."""
    if tally.oldest is None:
        return tally
    return replace(tally, oldest=clock_jumps.as_set_now(jumps, tally.oldest))
