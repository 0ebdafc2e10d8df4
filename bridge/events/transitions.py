"""Compares each document with what was known before, and returns the transitions.

Pure: no I/O, no clock. Only this file knows the order of the statuses.

    (gone) ──scheduled──▶ Scheduled ──started──▶ Started ──completed──▶ (gone)
       │                     │   └──cancelled | ended──▶ (gone)   ▲
       └──────────started────┼───────────────────────────────────┘
                          updated: any other difference

Shapes:    Watch (all that was seen so far) x Document -> Watch, Transitions
Invariant: the diff of a document with itself is empty; applying the diff of a and
           b to a gives b, unless absence does not count; the order of the elements
           in Events does not matter
Source:    config/events.md; an event's life at the service: simulator/imds/document.py
"""

from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from datetime import timedelta

from msgspec import Struct
from msgspec.structs import replace

from bridge.events.document import Document, ScheduledEvent, exact
from bridge.events.vocabulary import GONE, EventStatus, TransitionKind
from bridge.events.watch import Fall, Known, Moment, Watch

_RETURN_WITHIN = 300.0  # after a VM moved, its events reappear within five minutes
_SURELY_BEFORE = timedelta(seconds=5)
_LEAST_WINDOW = 10.0


class Transition(Struct, frozen=True, kw_only=True):
    """One change in the life of one scheduled event.

    Attributes:
        event: as it is now; if it is gone, as it was last seen.
        previous: as it was before; None if it was not known before.
        changes: the top-level fields that differ, sorted.
        announced: see ``Known``.
        unobserved: whole seconds since the last document that was read; None = not
            known.
    """

    kind: TransitionKind
    event: ScheduledEvent
    previous: ScheduledEvent | None
    changes: tuple[str, ...]
    announced: bool | None
    unobserved: int | None

    @property
    def is_gone(self) -> bool:
        """Whether the event is no longer in the document."""
        return self.kind in GONE


def diff(  # noqa: PLR0913 - the transitions depend on each of them
    watch: Watch,
    document: Document,
    now: Moment,
    *,
    poll_interval: float,
    relayed: AbstractSet[str] = frozenset(),
    again: AbstractSet[str] = frozenset(),
) -> tuple[Watch, tuple[Transition, ...]]:
    """Compare a document with all that was seen before.

    Args:
        watch: what was seen so far.
        document: the document that was read now.
        now: when it was read.
        poll_interval: seconds. After a gap of more than three intervals (at least ten
            seconds), transitions may have been missed.
        relayed: keys of the events for which a StartRequest was sent, or may have been.
        again: keys of the events to publish as if they were new, because the earlier
            events about them are lost.

    Returns:
        What is known from now on, and the transitions, sorted by EventId.
    """
    window = max(3 * poll_interval, _LEAST_WINDOW)
    changed = {
        key
        for key, event in document.events.items()
        if key in watch.known and _differ(watch.known[key].event, event)
    }
    unobserved = None if watch.seen is None else watch.seen.elapsed(now)
    look = _Look(watch, document, now, window, relayed, again, changed, unobserved)
    steps = {step.event.key: step for step in look.steps()}
    known = {
        key: Known(
            event=event,
            announced=look.announced(event),
            incarnation=document.incarnation,
            seen=now,
            since=look.since(event),
            had_started=look.has_started(event),
        )
        for key, event in document.events.items()
    }
    held = {k: v for k, v in watch.known.items() if k not in known and k not in steps}
    number = document.incarnation
    after = Watch(
        incarnation=watch.incarnation if number is None else number,
        known=known | held,
        seen=now,
        fall=look.fall,
        was_complete=not document.faults,
    )
    return after, tuple(dict(sorted(steps.items())).values())


def anchored(watch: Watch, now: Moment) -> Watch:
    """Return a watch from before a restart, safe from later jumps of the wall clock.

    Args:
        watch: what was seen so far.
        now: when this process read it from the checkpoint.
    """
    known = {
        key: replace(one, since=one.since and one.since.anchored(now))
        for key, one in watch.known.items()
    }
    return replace(watch, known=known)


def same_again(watch: Watch, now: Moment) -> Watch:
    """Return the watch after a read that returned the same bytes as the last one."""
    if not watch.known:
        return replace(watch, seen=now)
    in_document = {
        key: replace(known, seen=now) if known.seen == watch.seen else known
        for key, known in watch.known.items()
    }
    return replace(watch, known=in_document, seen=now)


class _Look(Struct):
    """One comparison: the questions that the transitions depend on.

    Attributes:
        changed: keys of the known events that differ in the document.
        unobserved: seconds since the last document that was read; None = not known.
    """

    watch: Watch
    document: Document
    now: Moment
    window: float
    relayed: AbstractSet[str]
    again: AbstractSet[str]
    changed: AbstractSet[str]
    unobserved: float | None

    @property
    def fall(self) -> Fall | None:
        """The fall because of which an absent event does not yet count as gone."""
        fall, number = self.watch.fall, self.document.incarnation
        before = self.watch.incarnation
        if number is not None and before is not None and number < before:
            return Fall(to=number, seen=self.now)
        if fall is None or (number is not None and number > fall.to):
            return None
        if fall.seen.surely_elapsed(self.now) >= _RETURN_WITHIN:
            return None
        return fall

    @property
    def is_gapless(self) -> bool:
        """Whether no document can have been missed since the last one."""
        gap, before = self.unobserved, self.watch.incarnation
        return (
            gap is not None
            and gap <= self.window
            and self.watch.was_complete
            and self.watch.fall is None
            and before is not None
            and self.document.incarnation == before + 1
        )

    def announced(self, event: ScheduledEvent) -> bool | None:
        before = self.watch.known.get(event.key)
        if event.status == EventStatus.SCHEDULED:
            return True
        if before:
            return before.announced
        is_new_start = event.status == EventStatus.STARTED and self.is_gapless
        return False if is_new_start else None

    def since(self, event: ScheduledEvent) -> Moment:
        """Return when the event was first seen with its present content."""
        before = self.watch.known.get(event.key)
        if before is None or before.since is None or event.key in self.changed:
            return self.now
        return before.since.anchored(self.now)

    def has_started(self, event: ScheduledEvent) -> bool:
        """Whether the event runs; a status that is not known does not undo a start."""
        if event.status in (EventStatus.SCHEDULED, EventStatus.STARTED):
            return event.status == EventStatus.STARTED
        before = self.watch.known.get(event.key)
        return before is not None and _had_started(before)

    def steps(self) -> Iterator[Transition]:
        for key, event in self.document.events.items():
            before = self.watch.known.get(key)
            if before is None or key in self.again:
                yield self._appeared(event)
            elif key in self.changed:
                yield self._changed(before.event, event)
        if self.document.faults or self.fall is not None:
            return  # an absent event does not count as gone now
        for key, before in self.watch.known.items():
            if key not in self.document.events:
                yield self._gone(before)

    def _appeared(self, event: ScheduledEvent) -> Transition:
        is_started = event.status == EventStatus.STARTED
        kind = TransitionKind.STARTED if is_started else TransitionKind.SCHEDULED
        return self._step(kind, event, None)

    def _changed(self, before: ScheduledEvent, event: ScheduledEvent) -> Transition:
        started = EventStatus.STARTED
        starts = event.status == started and before.status != started
        kind = TransitionKind.STARTED if starts else TransitionKind.UPDATED
        return self._step(kind, event, before)

    def _gone(self, before: Known) -> Transition:
        if _had_started(before):
            kind = TransitionKind.COMPLETED
        elif self._is_cancelled(before):
            kind = TransitionKind.CANCELLED
        else:
            kind = TransitionKind.ENDED
        return self._step(kind, before.event, before.event, before.announced)

    def _is_cancelled(self, before: Known) -> bool:
        """Whether the event is gone and only a cancellation can be the reason."""
        gap = before.seen.elapsed(self.now)
        not_before = before.event.not_before
        return (
            before.event.status == EventStatus.SCHEDULED
            and gap is not None
            and gap <= self.window
            and before.incarnation is not None
            and self.document.incarnation == before.incarnation + 1
            and not self._has_fallen_since(before)
            and not_before is not None
            and not_before - self.now.at > _SURELY_BEFORE
            and before.event.key not in self.relayed
        )

    def _has_fallen_since(self, before: Known) -> bool:
        fall = self.watch.fall
        return fall is not None and fall.seen.surely_elapsed(before.seen) < 0

    def _step(
        self,
        kind: TransitionKind,
        event: ScheduledEvent,
        previous: ScheduledEvent | None,
        announced: bool | None = None,  # noqa: FBT001 - a value, not a switch
    ) -> Transition:
        unobserved = self.unobserved
        return Transition(
            kind=kind,
            event=event,
            previous=previous,
            changes=_changes(previous, event) if previous else (),
            announced=announced if kind in GONE else self.announced(event),
            unobserved=None if unobserved is None else int(unobserved),
        )


def _had_started(known: Known) -> bool:
    # The status counts, too: a checkpoint of an older version has no had_started.
    return known.had_started or known.event.status == EventStatus.STARTED


def _differ(before: ScheduledEvent, after: ScheduledEvent) -> bool:
    return exact(before.canonical) != exact(after.canonical)


def _changes(previous: ScheduledEvent, event: ScheduledEvent) -> tuple[str, ...]:
    before, after = previous.canonical, event.canonical
    return tuple(
        sorted(
            name
            for name in before.keys() | after.keys()
            if name not in before
            or name not in after
            or exact(before[name]) != exact(after[name])
        )
    )
