"""The outbox: every event is stored here before it is sent, so a crash loses none.

Invariant: one transaction commits a checkpoint, the events that report its changes and
one delivery for each event and sink, before the first attempt to deliver any of them.
Rows are never merged by id.
"""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

from bridge.events.build import OutgoingEvent
from bridge.events.routing import Router
from bridge.foundation.errors import OutboxFullError
from bridge.outbox.ages import Ages
from bridge.outbox.approvals import Approvals
from bridge.outbox.choice import Choice
from bridge.outbox.commands import Commands
from bridge.outbox.deliveries import Deliveries
from bridge.outbox.numbered import Numbered
from bridge.outbox.observations import Observations
from bridge.outbox.other_processes import OtherProcesses
from bridge.outbox.pruning import Pruning
from bridge.outbox.records import REPLIES, Checkpoint, Decision, Reply
from bridge.outbox.storage.connection import Connection
from bridge.outbox.storage.database import Database
from bridge.outbox.tables import decisions as approvals
from bridge.outbox.tables import events as items
from bridge.outbox.tables import losses, observations, values
from bridge.outbox.tables.ages import RunningTimes
from bridge.outbox.wakeups import Wakeups


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
        self.pruning = Pruning(database)
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
            yield cls(database, router)

    async def commit(  # noqa: PLR0913 - all parts of one commit
        self,
        events: Sequence[OutgoingEvent] | Numbered,
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
        dropped = set[int]()  # events dropped in memory are dropped on the disk, too
        now_running, choice = self.ages.now(), Choice(self.router)

        def job(db: Connection) -> set[str]:
            running = RunningTimes(db, now_running)
            if settle is not None:
                settle(db)
            if checkpoint is not None:
                observations.save_checkpoint(db, checkpoint, now)
            values.save(db, named or {})
            for decision in decisions:
                approvals.save(db, decision, now)

            def append(index: int, outgoing: OutgoingEvent) -> tuple[str, ...]:
                choose = partial(choice.sinks, index, outgoing.subject)
                return items.append(db, choose, outgoing, now, running)

            may_drop = checkpoint is None
            made = events.events(db) if isinstance(events, Numbered) else events
            sinks = self._append_all(append, made, dropped, may_drop=may_drop)
            if reply is not None:
                items.append_reply(db, reply, now, running)
                sinks.add(REPLIES)
            return sinks

        sinks = await self.database.run(job)
        if checkpoint is not None:
            self.observations.note(checkpoint)
        for sink in sinks:
            self.wakeups.of(sink).set()

    def _append_all(
        self,
        append: Callable[[int, OutgoingEvent], tuple[str, ...]],
        events: Sequence[OutgoingEvent],
        dropped: set[int],
        *,
        may_drop: bool,
    ) -> set[str]:
        """Append events; return the sinks that get any.

        Args:
            append: appends the event with an index; returns the sinks that get it.
            events: the events to publish.
            dropped: indexes of events for which there was no room; more are added.
            may_drop: whether to drop an event for which there is no room.

        Raises:
            OutboxFullError: there is no room for an event that may not be dropped.
        """
        sinks = set[str]()
        for index, outgoing in enumerate(events):
            if index in dropped:
                continue
            try:
                sinks.update(append(index, outgoing))
            except OutboxFullError as error:
                if not may_drop:
                    raise
                dropped.add(index)
                self._report_drop(outgoing, error)
        return sinks

    def _report_drop(self, outgoing: OutgoingEvent, error: OutboxFullError) -> None:
        losses.log_drop(outgoing, error)
        for sink in self.router.sinks(outgoing.subject, frozenset()):
            self.deliveries.lost(sink)
