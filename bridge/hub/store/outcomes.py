"""Stores the outcomes of decisions; a part of ``intake``."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, select, update

from bridge.hub.decisions import DecisionState, End, end_of
from bridge.hub.fold import State
from bridge.hub.store import rows
from bridge.hub.store.records import Entry, alarm, record
from bridge.hub.store.tables import decisions

_OPEN_ENDED = ("sending", "sent", "failed", "void", "done")
EVENT_OVER = "event-over"  # the outcome of a decision whose event ended before
_OVER = End(
    state=DecisionState.FAILED,
    outcome=EVENT_OVER,
    reason="the event is over; whether the approval has arrived is not known",
)


def settle(connection: Connection, states: Mapping[str, State]) -> None:
    """Close the decisions whose outcomes bridges have reported."""
    with_outcomes = {key: state for key, state in states.items() if state.outcomes}
    if not with_outcomes:
        return
    query = select(decisions).where(
        decisions.c.event_key.in_(list(with_outcomes)),
        decisions.c.via == "bridge",
        decisions.c.state.in_(_OPEN_ENDED),
    )
    for row in connection.execute(query).all():
        state = with_outcomes[row.event_key]
        end = end_of(rows.outcomes_json(state), row.id)
        if end is not None and _differs(row, end):
            close(connection, row, end, state.last_reported)


def close_over(connection: Connection, states: Mapping[str, State]) -> None:
    """Close the decisions in ``sending`` whose occurrence of an event is over.

    An outcome that arrives later still counts.
    """
    query = select(decisions).where(
        decisions.c.event_key.in_(list(states)),
        decisions.c.state == DecisionState.SENDING,
    )
    for row in connection.execute(query).all():
        state = states[row.event_key]
        now = state.now
        if now is None or not now.is_open or row.life != state.lives:
            close(connection, row, _OVER, state.last_reported)


def _differs(row: Any, end: End) -> bool:
    """Whether an end differs from the stored state of a decision."""
    before = (row.state, row.outcome, row.outcome_reason)
    return before != (end.state.value, end.outcome, end.reason)


def close(connection: Connection, row: Any, end: End, now: datetime) -> None:
    """Store the end of a decision, with an entry in the record and an alarm."""
    change = update(decisions).where(decisions.c.id == row.id)
    connection.execute(
        change.values(
            state=end.state.value,
            outcome=end.outcome,
            outcome_reason=end.reason,
            closed=rows.micros(now),
            due=None,
        )
    )
    detail = f"{end.outcome}: {end.reason}" if end.reason else end.outcome
    record(connection, Entry.of(row, now, what=end.state.value, detail=detail))
    alarm(connection, Entry.of(row, now, what=end.state.value, detail=detail))
