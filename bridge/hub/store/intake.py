"""Stores a batch of messages, in one transaction: all of it, or nothing.

The state of each event in the batch is derived again from all its messages.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import groupby
from typing import Any, Self

from sqlalchemy import Connection, and_, delete, select, tuple_

from bridge.hub import azure_messages, bridge_messages
from bridge.hub.facts import AZURE, Address, Fact, digest_of
from bridge.hub.fold import State, fold
from bridge.hub.store import rows
from bridge.hub.store.alarms import note_slow
from bridge.hub.store.bridge_intake import keep_bridges
from bridge.hub.store.outcomes import close_over, settle
from bridge.hub.store.statements import Values, insert, lock, marked, put
from bridge.hub.store.tables import (
    addresses,
    events,
    machines,
    messages,
    meta,
    unreadable,
    votes,
)
from bridge.hub.voting import is_void

_MOST_UNREADABLE = 1000  # of each kind
_LONGEST_ASIDE = 64 * 1024  # bytes of a message that is put aside
_SLOW = "it takes too long to be stored"
_TRIAL = b"""{"specversion": "1.0", "type": "trial.scheduledevent.scheduled.v1",
"id": "trial", "source": "trial", "time": "2026-01-01T00:00:00Z", "data": {
"reporter": {"vmId": "00000000-0000-0000-0000-000000000000", "vmName": "trial"},
"event": {"EventId": "trial", "Resources": ["trial"], "EventStatus": "Scheduled"}}}"""
_TIMES: Mapping[str, Any] = {"heard": max, "azure_received": min, "azure_seen": max}


@dataclass(frozen=True, slots=True, kw_only=True)
class Incoming:
    """A parsed message.

    Attributes:
        origin: the name of the hub's source.
        body: the bytes of the message.
        heard: when the broker enqueued it.
        reply_to: ReplyTo of the message.
        session: ReplyToSessionId of the message.
        fact: its content about an event; None = it has none.
        report: its content about a bridge; None = it has none.
        fault: why it could not be parsed; None = it could.
    """

    origin: str
    body: bytes
    heard: datetime
    reply_to: str | None = None
    session: str | None = None
    fact: Fact | None = None
    report: bridge_messages.BridgeReport | None = None
    fault: str | None = None

    def put_aside(self, why: str) -> Self:
        """Return a copy that only holds what an unreadable message has."""
        return replace(self, fact=None, report=None, fault=why)


def keep(connection: Connection, batch: Sequence[Incoming]) -> None:
    """Store the facts, the reports and the unreadable messages of a batch."""
    with_fact = sorted(
        (one for one in batch if one.fact is not None),
        key=lambda one: one.fact.key if one.fact else "",
    )
    if with_fact:
        _keep_events(connection, with_fact)
    reports = [one for one in batch if one.report is not None]
    if reports:
        keep_bridges(connection, [(w.report, w.origin) for w in reports if w.report])
    faulty = [one for one in batch if one.fault is not None]
    if faulty:
        _keep_unreadable(connection, faulty)


def _keep_events(connection: Connection, with_fact: Sequence[Incoming]) -> None:
    keys = sorted({one.fact.key for one in with_fact if one.fact})
    before = _locked(connection, keys)
    _keep_messages(connection, with_fact)
    _keep_addresses(connection, with_fact)
    states = _folded(connection, keys)
    heard = _heard(with_fact)
    _upsert_events(
        connection,
        [
            {**rows.event_row(states[key]), **_times(before.get(key), heard[key])}
            for key in keys
        ],
    )
    _keep_machines(connection, states)
    _void_votes(connection, states)
    settle(connection, states)
    close_over(connection, states)


def _locked(connection: Connection, keys: Sequence[str]) -> dict[str, Any]:
    """Lock events, including new ones; return the stored times of known events."""
    lock(connection, keys, "events")
    kept = (events.c.event_key, events.c.heard, events.c.azure_received)
    query = select(*kept, events.c.azure_seen).where(events.c.event_key.in_(keys))
    return {row.event_key: row for row in connection.execute(query)}


def _keep_messages(connection: Connection, with_fact: Sequence[Incoming]) -> None:
    """Store one message for each (source, id): the earliest one."""
    first: dict[tuple[str, str, str], Values] = {}
    for one in with_fact:
        fact = one.fact
        assert fact is not None  # noqa: S101 - for mypy  # nosec B101
        name, row = (fact.key, fact.source, fact.id), _message(one, fact)
        if name not in first or _precedence(row) < _precedence(first[name]):
            first[name] = row
    statement = insert(messages)
    new, old = statement.excluded, messages.c
    names = ("time", "vm_id", "digest")
    change = statement.on_conflict_do_update(
        index_elements=["event_key", "source", "id"],
        set_={column.name: new[column.name] for column in old if column.name != "seq"},
        where=tuple_(*(new[c] for c in names)) < tuple_(*(old[c] for c in names)),
    )
    put(connection, change, list(first.values()))


def _precedence(row: Values) -> tuple[object, ...]:
    return row["time"], row["vm_id"], row["digest"]


def _message(one: Incoming, fact: Fact) -> Values:
    return {
        "event_key": fact.key,
        "source": fact.source,
        "id": fact.id,
        "time": rows.micros(fact.time),
        "vm_id": fact.reporter.vm_id,
        "digest": fact.digest,
        "kind": fact.kind.value,
        "origin": one.origin,
        "reply_to": one.reply_to,
        "session": one.session,
        "heard": rows.micros(one.heard),
        "body": one.body,
    }


def _keep_addresses(connection: Connection, with_fact: Sequence[Incoming]) -> None:
    found = {}
    for one in with_fact:
        if one.fact and (address := one.fact.address):
            name = (one.fact.key, address, one.fact.reporter.vm_id)
            found[name] = rows.micros(one.heard)
    values: list[Values] = [
        {
            "event_key": key,
            "origin": address.source,
            "entity": address.entity,
            "session": address.session,
            "vm_id": vm_id,
            "heard": heard,
        }
        for (key, address, vm_id), heard in sorted(found.items())
    ]
    put(connection, insert(addresses).on_conflict_do_nothing(), values)


def _folded(connection: Connection, keys: Sequence[str]) -> dict[str, State]:
    """Derive the states of events from all their stored messages."""
    query = select(messages).where(messages.c.event_key.in_(keys))
    facts = defaultdict[str, list[Fact]](list)
    for row in connection.execute(query):
        facts[row.event_key].append(fact_of(row))
    where = defaultdict[str, list[Address]](list)
    for row in connection.execute(
        select(addresses).where(addresses.c.event_key.in_(keys))
    ):
        where[row.event_key].append(
            Address(source=row.origin, entity=row.entity, session=row.session)
        )
    states = {key: fold(facts[key], where[key]) for key in keys}
    return {key: state for key, state in states.items() if state is not None}


def fact_of(row: Any) -> Fact:
    """Parse a stored message again."""
    heard = rows.moment_of(row.heard)
    if row.vm_id == AZURE:
        fact = azure_messages.read(row.body, heard=heard)
    else:
        fact = bridge_messages.read(
            row.body,
            heard=heard,
            source=row.origin,
            reply_to=row.reply_to,
            session=row.session,
        ).fact
    assert fact is not None, "stored only if it has a fact"  # noqa: S101  # nosec B101
    return fact


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
    old, found = before._asdict(), dict[str, object]()
    for name, choose in _TIMES.items():
        values: list[Any] = [v for v in (old[name], now[name]) if v is not None]
        found[name] = choose(values, default=None)
    return found


def _upsert_events(connection: Connection, values: Sequence[Values]) -> None:
    marks, found = marked(connection, values)
    statement = insert(events).values(**marks)
    fresh = {column.name: statement.excluded[column.name] for column in events.c}
    change = statement.on_conflict_do_update(index_elements=["event_key"], set_=fresh)
    put(connection, change, found)


def _keep_machines(connection: Connection, states: Mapping[str, State]) -> None:
    connection.execute(delete(machines).where(machines.c.event_key.in_(list(states))))
    values: list[Values] = [
        {
            "event_key": key,
            "subscription": machine.subscription,
            "group": machine.group,
            "name": machine.name,
        }
        for key, state in states.items()
        if state.now
        for machine in state.now.machines
    ]
    put(connection, machines.insert(), values)


def _void_votes(connection: Connection, states: Mapping[str, State]) -> None:
    """Delete votes that a change of their event has made void."""
    query = select(votes).where(votes.c.event_key.in_(list(states)))
    for vote in connection.execute(query).all():
        state = states[vote.event_key]
        now = state.now.event if state.now else None
        seen = rows.json_of(vote.seen)
        is_same = vote.life == len(state.occurrences) and now is not None
        if is_same and not is_void(seen, now.raw if now else {}):
            continue
        names = ("event_key", "life", "via", "person")
        mine = and_(*(votes.c[n] == getattr(vote, n) for n in names))
        connection.execute(delete(votes).where(mine))


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
    found = bridge_messages.read(_TRIAL, heard=heard, source="trial", reply_to="trial")
    good = Incoming(
        origin="trial",
        body=_TRIAL,
        heard=heard,
        fact=found.fact,
        report=found.report,
    )
    with connection.begin_nested() as trial:
        keep(connection, [good, good.put_aside("trial")])
        trial.rollback()
    made = insert(meta).values(name="trial", value="1")
    fresh = {"value": made.excluded.value}
    connection.execute(made.on_conflict_do_update(index_elements=["name"], set_=fresh))
