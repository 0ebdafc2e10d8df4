"""Live events: scheduled, started by approval or by time, removed.

Nothing here waits. Each read of the document first makes the changes that have become
due since the last read, in order, each with its own incarnation. So a client that reads
rarely does not see every incarnation, as in reality.
"""

import logging
import math
from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum

import orjson
from msgspec import Struct, field
from msgspec.structs import replace

from bridge.simulator.errors import NoSuchEventError
from bridge.simulator.imds.document import (
    NEWEST,
    ScheduledEvent,
    Status,
    document,
    is_shown,
)
from bridge.simulator.imds.source import Approval, View

log = logging.getLogger(__name__)


_CANCELLED_AHEAD_SECONDS = 30.0


class StartOn(StrEnum):
    """Which approvals start an event before its NotBefore."""

    AT_ONCE = "at-once"
    ALL_CONCERNED = "all-concerned"


class EventLife(Struct, frozen=True, kw_only=True):
    """The planned life of an event, as durations.

    Attributes:
        event_id: the EventId; None: a new one is made.
        notice_seconds: from its appearance to NotBefore.
        started_seconds: how long it is Started; None: until something removes it.
        cancelled_after_seconds: when it is cancelled; None: never.
        is_gone_at_not_before: whether it leaves the document at NotBefore, as when a
            Spot VM is evicted: no VM is left that could see it Started.
        waits_for_others: whether other tenants of the host must approve it, too.
    """

    event_type: str
    resources: tuple[str, ...]
    event_id: str | None = None
    status: Status = Status.SCHEDULED
    source: str = "Platform"
    description: str = ""
    duration_seconds: int = -1
    notice_seconds: float = 900.0
    started_seconds: float | None = None
    cancelled_after_seconds: float | None = None
    is_gone_at_not_before: bool = False
    waits_for_others: bool = False

    def faster(self, speed: float, least: float) -> "EventLife":
        """Return the same life with shorter durations.

        Args:
            speed: divides the durations.
            least: the lower bound of each duration, in seconds.
        """

        def scaled(seconds: float) -> float:
            return max(seconds / speed, least) if seconds else 0.0

        started, cancelled = self.started_seconds, self.cancelled_after_seconds
        notice = scaled(self.notice_seconds)
        if cancelled is not None:
            # Near NotBefore, a cancelled event would look like a started one.
            notice = max(notice, scaled(cancelled) + _CANCELLED_AHEAD_SECONDS)
        return replace(
            self,
            notice_seconds=notice,
            started_seconds=None if started is None else scaled(started),
            cancelled_after_seconds=None if cancelled is None else scaled(cancelled),
        )

    def born(self, at: float, event_id: str) -> ScheduledEvent:
        """Return the event as it first appears."""
        # NotBefore has whole seconds, and no event may start before it.
        not_before = float(math.ceil(at + self.notice_seconds))
        ends_at = not_before if self.is_gone_at_not_before else None
        if self.cancelled_after_seconds is not None:
            ends_at = at + self.cancelled_after_seconds
        scheduled = ScheduledEvent(
            event_id=event_id,
            event_type=self.event_type,
            resources=self.resources,
            status=Status.SCHEDULED,
            not_before=not_before,
            description=self.description,
            source=self.source,
            duration_seconds=self.duration_seconds,
            started_seconds=self.started_seconds,
            ends_at=ends_at,
            waits_for_others=self.waits_for_others,
        )
        is_started = self.status is Status.STARTED
        return scheduled.started(at) if is_started else scheduled


class LiveEvents(Struct):
    """The events of the document.

    Attributes:
        new_id: makes an EventId.
        pending: events that appear right after the first client has read the document.
        start_on: which approvals start an event.
        incarnation: grows by one with each change of the events.
    """

    new_id: Callable[[], str]
    pending: Sequence[EventLife] = ()
    start_on: StartOn = StartOn.AT_ONCE
    incarnation: int = 1
    _events: dict[str, ScheduledEvent] = field(default_factory=dict)

    def read(self, now: float, version: str) -> View:
        """Return the document for a client; the first call starts the scenario."""
        view = self.peek(now, version)
        pending, self.pending = self.pending, ()
        for life in pending:
            self.schedule(life, now)
        return view

    def peek(self, now: float, version: str = NEWEST) -> View:
        """Return the document; this does not count as a client's read."""
        shown = document(self.events(now), self.incarnation, version)
        return View(body=orjson.dumps(shown), etag=str(self.incarnation))

    def is_over(self, now: float) -> bool:
        """Return whether the scenario is over."""
        return not self.pending and not self.events(now)

    def events(self, now: float) -> tuple[ScheduledEvent, ...]:
        """Return the current events."""
        while (due := self._next_due(now)) is not None:
            self._update(due.event_id, due.next_step())
        return tuple(self._events.values())

    def _next_due(self, now: float) -> ScheduledEvent | None:
        due = [
            (event.next_step_at, event)
            for event in self._events.values()
            if event.next_step_at is not None and event.next_step_at <= now
        ]
        return min(due, key=lambda step: step[0])[1] if due else None

    def schedule(self, life: EventLife, now: float) -> ScheduledEvent:
        """Add an event; an event with the same EventId is replaced."""
        self.events(now)
        event = life.born(now, life.event_id or self.new_id())
        self._update(event.event_id, event)
        return event

    def find(self, event_id: str, now: float) -> ScheduledEvent:
        """Return an event; case does not matter.

        Raises:
            NoSuchEventError: it is not in the document.
        """
        self.events(now)
        try:
            return self._events[event_id.lower()]
        except KeyError:
            raise NoSuchEventError(
                f"there is no event {event_id} in the document"
            ) from None

    def replace(self, event: ScheduledEvent) -> None:
        """Replace the event with the same EventId."""
        self._update(event.event_id, event)

    def remove(self, event_id: str, now: float) -> None:
        """Remove an event from the document.

        Raises:
            NoSuchEventError: it is not in the document.
        """
        self._update(self.find(event_id, now).event_id, None)

    def start(self, event_id: str, now: float) -> ScheduledEvent:
        """Start an event now; a Started event stays Started.

        Raises:
            NoSuchEventError: it is not in the document.
        """
        event = self.find(event_id, now)
        if event.status is Status.SCHEDULED:
            event = event.started(now)
            self._update(event.event_id, event)
        return event

    def approve(self, approval: Approval) -> bool:
        """Accept an approval; False, without a change: an EventId is missing."""
        shown = {
            event.event_id.lower(): event
            for event in self.events(approval.at)
            if is_shown(event, approval.version)
        }
        wanted = _unique(approval.event_ids)
        if not all(event_id in shown for event_id in wanted):
            return False
        for event_id in wanted:
            self._approve(shown[event_id], approval)
        return True

    def _approve(self, event: ScheduledEvent, approval: Approval) -> None:
        approved = replace(event, approved_by=event.approved_by | {approval.by.lower()})
        self._events[event.event_id.lower()] = approved  # not shown: no new incarnation
        by_all = self.start_on is StartOn.AT_ONCE or approved.is_approved_by_all()
        if by_all and not event.waits_for_others:
            self.start(event.event_id, approval.at)

    def _update(self, event_id: str, event: ScheduledEvent | None) -> None:
        if event is None:
            self._events.pop(event_id.lower())
        else:
            self._events[event_id.lower()] = event
        self.incarnation += 1
        status = event.status if event else "gone"
        log.info("event changed", extra={"event_id": event_id, "status": status})


def _unique(event_ids: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(event_id.lower() for event_id in event_ids))
