"""The observer: document → diff → events → outbox, one transaction per document.

The poller (``bridge.imds.poller``) passes each document to the observer. The observer
compares it with the watch, makes events of the transitions, and commits these events
together with the new watch.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from functools import partial

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from bridge.events.build import (
    EventContext,
    OutgoingEvent,
    from_document,
    from_transition,
)
from bridge.events.document import Document, exact, parse
from bridge.events.identity import Identity
from bridge.events.transitions import Transition, anchored, diff, same_again
from bridge.events.watch import Moment, Watch, joined
from bridge.foundation.clock import Clock, PauseMeter, is_settled
from bridge.foundation.errors import OutboxFullError
from bridge.outbox.records import CHECKPOINT, Checkpoint
from bridge.outbox.store import Outbox
from bridge.pipeline.held import Held, Observation
from bridge.telemetry.metrics import Metrics, type_label

log = logging.getLogger(__name__)

_TOUCH_EVERY = 60.0
_JUMP = 1.0


class Observer(Struct):
    """Publishes the changes in each document.

    The first eight fields are given at the start, the others are this state.

    Attributes:
        event_context: prefix, source and VM of the events.
        poll_interval: seconds from one document to the next.
        pauses: measures for how long this VM stood still.
        with_documents: whether to publish document.changed events.
        is_waiting: whether the identity of this VM is not yet known. Until
            ``set_identity`` is called, only events that may not wait are published.
        watch: what is known of the scheduled events.
        document: the last valid document; None before the first.
        changed: called after each document that differs from the one before, if given.
    """

    outbox: Outbox
    event_context: EventContext
    clock: Clock
    metrics: Metrics
    poll_interval: float
    pauses: PauseMeter
    with_documents: bool = False
    is_waiting: bool = False
    watch: Watch = field(default_factory=Watch)
    document: Document | None = None
    changed: Callable[[], None] | None = None
    _body: bytes | None = None
    _touched: float = float("-inf")
    _offset: float | None = None  # wall clock minus monotonic clock
    _is_anchored: bool = False  # whether restored moments have a monotonic time
    _told: float = 0.0  # the pauses that events have told of, in seconds
    _held: Held = field(default_factory=Held)
    _earlier: Watch | None = None  # of a run whose state file was read late
    _committing: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def restore(self) -> None:
        """Load the watch that was stored before the restart."""
        self.outbox.state.read_late = self._join
        await self.outbox.observations.load_again()
        body = await self.outbox.observations.load(CHECKPOINT)
        if body is not None and (watch := _decoded(body)) is not None:
            self.watch = watch
            self._anchor(self._moment())

    def _join(
        self, earlier: bytes, ours: bytes | None, seen: Collection[str]
    ) -> bytes | None:
        """Take over what an earlier run knew: see ``State.read_late``."""
        if (watch := _decoded(earlier)) is None:
            self.outbox.state.is_joining = False
            return None
        known = {key: one for key, one in watch.known.items() if key not in seen}
        self._earlier = replace(watch, known=known)
        if ours is None:
            return None
        return joined(self._earlier, Watch.from_json(ours)).to_json()

    @property
    def identity(self) -> Identity:
        """The identity of this VM, as far as it is known; see ``acting.Outlook``."""
        return self.event_context.identity

    @property
    def _before(self) -> Watch:
        """What is known, together with what an earlier run knew."""
        return (
            self.watch if self._earlier is None else joined(self._earlier, self.watch)
        )

    def _anchor(self, now: Moment) -> None:
        """Count the age of restored events by the monotonic clock from now on.

        That waits until the time is certain: the clock may be wrong after a boot.
        """
        if is_settled(self.clock):
            self._is_anchored, self.watch = True, anchored(self.watch, now)

    async def set_identity(self, event_context: EventContext) -> None:
        """Set the identity: publish all events that wait, and wait no more."""
        async with self._committing:
            self.event_context, self.is_waiting = event_context, False
            with suppress(OutboxFullError):  # the next look tries again
                await self._publish_held()

    async def observe(self, body: bytes | None, read: Moment) -> Document:
        """Compare a document with the watch, and commit the events about changes.

        Args:
            body: the response of IMDS; None if IMDS says that nothing has changed.
            read: when it was read.

        Raises:
            MalformedDocumentError: the body is not a valid document.
            OutboxFullError: there is no room for the new events.
        """
        if not self._is_anchored:
            self._anchor(read)
        async with self._committing:
            found = self._body if body is None else body
            if self.document is None or found != self._body or not self._is_settled:
                self.document = await self._compare(parse(found or b""), read)
                self._body = found
            else:
                self.watch = same_again(self.watch, read)
                await self._publish_held()
            return self.document

    @property
    def _is_settled(self) -> bool:
        """Whether the same document again would change nothing."""
        return self.watch.fall is None and not self._again and self._earlier is None

    def is_touch_due(self, *, has_read: bool) -> bool:
        """Return whether to store when the document was last seen.

        It is due once a minute after a successful read. It is also due if the wall
        clock was set since the last call: after a restart, the jump would otherwise
        count as elapsed time.

        Args:
            has_read: whether the last read has succeeded.
        """
        now = self.clock.monotonic()
        before, self._offset = self._offset, self.clock.now().timestamp() - now
        is_set = before is not None and abs(self._offset - before) > _JUMP
        return is_set or (has_read and now - self._touched >= _TOUCH_EVERY)

    async def touch(self) -> None:
        """Store when the document was last seen, even if nothing has changed."""
        self._touched = self.clock.monotonic()
        if self.watch.seen is None:
            return
        async with self._committing:
            published = self._held.published_part(self._before)
            body = published.to_json(self._moment())
            await self.outbox.observations.save({CHECKPOINT: body})

    @property
    def _again(self) -> frozenset[str]:
        """The keys to publish again; none while the identity is not known."""
        return frozenset() if self.is_waiting else self.outbox.observations.again

    def _moment(self) -> Moment:
        return Moment(at=self.clock.now(), monotonic=self.clock.monotonic())

    def _is_other(self, document: Document, *, has_steps: bool) -> bool:
        """Whether the document differs from the last one, or is the first of all.

        The incarnation alone does not say so: it may be absent or stay the same. After
        a restart only the events of the last document are known.
        """
        if self.watch.seen is None:
            return True
        if self.document is None:
            return has_steps or document.incarnation != self.watch.incarnation
        return exact(document.canonical) != exact(self.document.canonical)

    async def _compare(self, document: Document, now: Moment) -> Document:
        """Publish what is new in a document, and return it."""
        earlier, before, again = self._earlier, self._before, self._again
        is_any_gone = not before.known.keys() <= document.events.keys()
        after, steps = diff(
            before,
            document,
            now,
            poll_interval=self.poll_interval,
            relayed=await self.outbox.approvals.posted()
            if is_any_gone
            else frozenset(),
            again=again,
        )
        unseen = after.known.keys() - document.events.keys()  # held: they may reappear
        for fault in document.faults:
            log.error("element of the document left out", extra={"fault": fault})
        seen = Observation(
            at=now.at,
            document=document,
            steps=steps,
            is_changed=self.with_documents
            and self._is_other(
                document,
                has_steps=any(step.event.key not in again for step in steps),
            ),
            previous_incarnation=before.incarnation,
            paused=self.pauses.since(self._told),
        )
        sightings = frozenset(before.known.keys() | after.known.keys())
        held = Held(observations=(seen,))
        if self.is_waiting or self._held.observations:
            held = self._held.plus(seen, before)
        await self._commit(held, after, now, sightings, again - unseen)
        if steps:
            self._told = self.pauses.total
        if earlier is not None and self._earlier is earlier:
            self._earlier, self.outbox.state.is_joining = None, False
            self.outbox.wakeups.wake_all()
        self.watch, self._touched = after, self.clock.monotonic()
        if self.changed is not None:
            self.changed()
        _report(self.metrics, document, steps)
        return document

    async def _publish_held(self) -> None:
        """Publish the held observations that need not wait any longer."""
        if self._held.observations:
            now = self._moment()
            await self._commit(self._held, self._before, now, frozenset(), frozenset())

    async def _commit(
        self,
        held: Held,
        watch: Watch,
        now: Moment,
        sightings: frozenset[str],
        again: frozenset[str],
    ) -> None:
        """Commit the events to publish now, with the watch that belongs to them."""
        ready, rest = held.observations, Held()
        if self.is_waiting:
            ready, rest = held.split(now.at)
            watch = rest.published_part(watch)
        if ready or not rest.observations:
            await self.outbox.commit(
                await self._events_of(ready),
                now=now.at.timestamp(),
                checkpoint=Checkpoint(
                    body=watch.to_json(),
                    sightings=sightings,
                    again=again,
                ),
                # A later look is written while the loop reads on: nothing of it goes
                # out before, and a start after a kill finds what is still there.
                waits=self.document is None or self._earlier is not None,
            )
        self._held = rest

    async def _events_of(
        self, observations: Sequence[Observation]
    ) -> list[OutgoingEvent]:
        """Make the events about observations, in order.

        The id of an event has a count if the same cause was published before.
        """
        makers = [*makers_of(self.event_context, observations)]
        events = [make(repeats=0) for make in makers]
        if not events:
            return events
        earlier = await self.outbox.observations.counts([one.cause for one in events])
        counts = dict[str, int]()
        for place, one in enumerate(events):
            times = counts.get(one.cause, earlier.get(one.cause, 0))
            if times:
                events[place] = makers[place](repeats=times)
            counts[one.cause] = times + 1  # it may be in the same commit again
        return events


def _decoded(body: bytes) -> Watch | None:
    """Return the watch of a checkpoint; None = it is damaged."""
    try:
        return Watch.from_json(body)
    except msgspec.DecodeError as error:  # SQLite itself found no damage
        log.error(  # noqa: TRY400 - a traceback would not help
            "checkpoint in the state file is damaged: starting without it",
            extra={"fault": str(error)},
        )
        return None


def _report(
    metrics: Metrics, document: Document, steps: tuple[Transition, ...]
) -> None:
    for step in steps:
        event = step.event
        log.info(
            "transition observed",
            extra={
                "transition": step.kind.value,
                "eventId": event.event_id,
                "eventType": event.event_type,
                "incarnation": document.incarnation,
            },
        )
        if step.previous is None and not (event.has_resources and event.resources):
            is_empty = event.raw.get("Resources") == []
            what = "is empty" if is_empty else "is no list of names"
            fault = f"Resources {what}: scope own or first may not let it through"
            log.warning(
                "event names no machine",
                extra={"eventId": event.event_id, "fault": fault},
            )
        label = type_label(event.event_type)
        metrics.transitions.labels(step.kind.value, label).inc()
    gauge = metrics.scheduled_events
    gauge.clear()
    for event in document.events.values():
        status = event.status if event.status in {"Scheduled", "Started"} else ""
        gauge.labels(type_label(event.event_type), status or "other").inc()
    if document.incarnation is not None:
        metrics.incarnation.set(document.incarnation)


# -- The events about observations -----------------------------------------------------

Maker = Callable[..., OutgoingEvent]


def makers_of(
    event_context: EventContext, observations: Sequence[Observation]
) -> Iterator[Maker]:
    """Yield what makes the events about observations, in order.

    The argument ``repeats`` of each says how often the same cause was published before.
    """
    for one in observations:
        for step in one.steps:
            yield partial(
                from_transition,
                event_context,
                step,
                incarnation=one.document.incarnation,
                observed_at=one.at,
                paused=one.paused,
            )
        if one.is_changed:
            yield partial(
                from_document,
                event_context,
                one.document,
                previous_incarnation=one.previous_incarnation,
                observed_at=one.at,
            )
