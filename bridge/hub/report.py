"""The time line of a machine, and the report of a fleet for a period.

    time line   what happened to one machine: its events, approvals, silences, and what
                Azure said of it
    report      numbers for each machine and type of event, and for all

All queries are bounded, whatever the store holds: a report is of the newest 20,000
pairs of event and machine, and of the newest 20,000 notes. ``timeline`` finds outages.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from statistics import median
from typing import Annotated, Any

import orjson
from msgspec import Meta, Struct, field
from msgspec.structs import replace
from sqlalchemy import ColumnElement, Connection, and_, or_, select, true

from bridge.hub.answers import Asked
from bridge.hub.decisions import APPROVE, REFUSE
from bridge.hub.facts import Machine, NoteKind
from bridge.hub.store.current import is_at
from bridge.hub.store.rows import (
    Summary,
    micros,
    moment_of,
    moment_or_none,
    summary_in,
)
from bridge.hub.store.tables import decisions, events, machines, notes
from bridge.hub.timeline import (
    QUIET,
    Event,
    Mark,
    Outage,
    TimeLine,
    entries_of,
    outages_of,
)
from bridge.hub.view_rows import Count, Row, Time

MOST_PAIRS = 20_000
WEEK = timedelta(days=7)
DAYS = (
    *("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"),
)
_MOST_DECISIONS = 5000
_MOST_EVENTS = 100  # of a time line
_MOST_NOTES = 600  # of a time line
_MANY_NAMES = 5

Place = tuple[str, str, str]


# -- reading ---------------------------------------------------------------------------


def time_line(
    connection: Connection,
    machine: Machine,
    since: datetime,
    until: datetime,
    now: datetime,
) -> TimeLine:
    """Return what happened to a machine in a period."""
    of = machines.c
    mine = select(of.event_key).where(is_at(of, machine))
    query = select(events).where(
        events.c.event_key.in_(mine), overlaps(since, until), _is_told()
    )
    newest = query.order_by(events.c.opened.desc()).limit(_MOST_EVENTS)
    rows = connection.execute(newest).all()
    known = _events(connection, rows).values()
    found = sorted(known, key=lambda one: (one.opened, one.key))
    every = replace(machine, group="", name="")  # all machines of the subscription
    here = or_(is_at(notes.c, machine), is_at(notes.c, every))
    asked = _notes_in(since, until).where(here)
    marks = [_mark(row) for row in connection.execute(asked.limit(_MOST_NOTES))]
    outages = outages_of(found, marks, now)
    return TimeLine(
        entries=tuple(entries_of(found, marks, outages)),
        outages=outages,
        cut=len(rows) == _MOST_EVENTS or len(marks) == _MOST_NOTES,
    )


def overlaps(since: datetime | None, until: datetime | None) -> ColumnElement[bool]:
    """Return a condition: an event was known at some time of a period."""
    found = list[ColumnElement[bool]]()
    if until is not None:
        found.append(events.c.opened < micros(until))
    if since is not None:
        is_after = events.c.ended >= micros(since)
        found.append(or_(events.c.ended.is_(None), is_after))
    return and_(true(), *found)


def _is_told() -> ColumnElement[bool]:
    return events.c.lives > 0


def _notes_in(since: datetime, until: datetime) -> Any:
    of = notes.c
    is_over = or_(of.until >= micros(since), of.time >= micros(since))
    is_open = of.until.is_(None) & of.kind.in_([kind.value for kind in QUIET])
    query = select(notes).where(of.time < micros(until), or_(is_over, is_open))
    return query.order_by(of.time.desc(), of.id)


def _mark(row: Any) -> Mark:
    return Mark(
        kind=NoteKind(row.kind),
        time=moment_of(row.time),
        until=moment_or_none(row.until),
        event_key=row.event_key,
        data=orjson.loads(row.data),
    )


def _events(connection: Connection, rows: Sequence[Any]) -> dict[str, Event]:
    """Return events with who has decided on them; the decisions are bounded, too."""
    found = {row.event_key: _event(row) for row in rows}
    is_decision = decisions.c.action.in_((APPROVE, REFUSE))
    since = min((row.opened for row in rows), default=0)
    is_theirs = decisions.c.time >= since
    if len(found) <= _MOST_EVENTS:
        is_theirs = decisions.c.event_key.in_(list(found))
    query = select(decisions).where(is_decision, is_theirs)
    ordered = query.order_by(decisions.c.time.desc()).limit(_MOST_DECISIONS)
    for row in connection.execute(ordered):
        if row.event_key in found:
            found[row.event_key] = _decided(found[row.event_key], row)
    return found


def _event(row: Any) -> Event:
    summary = summary_in(row.summary) if hasattr(row, "summary") else Summary()
    raw = summary.event or {}
    decided, by = moment_or_none(row.decided), tuple[str, ...]()
    if decided is not None:
        by = ("somebody, without this hub",) if row.decided_by else ("a rule",)
    return Event(
        key=row.event_key,
        event_id=row.event_id,
        event_type=row.event_type,
        event_source=row.event_source,
        status=row.status,
        opened=moment_of(row.opened),
        started=moment_or_none(row.started),
        ended=moment_or_none(row.ended),
        notice=None if row.notice is None else max(row.notice, 0) / 1e6,
        decided=decided,
        by=by,
        description=str(raw.get("Description") or ""),
    )


def _decided(event: Event, row: Any) -> Event:
    """Return an event with a decision of this hub; the first approval counts."""
    time, persons = moment_of(row.time), orjson.loads(row.persons)
    listed: Any = persons.get("by")
    by = tuple(map(str, listed[:_MANY_NAMES])) if isinstance(listed, list) else ()
    if row.action == REFUSE:
        return replace(event, refused=time, refused_by=by)
    if row.state not in {"done", "sent", "decided", "sending"}:
        return event
    return replace(event, decided=time, by=by)


# -- the report of a fleet -------------------------------------------------------------


def _seconds(words: str) -> Any:
    return Meta(ge=0, description=words)


class ReportAsked(Asked, frozen=True, kw_only=True):
    """Which period is reported on.

    Attributes:
        since: left out: a week before to.
        until: left out: now. A day is included.
    """

    since: Time | None = field(default=None, name="from")
    until: Time | None = field(default=None, name="to")


class Numbers(Row, frozen=True, kw_only=True):
    """How long it took, and how long machines were down."""

    notice_seconds: (
        Annotated[float, _seconds("From announcement to NotBefore: median.")] | None
    )
    decision_seconds: (
        Annotated[float, _seconds("From announcement to approval: median.")] | None
    )
    down_seconds: Annotated[float, _seconds("Down, by whatever was seen of it.")]
    paused_seconds: Annotated[float, _seconds("Stood still.")]
    planned_seconds: Annotated[float, _seconds("Those of both that were planned.")]
    unplanned_seconds: Annotated[float, _seconds("Those of both that were not.")]


class ReportRow(Numbers, frozen=True, kw_only=True):
    """The numbers of one machine and one type of event.

    Attributes:
        event_type: null: outages that belong to no event.
        by: who decided, and how often.
    """

    machine: str
    resource_group: str | None
    subscription: str | None
    event_type: str | None
    events: Count
    by: tuple[str, ...]

    @property
    def at(self) -> Machine:
        """The machine."""
        place = (self.subscription or "", self.resource_group or "", self.machine)
        return Machine.at(place)


class ReportTotals(Numbers, frozen=True, kw_only=True):
    """The numbers of the fleet."""

    events: Count
    machines: Count
    approved: Count


class Report(Row, frozen=True, kw_only=True):
    """The numbers of a period.

    Attributes:
        rows: the longest outages first.
        cut: whether the store holds more than was read.
    """

    since: Time = field(name="from")
    until: Time = field(name="to")
    totals: ReportTotals
    rows: tuple[ReportRow, ...]
    cut: bool


class _Cell(Struct):
    """The events and outages of one machine and type, while they are collected."""

    events: list[Event] = field(default_factory=list)
    outages: list[Outage] = field(default_factory=list)


def report_of(
    connection: Connection, since: datetime, until: datetime, now: datetime
) -> Report:
    """Return the report of the events announced in a period, and of outages."""
    columns = [c for c in events.c if c.name not in {"summary", "state", "details"}]
    inside = (events.c.opened >= micros(since)) & (events.c.opened < micros(until))
    newest = (
        select(*columns)
        .where(inside, _is_told())
        .order_by(events.c.opened.desc(), events.c.event_key)
        .limit(MOST_PAIRS)
    )
    rows = connection.execute(newest).all()
    found = _events(connection, rows)
    by_machine, is_cut = _pairs(connection, found, since, until)
    marks = connection.execute(_notes_in(since, until).limit(MOST_PAIRS)).all()
    by_place = defaultdict[Place, list[Mark]](list)
    for row in marks:
        by_place[row.subscription, row.group, row.name].append(_mark(row))
    cells = dict[tuple[Place, str], _Cell]()
    for place in {*by_machine, *(one for one in by_place if one[2])}:
        mine = [found[key] for key in by_machine.get(place, ())]
        told = [*by_place.get(place, ()), *by_place.get((place[0], "", ""), ())]
        _collect(cells, place, mine, outages_of(mine, told, now) if told else ())
    made = [_row(place, kind, cell) for (place, kind), cell in cells.items()]
    made.sort(key=_worst_first)
    cut = is_cut or len(rows) == MOST_PAIRS or len(marks) == MOST_PAIRS
    outages = [one for cell in cells.values() for one in cell.outages]
    totals = ReportTotals(
        events=len(found),
        machines=len({(r.subscription, r.resource_group, r.machine) for r in made}),
        approved=sum(1 for one in found.values() if one.decided is not None),
        **_numbers(list(found.values()), outages),
    )
    return Report(since=since, until=until, rows=tuple(made), totals=totals, cut=cut)


def _worst_first(row: ReportRow) -> tuple[object, ...]:
    place = (row.subscription or "", row.resource_group or "", row.machine)
    return (
        -row.down_seconds - row.paused_seconds,
        -row.events,
        place,
        row.event_type or "",
    )


def _pairs(
    connection: Connection, found: Mapping[str, Event], since: datetime, until: datetime
) -> tuple[Mapping[Place, list[str]], bool]:
    """Return the events of each machine, and whether there are more."""
    of = machines.c
    inside = (events.c.opened >= micros(since)) & (events.c.opened < micros(until))
    query = (
        select(of.event_key, of.subscription, of.group, of.name)
        .join(events, events.c.event_key == of.event_key)
        .where(inside)
        .order_by(events.c.opened.desc(), of.event_key)
        .limit(MOST_PAIRS)
    )
    pairs = connection.execute(query).all()
    made = defaultdict[Place, list[str]](list)
    for key, *place in pairs:
        if key in found:
            made[place[0], place[1], place[2]].append(key)
    return made, len(pairs) == MOST_PAIRS


def _collect(
    cells: dict[tuple[Place, str], _Cell],
    place: Place,
    mine: Sequence[Event],
    outages: Sequence[Outage],
) -> None:
    for event in mine:
        cells.setdefault((place, event.event_type), _Cell()).events.append(event)
    for outage in outages:
        kind = outage.event_type or ""
        cells.setdefault((place, kind), _Cell()).outages.append(outage)


def _row(place: Place, kind: str, cell: _Cell) -> ReportRow:
    subscription, group, name = place
    by = Counter(who for one in cell.events for who in one.by)
    return ReportRow(
        machine=name,
        resource_group=group or None,
        subscription=subscription or None,
        event_type=kind or None,
        events=len(cell.events),
        by=tuple(f"{who} ({n})" if n > 1 else who for who, n in by.items()),
        **_numbers(cell.events, cell.outages),
    )


def _numbers(found: Sequence[Event], outages: Sequence[Outage]) -> Mapping[str, Any]:
    def total(which: Iterable[Outage]) -> float:
        return sum(one.seconds for one in which)

    return {
        "notice_seconds": _median(one.notice for one in found),
        "decision_seconds": _median(one.waited for one in found),
        "down_seconds": total(one for one in outages if one.how != "paused"),
        "paused_seconds": total(one for one in outages if one.how == "paused"),
        "planned_seconds": total(one for one in outages if one.planned),
        "unplanned_seconds": total(one for one in outages if one.planned is False),
    }


def _median(values: Iterable[float | None]) -> float | None:
    known = [one for one in values if one is not None]
    return median(known) if known else None


# -- the digest of a week --------------------------------------------------------------


_AT_HOUR = 6  # of UTC
_LATEST = timedelta(days=1)  # a digest that is due for longer is left out
_MOST_LINES = 15


def due(day: str, now: datetime) -> datetime | None:
    """Return since when the digest of a week is due; None = it is not, or too long.

    Args:
        day: a day of the week in English, in lower case; "" = no digest.
        now: the present moment, in UTC.
    """
    if not day:
        return None
    wanted = DAYS.index(day)
    at = now.replace(hour=_AT_HOUR, minute=0, second=0, microsecond=0)
    at -= timedelta(days=(now.weekday() - wanted) % 7)
    at = at if at <= now else at - WEEK
    return at if now - at < _LATEST else None


def digest(found: Report) -> list[str]:
    """Return a report as lines of text: first a headline, then the longest outages."""
    totals = found.totals
    head = f"Maintenance, {found.since:%d %b} to {found.until:%d %b}: "
    events = "1 event" if totals.events == 1 else f"{totals.events} events"
    planned, other = _span(totals.planned_seconds), _span(totals.unplanned_seconds)
    of_time = f"of the time: {planned} planned, {other} unplanned"
    down, paused = _span(totals.down_seconds), _span(totals.paused_seconds)
    lines = [
        f"{head}{events}, {down} down, {paused} paused",
        f"{totals.approved} of {events} approved; {of_time}",
    ]
    bad = [row for row in found.rows if row.down_seconds or row.paused_seconds]
    for row in bad[:_MOST_LINES]:
        kind = row.event_type or "not announced"
        spent = f"{_span(row.down_seconds)} down, {_span(row.paused_seconds)} paused"
        lines.append(f"{row.machine}, {kind}: {spent}")
    if (more := len(bad) - _MOST_LINES) > 0:
        lines.append(f"and {more} more")
    return lines


def _span(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02} s" if minutes else f"{rest} s"
