"""Queries of the store for pages and API; they return typed rows.

    overview      the list of ``/``: open events first
    list_events   the list of ``/api/v1/events``: in the order of changes
    one_event     one event, with its messages, outcomes, decisions and record

All functions read in the transaction of their connection, and none writes.
``store.lists`` has the queries for bridges, ``answers`` the types.
"""

import re
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    or_,
    select,
    text,
    true,
    tuple_,
)

from bridge.hub.access import AccessConfig
from bridge.hub.answers import (
    MESSAGES,
    UNKNOWN,
    ApprovalState,
    DecisionRow,
    EventPage,
    EventRow,
    Filters,
    MessageRow,
    OutcomeRow,
    PersonsRow,
    RecordEntry,
    SaidToBeOver,
    Standing,
    Vote,
)
from bridge.hub.bridges import is_unreported
from bridge.hub.decisions import APPROVE, REFUSE, Persons, persons_of
from bridge.hub.facts import Kind, Machine, kept_name, key_of, object_in
from bridge.hub.report import overlaps
from bridge.hub.store.current import aside_of, asked, homes_of, is_at
from bridge.hub.store.lists import decision_row
from bridge.hub.store.rows import (
    Summary,
    details_in,
    made,
    moment_of,
    moment_or_none,
    state_in,
    summary_in,
)
from bridge.hub.store.tables import (
    bridges,
    decisions,
    events,
    machines,
    messages,
    trail,
    votes,
)
from bridge.hub.view_rows import PAGE, ReporterRow, Situation, StoredOutcome

_MOST_ENTRIES = 100
_PLACE = re.compile(r"(\d{1,18})-(\d{1,18})", re.ASCII)


def list_events(
    connection: Connection, filters: Filters, situation: Situation
) -> list[EventRow]:
    """Return events in the order of their changes; the version is the cursor.

    In PostgreSQL a transaction with a smaller version may commit later. Rows that are
    newer than such a transaction are left out, so a client that continues from a cursor
    misses no change.
    """
    query = select(events).where(*_wanted(filters), _is_settled(connection))
    query = query.order_by(events.c.version).limit(filters.limit)
    return _rows(connection, connection.execute(query).all(), situation)


def overview(
    connection: Connection, filters: Filters, situation: Situation, *, skip: int = 0
) -> list[EventRow]:
    """Return events for people: unreported first, then open ones by NotBefore."""
    no_time = events.c.not_before.is_(None)
    order = (events.c.is_open.desc(), no_time, events.c.not_before)
    query = (
        select(events)
        .where(*_wanted(filters))
        .order_by(*order, events.c.told.desc(), events.c.event_key)
    )
    query = query.offset(skip).limit(filters.limit)
    found = _rows(connection, connection.execute(query).all(), situation)
    return sorted(found, key=lambda row: not row.unreported)


def of_machine(
    connection: Connection, machine: Machine, situation: Situation
) -> list[EventRow]:
    """Return the events that name a machine: open ones first, then the newest."""
    of = machines.c
    named = select(of.event_key).where(is_at(of, machine))
    query = select(events).where(events.c.event_key.in_(named))
    order = (events.c.is_open.desc(), events.c.told.desc())
    found = connection.execute(query.order_by(*order).limit(PAGE)).all()
    return _rows(connection, found, situation)


def open_without_bridge(
    connection: Connection, situation: Situation, *, after: str, limit: int
) -> list[EventRow]:
    """Return open events that only Azure has reported, in the order of their keys."""
    is_azures = events.c.azure_received.is_not(None)
    is_alone = events.c.is_open.is_(True) & events.c.has_bridge.is_(False)
    query = select(events).where(is_alone, is_azures, events.c.event_key > after)
    ordered = query.order_by(events.c.event_key).limit(limit)
    return _rows(connection, connection.execute(ordered).all(), situation)


def one_event(
    connection: Connection, key: str, situation: Situation, before: str = ""
) -> EventPage | None:
    """Return one event with its newest messages; None = there is no such event.

    Args:
        connection: a connection within a transaction.
        key: the EventId in capitals.
        situation: the current Situation.
        before: the cursor ``older_messages`` of another page: only messages before it;
            "" = the newest.
    """
    query = select(events).where(events.c.event_key == key)
    row = connection.execute(query).one_or_none()
    if row is None:
        return None
    (shown,) = _rows(connection, [row], situation)
    state = state_in(row.state)
    place = place_of_message(before)
    found = _messages(connection, key, place)
    older = f"{found[-2].time}-{found[-2].seq}" if len(found) > MESSAGES else None
    told = found[:MESSAGES]
    mine = select(decisions).where(decisions.c.event_key == key)
    decided = connection.execute(mine.order_by(decisions.c.time.desc())).all()
    after = told[-1].time if older else None
    aside = aside_of(connection, [key])
    return made(
        EventPage,
        shown,
        event=state.latest.event if state.latest else None,
        occurrences=state.occurrences,
        outcomes=tuple(_outcomes(connection, state.outcomes, decided)),
        messages=tuple(_message(one) for one in reversed(told)),
        older_messages=older,
        decisions=tuple(map(decision_row, decided[:MESSAGES])),
        record=tuple(_record(connection, key, after, place[0] if place else None)),
        set_aside=tuple(sorted(who for _, life, who in aside if life == row.lives)),
    )


def _outcomes(
    connection: Connection, outcomes: Sequence[StoredOutcome], decided: Sequence[Any]
) -> Iterator[OutcomeRow]:
    """Yield the outcomes, each with whether it counts for a decision of this hub."""
    counted = {
        row.id: {id(one) for one in asked(connection, row, outcomes)} for row in decided
    }
    for one in outcomes:
        name = one.message_id
        standing: Standing = "elsewhere" if name else "rule"
        if name in counted:
            standing = "counted" if id(one) in counted[name] else "not-asked"
        yield made(OutcomeRow, one, standing=standing)


def _record(
    connection: Connection, key: str, after: int | None, before: int | None
) -> list[RecordEntry]:
    """Return the latest entries of the record between two times, the oldest first."""
    query = select(trail).where(trail.c.event_key == key)
    if after is not None:
        query = query.where(trail.c.time >= after)
    if before is not None:
        query = query.where(trail.c.time < before)
    newest = query.order_by(trail.c.seq.desc()).limit(_MOST_ENTRIES)
    return [
        made(
            RecordEntry,
            row,
            time=moment_of(row.time),
            person=row.person or None,
            detail=row.detail or None,
            decision=row.decision or None,
        )
        for row in reversed(connection.execute(newest).all())
    ]


def _messages(
    connection: Connection, key: str, before: tuple[int, int] | None
) -> Sequence[Any]:
    """Return the newest messages of an event, and one more if there are older ones."""
    place = tuple_(messages.c.time, messages.c.seq)
    query = select(messages).where(messages.c.event_key == key)
    if before is not None:
        query = query.where(place < before)
    order = (messages.c.time.desc(), messages.c.seq.desc())
    return connection.execute(query.order_by(*order).limit(MESSAGES + 1)).all()


def place_of_message(cursor: str) -> tuple[int, int] | None:
    """Parse a cursor of messages; None = it is none."""
    found = _PLACE.fullmatch(cursor)
    return (int(found[1]), int(found[2])) if found else None


def message_body(connection: Connection, key: str, seq: int) -> bytes | None:
    """Return the bytes of one message of an event, as they came; None = it has none."""
    of = messages.c
    query = select(of.body).where(of.event_key == key, of.seq == seq)
    return connection.scalar(query)


def _wanted(filters: Filters) -> list[ColumnElement[bool]]:
    of = events.c
    found: list[ColumnElement[bool]] = [of.version > filters.after]
    if filters.is_open is not None:
        found.append(of.is_open.is_(filters.is_open))
    for column, value in (
        (of.event_type, filters.event_type),
        (of.event_source, filters.event_source),
        (of.status, filters.status),
        (of.group, filters.group.lower()),
    ):
        if value:
            found.append(column == value)
    if filters.since or filters.until:
        found.append(overlaps(filters.since, filters.until))
    if filters.text:
        found.append(_begins(filters.text))
    return found


def _begins(words: str) -> ColumnElement[bool]:
    """Return a condition: the EventId or a machine's name begins with a text."""
    name = kept_name(words)
    named = select(machines.c.event_key).where(
        machines.c.name.startswith(name, autoescape=True)
    )
    is_id = events.c.event_key.startswith(key_of(words), autoescape=True)
    return or_(is_id, events.c.event_key.in_(named))


def _is_settled(connection: Connection) -> ColumnElement[bool]:
    if connection.dialect.name != "postgresql":
        return true()
    least = text("pg_snapshot_xmin(pg_current_snapshot())::text::bigint")
    return events.c.xid < least


def _rows(
    connection: Connection, found: Sequence[Any], situation: Situation
) -> list[EventRow]:
    """Convert rows of the table into EventRows."""
    keys = [row.event_key for row in found]
    voters = _voters(connection, keys)
    decided = _decided(connection, keys)
    expected = _with_a_bridge(connection, found, situation)
    persons = _persons(connection, found, situation.access)
    return [
        _event(
            row,
            situation,
            ApprovalState(
                votes=tuple(
                    _vote(one, situation)
                    for one in voters.get(row.event_key, ())
                    if one.life == row.lives
                ),
                persons=_persons_row(persons[row.event_key]),
                decision=decided.get((row.event_key, row.lives)),
            ),
            is_expected=row.event_key in expected,
        )
        for row in found
    ]


def _voters(connection: Connection, keys: Sequence[str]) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    query = select(votes).where(votes.c.event_key.in_(keys))
    order = (votes.c.time, votes.c.person, votes.c.via)
    for row in connection.execute(query.order_by(*order)):
        found.setdefault(row.event_key, []).append(row)
    return found


def _decided(
    connection: Connection, keys: Sequence[str]
) -> dict[tuple[str, int], DecisionRow]:
    """Return the latest decision on each occurrence of each event."""
    is_decision = decisions.c.action.in_((APPROVE, REFUSE))
    query = select(decisions).where(decisions.c.event_key.in_(keys), is_decision)
    ordered = connection.execute(query.order_by(decisions.c.time))
    return {(row.event_key, row.life): decision_row(row) for row in ordered}


def _persons(
    connection: Connection, found: Sequence[Any], access: AccessConfig
) -> dict[str, Persons]:
    """Return how many people must approve each event."""
    keys = [row.event_key for row in found]
    voices = {row.event_key: details_in(row.details).voices for row in found}
    homes = homes_of(connection, keys, voices)
    aside = aside_of(connection, keys)
    return {
        row.event_key: persons_of(
            access,
            row.event_type,
            homes[row.event_key],
            [
                voice
                for voice in voices[row.event_key]
                if (row.event_key, row.lives, voice.reporter.vm_id) not in aside
            ],
        )
        for row in found
    }


def _with_a_bridge(
    connection: Connection, found: Sequence[Any], situation: Situation
) -> set[str]:
    """Return the keys of those events of Azure alone that name a known bridge's VM.

    A list of the names could be longer than a statement may be.
    """
    alone = [row.event_key for row in found if _is_azures_alone(row)]
    if not alone or situation.missing_after is None or situation.expect:
        return set()
    of = machines.c
    is_its_bridge = is_at(bridges.c, of)
    query = select(of.event_key).distinct().join(bridges, is_its_bridge)
    return set(connection.scalars(query.where(of.event_key.in_(alone))))


def _is_azures_alone(row: Any) -> bool:
    return row.azure_received is not None and not row.has_bridge


def _event(
    row: Any, situation: Situation, approval: ApprovalState, *, is_expected: bool
) -> EventRow:
    life = summary_in(row.summary)
    absent = situation.absent_until
    is_lost = row.is_open and absent is not None and moment_of(row.heard) < absent
    return made(
        EventRow,
        row,
        status=UNKNOWN if is_lost else row.status,
        event_type=row.event_type or None,
        event_source=row.event_source or None,
        subscription=row.subscription or None,
        resource_group=row.group or None,
        machines=life.names,
        machine_count=life.name_count,
        not_before=moment_or_none(row.not_before),
        opened=moment_of(row.opened),
        ended=moment_or_none(row.ended),
        last_told=moment_of(row.told),
        first_reported_by=life.first_reported_by,
        unreported=_is_unreported(row, life, situation, is_expected=is_expected),
        bridges_say=life.bridges_say,
        said_to_be_over=_said(life, row.said_until),
        two_reports_with_one_id=life.doubled,
        messages_not_kept=row.dropped,
        azure_status=life.azure_status,
        occurrence=row.lives,
        event=life.event,
        approval=approval,
    )


def _said(life: Summary, until: int | None) -> SaidToBeOver | None:
    if life.said is None:
        return None
    by = life.said_by or ReporterRow()
    return SaidToBeOver(status=life.said, by=by, counts_from=moment_or_none(until))


def _persons_row(found: Persons) -> PersonsRow:
    raised = tuple(ReporterRow.of(one) for one in found.raised_by)
    return PersonsRow(wanted=found.wanted, rule=found.rule, raised_by=raised)


def _vote(row: Any, situation: Situation) -> Vote:
    age = (situation.now - moment_of(row.time)).total_seconds()
    lapse = situation.access.lapse(row.entry, age)
    return made(Vote, row, entry=row.entry or None, counts=not lapse, why=lapse or None)


def _is_unreported(
    row: Any, life: Summary, situation: Situation, *, is_expected: bool
) -> bool:
    if situation.missing_after is None or not _is_azures_alone(row):
        return False
    if situation.expect:
        resource = life.resource.lower()
        is_expected = any(fnmatchcase(resource, g.lower()) for g in situation.expect)
    return is_expected and is_unreported(
        moment_of(row.azure_received),
        situation.drained,
        situation.now,
        missing_after=situation.missing_after,
    )


def _message(row: Any) -> MessageRow:
    return made(
        MessageRow,
        row,
        kind=Kind(row.kind),
        time=moment_of(row.time),
        enqueued=moment_of(row.heard),
        body=object_in(row.body),
    )
