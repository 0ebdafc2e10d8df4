"""Stores outcomes of decisions, and machines; voids votes; a part of ``intake``."""

import hashlib
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import orjson
from sqlalchemy import Connection, and_, delete, select, update

from bridge.hub.bridges import Offer
from bridge.hub.decisions import DecisionState, End, end_of
from bridge.hub.fold import State
from bridge.hub.store import rows
from bridge.hub.store.fleet_view import offers_of
from bridge.hub.store.rows import Entry, Values, alarm, put, record
from bridge.hub.store.tables import decisions, machines, votes
from bridge.hub.targets import has_offered
from bridge.hub.view_rows import StoredOutcome
from bridge.hub.voting import is_void

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
        settle_one(connection, row, rows.outcomes_of(state), state.last_reported)


def settle_one(
    connection: Connection,
    row: Any,
    outcomes: Sequence[StoredOutcome],
    now: datetime,
) -> bool:
    """Close a decision by the outcomes of its event; returns whether one does.

    Args:
        connection: a connection within a transaction.
        row: the decision.
        outcomes: the outcomes of the event, as they are stored.
        now: the time of the end.
    """
    end = end_of(asked(connection, row, outcomes), row.id)
    if end is None:
        return False
    if _differs(row, end):
        close(connection, row, end, now)
    return True


def asked(
    connection: Connection, row: Any, outcomes: Sequence[StoredOutcome]
) -> list[StoredOutcome]:
    """Return the outcomes with the id of a decision, of bridges that were asked.

    They offer an address that it was sent to, or have never made an offer. What is not
    signed does not count in the name of a pinned bridge, nor an outcome of another
    message under the same MessageId.
    """
    own = {"", hashlib.sha256(row.message).hexdigest()}
    named = [one for one in outcomes if one.message_id == row.id]
    mine = [one for one in named if one.body_hash in own and not one.is_doubtful]
    known = {one.reporter.vm_id or "": list[Offer]() for one in mine}
    for offer in offers_of(connection, sorted(known)) if mine else ():
        known[offer.vm_id].append(offer)
    tried = tried_of(row)
    return [o for o in mine if has_offered(known[o.reporter.vm_id or ""], tried)]


def tried_of(row: Any) -> list[tuple[str, str, str]]:
    """Return the places of the addresses that a decision was sent to."""
    return [(one[0], one[1], one[2]) for one in orjson.loads(row.tried)]


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


def void_votes(connection: Connection, states: Mapping[str, State]) -> None:
    """Delete votes that a change of their event has made void."""
    query = select(votes).where(votes.c.event_key.in_(list(states)))
    for vote in connection.execute(query).all():
        state = states[vote.event_key]
        now = state.now.event if state.now else None
        seen = rows.json_of(vote.seen)
        is_same = vote.life == state.lives and now is not None
        is_by_others = bool(state.now and state.now.is_by_others)
        if is_same and (is_by_others or not is_void(seen, now.raw if now else {})):
            continue
        names = ("event_key", "life", "via", "person")
        mine = and_(*(votes.c[n] == getattr(vote, n) for n in names))
        connection.execute(delete(votes).where(mine))


def keep_machines(
    connection: Connection, states: Mapping[str, State], before: Mapping[str, Any]
) -> None:
    """Store the machines of events whose Resources have changed."""
    changed = {
        key: state.now.machines if state.now else ()
        for key, state in states.items()
        if key not in before or before[key]["named"] != rows.named_print(state)
    }
    if not changed:
        return
    connection.execute(delete(machines).where(machines.c.event_key.in_(list(changed))))
    values: list[Values] = [
        {
            "event_key": key,
            "subscription": machine.subscription,
            "group": machine.group,
            "name": machine.name,
        }
        for key, found in changed.items()
        for machine in found
    ]
    put(connection, machines.insert(), values)
