"""Queries for decisions, and for the record of an event."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, select, tuple_

from bridge.hub.store.rows import json_of, micros, moment_of
from bridge.hub.store.tables import decisions, trail
from bridge.hub.view_rows import PAGE, DecisionRow, TrailRow

Place = tuple[int, str]


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
    persons: list[str] = json_of(row.persons)["by"]  # type: ignore[assignment]  # as it was written
    return DecisionRow(
        id=row.id,
        event_id=row.event_id,
        action=row.action,
        via=row.via,
        state=row.state,
        by=tuple(persons),
        rule=row.rule,
        reason=row.reason,
        time=moment_of(row.time),
        outcome=row.outcome,
        outcome_reason=row.outcome_reason,
        address=f"{row.entity} {row.session}".strip(),
        is_overridden=row.is_overridden,
        about=row.about,
    )


def cursor_of(row: DecisionRow) -> str:
    """Return the cursor of the list after a row."""
    return f"{micros(row.time)}-{row.id}"


def place_of(cursor: str) -> Place | None:
    """Parse a cursor; None = it is invalid."""
    number, _, name = cursor.partition("-")
    is_place = number.isascii() and number.isdigit() and len(number) < 18 and name
    return (int(number), name) if is_place and "\0" not in name else None


def trail_of(connection: Connection, key: str) -> Sequence[TrailRow]:
    """Return the latest entries of the record of an event, the oldest first."""
    query = select(trail).where(trail.c.event_key == key)
    found = connection.execute(query.order_by(trail.c.seq.desc()).limit(PAGE)).all()
    return [
        TrailRow(
            time=moment_of(row.time),
            what=row.what,
            via=row.via,
            person=row.person,
            detail=row.detail,
            decision=row.decision,
        )
        for row in reversed(found)
    ]
