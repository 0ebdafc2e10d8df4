"""The time line of a machine, and its outages: why, how long, planned or not. Pure.

An outage is made of notes that overlap: the bridge was silent, the machine was not
available by Resource Health, or it stood still. That a bridge has stopped is part of an
outage only beside an event or another note, for a bridge is stopped for an update, too.

``report`` reads events and notes from the store.

Source: learn.microsoft.com/azure/service-health/resource-health-vm-annotation
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, field

from bridge.events.vocabulary import KNOWN_TYPES
from bridge.hub.answers import Asked, Text
from bridge.hub.facts import NoteKind
from bridge.hub.view_rows import Row, Time

_NEAR = timedelta(minutes=2)  # notes so near belong to one outage
_BEFORE, _AFTER = timedelta(minutes=5), timedelta(minutes=15)
_REASONED = timedelta(minutes=30)  # so far from an outage Azure says its reason
_NOT_ANNOUNCED = "not announced by Azure"
_AVAILABLE, _UNAVAILABLE = "available", "unavailable"
_HARDWARE = ("hardware", "hostcrashed", "repair", "servicehealing")
_REASONS = {
    "virtualmachinestorageoffline": "storage",
    "virtualmachinepreempted": "Spot capacity",
    "virtualmachinecrashed": "the guest crashed",
}
QUIET = (NoteKind.SILENT, NoteKind.STOPPED)
_HOW: Mapping[NoteKind, Literal["paused", "silent", "unavailable", "stopped"]] = {
    NoteKind.HEALTH: "unavailable",
    NoteKind.SILENT: "silent",
    NoteKind.STOPPED: "stopped",
    NoteKind.PAUSED: "paused",
}
Seconds = Annotated[float, Meta(ge=0)]


class Event(Struct, frozen=True, kw_only=True):
    """A scheduled event, as far as a report needs it.

    Attributes:
        notice: seconds from its announcement to NotBefore; None = it has no NotBefore.
        decided: when it was approved; None = never.
        by: who approved it; () = nobody.
        refused: when it was refused; None = never.
        refused_by: who refused it.
        description: what Azure says of it.
    """

    key: str
    event_id: str
    event_type: str
    event_source: str
    status: str
    opened: datetime
    started: datetime | None
    ended: datetime | None
    notice: float | None
    decided: datetime | None
    by: tuple[str, ...] = ()
    refused: datetime | None = None
    refused_by: tuple[str, ...] = ()
    description: str = ""

    @property
    def waited(self) -> float | None:
        """Seconds from the announcement to the approval."""
        if self.decided is None:
            return None
        return max((self.decided - self.opened).total_seconds(), 0.0)

    def covers(self, begin: datetime, end: datetime, now: datetime) -> bool:
        """Whether an outage may be due to it."""
        if self.status == "cancelled" or not (self.started or self.ended):
            return False
        is_begun = (self.started or self.opened) - end <= _BEFORE  # no time overflows
        return is_begun and begin - (self.ended or now) <= _AFTER


class Mark(Struct, frozen=True, kw_only=True):
    """A stored note; see ``facts.Note``."""

    kind: NoteKind
    time: datetime
    until: datetime | None
    event_key: str
    data: Mapping[str, Any]


class Outage(Row, frozen=True, kw_only=True):
    """A time in which the machine was down or paused.

    Attributes:
        until: null: it goes on.
        seconds: how long, so far.
        planned: null: not known.
        why: such as: planned: host maintenance.
        event_id: of the scheduled event that it belongs to; null: none is known.
    """

    time: Time
    until: Time | None
    seconds: Seconds
    how: Literal["paused", "silent", "unavailable", "stopped"]
    planned: bool | None
    why: str
    event_id: str | None
    event_type: str | None


class TimeLineEntry(Row, frozen=True, kw_only=True):
    """One line of a time line.

    Attributes:
        what: announced, approved, refused, started, paused, silent, stopped,
            unavailable, available, annotation, window, back, or how the event ended.
        words: more about it.
        seconds: its length; of announced: the notice.
    """

    time: Time
    what: str
    words: str | None
    seconds: Seconds | None
    event_id: str | None


class TimeLine(Row, frozen=True, kw_only=True):
    """What happened to a machine, the oldest first.

    Attributes:
        cut: whether the store holds more than was read.
    """

    entries: tuple[TimeLineEntry, ...]
    outages: tuple[Outage, ...]
    cut: bool


class TimeLineAsked(Asked, frozen=True, kw_only=True):
    """Which machine is shown, and in which period.

    Attributes:
        name: the name of the machine.
        group: its resource group.
        subscription: its subscription.
        since: left out: a week before until.
        until: left out: now. A day is included.
    """

    name: Text = ""
    group: Text = field(default="", name="resourceGroup")
    subscription: Text = ""
    since: Time | None = None
    until: Time | None = None


def outages_of(
    found: Sequence[Event], marks: Sequence[Mark], now: datetime
) -> tuple[Outage, ...]:
    """Return the outages of one machine, the oldest first."""
    spans = sorted(_spans(marks, now), key=lambda span: span[0])
    clusters = list[list[tuple[datetime, datetime | None, Mark]]]()
    end: datetime | None = None
    for span in spans:
        if end is not None and clusters and span[0] - end <= _NEAR:
            clusters[-1].append(span)
            end = max(end, span[1] or now)
        else:
            clusters.append([span])
            end = span[1] or now
    outages = (_outage(cluster, found, marks, now) for cluster in clusters)
    return tuple(one for one in outages if one is not None)


def _spans(
    marks: Sequence[Mark], now: datetime
) -> Iterator[tuple[datetime, datetime | None, Mark]]:
    """Yield the times in which notes say that a machine was down or paused."""
    down: Mark | None = None
    for mark in sorted(marks, key=_by_time):
        if mark.kind in {*QUIET, NoteKind.PAUSED}:
            yield mark.time, mark.until, mark
        if mark.kind is NoteKind.HEALTH:
            is_up = str(mark.data.get("state")).lower() == _AVAILABLE
            if down is not None and is_up:
                yield down.time, mark.time, down
                down = None
            elif down is None and _is_down(mark):
                down = mark
    if down is not None and down.time <= now:
        yield down.time, None, down


def _is_down(mark: Mark) -> bool:
    return str(mark.data.get("state")).lower() == _UNAVAILABLE


def _outage(
    cluster: Sequence[tuple[datetime, datetime | None, Mark]],
    found: Sequence[Event],
    marks: Sequence[Mark],
    now: datetime,
) -> Outage | None:
    begin = cluster[0][0]
    ends = [end for _, end, _ in cluster]
    until = None if None in ends else max(end for end in ends if end is not None)
    kinds = {mark.kind for _, _, mark in cluster}
    event = _cause(found, cluster, begin, until or now, now)
    if kinds == {NoteKind.STOPPED} and event is None:
        return None
    seconds = max(((until or now) - begin).total_seconds(), 0.0)
    if kinds == {NoteKind.PAUSED}:
        seconds = sum(((end or now) - at).total_seconds() for at, end, _ in cluster)
    planned, why = _reason(event, marks, begin, until or now)
    return Outage(
        time=begin,
        until=until,
        seconds=seconds,
        how=next(how for kind, how in _HOW.items() if kind in kinds),
        planned=planned,
        why=why,
        event_id=event.event_id if event else None,
        event_type=event.event_type if event else None,
    )


def _cause(
    found: Sequence[Event],
    cluster: Sequence[tuple[datetime, datetime | None, Mark]],
    begin: datetime,
    end: datetime,
    now: datetime,
) -> Event | None:
    """Return the event that an outage belongs to: the one it names, or the nearest."""
    named = {mark.event_key for _, _, mark in cluster} - {""}
    own = [one for one in found if one.key in named]
    near = own or [one for one in found if one.covers(begin, end, now)]
    return min(
        near, key=lambda one: abs((one.started or one.opened) - begin), default=None
    )


def _reason(
    event: Event | None, marks: Sequence[Mark], begin: datetime, end: datetime
) -> tuple[bool | None, str]:
    """Return whether an outage was planned, and why it was."""
    near = [
        mark
        for mark in marks
        if mark.kind is NoteKind.ANNOTATION
        and begin - mark.time <= _REASONED
        and mark.time - end <= _REASONED
    ]
    near.sort(key=lambda mark: (_rank(mark), abs(mark.time - begin)))
    if near and (found := _annotated(near[0].data)) is not None:
        return found
    if event is not None:
        return _announced(event)
    for mark in marks:
        is_here = mark.kind is NoteKind.WINDOW and mark.time <= end
        if is_here and (mark.until is None or begin <= mark.until):
            name = mark.data.get("configuration") or "without a name"
            return True, f"planned: maintenance configuration {name}"
    return None, _NOT_ANNOUNCED


def _rank(mark: Mark) -> int:
    is_sure = str(mark.data.get("category")).lower() in {"planned", "unplanned"}
    return 0 if is_sure else 1


def _annotated(data: Mapping[str, Any]) -> tuple[bool | None, str] | None:
    """Return what an annotation says; None = nothing about a reason."""
    name, category, context = (
        str(data.get(key) or "").lower()
        for key in ("annotationName", "category", "context")
    )
    reason = str(data.get("reason") or data.get("annotationName") or "")
    if context == "customer initiated":
        return True, f"planned: asked for by a user ({reason})"
    if category == "planned":
        return True, "planned: host maintenance"
    if category == "unplanned":
        is_hardware = any(word in name for word in _HARDWARE)
        other = _REASONS.get(name, reason)
        return False, f"unplanned: {'hardware' if is_hardware else other}"
    return (False, f"unplanned: {_REASONS[name]}") if name in _REASONS else None


def _announced(event: Event) -> tuple[bool | None, str]:
    """Return the reason of an outage by its event: Azure has said no more of it."""
    known = KNOWN_TYPES.get(event.event_type or "")
    if known and known.cause:
        return False, f"unplanned: {known.cause}"
    if event.event_source == "User":
        return True, f"planned: {event.event_type}, asked for by a user"
    words = event.description.lower()
    if "hardware" in words or "degraded" in words:
        return False, "unplanned: hardware"
    return True, "planned: host maintenance"


def _by_time(one: Mark | TimeLineEntry) -> datetime:
    return one.time


def entries_of(
    found: Sequence[Event],
    marks: Sequence[Mark],
    outages: Sequence[Outage],
) -> list[TimeLineEntry]:
    """Return the lines of a time line, the oldest first."""
    back = (
        _line(one.until, "back", one.why, one.seconds, one.event_id)
        for one in outages
        if one.until is not None
    )
    steps = (line for event in found for line in _steps(event))
    return sorted((*steps, *map(_entry, marks), *back), key=_by_time)


def _line(
    time: datetime,
    what: str,
    words: object,
    seconds: float | None = None,
    event_id: str | None = None,
) -> TimeLineEntry:
    return TimeLineEntry(
        time=time,
        what=what,
        words=str(words) or None,
        seconds=seconds,
        event_id=event_id or None,
    )


def _steps(event: Event) -> Iterator[TimeLineEntry]:
    """Yield the life of an event."""
    name, about = event.event_type or "Event", event.event_id
    words = f"{name} by {event.event_source}" if event.event_source else name
    yield _line(event.opened, "announced", words, event.notice, about)
    for what, time, words in (
        ("refused", event.refused, f"by {', '.join(event.refused_by)}"),
        ("approved", event.decided, f"by {', '.join(event.by)}"),
        ("started", event.started, name),
        (event.status, event.ended, name),
    ):
        if time is not None:
            yield _line(time, what, words, None, about)


def _entry(mark: Mark) -> TimeLineEntry:
    data, seconds = mark.data, None
    if mark.until is not None:
        seconds = (mark.until - mark.time).total_seconds()
    match mark.kind:
        case NoteKind.HEALTH:
            what = str(data.get("state") or "unknown").lower()
            return _line(mark.time, what, "by Resource Health")
        case NoteKind.ANNOTATION:
            reason = data.get("reason") or data.get("annotationName")
            words = f"{reason} ({data.get('category')})"
            return _line(mark.time, "annotation", words)
        case NoteKind.WINDOW:
            name, status = (data.get(k) or "" for k in ("configuration", "status"))
            words = f"{name}: {status}" if status else str(name)
            return _line(mark.time, "window", words, seconds)
        case _:
            words = "" if mark.until is not None else "it goes on"
            return _line(mark.time, mark.kind.value, words, seconds)
