"""Queries of the store for pages and API; they return typed rows.

    overview      the list of ``/``: open events first
    list_events   the list of ``/api/v1/events``: in the order of changes
    one_event     one event, with its messages, outcomes, decisions and record

All functions read in the transaction of their connection, and none writes.
``fleet_view`` has the queries for bridges, ``view_rows`` the types.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from fnmatch import fnmatchcase
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Select,
    and_,
    or_,
    select,
    text,
    tuple_,
)

from bridge.hub.bridges import is_unreported
from bridge.hub.config import AccessConfig
from bridge.hub.decision_view import decision_row, trail_of
from bridge.hub.facts import kept_name, key_of
from bridge.hub.fold import Machine, Voice
from bridge.hub.report import overlaps
from bridge.hub.store.current_event import aside_of, homes_of
from bridge.hub.store.outcomes import asked
from bridge.hub.store.rows import json_of, moment_of, voices_in
from bridge.hub.store.tables import (
    bridges,
    decisions,
    details,
    events,
    machines,
    messages,
    votes,
)
from bridge.hub.view_rows import (
    MESSAGES,
    PAGE,
    UNKNOWN,
    EventPage,
    EventRow,
    Filters,
    MessageRow,
    Situation,
    Voter,
)
from bridge.hub.voting import APPROVE, REFUSE, SET_ASIDE, Persons, persons_of

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
    query = query.order_by(events.c.version).limit(max(1, min(filters.limit, PAGE)))
    return _rows(connection, query, situation)


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
    query = query.offset(skip).limit(max(1, min(filters.limit, PAGE)))
    found = _rows(connection, query, situation)
    return sorted(found, key=lambda row: not row.is_unreported)


def of_machine(
    connection: Connection, machine: Machine, situation: Situation
) -> list[EventRow]:
    """Return the events that name a machine: open ones first, then the newest."""
    of = machines.c
    named = select(of.event_key).where(
        of.name == machine.name,
        of.subscription == machine.subscription,
        of.group == machine.group,
    )
    query = select(events).where(events.c.event_key.in_(named))
    order = (events.c.is_open.desc(), events.c.told.desc())
    return _rows(connection, query.order_by(*order).limit(PAGE), situation)


def machines_named(connection: Connection, name: str) -> list[Machine]:
    """Return all machines with a name, from events and from bridges."""
    found = set[tuple[str, str]]()
    for table in (machines, bridges):
        query = select(table.c.subscription, table.c.group).distinct()
        rows = connection.execute(query.where(table.c.name == name).limit(PAGE))
        found |= {(row.subscription, row.group) for row in rows}
    return [
        Machine(subscription=subscription, group=group, name=name)
        for subscription, group in sorted(found)
    ]


def open_without_bridge(
    connection: Connection, situation: Situation, *, after: str, limit: int
) -> list[EventRow]:
    """Return open events that only Azure has reported, in the order of their keys."""
    is_azures = events.c.azure_received.is_not(None)
    is_alone = events.c.is_open.is_(True) & events.c.has_bridge.is_(False)
    query = select(events).where(is_alone, is_azures, events.c.event_key > after)
    ordered = query.order_by(events.c.event_key).limit(limit)
    return _rows(connection, ordered, situation)


def one_event(
    connection: Connection, key: str, situation: Situation, before: str = ""
) -> EventPage | None:
    """Return one event with its newest messages; None = there is no such event.

    Args:
        connection: a connection within a transaction.
        key: the EventId in capitals.
        situation: the current Situation.
        before: the cursor ``older`` of another page: only messages before it; "" = the
            newest.
    """
    query = select(events).where(events.c.event_key == key)
    row = connection.execute(query).one_or_none()
    if row is None:
        return None
    (shown,) = _rows(connection, query, situation)
    state: dict[str, Any] = json_of(row.state)
    life = state["occurrences"][-1] if state["occurrences"] else {}
    place = place_of_message(before)
    found = _messages(connection, key, place)
    older = f"{found[-2].time}-{found[-2].seq}" if len(found) > MESSAGES else ""
    told = found[:MESSAGES]
    decided = select(decisions).where(decisions.c.event_key == key)
    newest = decided.order_by(decisions.c.time.desc()).limit(MESSAGES)
    return EventPage(
        row=replace(shown, event=life.get("event")),
        occurrences=state["occurrences"],
        outcomes=_outcomes(connection, state["outcomes"], key),
        addresses=state["addresses"],
        messages=tuple(_message(one) for one in reversed(told)),
        older=older,
        decisions=tuple(decision_row(one) for one in connection.execute(newest)),
        trail=tuple(
            trail_of(
                connection,
                key,
                after=told[-1].time if older else None,
                before=place[0] if place else None,
            )
        ),
        aside=tuple(sorted(aside_of(connection, key, row.lives))),
    )


def _outcomes(
    connection: Connection, outcomes: Sequence[Mapping[str, Any]], key: str
) -> list[Mapping[str, Any]]:
    """Add to each outcome whether it counts for a decision of this hub.

    counted      a bridge that was asked has said it of a decision
    not-asked    a bridge that was not asked has said it of a decision
    rule         the rule of a bridge has approved, so there was no message
    elsewhere    somebody has approved without this hub
    """
    query = select(decisions).where(decisions.c.event_key == key)
    ours = {row.id: row for row in connection.execute(query)}
    counted = {
        name: {id(one) for one in asked(connection, row, outcomes)}
        for name, row in ours.items()
    }
    found: list[Mapping[str, Any]] = []
    for one in outcomes:
        name = one["message_id"]
        standing = "elsewhere" if name else "rule"
        if name in ours:
            standing = "counted" if id(one) in counted[name] else "not-asked"
        found.append({**one, "standing": standing})
    return found


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
        return text("1 = 1")  # type: ignore[return-value]  # valid in a WHERE
    least = text("pg_snapshot_xmin(pg_current_snapshot())::text::bigint")
    return events.c.xid < least


def _rows(
    connection: Connection, query: Select[Any], situation: Situation
) -> list[EventRow]:
    found = connection.execute(query).all()
    keys = [row.event_key for row in found]
    voters = _voters(connection, keys)
    decided = _decided(connection, keys)
    expected = _with_a_bridge(connection, found, situation)
    persons = _persons(connection, found, situation.access)
    return [
        replace(
            _event(row, expected, situation, voters, decided),
            persons=persons.get(row.event_key),
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


def _decided(connection: Connection, keys: Sequence[str]) -> dict[tuple[str, int], Any]:
    """Return the latest decision on each occurrence of each event."""
    is_decision = decisions.c.action.in_((APPROVE, REFUSE))
    query = select(decisions).where(decisions.c.event_key.in_(keys), is_decision)
    ordered = connection.execute(query.order_by(decisions.c.time))
    return {(row.event_key, row.life): row for row in ordered}


def _persons(
    connection: Connection, found: Sequence[Any], access: AccessConfig | None
) -> dict[str, Persons]:
    """Return how many people must approve each event; none if nobody may decide."""
    if access is None:
        return {}
    voices = _voices(connection, [row.event_key for row in found])
    homes = homes_of(connection, list(voices), voices)
    query = select(decisions.c.event_key, decisions.c.life, decisions.c.about).where(
        decisions.c.event_key.in_(list(voices)), decisions.c.action == SET_ASIDE
    )
    aside = {tuple(row) for row in connection.execute(query)}
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


def _voices(connection: Connection, keys: Sequence[str]) -> dict[str, Sequence[Voice]]:
    """Return who has reported the latest occurrence of each event."""
    query = select(details.c.event_key, details.c.body).where(
        details.c.event_key.in_(keys)
    )
    stored = {row.event_key: json_of(row.body) for row in connection.execute(query)}
    return {key: voices_in(stored.get(key, {})) for key in keys}


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
    is_its_bridge = and_(
        bridges.c.name == of.name,
        bridges.c.subscription == of.subscription,
        bridges.c.group == of.group,
    )
    query = select(of.event_key).distinct().join(bridges, is_its_bridge)
    return set(connection.scalars(query.where(of.event_key.in_(alone))))


def _is_azures_alone(row: Any) -> bool:
    return row.azure_received is not None and not row.has_bridge


def _event(
    row: Any,
    expected: set[str],
    situation: Situation,
    voters: Mapping[str, list[Any]],
    decided: Mapping[tuple[str, int], Any],
) -> EventRow:
    life: dict[str, Any] = json_of(row.summary)
    last_reported, absent = moment_of(row.told), situation.absent_until
    is_lost = row.is_open and absent is not None and moment_of(row.heard) < absent
    mine = [v for v in voters.get(row.event_key, ()) if v.life == row.lives]
    decision = decided.get((row.event_key, row.lives))
    return EventRow(
        key=row.event_key,
        event_id=row.event_id,
        version=row.version,
        status=UNKNOWN if is_lost else row.status,
        is_open=row.is_open,
        event_type=row.event_type,
        event_source=row.event_source,
        subscription=row.subscription,
        group=row.group,
        content=row.content,
        machines=tuple(life.get("names", ())),
        machine_count=life.get("nameCount", 0),
        not_before=_moment(row.not_before),
        opened=moment_of(row.opened),
        ended=_moment(row.ended),
        last_reported=last_reported,
        first_reported_by=life.get("firstReportedBy", {}),
        is_unreported=_is_unreported(row, expected, life, situation),
        bridges_say=life.get("bridgesSay"),
        said=life.get("said"),
        said_by=life.get("saidBy"),
        said_until=_moment(row.said_until),
        doubled=life.get("doubled", ()),
        dropped=row.dropped,
        azure=life.get("azure"),
        lives=row.lives,
        event=life.get("event"),
        voters=tuple(_voter(one, situation) for one in mine),
        decision=decision_row(decision) if decision is not None else None,
    )


def _moment(value: int | None) -> datetime | None:
    return None if value is None else moment_of(value)


def _voter(row: Any, situation: Situation) -> Voter:
    time, access = moment_of(row.time), situation.access
    age = (situation.now - time).total_seconds()
    return Voter(
        person=row.person,
        via=row.via,
        time=time,
        reason=row.reason,
        entry=row.entry,
        lapse=access.lapse(row.entry, age) if access else "",
    )


def _is_unreported(
    row: Any, expected: set[str], life: Mapping[str, Any], situation: Situation
) -> bool:
    if situation.missing_after is None or not _is_azures_alone(row):
        return False
    is_expected = row.event_key in expected
    if situation.expect:
        resource = str(life.get("resource", "")).lower()
        is_expected = any(fnmatchcase(resource, g.lower()) for g in situation.expect)
    return is_expected and is_unreported(
        moment_of(row.azure_received),
        situation.drained,
        situation.now,
        missing_after=situation.missing_after,
    )


def _message(row: Any) -> MessageRow:
    return MessageRow(
        seq=row.seq,
        kind=row.kind,
        source=row.source,
        id=row.id,
        time=moment_of(row.time),
        heard=moment_of(row.heard),
        vm_id=row.vm_id,
        body=row.body,
    )
