"""Queries for decisions, and for the record of an event."""

from typing import Any

from sqlalchemy import Connection, select, tuple_

from bridge.events.document import ScheduledEvent
from bridge.hub.answers import NAMES, DecisionRow, RecordEntry
from bridge.hub.decisions import DecisionState
from bridge.hub.facts import table, text
from bridge.hub.store.rows import json_of, micros, moment_of
from bridge.hub.store.tables import decisions, trail
from bridge.hub.view_rows import PAGE

_ENTRIES = 100


def list_decisions(
    connection: Connection, *, before: tuple[int, str] | None = None, limit: int = PAGE
) -> list[DecisionRow]:
    """Return decisions, the newest first.

    Args:
        connection: a connection within a transaction.
        before: the place of the last decision that was shown; None = from the newest.
        limit: how many decisions at most.
    """
    place = tuple_(decisions.c.time, decisions.c.id)
    query = select(decisions)
    if before is not None:
        query = query.where(place < before)
    order = (decisions.c.time.desc(), decisions.c.id.desc())
    found = connection.execute(query.order_by(*order).limit(limit))
    return [decision_row(row) for row in found]


def decision_row(row: Any) -> DecisionRow:
    """Convert a row of the table into a DecisionRow."""
    persons: Any = json_of(row.persons)
    seen = ScheduledEvent(event_id=row.event_id, raw=table(persons.get("seen")))
    names = tuple(name.removeprefix("_") for name in seen.resources)
    return DecisionRow(
        id=row.id,
        event_id=row.event_id,
        action=row.action,
        via=row.via,
        state=DecisionState(row.state),
        by=tuple(persons["by"]),
        rule=row.rule,
        reason=row.reason or None,
        time=moment_of(row.time),
        outcome=row.outcome or None,
        outcome_reason=row.outcome_reason or None,
        address=f"{row.entity} {row.session}".strip() or None,
        overridden=row.is_overridden,
        about=row.about or None,
        event_type=text(seen.event_type) or None,
        machines=names[:NAMES],
        machine_count=len(names),
    )


def cursor_of(row: DecisionRow) -> str:
    """Return the cursor of the list after a row."""
    return f"{micros(row.time)}-{row.id}"


def place_of(cursor: str) -> tuple[int, str] | None:
    """Parse a cursor; None = it is invalid."""
    number, _, name = cursor.partition("-")
    is_place = number.isascii() and number.isdigit() and len(number) < 18 and name
    return (int(number), name) if is_place and "\0" not in name else None


def record_of(
    connection: Connection,
    key: str,
    *,
    after: int | None = None,
    before: int | None = None,
) -> list[RecordEntry]:
    """Return the latest entries of the record of an event, the oldest first.

    Args:
        connection: a connection within a transaction.
        key: the EventId in capitals.
        after: only entries since this time, in microseconds since 1970.
        before: only entries before this time.
    """
    query = select(trail).where(trail.c.event_key == key)
    if after is not None:
        query = query.where(trail.c.time >= after)
    if before is not None:
        query = query.where(trail.c.time < before)
    newest = query.order_by(trail.c.seq.desc()).limit(_ENTRIES)
    return [
        RecordEntry(
            time=moment_of(row.time),
            what=row.what,
            via=row.via,
            person=row.person or None,
            detail=row.detail or None,
            decision=row.decision or None,
        )
        for row in reversed(connection.execute(newest).all())
    ]
