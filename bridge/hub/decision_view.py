"""Queries for decisions, and for the record of an event."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, select, tuple_

from bridge.events.document import ScheduledEvent
from bridge.hub.facts import table, text
from bridge.hub.store.rows import json_of, micros, moment_of
from bridge.hub.store.tables import decisions, trail
from bridge.hub.view_rows import PAGE, DecisionRow, TrailRow

Place = tuple[int, str]
_ENTRIES = 100


def list_decisions(
    connection: Connection, *, before: Place | None = None, limit: int = PAGE
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
    persons: dict[str, Any] = json_of(row.persons)
    seen = ScheduledEvent(event_id=row.event_id, raw=table(persons.get("seen")))
    return DecisionRow(
        id=row.id,
        event_id=row.event_id,
        action=row.action,
        via=row.via,
        state=row.state,
        by=tuple(persons["by"]),
        rule=row.rule,
        reason=row.reason,
        time=moment_of(row.time),
        outcome=row.outcome,
        outcome_reason=row.outcome_reason,
        address=f"{row.entity} {row.session}".strip(),
        is_overridden=row.is_overridden,
        about=row.about,
        event_type=text(seen.event_type),
        machines=tuple(name.removeprefix("_") for name in seen.resources),
    )


def cursor_of(row: DecisionRow) -> str:
    """Return the cursor of the list after a row."""
    return f"{micros(row.time)}-{row.id}"


def place_of(cursor: str) -> Place | None:
    """Parse a cursor; None = it is invalid."""
    number, _, name = cursor.partition("-")
    is_place = number.isascii() and number.isdigit() and len(number) < 18 and name
    return (int(number), name) if is_place and "\0" not in name else None


def trail_of(
    connection: Connection,
    key: str,
    *,
    after: int | None = None,
    before: int | None = None,
) -> Sequence[TrailRow]:
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
        TrailRow(
            time=moment_of(row.time),
            what=row.what,
            via=row.via,
            person=row.person,
            detail=row.detail,
            decision=row.decision,
        )
        for row in reversed(connection.execute(newest).all())
    ]
