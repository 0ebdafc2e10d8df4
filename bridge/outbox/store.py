"""The outbox: every event is stored here before it is sent, so a crash loses none.

Invariant: one transaction commits a checkpoint, the events that report its changes and
one delivery for each event and sink, before the first attempt to deliver any of them.
Rows are never merged by id.
"""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar

from msgspec import Struct, field

from bridge.events.build import OutgoingEvent
from bridge.events.routing import Router
from bridge.foundation.clock import Bell
from bridge.foundation.errors import OutboxError, OutboxFullError
from bridge.outbox.deliveries import Deliveries, Observations
from bridge.outbox.facts import Facts, Routed, keys_of
from bridge.outbox.other_processes import OtherProcesses
from bridge.outbox.records import (
    REPLIES,
    Checkpoint,
    CommandStanding,
    Decision,
    Reply,
    Success,
)
from bridge.outbox.storage.connection import Connection
from bridge.outbox.storage.database import Database
from bridge.outbox.tables import (
    clock_jumps,
    decisions,
    deliveries,
    losses,
    observations,
    pruning,
    successes,
)
from bridge.outbox.tables import decisions as decided
from bridge.outbox.tables import events as items
from bridge.outbox.tables.deliveries import RunningTimes
from bridge.outbox.tables.pruning import Pruned

T = TypeVar("T")


def _ignore(_: str) -> None:
    """Do nothing about a lost delivery."""


class Outbox:
    """The state file as other packages use it: one attribute for each topic.

    ``sign`` signs each event when it is written; None = events are not signed.

    Times are seconds since the epoch. Each method is one transaction and raises
    OutboxError if the file cannot be read or written.

    Args:
        database: the open file.
        router: chooses the sinks of an event. It may be replaced: each commit uses the
            router of the moment at which it was called.
        lost: called with the sink of each delivery that is given up here, because
            there was no room for it or its row was damaged.
    """

    def __init__(
        self,
        database: Database,
        router: Router,
        lost: Callable[[str], None] = _ignore,
    ) -> None:
        self.database = database
        self.router = router
        self.observations = Observations(database)
        self.deliveries = Deliveries(database, self.observations, lost)
        self.ages = Ages(database)
        self.approvals = Approvals(database)
        self.commands = Commands(database)
        self.facts = Facts(database)
        self.pruning = Pruning(database, self.facts)
        self.other_processes = OtherProcesses(database)
        self.wakeups = Wakeups()
        self.sign: items.Sign | None = None

    @classmethod
    @asynccontextmanager
    async def open(cls, path: Path, router: Router) -> AsyncIterator["Outbox"]:
        """Open the state file.

        Raises:
            OutboxError: it cannot be opened, read or written.
        """
        async with Database.open(path) as database:
            outbox = cls(database, router)
            await outbox.facts.load()
            yield outbox

    async def commit(  # noqa: PLR0913 - all parts of one commit
        self,
        events: Sequence[OutgoingEvent],
        *,
        now: float,
        checkpoint: Checkpoint | None = None,
        decisions: Sequence[Decision] = (),
        reply: Reply | None = None,
        named: Mapping[str, bytes] | None = None,
        settle: Callable[[Connection], None] | None = None,
    ) -> None:
        """Write all arguments in one transaction: all of them or none.

        If neither disk nor memory has room for an event, a commit with a checkpoint
        fails: the next look at the document reports the same changes again. A commit
        without a checkpoint drops the event and writes the rest, because decisions
        must not be lost.

        Args:
            events: the events to publish.
            now: seconds since the epoch.
            checkpoint: what is known of the document from now on.
            decisions: decisions on approvals.
            reply: the reply to the sender of an approval.
            named: values by their names, see ``Observations.load``.
            settle: settles deliveries in the same transaction.

        Raises:
            OutboxFullError: there is no room for an event of a checkpoint.
        """
        running, router = self.ages.now(), self.router
        dropped = set[int]()  # events dropped in memory are dropped on the disk, too

        def begin() -> tuple[list[Routed], asyncio.Future[None]]:
            routed = self.facts.route(events, router)

            def job(db: Connection) -> None:
                times = RunningTimes(db, running)
                if settle is not None:
                    settle(db)
                if checkpoint is not None:
                    observations.save_checkpoint(db, checkpoint, now)
                observations.save(db, named or {})
                for decision in decisions:
                    decided.save(db, decision, now)
                append = partial(items.append, db, now, times, self.sign)
                self._append_all(append, routed, dropped, may_drop=checkpoint is None)
                if reply is not None:
                    items.append_reply(db, reply, now, times)

            return routed, self.database.submit(job)

        if self.facts.know(events):
            routed, written = begin()
        else:
            self.facts.asking += 1
            routed, written = await asyncio.shield(self._ask(events, begin))
        await self._written(written, routed, dropped)
        if checkpoint is not None:
            self.observations.note(checkpoint)
        if reply is not None:
            self.wakeups.of(REPLIES).set()

    async def _ask(self, events: Sequence[OutgoingEvent], begin: Callable[[], T]) -> T:
        """Begin a commit after what is not known of its events was asked."""
        try:
            async with self.facts.order:
                await self.facts.learn((), keys_of(events))
                return begin()
        finally:
            self.facts.asking -= 1

    async def _written(
        self,
        written: asyncio.Future[None],
        routed: Sequence[Routed],
        dropped: AbstractSet[int],
    ) -> None:
        """Wait until events are written, and wake the relays of their sinks."""
        try:
            await written
        except OutboxError:
            self.facts.undo(routed)
            raise
        if dropped:
            self.facts.undo([routed[index] for index in dropped])
        for one in routed:
            for sink in one.sinks:
                self.wakeups.of(sink).set()

    def _append_all(
        self,
        append: Callable[[OutgoingEvent, tuple[str, ...]], None],
        routed: Sequence[Routed],
        dropped: set[int],
        *,
        may_drop: bool,
    ) -> None:
        """Append events for their sinks.

        Args:
            append: appends an event for its sinks.
            routed: the events to publish, with their sinks.
            dropped: indexes of events for which there was no room; more are added.
            may_drop: whether to drop an event for which there is no room.

        Raises:
            OutboxFullError: there is no room for an event that may not be dropped.
        """
        for index, one in enumerate(routed):
            if index in dropped:
                continue
            try:
                append(one.outgoing, one.sinks)
            except OutboxFullError as error:
                if not may_drop:
                    raise
                dropped.add(index)
                losses.log_drop(one.outgoing, error)
                for sink in one.sinks:
                    self.deliveries.lost(sink)


# -- Reads and saves the running time of each sink, the clock for delivery ages --------


class Ages(Struct):
    """The running times in seconds; ``bridge.outbox.tables.deliveries`` explains them.

    Attributes:
        clocks: by the sink's name, a function that returns its running time now. For a
            sink without a function, the saved running time counts.
    """

    database: Database
    clocks: dict[str, Callable[[], float]] = field(default_factory=dict)

    def now(self) -> Mapping[str, float]:
        """Return the running time now of each sink in ``clocks``."""
        return {sink: seconds() for sink, seconds in self.clocks.items()}

    async def load(self, sink: str) -> float:
        """Return the saved running time of a sink."""
        return await self.database.read(lambda db: deliveries.running_time(db, sink))

    async def save(self, sink: str, seconds: float) -> None:
        """Save the running time of a sink."""
        await self.database.run(
            lambda db: deliveries.save_running_time(db, sink, seconds), is_kept=False
        )


# -- Reads the successes and results of commands ---------------------------------------


class Commands(Struct, frozen=True):
    """The successes and results of the commands of all sinks."""

    database: Database

    async def successes(self, key: str) -> list[Success]:
        """Return the successes for an EventId that still count."""
        return await self.database.read(lambda db: successes.of_event(db, key))

    async def standings(
        self, key: str, sinks: Sequence[str]
    ) -> dict[str, CommandStanding]:
        """Return how far the command of each sink has come for an EventId."""
        return await self.database.read(lambda db: successes.standings(db, key, sinks))

    async def recent_results(self, limit: int) -> list[dict[str, object]]:
        """Return the last events about commands, newest first."""
        return await self.database.read(lambda db: successes.recent_results(db, limit))


# -- Wakes the relays, and the rules, when there may be work for them ------------------


class Wakeups(Struct, frozen=True):
    """One asyncio.Event for each sink; the sink's relay waits for it and clears it.

    Attributes:
        rules: set when a rule may come to a new decision: the document has changed, or
            a command has ended. The auto-approver clears it.
    """

    rules: Bell = field(default_factory=Bell)
    _events: dict[str, asyncio.Event] = field(default_factory=dict)

    def of(self, sink: str) -> asyncio.Event:
        """Return the event that is set when there may be work for ``sink``."""
        return self._events.setdefault(sink, asyncio.Event())

    def wake_all(self) -> None:
        """Wake all relays and the rules: another process has changed something."""
        self.rules.set()
        for event in self._events.values():
            event.set()


# -- Reads and saves the decisions on approvals ----------------------------------------


class Approvals(Struct):
    """The intents and outcomes of approval messages and of rules."""

    database: Database

    async def save(self, decision: Decision, *, now: float) -> None:
        """Save an intent, or record that its POST has begun."""
        await self.database.run(lambda db: decisions.save(db, decision, now))

    async def claim(self, decision: Decision, *, now: float) -> Decision:
        """Save a record unless its message has one; return the one that is there."""
        return await self.database.run(lambda db: decided.claim(db, decision, now))

    async def of_message(
        self, message: str, sequence: int | None = None
    ) -> dict[str, Decision]:
        """Return the decisions on a message, by the key of the EventId.

        Args:
            message: the hash of its content.
            sequence: its sequence number. A decision on the message with this number
                takes precedence over a decision on a copy of the message.
        """
        return await self.database.read(
            lambda db: decisions.of_message(db, message, sequence)
        )

    async def open_initiatives(self) -> list[Decision]:
        """Return the intents of rules that have no outcome yet."""
        return await self.database.read(decisions.open_initiatives)

    async def delete(self, message: str, key: str) -> None:
        """Delete an intent for which no POST was sent.

        Otherwise a redelivery of the message would treat the outcome as unknown.
        """
        await self.database.run(lambda db: decisions.delete(db, message, key))

    async def posted(self) -> frozenset[str]:
        """Return the keys of the EventIds for which a POST has begun."""
        return await self.database.read(decisions.posted)

    async def recent_outcomes(self, limit: int) -> list[bytes]:
        """Return the data of the last outcomes as JSON, newest first."""
        return await self.database.read(lambda db: decisions.recent_outcomes(db, limit))


# -- Keeps the state file small --------------------------------------------------------


class Pruning(Struct, frozen=True):
    """Deletes settled items: old ones, and the oldest if the file is too large."""

    database: Database
    facts: Facts

    async def prune(
        self, *, before: float, now: float, alive: frozenset[str], limit: int = 500
    ) -> int:
        """Delete items that were settled before ``before``; return their number.

        Args:
            before: seconds since the epoch.
            now: seconds since the epoch.
            alive: keys of the EventIds in the document: their records are kept, however
                far in the future these events are scheduled.
            limit: the most items to delete now, so that other jobs do not wait long.
        """

        def job(db: sqlite3.Connection) -> Pruned:
            pruning.recall_from_future(db, now)
            pruning.refresh(db, alive, now)
            clock_jumps.forget(db, before, now)
            written = clock_jumps.written_before(clock_jumps.noted(db), before)
            return pruning.prune(db, written, limit)

        pruned = await self.database.run(job, is_kept=False)
        self.facts.forget(pruned.causes, pruned.keys)
        return pruned.items

    async def shrink(self, *, most: int, limit: int = 500) -> tuple[int, int]:
        """Delete the oldest delivered items while the file is too large.

        Items with pending or dead deliveries are never deleted.

        Args:
            most: the allowed size in bytes.
            limit: the most items to delete now, so that other jobs do not wait long.

        Returns:
            How many items were deleted, and by how many bytes the file is still too
            large.
        """

        def job(db: sqlite3.Connection) -> tuple[int, int]:
            too_many = pruning.size(db) - most
            gone = pruning.drop_oldest(db, limit) if too_many > 0 else 0
            return gone, max(pruning.size(db) - most, 0)

        return await self.database.run(job, is_kept=False)

    async def follow_clock(self, *, by: float, now: float) -> None:
        """Correct the age of all rows after the wall clock was set.

        Args:
            by: how far forward, in seconds; negative = back.
            now: seconds since the epoch, by the clock as it is now.
        """
        await self.database.run(lambda db: clock_jumps.note(db, by, now))
