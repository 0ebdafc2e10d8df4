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
    Content,
    Decision,
    Delivery,
    DeliveryState,
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


class Ready(Struct, frozen=True):
    """An event that has room, with the content that is sent.

    Attributes:
        number: its number among the signed events; None = it has none.
    """

    outgoing: OutgoingEvent
    window: tuple[float | None, float | None]
    body: bytes
    number: int | None


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
            ready = self._ready_of(events, now, may_drop=checkpoint is None)
            rows: Rows = {}
            if settle is not None:
                self._settle(settle, now, rows)
            if checkpoint is not None:
                self.observations.note(checkpoint, now, rows)
            self.facts.name(named or {}, rows)
            for decision in decisions:
                self.approvals.decide(decision, now, rows)
            added = list[Added]()
            for one in ready:
                added.append(self._add(one, now, rows))
            if reply is not None:
                added.append(self._add_reply(reply, now, rows))
            self.facts.trim()
            return self.state.write(rows, added, partial(self._told, ready, added))

        asked = _asked(events, decisions, settle)
        written = await self.state.in_turn(decide, asked)
        return await asyncio.shield(written) if waits else False

    def _told(
        self,
        ready: Sequence[Ready],
        added: Sequence[Added],
        is_written: bool,  # noqa: FBT001 - a callback
    ) -> None:
        """Note that events are on the disk, or that the disk does not answer."""
        if not is_written:
            self._mark(ready, added)
            return
        for one in ready:
            if one.number is not None:
                self._number_on_disk = max(self._number_on_disk or 0, one.number)

    def _mark(self, ready: Sequence[Ready], added: Sequence[Added]) -> None:
        """Say in each event that it is not durable: the disk does not answer."""
        rows: Rows = {}
        for one, (item, _) in zip(ready, added, strict=False):  # a reply may be last
            body = self._signed(one.outgoing.event, None, is_durable=False)
            marked = replace(item, content=item.content._replace(body=body))
            self.image.replace(marked, rows)
        on_disk = self._number_on_disk
        if on_disk is not None and on_disk != self._number:
            self.facts.name({_NUMBER: b"%d" % on_disk}, rows)
        if rows and self.database.is_answering:
            self.database.put(rows)

    @property
    def _number(self) -> int:
        """The number of the last signed event, which goes on over restarts."""
        return int(self.facts.value(_NUMBER) or 0)

    def _ready_of(
        self, events: Sequence[OutgoingEvent], now: float, *, may_drop: bool
    ) -> list[Ready]:
        """Return the events that have room, with their contents; change nothing.

        Raises:
            OutboxFullError: there is no room for an event that may not be dropped.
        """
        found, dropped = list[Ready](), list[OutgoingEvent]()
        number, is_durable = 0, self.database.fault is None
        if self.sign is not None:
            number = self._number
            if self._number_on_disk is None and not self.database.is_blank:
                self._number_on_disk = number
        for outgoing in events:
            window = _window(outgoing, now)
            since, until = window
            is_urgent = since is not None and until is not None and since <= now < until
            has_room = is_durable or self.image.has_room(
                len(found), is_urgent=is_urgent
            )
            if not has_room:
                dropped.append(outgoing)
                continue
            is_numbered = self.sign is not None and is_durable
            number += is_numbered
            own = number if is_numbered else None
            body = self._signed(outgoing.event, own, is_durable=is_durable)
            found.append(Ready(outgoing, window, body, own))
        if dropped:
            error = OutboxFullError(
                "neither disk nor memory has room for another event"
            )
            if not may_drop:
                raise error
            for outgoing in dropped:
                log_drop(outgoing, error)
                before = self.observations.followers(outgoing.key)
                for sink in self.router.sinks(outgoing.subject, before):
                    self.image.lost(sink)
        return found

    def _signed(
        self, event: CloudEvent, number: int | None, *, is_durable: bool
    ) -> bytes:
        if not is_durable:
            event = replace(event, data={**event.data, "durable": False})
        return (self.sign(event, number) if self.sign else event).to_json()

    def _add(self, one: Ready, now: float, rows: Rows) -> Added:
        """Add an event: its count, its followers, and a delivery for each sink."""
        outgoing, event = one.outgoing, one.outgoing.event
        sinks = self.observations.tell(outgoing, self.router, now, rows)
        if one.number is not None:
            self.facts.name({_NUMBER: b"%d" % one.number}, rows)
        content = Content(
            kind="event",
            key=outgoing.key,
            event_id=event.text("correlationid"),
            cloud_event_id=event.id,
            type=event.type,
            body=one.body,
        )
        if ".command." in event.type:
            self.facts.results.append(one.body)
            del self.facts.results[:-RECENT]
        not_before = outgoing.not_before.timestamp() if outgoing.not_before else None
        return self.state.add(
            content, sinks, now, rows, one.window, not_before=not_before
        )

    def _add_reply(self, reply: Reply, now: float, rows: Rows) -> Added:
        content = Content("reply", reply.key, None, None, "reply", reply.body)
        return self.state.add(content, (REPLIES,), now, rows)

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
