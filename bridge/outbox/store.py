"""The outbox: every event is stored here before it is sent, so a crash loses none.

    commit ─ ONE step: room, ids, counts, sinks, place in line ─▶ image ─▶ sendable, on
               └ rows ─▶ journal ─▶ the disk                       disk or after 3 s

Invariant: one transaction writes a checkpoint, the events that report its changes and
one delivery for each event and sink. The first attempt at a delivery comes after that,
or after the disk was silent for 3 s; then its event says that it is not durable.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Self

from msgspec import Struct
from msgspec.structs import replace

from bridge.events.build import OutgoingEvent
from bridge.events.cloudevent import CloudEvent
from bridge.events.routing import Router
from bridge.foundation.errors import OutboxFullError
from bridge.outbox.deliveries import Deliveries, log_drop
from bridge.outbox.facts import Observations
from bridge.outbox.image import Added
from bridge.outbox.lookups import Approvals, Commands
from bridge.outbox.pruning import Pruning
from bridge.outbox.reads import RECENT, Asked
from bridge.outbox.records import (
    REPLIES,
    Checkpoint,
    Decision,
    Delivery,
    DeliveryState,
    Item,
    Reply,
    Success,
)
from bridge.outbox.state import State
from bridge.outbox.storage.database import Database
from bridge.outbox.storage.journal import Rows

Sign = Callable[[CloudEvent, int | None], CloudEvent]
_URGENT_BEFORE = 900.0  # a NotBefore within 15 minutes
_URGENT_AFTER_START = 300.0
_NUMBER = "chain"  # the name of the number of the last signed event


def _ignore(_: str) -> None:
    """Do nothing about a lost delivery."""


class Settlement(Struct, frozen=True):
    """The end of a delivery that is committed together with events.

    Attributes:
        error: why it failed, in words and as a label.
        success: the success to save, if the delivery still waits.
    """

    delivery: Delivery
    state: DeliveryState
    error: tuple[str, str] | None = None
    success: Success | None = None


class Outbox:
    """The state as other packages use it: one attribute for each topic.

    ``sign`` signs each event when it is written; None = events are not signed.

    Times are seconds since the epoch.

    Args:
        database: the open file.
        router: chooses the sinks of an event. It may be replaced: each commit uses the
            router of the moment at which it is decided.
        lost: called with the sink of each delivery that is given up here, because
            there was no room for it or its row was damaged.
    """

    def __init__(
        self,
        database: Database,
        router: Router,
        lost: Callable[[str], None] = _ignore,
    ) -> None:
        self.state = state = State(database, lost)
        self.router = router
        self.database, self.facts = database, state.facts
        self.image, self.wakeups = state.image, state.wakeups
        self.observations = Observations(self.facts)
        self.deliveries = Deliveries(state, self.observations)
        self.ages = state.ages
        self.approvals = Approvals(state)
        self.commands = Commands(state)
        self.pruning = Pruning(state)
        self.sign: Sign | None = None
        self._number_on_disk: int | None = None  # of the last signed event

    @classmethod
    async def of(
        cls, database: Database, router: Router, lost: Callable[[str], None] = _ignore
    ) -> Self:
        """Return the outbox of an open file, with what the file has in memory.

        Raises:
            OutboxError: the file cannot be read.
        """
        outbox = cls(database, router, lost)
        await outbox.state.load()
        return outbox

    # -- commits -------------------------------------------------------------

    async def commit(  # noqa: PLR0913 - all parts of one commit
        self,
        events: Sequence[OutgoingEvent],
        *,
        now: float,
        checkpoint: Checkpoint | None = None,
        decisions: Sequence[Decision] = (),
        reply: Reply | None = None,
        named: Mapping[str, bytes] | None = None,
        settle: Settlement | None = None,
        waits: bool = True,
    ) -> bool:
        """Commit all arguments together: all of them or none.

        All is decided in one step, in the order of the calls. A caller that is
        cancelled only stops waiting.

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
            settle: the end of a delivery.
            waits: whether to wait for the disk. What is committed later, or is sent, is
                behind this commit in any case.

        Returns:
            Whether it is on the disk; False after 3 s without an answer of the disk, or
            if nobody waits for that.

        Raises:
            OutboxFullError: there is no room for an event of a checkpoint.
        """

        def decide() -> "asyncio.Future[bool]":
            for one in events:
                one.event.to_json()  # fails, if at all, before anything has changed
            kept = self._with_room(events, now, may_drop=checkpoint is None)
            rows: Rows = {}
            if settle is not None:
                self._settle(settle, now, rows)
            if checkpoint is not None:
                self.observations.note(checkpoint, now, rows)
            self.facts.name(named or {}, rows)
            for decision in decisions:
                self.approvals.decide(decision, now, rows)
            added = [self._add(event, now, rows) for event in kept]
            if reply is not None:
                added.append(self._add_reply(reply, now, rows))
            self.facts.trim()
            number = self._number if kept else 0
            told = partial(self._told, kept, added, number)
            return self.state.write(rows, added, told)

        asked = _asked(events, decisions, settle)
        written = await self.state.in_turn(decide, asked)
        return await asyncio.shield(written) if waits else False

    def _told(
        self,
        events: Sequence[OutgoingEvent],
        added: Sequence[Added],
        number: int,
        is_written: bool,  # noqa: FBT001 - a callback
    ) -> None:
        """Note that events are on the disk; or say in each that it is not durable."""
        if is_written:
            self._number_on_disk = max(self._number_on_disk or 0, number)
            return
        rows: Rows = {}
        for outgoing, (item, _) in zip(events, added, strict=False):  # a reply is last
            body = self._signed(outgoing.event, None, is_durable=False)
            self.image.replace(item._replace(body=body), rows)
        on_disk = self._number_on_disk
        if on_disk is not None and on_disk != self._number:
            self.facts.name({_NUMBER: b"%d" % on_disk}, rows)
        if rows and self.database.is_answering:
            self.database.put(rows)

    @property
    def _number(self) -> int:
        """The number of the last signed event, which goes on over restarts."""
        return int(self.facts.value(_NUMBER) or 0)

    def _with_room(
        self, events: Sequence[OutgoingEvent], now: float, *, may_drop: bool
    ) -> Sequence[OutgoingEvent]:
        """Return the events that have room; change nothing.

        Raises:
            OutboxFullError: there is no room for an event that may not be dropped.
        """
        if self.database.fault is None:
            return events
        kept, dropped = list[OutgoingEvent](), list[OutgoingEvent]()
        for outgoing in events:
            since, until = _window(outgoing, now)
            is_urgent = since is not None and until is not None and since <= now < until
            has_room = self.image.has_room(len(kept), is_urgent=is_urgent)
            (kept if has_room else dropped).append(outgoing)
        error = OutboxFullError("neither disk nor memory has room for another event")
        if dropped and not may_drop:
            raise error
        for outgoing in dropped:
            log_drop(outgoing, error)
            before = self.observations.followers(outgoing.key)
            for sink in self.router.sinks(outgoing.subject, before):
                self.image.lost(sink)
        return kept

    def _signed(
        self, event: CloudEvent, number: int | None, *, is_durable: bool
    ) -> bytes:
        if not is_durable:
            event = replace(event, data={**event.data, "durable": False})
        return (self.sign(event, number) if self.sign else event).to_json()

    def _add(self, outgoing: OutgoingEvent, now: float, rows: Rows) -> Added:
        """Add an event: its count, its followers, and a delivery for each sink."""
        event, is_durable = outgoing.event, self.database.fault is None
        number = None
        if self.sign is not None and is_durable:
            number = self._number + 1
            if self._number_on_disk is None:
                self._number_on_disk = number - 1
            self.facts.name({_NUMBER: b"%d" % number}, rows)
        sinks = self.observations.tell(outgoing, self.router, now, rows)
        before = outgoing.not_before
        item = Item(
            id=0,
            kind="event",
            key=outgoing.key,
            event_id=event.text("correlationid"),
            cloud_event_id=event.id,
            type=event.type,
            body=self._signed(event, number, is_durable=is_durable),
            created=now,
            not_before=None if before is None else before.timestamp(),
        )
        if ".command." in event.type:
            self.facts.results.append(item.body)
            del self.facts.results[:-RECENT]
        return self.state.add(item, sinks, rows, _window(outgoing, now))

    def _add_reply(self, reply: Reply, now: float, rows: Rows) -> Added:
        item = Item(0, "reply", reply.key, None, None, "reply", reply.body, now)
        return self.state.add(item, (REPLIES,), rows)

    def _settle(self, settle: Settlement, now: float, rows: Rows) -> None:
        one = self.image.find(settle.delivery)
        if one is None:
            return  # it was settled before
        self.image.end(one, settle.state, rows, now=now, error=settle.error)
        if settle.success is not None:
            self.commands.succeed(settle.success, rows)
        self.wakeups.wake(one.sink)


def _asked(
    events: Sequence[OutgoingEvent],
    decisions: Sequence[Decision],
    settle: Settlement | None,
) -> Asked:
    """Return what must be known to decide a commit."""
    causes, keys, messages = list[str](), set[str](), set[str]()
    for event in events:
        causes.append(event.cause)
        if event.key is not None:
            keys.add(event.key)
    if settle is not None and settle.success is not None:
        keys.add(settle.success.key)
    for decision in decisions:
        messages.add(decision.message)
    return {"cause": causes, "key": keys, "message": messages}


def _window(outgoing: OutgoingEvent, now: float) -> tuple[float | None, float | None]:
    """Return the times between which an event is delivered before all others."""
    if outgoing.is_started:
        return now, now + _URGENT_AFTER_START
    if outgoing.not_before is not None:
        not_before = outgoing.not_before.timestamp()
        return not_before - _URGENT_BEFORE, not_before
    return None, None
