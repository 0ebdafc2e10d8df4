"""The observer: document → diff → events → outbox, one transaction per document.

The poller (``bridge.imds.poller``) hands over what it read. What is new in it is told
apart from what is known, made into events, and committed with what is known by then.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import msgspec

from bridge.events import checkpoint
from bridge.events.build import EventContext, OutgoingEvent
from bridge.events.document import Document, parse
from bridge.events.transitions import Transition, anchored, diff, same_again
from bridge.events.watch import Moment, Watch
from bridge.foundation.clock import Clock
from bridge.foundation.errors import OutboxFullError
from bridge.outbox.records import CHECKPOINT, Checkpoint
from bridge.outbox.store import Outbox
from bridge.pipeline.held import Held, Observation, causes_of, told_of
from bridge.telemetry.metrics import Metrics, type_label

log = logging.getLogger(__name__)

_TOUCH_EVERY = 60.0
_JUMP = 1.0


@dataclass(slots=True)
class Observer:
    """Tells what is new in each document.

    Seven fields are given by whoever composes it; the rest is what it knows of the
    document, which belongs together: one transaction replaces all of it.

    Attributes:
        event_context: who tells.
        poll_interval: seconds from one document to the next.
        is_waiting: whether it is not known yet who this VM is: until ``introduce``,
            only what may not wait is told.
        watch: what is known of the document.
        document: the last good one; None before the first.
        changed: called when the document was not the same as before.
    """

    outbox: Outbox
    event_context: EventContext
    clock: Clock
    metrics: Metrics
    poll_interval: float
    with_documents: bool = False
    is_waiting: bool = False
    watch: Watch = field(default_factory=Watch)
    document: Document | None = None
    changed: Callable[[], None] = field(default=lambda: None)
    _body: bytes | None = None
    _touched: float = float("-inf")
    _offset: float | None = None  # of the wall clock to the monotonic one
    _held: Held = field(default_factory=Held)
    _keeping: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def restore(self) -> None:
        """Take up the watch where an earlier life of this bridge left it."""
        await self.outbox.remember_again()
        body = await self.outbox.load(CHECKPOINT)
        if body is None:
            return
        try:
            self.watch = anchored(checkpoint.decode(body), self._moment())
        except msgspec.DecodeError as error:  # no page of SQLite's was damaged
            log.error(  # noqa: TRY400 - the text says it all
                "what was observed cannot be read: watching as if for the first time",
                extra={"fault": str(error)},
            )

    async def introduce(self, event_context: EventContext) -> None:
        """Tell what waits, and from now on everything at once, as ``event_context``."""
        async with self._keeping:
            self.event_context, self.is_waiting = event_context, False
            with suppress(OutboxFullError):  # the next look tries again
                await self._tell_of_held()

    async def observe(self, body: bytes | None, read: Moment) -> Document:
        """Commit what is new in a document.

        Args:
            body: as IMDS answered; None where it says that nothing has changed.
            read: when it was.

        Raises:
            MalformedDocumentError: it is no document.
            OutboxFullError: there is no room for what is new.
        """
        async with self._keeping:
            return await self._take(body, read)

    async def follow_clock(self) -> None:
        """Keep on disk when the document was last seen, if the clock was set.

        A later life would take the jump for time that has passed.
        """
        if self._is_clock_set():
            await self.touch()

    async def touch_now_and_then(self) -> None:
        """Keep on disk, once a minute, when the document was last seen."""
        if self.clock.monotonic() - self._touched >= _TOUCH_EVERY:
            await self.touch()

    def _is_clock_set(self) -> bool:
        """Whether the wall clock was set since this was asked before."""
        offset = self.clock.now().timestamp() - self.clock.monotonic()
        before, self._offset = self._offset, offset
        return before is not None and abs(offset - before) > _JUMP

    async def touch(self) -> None:
        """Keep on disk when the document was last seen, also if nothing happens."""
        self._touched = self.clock.monotonic()
        if self.watch.seen is None:
            return
        async with self._keeping:
            held = self._held.told_of(self.watch)
            body = checkpoint.encode(held, self._moment())
            await self.outbox.save({CHECKPOINT: body})

    async def _take(self, body: bytes | None, moment: Moment) -> Document:
        is_same = body is None or body == self._body
        is_told = self.watch.fall is None and not self._again
        if self.document is not None and is_same and is_told:
            self.watch = same_again(self.watch, moment)
            await self._tell_of_held()
            return self.document
        found = self._body if body is None else body
        document = parse(found or b"")
        await self._compare(document, moment)
        self._body, self.document = found, document
        return document

    @property
    def _again(self) -> frozenset[str]:
        """What is to be told again: nothing while steps wait for the identity."""
        return frozenset() if self.is_waiting else self.outbox.again

    def _moment(self) -> Moment:
        return Moment(at=self.clock.now(), monotonic=self.clock.monotonic())

    async def _compare(self, document: Document, now: Moment) -> None:
        before, again = self.watch, self._again
        is_any_gone = not before.known.keys() <= document.events.keys()
        after, steps = diff(
            before,
            document,
            now,
            poll_interval=self.poll_interval,
            relayed=await self.outbox.posted() if is_any_gone else frozenset(),
            again=again,
        )
        unseen = after.known.keys() - document.events.keys()  # they may come back
        for fault in document.faults:
            log.error("element of the document left out", extra={"fault": fault})
        seen = Observation(
            at=now.at,
            document=document,
            steps=steps,
            is_changed=self.with_documents
            and before.seen is not None
            and document.incarnation != before.incarnation,
            previous_incarnation=before.incarnation,
        )
        sightings = frozenset(before.known.keys() | after.known.keys())
        held = self._held.plus(seen, before)
        await self._keep(held, after, now, sightings, again - unseen)
        self.watch, self._touched = after, self.clock.monotonic()
        self.changed()
        _report(self.metrics, document, steps)

    async def _tell_of_held(self) -> None:
        """Tell what was observed before and may be told by now."""
        if self._held.observations:
            now = self._moment()
            await self._keep(self._held, self.watch, now, frozenset(), frozenset())

    async def _keep(
        self,
        held: Held,
        watch: Watch,
        now: Moment,
        sightings: frozenset[str],
        again: frozenset[str],
    ) -> None:
        """Commit what is to be told now, with what is known of the document by then."""
        ready, rest = held.observations, Held()
        if self.is_waiting:
            ready, rest = held.split(now.at)
        if ready or not rest.observations:
            await self.outbox.commit(
                await self._tell(ready),
                now=now.at.timestamp(),
                checkpoint=Checkpoint(
                    body=checkpoint.encode(rest.told_of(watch)),
                    sightings=sightings,
                    again=again,
                ),
            )
        self._held = rest

    async def _tell(self, observations: Sequence[Observation]) -> list[OutgoingEvent]:
        causes = list(causes_of(self.event_context, observations))
        times = await self.outbox.told(causes) if causes else {}
        return told_of(self.event_context, observations, times)


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
        label = type_label(event.event_type)
        metrics.transitions.labels(step.kind.value, label).inc()
    gauge = metrics.scheduled_events
    gauge.clear()
    for event in document.events.values():
        status = event.status if event.status in {"Scheduled", "Started"} else ""
        gauge.labels(type_label(event.event_type), status or "other").inc()
    if document.incarnation is not None:
        metrics.incarnation.set(document.incarnation)
