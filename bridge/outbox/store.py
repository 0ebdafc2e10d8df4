"""The outbox: every event is stored here before it is sent, so a crash loses none.

Invariant: one transaction commits a checkpoint, the events that report its changes and
one delivery for each event and sink, before the first attempt to deliver any of them.
Rows are never merged by id.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar

from bridge.events.build import OutgoingEvent
from bridge.events.routing import Router
from bridge.foundation.errors import OutboxError, OutboxFullError
from bridge.outbox.ages import Ages
from bridge.outbox.approvals import Approvals
from bridge.outbox.commands import Commands
from bridge.outbox.deliveries import Deliveries
from bridge.outbox.facts import Facts, Routed, keys_of
from bridge.outbox.observations import Observations
from bridge.outbox.other_processes import OtherProcesses
from bridge.outbox.pruning import Pruning
from bridge.outbox.records import REPLIES, Checkpoint, Decision, Reply
from bridge.outbox.storage.connection import Connection
from bridge.outbox.storage.database import Database
from bridge.outbox.tables import decisions as decided
from bridge.outbox.tables import events as items
from bridge.outbox.tables import losses, observations, values
from bridge.outbox.tables.ages import RunningTimes
from bridge.outbox.wakeups import Wakeups

T = TypeVar("T")


def _ignore(_: str) -> None:
    """Do nothing about a lost delivery."""


class Outbox:
    """The state file as other packages use it: one attribute for each topic.

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
                values.save(db, named or {})
                for decision in decisions:
                    decided.save(db, decision, now)
                append = partial(items.append, db, now, times)
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
