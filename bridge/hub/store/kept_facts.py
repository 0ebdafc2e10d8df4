"""The messages of events: what a batch brings, and what is stored of each.

A message is stored with its fact, without IMDS objects, so that a fold reads no bodies.
An IMDS object that it needs is in the batch or in the stored state. If not, it is read
from the body of its message.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any, Self

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace
from sqlalchemy import Connection, bindparam, delete, select, update

from bridge.events.document import ScheduledEvent
from bridge.hub import azure_messages, bridge_messages
from bridge.hub.facts import AZURE, Fact, Note
from bridge.hub.fold import Folded, fold_in
from bridge.hub.occurrences import MOST_OUTCOMES, Past, Reading
from bridge.hub.pins import Pins
from bridge.hub.store import rows
from bridge.hub.store.engine import Values, insert, put
from bridge.hub.store.tables import decisions, messages

_KEY = ("event_key", "source", "id", "vm_id", "content")
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


class KeptFacts(Struct, kw_only=True):
    """The stored facts of events, with new messages about them.

    Attributes:
        stored: the stored facts, by event and report.
        fresh: the new messages that have a fact, by event.
    """

    connection: Connection
    stored: Mapping[str, Mapping[tuple[str, ...], Fact]]
    fresh: Mapping[str, Sequence[Incoming]]
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
        made = cls(connection=connection, stored=stored, fresh=by_key)
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
        lists, past = dict[str, tuple[str, ...]](), Past()
        if before is not None:
            lists = dict(rows.details_in(before["details"]).lists)
            until, as_of = before["before_until"], rows.moment_of(before["as_of"])
            past = Past(
                lives=before["lives_before"],
                until=None if until is None else rows.moment_of(until),
            )
            now = max(as_of, now) if now else as_of
        fresh = (one.fact for one in self.fresh.get(key, ()) if one.fact)
        facts = (*self.stored[key].values(), *fresh)
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


def _name(key: str, fact: Fact) -> Values:
    """Return the parameters that name the row of a fact."""
    named = zip(_KEY, (key, *fact.report), strict=True)
    return {f"b_{name}": value for name, value in named}
