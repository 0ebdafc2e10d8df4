"""Stores a batch of messages, in one transaction: all of it, or nothing.

The state of each event in the batch is derived again, from its kept messages, whose
number is bounded, and the new ones; see ``kept_facts``.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from itertools import groupby
from typing import Any

import orjson
from msgspec.structs import replace
from sqlalchemy import Connection, and_, bindparam, delete, select, update

from bridge.hub.decisions import DecisionState, End, is_void
from bridge.hub.facts import AZURE, Trust, digest_of
from bridge.hub.fold import Folded, State
from bridge.hub.occurrences import is_surplus
from bridge.hub.pins import Pins
from bridge.hub.store import rows
from bridge.hub.store.accepting import keep_told
from bridge.hub.store.alarms import note_slow
from bridge.hub.store.bridge_intake import (
    keep_bridges,
    keep_machines,
    keep_notes,
)
from bridge.hub.store.current import EVENT_OVER, close, settle_one
from bridge.hub.store.engine import Values, lock, note, put, upsert
from bridge.hub.store.kept_facts import Incoming, KeptFacts
from bridge.hub.store.pin_rows import keep_rotations
from bridge.hub.store.rows import marked
from bridge.hub.store.tables import (
    decisions,
    events,
    messages,
    unreadable,
    votes,
)

_NO_PINS = Pins()
_MOST_UNREADABLE = 1000  # of each kind
_LONGEST_ASIDE = 64 * 1024  # bytes of a message that is put aside
_SLOW = "it takes too long to be stored"
_TRIAL = b"""{"specversion": "1.0", "type": "trial.scheduledevent.scheduled.v1",
"id": "trial", "source": "trial", "time": "2026-01-01T00:00:00Z", "data": {
"reporter": {"vmId": "00000000-0000-0000-0000-000000000000", "vmName": "trial"},
"event": {"EventId": "trial", "Resources": ["trial"], "EventStatus": "Scheduled"}}}"""
_AT_ONCE = 100
_TIMES: Mapping[str, Any] = {"heard": max, "azure_received": min, "azure_seen": max}


def keep(
    connection: Connection, batch: Sequence[Incoming], pins: Pins = _NO_PINS
) -> None:
    """Store the facts, the reports and the unreadable messages of a batch."""
    told = [(one.report, one.body) for one in batch if one.report is not None]
    if pins.keys or pins.required:
        batch = [_weighed(one, pins) for one in batch]
    with_fact = sorted(
        (one for one in batch if one.fact is not None),
        key=lambda one: one.fact.key if one.fact else "",
    )
    if with_fact:
        _keep_events(connection, with_fact, pins)
    reports = [one for one in batch if one.report is not None]
    signed = [(w.report, w.body) for w in reports if w.report and w.report.mark]
    keep_rotations(connection, signed, pins)
    keep_told(connection, told, pins)
    if reports:
        keep_bridges(connection, [(w.report, w.origin) for w in reports if w.report])
    keep_notes(connection, [note for one in batch for note in one.notes])
    faulty = [one for one in batch if one.fault is not None]
    if faulty:
        _keep_unreadable(connection, faulty)


def _weighed(one: Incoming, pins: Pins) -> Incoming:
    """Return a message with what it is worth: a doubtful one tells of no bridge."""
    told = one.report or one.fact
    if told is None or told.reporter.vm_id == AZURE:
        return one
    keys, mark = pins.proof(one.body, one.report.kind if one.report else "")
    trust = pins.trust(told.reporter, keys, one.heard)
    fact = one.fact and pins.weighed(replace(one.fact, signed_by=keys))
    if trust is Trust.PLAIN:
        return replace(one, fact=fact)
    if trust is Trust.DOUBTFUL or mark is None:
        return replace(one, fact=fact, report=None, notes=())
    report = one.report and replace(one.report, mark=mark, signed_by=keys)
    return replace(one, fact=fact, report=report)


def _keep_events(
    connection: Connection, with_fact: Sequence[Incoming], pins: Pins
) -> None:
    keys = sorted({one.fact.key for one in with_fact if one.fact})
    before = _locked(connection, keys)
    surplus = _surplus(connection, with_fact, before)
    left_out = {one.fact.key for one in surplus if one.fact}
    needed = [one for one in with_fact if one.fact and one.fact.key not in left_out]
    times = {k: _times(before.get(k), new) for k, new in _heard(needed).items()}
    if needed:
        batch = KeptFacts.of(connection, needed, sorted(times), pins)
        _fold_again(connection, batch, before, times)
    _count_surplus(connection, surplus)


def _surplus(
    connection: Connection, with_fact: Sequence[Incoming], before: Mapping[str, Any]
) -> list[Incoming]:
    """Return the messages that change nothing.

    See ``is_surplus``. One that is stored already is none: it may have another time.
    The batch holds nothing else of the event: an end, say, could make them count.
    """
    found = list[Incoming]()
    for key, row in before.items():
        if not row["dropped"]:
            continue
        known = rows.details_in(row["details"])
        if known.full is None:
            continue
        heeded = set(known.heeded)
        named = {(one, two, name) for one, two, names in known.named for name in names}
        found += [
            one
            for one in with_fact
            if one.fact is not None
            and one.fact.key == key
            and is_surplus(one.fact, known.full, named, heeded)
        ]
    stored = _stored(connection, found)
    extra = [one for one in found if one.fact and one.fact.report not in stored]
    left = {id(one) for one in extra}
    kept = {one.fact.key for one in with_fact if one.fact and id(one) not in left}
    return [one for one in extra if one.fact and one.fact.key not in kept]


def _stored(
    connection: Connection, found: Sequence[Incoming]
) -> set[tuple[str, str, str, str]]:
    """Return the reports that are stored, of those in some messages."""
    of, facts = messages.c, [one.fact for one in found if one.fact]
    query = select(of.source, of.id, of.vm_id, of.content).where(
        of.event_key.in_({fact.key for fact in facts}),
        of.source.in_({fact.source for fact in facts}),
        of.id.in_({fact.id for fact in facts}),
        of.vm_id.in_({fact.reporter.vm_id for fact in facts}),
    )
    return {tuple(row) for row in connection.execute(query)} if facts else set()


def _count_surplus(connection: Connection, surplus: Sequence[Incoming]) -> None:
    """Count messages that are not kept."""
    counts = Counter(one.fact.key for one in surplus if one.fact)
    more = {"dropped": events.c.dropped + bindparam("n")}
    change = update(events).where(events.c.event_key == bindparam("key")).values(more)
    put(connection, change, [{"key": key, "n": n} for key, n in counts.items()])


def end_said(connection: Connection, now: datetime, pins: Pins = _NO_PINS) -> int:
    """Let the ends count that others alone have told, once their time has come.

    Args:
        connection: a connection within a transaction.
        now: the present moment, by the broker's clock.
        pins: the keys of bridges.

    Returns:
        How many events were looked at.
    """
    is_due = events.c.is_open.is_(True) & (events.c.said_until < rows.micros(now))
    query = select(events.c.event_key).where(is_due)
    keys = sorted(connection.scalars(query.limit(_AT_ONCE)))
    if keys:
        before = _locked(connection, keys)
        times = {
            key: {name: row[name] for name in _TIMES} for key, row in before.items()
        }
        batch = KeptFacts.of(connection, [], keys, pins)
        _fold_again(connection, batch, before, times, now)
    return len(keys)


def _fold_again(
    connection: Connection,
    batch: "KeptFacts",
    before: Mapping[str, Any],
    times: Mapping[str, Values],
    now: datetime | None = None,
) -> None:
    """Derive the states of events again, from their kept messages and new ones.

    Args:
        connection: a connection within a transaction.
        batch: the stored facts, with the new messages.
        before: the stored rows of known events, by key.
        times: when their messages came, for every event to fold.
        now: a moment that is over; None = that of the last message.
    """
    found = {key: batch.fold(key, before.get(key), now) for key in times}
    batch.keep(found)
    states = {key: one.state for key, one in found.items() if one.state is not None}
    _upsert_events(
        connection,
        [
            {
                **rows.event_row(state, found[key]),
                **times[key],
                **_counts(before.get(key), found[key], now),
            }
            for key, state in states.items()
        ],
    )
    keep_machines(connection, states, before)
    void_votes(connection, states)
    settle(connection, states)
    close_over(connection, states)


def _counts(before: Any, found: Folded, now: datetime | None) -> Values:
    """Return what a row says of messages that are not kept, and of the time."""
    dropped, as_of = (before["dropped"], before["as_of"]) if before else (0, 0)
    latest = max(fact.enqueued for fact in found.kept)
    until = found.past.until
    return {
        "dropped": dropped + found.dropped,
        "before_until": None if until is None else rows.micros(until),
        "as_of": max(as_of, rows.micros(max(latest, now or latest))),
    }


def _locked(connection: Connection, keys: Sequence[str]) -> dict[str, Any]:
    """Lock events, including new ones; return the rows of known events."""
    lock(connection, keys, "events")
    query = select(events).where(events.c.event_key.in_(keys))
    found = connection.execute(query).mappings()
    return {row["event_key"]: row for row in found}


def _heard(with_fact: Sequence[Incoming]) -> dict[str, Values]:
    """Return when the messages in a batch were enqueued, for each event.

    The times are those of the last message, and of the first and last one of Azure.
    """
    found: dict[str, Values] = {}
    for key, group in groupby(
        with_fact, key=lambda one: one.fact.key if one.fact else ""
    ):
        these = list(group)
        azures = [rows.micros(o.heard) for o in these if o.fact and o.fact.is_azures]
        found[key] = {
            "heard": max(rows.micros(one.heard) for one in these),
            "azure_received": min(azures, default=None),
            "azure_seen": max(azures, default=None),
        }
    return found


def _times(before: Any, now: Values) -> Values:
    """Merge the stored times of an event with the times of a batch."""
    if before is None:
        return now
    old, found = before, dict[str, object]()
    for name, choose in _TIMES.items():
        values: list[Any] = [v for v in (old[name], now[name]) if v is not None]
        found[name] = choose(values, default=None)
    return found


def _upsert_events(connection: Connection, values: Sequence[Values]) -> None:
    marks, found = marked(connection, values)
    names = (column.name for column in events.c)
    put(connection, upsert(events, *names).values(**marks), found)


def _keep_unreadable(
    connection: Connection, faulty: Sequence[Incoming], *, is_slow: bool = False
) -> None:
    """Store unreadable messages for inspection; only the newest ones are kept."""
    values: list[Values] = [
        {
            "origin": one.origin,
            "heard": rows.micros(one.heard),
            "reason": one.fault,
            "body": one.body[:_LONGEST_ASIDE],
            "reply_to": one.reply_to,
            "session": one.session,
            "is_slow": is_slow and len(one.body) <= _LONGEST_ASIDE,
        }
        for one in faulty[-_MOST_UNREADABLE:]
    ]
    connection.execute(unreadable.insert(), values)
    these = unreadable.c.is_slow.is_(is_slow)
    order = select(unreadable.c.seq).where(these).order_by(unreadable.c.seq.desc())
    oldest = connection.scalar(order.offset(_MOST_UNREADABLE - 1).limit(1))
    if oldest is not None:
        old = these & (unreadable.c.seq < oldest)
        connection.execute(delete(unreadable).where(old))


def keep_slow(connection: Connection, one: Incoming) -> None:
    """Put a message aside that takes too long, to be tried again; add an alarm."""
    note_slow(connection, one.origin, one.heard, digest_of(one.body))
    _keep_unreadable(connection, [one.put_aside(_SLOW)], is_slow=True)


def slow(connection: Connection) -> Sequence[Any]:
    """Return the messages that are put aside because they took too long."""
    query = select(unreadable).where(unreadable.c.is_slow.is_(True))
    return connection.execute(query.order_by(unreadable.c.seq)).all()


def try_out(connection: Connection) -> None:
    """Store a message that is known to be good, and remove it; commit a value.

    Raises:
        SQLAlchemyError: the store accepts nothing, so no message is at fault.
    """
    heard = datetime(2026, 1, 1, tzinfo=UTC)
    plain = Incoming(origin="trial", body=_TRIAL, heard=heard, reply_to="trial")
    good = plain.with_content(is_azures=False)
    with connection.begin_nested() as trial:
        keep(connection, [good, good.put_aside("trial")])
        trial.rollback()
    note(connection, "trial", "1")


# -- decisions whose outcome is told, or whose event is over or has changed ------------


_OPEN_ENDED = ("sending", "sent", "failed", "void", "done")
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
