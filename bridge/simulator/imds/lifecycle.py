"""Where the document comes from: live events, or given documents.

A ``DocumentSource`` is one of LiveEvents, FixedDocument and DocumentReel. Nothing here
waits: each read of the document first makes the changes that have become due since the
last read, in order, each with its own incarnation. So a client that reads rarely does
not see every incarnation, as in reality.
"""

import hashlib
import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Protocol

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

# -- What every source offers, and a document that does not change ---------------------


class View(Struct, frozen=True, kw_only=True):
    """The document as it is sent.

    Attributes:
        etag: the incarnation; if the document has none, a hash of the body.
    """

    body: bytes
    etag: str


class Approval(Struct, frozen=True, kw_only=True):
    """StartRequests as received.

    Attributes:
        event_ids: as the approver spelled them.
        by: the name of the VM that approves.
        at: seconds since the epoch.
        version: the API version of the request.
    """

    event_ids: tuple[str, ...]
    by: str
    at: float
    version: str


class DocumentSource(Protocol):
    """Decides what IMDS shows, and the effect of an approval."""

    def read(self, now: float, version: str) -> View:
        """Return the document for a client; the first call starts a scenario."""
        ...

    def peek(self, now: float, version: str) -> View:
        """Return the document; this does not count as a client's read."""
        ...

    def approve(self, approval: Approval) -> bool:
        """Accept an approval; False: an EventId is not in the document."""
        ...

    def is_over(self, now: float) -> bool:
        """Return whether the document will not change by itself any more."""
        ...


class FixedDocument(Struct, frozen=True):
    """A given document, valid or not; it never changes."""

    body: bytes

    def read(self, now: float, version: str) -> View:
        """Return the document unchanged."""
        return self.peek(now, version)

    def peek(self, now: float, version: str) -> View:  # noqa: ARG002 - neither time nor version changes it
        """Return the document unchanged."""
        return view_of(self.body)

    def approve(self, approval: Approval) -> bool:
        """Return whether each EventId is in the document."""
        known = event_statuses(_loaded(self.body))
        return all(event_id.lower() in known for event_id in approval.event_ids)

    def is_over(self, now: float) -> bool:  # noqa: ARG002 - the same at all times
        """Return True: the document never changes."""
        return True


def view_of(body: bytes) -> View:
    """Return a given document with the ETag that the service would send."""
    document = _loaded(body)
    number = (
        document.get("DocumentIncarnation") if isinstance(document, Mapping) else None
    )
    if isinstance(number, int | str) and str(number).isdecimal():
        return View(body=body, etag=str(number))
    return View(body=body, etag=hashlib.sha256(body).hexdigest()[:16])


def event_statuses(document: object) -> dict[str, object]:
    """Return EventStatus by EventId in lower case, for the events that can be read."""
    return {
        event_id.lower(): event.get("EventStatus")
        for event in event_objects(document)
        if isinstance(event_id := event.get("EventId"), str)
    }


def event_objects(document: object) -> list[Mapping[str, object]]:
    """Return the events of a given document that are objects."""
    events = document.get("Events") if isinstance(document, Mapping) else None
    if not isinstance(events, list):
        return []
    return [event for event in events if isinstance(event, Mapping)]


def _loaded(body: bytes) -> object:
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        return None


# -- Show given documents one after another, each for the same time --------------------


class DocumentReel(Struct):
    """Documents of a real VM, played in order; the last one stays.

    Attributes:
        documents: shown verbatim in every API version.
        hold_seconds: how long each is shown.
    """

    documents: Sequence[object]
    hold_seconds: float
    _position: int = 0
    _shown_at: float | None = None

    def read(self, now: float, version: str) -> View:
        """Return the document for a client; the first call starts the reel."""
        if self._shown_at is None:
            self._shown_at = now
        return self.peek(now, version)

    def peek(self, now: float, version: str) -> View:  # noqa: ARG002 - shown verbatim in each version
        """Return the document; this does not count as a client's read."""
        return view_of(orjson.dumps(self._current(now)))

    def approve(self, approval: Approval) -> bool:
        """Accept an approval: skip the documents where the event is still Scheduled."""
        known = event_statuses(self._current(approval.at))
        wanted = [event_id.lower() for event_id in approval.event_ids]
        if not all(event_id in known for event_id in wanted):
            return False
        for event_id in wanted:
            self._jump(event_id, approval.at)
        return True

    def is_over(self, now: float) -> bool:
        """Return whether the last document is shown."""
        self._current(now)
        return self._position == self._last

    def _current(self, now: float) -> object:
        while self._shown_at is not None and self._position < self._last:
            next_at = self._shown_at + self.hold_seconds
            if now < next_at:
                break
            self._position += 1
            self._shown_at = next_at
        return self.documents[self._position]

    def _jump(self, event_id: str, now: float) -> None:
        if not self._is_scheduled(event_id, self._position):
            return
        for position in range(self._position + 1, len(self.documents)):
            if not self._is_scheduled(event_id, position):
                self._position, self._shown_at = position, now
                return

    def _is_scheduled(self, event_id: str, position: int) -> bool:
        statuses = event_statuses(self.documents[position])
        return statuses.get(event_id) == Status.SCHEDULED

    @property
    def _last(self) -> int:
        return len(self.documents) - 1


# -- Live events: scheduled, started by approval or by time, removed -------------------


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
