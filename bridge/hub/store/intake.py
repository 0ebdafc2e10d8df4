"""Stores a batch of messages, in one transaction: all of it, or nothing.

The state of each event in the batch is derived again, from its kept messages, whose
number is bounded, and the new ones. A message is stored with its fact, without IMDS
objects, so that a fold reads no bodies. An IMDS object that it needs is in the batch or
in the stored state. If not, it is read from the body of its message.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from itertools import groupby
from typing import Any, Self

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace
from sqlalchemy import Connection, bindparam, delete, select, update

from bridge.events.document import ScheduledEvent
from bridge.hub import azure_messages, bridge_messages
from bridge.hub.facts import AZURE, Fact, Note, Trust, digest_of
from bridge.hub.fold import Folded, fold_in
from bridge.hub.occurrences import MOST_OUTCOMES, Past, Reading, is_surplus
from bridge.hub.pins import Pins
from bridge.hub.store import rows
from bridge.hub.store.accepting import keep_told
from bridge.hub.store.alarms import note_slow
from bridge.hub.store.bridge_intake import (
    keep_bridges,
    keep_machines,
    keep_notes,
)
from bridge.hub.store.current import close_over, settle, void_votes
from bridge.hub.store.engine import Values, insert, lock, note, put, upsert
from bridge.hub.store.pin_rows import keep_rotations
from bridge.hub.store.rows import marked
from bridge.hub.store.tables import (
    addresses,
    decisions,
    details,
    events,
    messages,
    unreadable,
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
_KEY = ("event_key", "source", "id", "vm_id", "content")
_PLACE = ("event_key", "origin", "entity", "session", "prefix", "vm_id")
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Fact).decode


class Incoming(Struct, frozen=True, kw_only=True):
    """A parsed message.

    Attributes:
        origin: the name of the hub's source.
        body: the bytes of the message.
        heard: when the broker enqueued it.
        reply_to: ReplyTo of the message.
        session: ReplyToSessionId of the message.
        fact: its content about an event; None = it has none.
        report: its content about a bridge; None = it has none.
        notes: its content about the state of machines.
        fault: why it could not be parsed; None = it could.
    """

    origin: str
    body: bytes
    heard: datetime
    reply_to: str | None = None
    session: str | None = None
    fact: Fact | None = None
    report: bridge_messages.BridgeReport | None = None
    notes: tuple[Note, ...] = ()
    fault: str | None = None

    @classmethod
    def of_row(cls, row: Any) -> Self:
        """Return a stored message, not parsed yet."""
        return cls(
            origin=row.origin,
            body=row.body,
            heard=rows.moment_of(row.heard),
            reply_to=row.reply_to,
            session=row.session,
        )

    def with_content(self, *, is_azures: bool) -> Self:
        """Return a copy with what the message says.

        Raises:
            UnreadableMessageError: it cannot be parsed.
        """
        body, heard = self.body, self.heard
        if is_azures:
            fact = azure_messages.read(body, heard=heard)
            notes = azure_messages.notes_in(body, heard=heard)
            return replace(self, fact=fact, notes=notes)
        where = {"reply_to": self.reply_to, "session": self.session}
        found = bridge_messages.read(body, heard=heard, source=self.origin, **where)
        notes = (found.note,) if found.note else ()
        return replace(self, fact=found.fact, report=found.report, notes=notes)

    def put_aside(self, why: str) -> Self:
        """Return a copy that only holds what an unreadable message has."""
        return replace(self, fact=None, report=None, notes=(), fault=why)


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
        batch = _Facts.of(connection, needed, sorted(times), pins)
        _fold_again(connection, batch, before, times)
    _count_surplus(connection, surplus)


def _surplus(
    connection: Connection, with_fact: Sequence[Incoming], before: Mapping[str, Any]
) -> list[Incoming]:
    """Return the messages that change nothing.

    See ``is_surplus``. One that is stored already is none: it may have another time.
    The batch holds nothing else of the event: an end, say, could make them count.
    """
    keys = [key for key, row in before.items() if row["dropped"]]
    if not keys:
        return []
    query = select(details).where(details.c.event_key.in_(keys))
    found = list[Incoming]()
    for row in connection.execute(query).all():
        known = rows.details_in(row.body)
        if known.full is None:
            continue
        heeded = set(known.heeded)
        named = {(one, two, name) for one, two, names in known.named for name in names}
        found += [
            one
            for one in with_fact
            if one.fact is not None
            and one.fact.key == row.event_key
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
        batch = _Facts.of(connection, [], keys, pins)
        _fold_again(connection, batch, before, times, now)
    return len(keys)


def _fold_again(
    connection: Connection,
    batch: "_Facts",
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
                **rows.event_row(state),
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


class _Facts(Struct, kw_only=True):
    """The stored facts of events, with new messages about them.

    Attributes:
        stored: the stored facts, by event and report.
        fresh: the new messages that have a fact, by event.
        details: the stored details of events, as JSON.
    """

    connection: Connection
    stored: Mapping[str, Mapping[tuple[str, ...], Fact]]
    fresh: Mapping[str, Sequence[Incoming]]
    details: Mapping[str, bytes]
    _bodies: dict[str, Incoming] = field(default_factory=dict)
    _events: dict[str, ScheduledEvent | None] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        connection: Connection,
        fresh: Sequence[Incoming],
        keys: Sequence[str],
        pins: Pins,
    ) -> Self:
        """Read the stored facts of events, with what they are worth now."""
        stored: dict[str, dict[tuple[str, ...], Fact]] = {key: {} for key in keys}
        query = select(messages.c.event_key, messages.c.fact)
        found = connection.execute(query.where(messages.c.event_key.in_(keys)))
        for key, body in found.all():
            fact = pins.weighed(_decode(body))
            stored[key][fact.report] = fact
        by_key = defaultdict[str, list[Incoming]](list)
        for one in fresh:
            if one.fact is not None:
                by_key[one.fact.key].append(one)
        more = select(details).where(details.c.event_key.in_(keys))
        made = cls(
            connection=connection,
            stored=stored,
            fresh=by_key,
            details={row.event_key: row.body for row in connection.execute(more)},
        )
        for one in fresh:
            if one.fact is not None:
                made._bodies[one.fact.digest] = one
                made._events[one.fact.digest] = one.fact.event
        return made

    def fold(self, key: str, before: Any, now: datetime | None) -> Folded:
        """Derive the state of an event from its stored facts and its new ones.

        Args:
            key: the event.
            before: its stored row; None = the event is new.
            now: a moment that is over; None = that of the last message.
        """
        known, past = self.details.get(key), Past()
        if before is not None:
            until, as_of = before["before_until"], rows.moment_of(before["as_of"])
            past = Past(
                lives=before["lives_before"],
                until=None if until is None else rows.moment_of(until),
            )
            now = max(as_of, now) if now else as_of
        fresh = (one.fact for one in self.fresh.get(key, ()) if one.fact)
        facts = (*self.stored[key].values(), *fresh)
        lists = rows.details_in(known).lists if known else {}
        return fold_in(
            facts,
            reading=Reading(
                event_of=lambda fact: self._event_of(key, fact, before), stored=lists
            ),
            own=self._own(key, facts),
            past=past,
            now=now,
        )

    def _own(self, key: str, facts: Sequence[Fact]) -> Collection[str]:
        """Return the hub's decisions on an event that has very many outcomes."""
        if sum(fact.outcome is not None for fact in facts) <= MOST_OUTCOMES:
            return ()
        query = select(decisions.c.id).where(decisions.c.event_key == key)
        return set(self.connection.scalars(query))

    def _event_of(self, key: str, fact: Fact, before: Any) -> ScheduledEvent | None:
        """Return the IMDS object of a fact."""
        if fact.event is not None or not fact.names:
            return fact.event
        if fact.digest not in self._events and before is not None:
            self._events = rows.events_in(before["state"]) | self._events
        if fact.digest not in self._events:
            self._events[fact.digest] = self._event_in_body(key, fact)
        return self._events[fact.digest]

    def _event_in_body(self, key: str, fact: Fact) -> ScheduledEvent | None:
        named = zip(_KEY, (key, *fact.report), strict=True)
        of = messages.c
        query = select(messages).where(*(of[n] == v for n, v in named))
        row = self.connection.execute(query).one_or_none()
        if row is None:
            return None
        one = Incoming.of_row(row).with_content(is_azures=row.vm_id == AZURE)
        return one.fact.event if one.fact else None

    def keep(self, found: Mapping[str, Folded]) -> None:
        """Store the facts that are kept, and delete those that are not kept."""
        new, changed, gone = list[Values](), list[Values](), list[Values]()
        for key, one in found.items():
            stored, kept = self.stored[key], {fact.report: fact for fact in one.kept}
            new += [
                {"event_key": key, **self._values(fact, with_body=True)}
                for name, fact in kept.items()
                if name not in stored
            ]
            changed += [
                self._change(key, fact, stored[name])
                for name, fact in kept.items()
                if stored.get(name, fact) is not fact and stored[name] != fact.light
            ]
            gone += [_name(key, f) for name, f in stored.items() if name not in kept]
        here = [messages.c[name] == bindparam(f"b_{name}") for name in _KEY]
        put(self.connection, insert(messages), new)
        for with_body in (False, True):
            these = [row for row in changed if ("body" in row) is with_body]
            names = [n for row in these[:1] for n in row if not n.startswith("b_")]
            change = update(messages).where(*here)
            put(self.connection, change.values({n: bindparam(n) for n in names}), these)
        put(self.connection, delete(messages).where(*here), gone)
        self._keep_addresses(found)
        self._keep_details(found)

    def _change(self, key: str, fact: Fact, stored: Fact) -> Values:
        """Return the change of a row; without the body, if that stays the same."""
        with_body = stored.digest != fact.digest
        return {**_name(key, fact), **self._values(fact, with_body=with_body)}

    def _values(self, fact: Fact, *, with_body: bool) -> Values:
        times: Values = {
            "time": rows.micros(fact.time),
            "heard": rows.micros(fact.enqueued),
            "fact": _encode(fact.light),
        }
        if not with_body:
            return times
        one = self._bodies[fact.digest]
        return {
            **times,
            **dict(zip(_KEY[1:], fact.report, strict=True)),
            "digest": fact.digest,
            "kind": fact.kind.value,
            "origin": one.origin,
            "reply_to": one.reply_to,
            "session": one.session,
            "body": one.body,
        }

    def _keep_addresses(self, found: Mapping[str, Folded]) -> None:
        """Store the addresses in kept messages, each with the vmId of its bridge."""
        new, gone = list[Values](), list[Values]()
        for key, one in found.items():
            before = {_address(key, fact) for fact in self.stored[key].values()}
            now = {_address(key, fact): fact.enqueued for fact in one.kept}
            for place, heard in now.items():
                if place is not None and place not in before:
                    named = dict(zip(_PLACE, place, strict=True))
                    new.append({**named, "heard": rows.micros(heard)})
            for place in before - set(now):
                if place is not None:
                    pairs = zip(_PLACE, place, strict=True)
                    gone.append({f"b_{name}": value for name, value in pairs})
        put(self.connection, insert(addresses).on_conflict_do_nothing(), new)
        here = [addresses.c[name] == bindparam(f"b_{name}") for name in _PLACE]
        put(self.connection, delete(addresses).where(*here), gone)

    def _keep_details(self, found: Mapping[str, Folded]) -> None:
        bodies = {
            key: rows.details_json(one)
            for key, one in found.items()
            if one.state is not None
        }
        changed: list[Values] = [
            {"event_key": key, "body": body}
            for key, body in bodies.items()
            if self.details.get(key) != body
        ]
        put(self.connection, upsert(details, "body"), changed)


def _name(key: str, fact: Fact) -> Values:
    """Return the parameters that name the row of a fact."""
    named = zip(_KEY, (key, *fact.report), strict=True)
    return {f"b_{name}": value for name, value in named}


def _address(key: str, fact: Fact) -> tuple[str, ...] | None:
    where = fact.address
    if where is None or fact.trust is not Trust.PLAIN:
        return None  # nobody signs ReplyTo: a pinned bridge offers where it takes them
    place = (where.source, where.entity, where.session, where.prefix)
    return key, *place, fact.reporter.vm_id
