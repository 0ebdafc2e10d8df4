"""Claims decisions for sending, and stores the results of attempts.

A hub claims a decision before it sends it. The same transaction checks all rules again,
and stores the state ``sending``, so it is on disk before the message is sent. A claim
expires if it is not renewed: then another hub, or the same hub after a crash, sends the
decision again.
"""

import hashlib
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import orjson
from msgspec import Struct
from msgspec.structs import replace
from sqlalchemy import Connection, and_, delete, select, update

from bridge.hub import arm_rules
from bridge.hub.bridges import Offer
from bridge.hub.config import HubConfig
from bridge.hub.decisions import (
    LIVE,
    MAYBE_SENT,
    WAIT,
    Claimed,
    DecisionState,
    End,
    Result,
    end_of,
    persons_left,
)
from bridge.hub.facts import Address
from bridge.hub.fold import State
from bridge.hub.store import rows
from bridge.hub.store.current import current_event, event_bridges, offers_of
from bridge.hub.store.deciding import close, void
from bridge.hub.store.engine import lock
from bridge.hub.store.rows import (
    Entry,
    mark_changed,
    micros,
    moment_of,
    record,
    state_in,
)
from bridge.hub.store.tables import decisions, events, votes
from bridge.hub.targets import Wishes, has_offered
from bridge.hub.view_rows import Situation, StoredOutcome
from bridge.hub.voting import ARM, CurrentEvent, is_void, persons_for

LEASE = timedelta(seconds=15)  # the duration of a claim; renewed during an attempt
_AGAIN = 30.0  # seconds without an outcome until it is sent again; doubles each time
_MOST_AGAIN = 480.0
_KIND = ".startrequest.v1"
_GRACE = timedelta(minutes=2)  # an outcome may still arrive so long after the expiry


def due_ones(connection: Connection, now: datetime, limit: int) -> list[str]:
    """Return the ids of decisions that are due, the longest due first."""
    query = (
        select(decisions.c.id)
        .where(decisions.c.due <= micros(now), decisions.c.state.in_(LIVE))
        .order_by(decisions.c.due, decisions.c.id)
        .limit(limit)
    )
    return list(connection.scalars(query))


def claim(
    connection: Connection, decision: str, config: HubConfig, situation: Situation
) -> Claimed | None:
    """Claim a decision; None = it must not be sent now, or somebody else has it."""
    row = _locked(connection, decision, situation.now)
    if row is None or _has_outcome(connection, row, situation.now):
        return None
    if situation.now > moment_of(row.expires):
        _expire(connection, row, situation.now)
        return None
    found = _verdict(connection, row, config, situation)
    if not found.why:
        return _claimed(connection, row, found.address, situation.now)
    if found.may_wait:
        _postpone(connection, row, situation.now, found.why)
    else:
        _hold_back(connection, row, situation, found.why)
    return None


def _has_outcome(connection: Connection, row: Any, now: datetime) -> bool:
    """Close a decision by an outcome that did not count when it came; return whether.

    The offer of the bridge may have come after its outcome.
    """
    if row.via == ARM or row.state not in MAYBE_SENT:
        return False
    query = select(events.c.state).where(events.c.event_key == row.event_key)
    state = connection.scalar(query)
    outcomes = state_in(state).outcomes if state else ()
    if not settle_one(connection, row, outcomes, now):
        return False
    mark_changed(connection, row.event_key)
    return True


class _Verdict(Struct, frozen=True, kw_only=True):
    """Whether a decision may be sent now.

    Attributes:
        address: the address to send to; None for ARM.
        why: why it may not be sent; "" = it may.
        may_wait: whether it may become possible later without a person.
    """

    address: Address | None = None
    why: str = ""
    may_wait: bool = False


def _locked(connection: Connection, decision: str, now: datetime) -> Any:
    """Lock a decision and return its row; None = it is not due any more."""
    mine = decisions.c.id == decision
    key = connection.scalar(select(decisions.c.event_key).where(mine))
    if key is None:
        return None
    lock(connection, [key], "events")
    is_due = (decisions.c.due <= micros(now)) & decisions.c.state.in_(LIVE)
    return connection.execute(select(decisions).where(mine, is_due)).one_or_none()


def _verdict(
    connection: Connection, row: Any, config: HubConfig, situation: Situation
) -> _Verdict:
    """Check all rules again, for the current state of the event."""
    current = current_event(connection, row.event_key)
    if current is None:
        return _Verdict(why="the event is not known any more")
    what = _forbids(row, current, config, situation.now)
    said = current.lacks()  # if nothing forbids it: a start that others alone tell of
    if what or said:
        return _Verdict(why=what or said or "", may_wait=not what)
    bridges = event_bridges(connection, current, situation)
    if row.via != ARM:
        found = bridges.choose_target(config, current, situation, _wishes(row))
        is_waiting = found.best is None and not (found.is_denied or found.is_contested)
        return _Verdict(address=found.best, why=found.why, may_wait=is_waiting)
    if config.arm is None:
        return _Verdict(why="approving through ARM is off")
    if situation.clock_fault:
        return _Verdict(why=situation.clock_fault, may_wait=True)
    what = arm_rules.forbids(config.arm, current, bridges.fleet, situation.now)
    if row.state == DecisionState.DECIDED:
        what = what or arm_rules.still_heard(bridges.fleet, situation.now)
    return _Verdict(why=what or "")


def _wishes(row: Any) -> Wishes:
    """Return what the people have wished, with the prefix that the message has."""
    kind = str(orjson.loads(row.message)["type"])
    return Wishes(
        address=row.chosen,
        is_overridden=row.is_overridden,
        prefix=kind.removesuffix(_KIND),
    )


def _forbids(
    row: Any, current: CurrentEvent, config: HubConfig, now: datetime
) -> str | None:
    """Return why a decision is no longer valid; None = it is."""
    persons: Any = orjson.loads(row.persons)
    if row.life != current.life:
        return "the event is over, and another one has come"
    is_said = current.is_open and current.is_by_others
    if not is_said and (what := current.lacks()):
        return what
    if current.voids(persons["seen"], row.via):
        return "the event has changed"
    wanted, _ = persons_for(config.access, current)
    if len(set(persons["by"])) < wanted:
        return f"the rule wants {wanted} people by now"
    if len(set(persons_left(persons, config.access, now))) < wanted:
        return "not all who decided may decide now"
    return None


def _hold_back(
    connection: Connection, row: Any, situation: Situation, why: str
) -> None:
    """Stop sending a decision: void it, or if it was sent, wait for its outcome."""
    if row.state in MAYBE_SENT:
        _wait_until(connection, row, moment_of(row.expires) + _GRACE)
        return
    void(connection, row, situation, why)
    mark_changed(connection, row.event_key)


def _wait_until(connection: Connection, row: Any, due: datetime) -> None:
    change = update(decisions).where(decisions.c.id == row.id)
    connection.execute(change.values(due=micros(due) + 1))


def _expire(connection: Connection, row: Any, now: datetime) -> None:
    """End a decision after its expiry; if it was sent, wait for an outcome first."""
    late = moment_of(row.expires) + _GRACE
    if row.state in MAYBE_SENT and now <= late:
        _wait_until(connection, row, late)
        return
    words = "no outcome came in time" if row.state in MAYBE_SENT else row.outcome_reason
    outcome = "no-answer" if row.state in MAYBE_SENT else "not-sent"
    end = End(state=DecisionState.FAILED, outcome=outcome, reason=words)
    close(connection, row, end, now)
    mark_changed(connection, row.event_key)


def _postpone(connection: Connection, row: Any, now: datetime, why: str) -> None:
    due = min(now + timedelta(seconds=WAIT), moment_of(row.expires))
    change = update(decisions).where(decisions.c.id == row.id)
    values: dict[str, object] = {"due": micros(max(due, now)) + 1}
    if row.state == DecisionState.DECIDED:
        values["outcome_reason"] = why
    connection.execute(change.values(**values))


def _claimed(
    connection: Connection, row: Any, address: Address | None, now: datetime
) -> Claimed:
    is_accepted, until = row.state == DecisionState.SENT, now + LEASE
    values: dict[str, object] = {
        "due": micros(until),
        "attempts": row.attempts + 1,
        "outcome_reason": "",
        "state": (DecisionState.SENT if is_accepted else DecisionState.SENDING).value,
    }
    if address is not None:
        values |= {
            "origin": address.source,
            "entity": address.entity,
            "session": address.session,
            "tried": orjson.dumps(sorted({*tried_of(row), address.place})),
        }
    connection.execute(
        update(decisions).where(decisions.c.id == row.id).values(**values)
    )
    place = f"{address.entity} {address.session}".strip() if address else "ARM"
    detail = f"attempt {row.attempts + 1}: {place}"
    record(connection, Entry.of(row, now, what="sending", detail=detail))
    return Claimed(
        id=row.id,
        event_key=row.event_key,
        event_id=row.event_id,
        via=row.via,
        address=address,
        message=row.message,
        expires=moment_of(row.expires),
        attempt=row.attempts + 1,
        until=until,
    )


def renew(connection: Connection, claimed: Claimed, now: datetime) -> Claimed | None:
    """Renew a claim; None = the claim is lost."""
    until = max(now + LEASE, claimed.until)
    mine = (decisions.c.id == claimed.id) & (decisions.c.due == micros(claimed.until))
    change = update(decisions).where(mine, decisions.c.state.in_(MAYBE_SENT))
    done = connection.execute(change.values(due=micros(until)))
    return replace(claimed, until=until) if done.rowcount else None


def keep_result(
    connection: Connection, claimed: Claimed, result: Result, now: datetime
) -> None:
    """Store the result of an attempt, unless an outcome has arrived before it."""
    lock(connection, [claimed.event_key], "events")
    mine = decisions.c.id == claimed.id
    row = connection.execute(select(decisions).where(mine)).one_or_none()
    if row is None or not _is_awaited(row, result):
        return
    if result.end is not None:
        close(connection, row, result.end, now)
    elif result.is_accepted:
        _sent(connection, row, now)
    else:
        due = min(now + timedelta(seconds=result.retry_after), claimed.expires + _GRACE)
        change = update(decisions).where(decisions.c.id == row.id)
        fresh = {"due": micros(max(due, now)) + 1, "outcome_reason": result.fault}
        connection.execute(change.values(**fresh))
        entry = Entry.of(row, now, what="not taken", detail=result.fault)
        record(connection, entry)
    mark_changed(connection, claimed.event_key)


def _is_awaited(row: Any, result: Result) -> bool:
    """Whether the result of an attempt still matters for a decision."""
    was_over = row.state == DecisionState.FAILED and row.outcome == EVENT_OVER
    return row.state in MAYBE_SENT or (was_over and result.end is not None)


def _sent(connection: Connection, row: Any, now: datetime) -> None:
    wait = min(_AGAIN * 2.0 ** max(row.attempts - 1, 0), _MOST_AGAIN)
    change = update(decisions).where(decisions.c.id == row.id)
    connection.execute(
        change.values(
            state=DecisionState.SENT.value,
            sent=row.sent or micros(now),
            outcome_reason="",
            due=micros(now + timedelta(seconds=wait)),
        )
    )
    record(connection, Entry.of(row, now, what="sent"))


# -- Stores the outcomes of decisions, and voids votes; a part of ``intake`` -----------


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


def void_votes(connection: Connection, states: Mapping[str, State]) -> None:
    """Delete votes that a change of their event has made void."""
    query = select(votes).where(votes.c.event_key.in_(list(states)))
    for vote in connection.execute(query).all():
        state = states[vote.event_key]
        now = state.now.event if state.now else None
        seen = orjson.loads(vote.seen)
        is_same = vote.life == state.lives and now is not None
        is_by_others = bool(state.now and state.now.is_by_others)
        if is_same and (is_by_others or not is_void(seen, now.raw if now else {})):
            continue
        names = ("event_key", "life", "via", "person")
        mine = and_(*(votes.c[n] == getattr(vote, n) for n in names))
        connection.execute(delete(votes).where(mine))
