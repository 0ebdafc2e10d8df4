"""Converts states of events into rows, and values of rows back. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Self, TypeVar

import msgspec
import orjson
from msgspec import Struct
from msgspec.structs import replace
from sqlalchemy import Connection, func, select, text, update

from bridge.events.cloudevent import clean
from bridge.events.document import ScheduledEvent
from bridge.events.vocabulary import APPROVED
from bridge.hub import view_rows
from bridge.hub.answers import NAMES, AzureReport, OccurrenceRow
from bridge.hub.decisions import CurrentEvent
from bridge.hub.facts import Address, Fact, Machine, Trust, digest_of
from bridge.hub.facts import text as text_of
from bridge.hub.fold import Folded, Occurrence, State, Voice
from bridge.hub.occurrences import Place
from bridge.hub.store.engine import Values, insert, put
from bridge.hub.store.tables import alarms, events, trail
from bridge.hub.view_rows import ReporterRow, StoredOutcome
from bridge.hub.vote_rules import digest

R = TypeVar("R", bound=Struct)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_LONGEST = 256
_MOST_LISTED = 4000
_encode = msgspec.json.Encoder().encode

Named = tuple[tuple[str, str, tuple[str, ...]], ...]


def micros(moment: datetime) -> int:
    """Convert a time into microseconds since 1970, as it is stored."""
    return (moment - _EPOCH) // _MICROSECOND


def moment_of(value: int) -> datetime:
    """Convert stored microseconds into a time."""
    return _EPOCH + timedelta(microseconds=value)


def moment_or_none(value: int | None) -> datetime | None:
    """Convert stored microseconds into a time, if there are any."""
    return None if value is None else moment_of(value)


def made(kind: type[R], source: object, /, **given: Any) -> R:
    """Return a row with what another one, or a row of a table, has alike.

    Args:
        kind: of the row.
        source: the other one.
        given: what it has not, or in another form.
    """
    names = (name for name in kind.__struct_fields__ if name not in given)
    return kind(**{name: getattr(source, name) for name in names}, **given)


def event_row(state: State, folded: Folded) -> Values:
    """Return the row of an event, without the columns about when messages came.

    Args:
        state: the state of the event.
        folded: that state, with the messages it is derived from.
    """
    now = state.now
    event = now.event if now else None
    not_before = event.not_before if event else None
    group = now.group if now else ("", "")
    is_pending = bool(now and now.is_open)
    return {
        "event_key": state.key,
        "event_id": state.event_id,
        "status": now.status.value if now else "unknown",
        "is_open": is_pending,
        "event_type": short(event.event_type if event else None),
        "event_source": short(event.event_source if event else None),
        "subscription": group[0],
        "group": group[1],
        "content": digest(event.raw) if event else "",
        "has_bridge": now.has_bridge if now else True,
        "lives": state.lives,
        "lives_before": state.before,
        "named": named_print(state),
        "said_until": micros(now.said_until) if now and now.said_until else None,
        "not_before": micros(not_before) if not_before and is_pending else None,
        "opened": micros(now.opened if now else state.last_reported),
        "started": micros(now.started) if now and now.started else None,
        "ended": micros(now.ended) if now and now.ended and not is_pending else None,
        "told": micros(state.last_reported),
        "notice": _notice(now.first) if now else None,
        **_approved(state),
        "summary": _encode(_summary(now)),
        "state": _encode(
            StoredState(
                occurrences=tuple(map(_stored, state.occurrences)),
                outcomes=outcomes_of(state),
            )
        ),
        "details": _encode(_details(now, folded)),
    }


def _notice(first: Fact) -> int | None:
    """Return the time from a first message to its NotBefore."""
    return (first.not_before - first.time) // _MICROSECOND if first.not_before else None


def _approved(state: State) -> Values:
    """Return when a bridge told first that the latest occurrence was approved."""
    since = state.now.opened if state.now else datetime.min.replace(tzinfo=UTC)
    for fact in state.outcomes:
        found = fact.outcome
        if found and found.outcome in APPROVED and fact.time >= since:
            by = short(found.message_id)
            return {"decided": micros(fact.time), "decided_by": by}
    return {"decided": None, "decided_by": ""}


def short(value: str | None) -> str:
    """Return a text of an event, cut and cleaned for a column."""
    return clean((value or "")[:_LONGEST])


class Summary(view_rows.Row, frozen=True, kw_only=True):
    """What a list shows of the latest occurrence, as it is stored.

    It is small, whatever was sent: the state has all names of Resources, several times,
    and a list of 200 events must not parse it.
    """

    first_reported_by: ReporterRow = ReporterRow()
    bridges_say: str | None = None
    said: str | None = None
    said_by: ReporterRow | None = None
    doubled: tuple[ReporterRow, ...] = ()
    resource: str = ""
    names: tuple[str, ...] = ()
    name_count: int = 0
    event: Mapping[str, Any] | None = None
    azure_status: str | None = None


def _summary(now: Occurrence | None) -> Summary:
    if now is None:
        return Summary()
    event, azure = now.event, now.azure and now.azure.event
    names = spelt(event) if event else ()
    shown = {"Resources": list(event.resources[:NAMES])} if event else {}
    return made(
        Summary,
        now,
        first_reported_by=ReporterRow.of(now.first.reporter),
        said_by=ReporterRow.of(now.said_by) if now.said_by else None,
        doubled=tuple(map(ReporterRow.of, now.doubled)),
        names=names[:NAMES],
        name_count=len(names),
        event={**event.raw, **shown} if event else None,
        azure_status=text_of(azure.raw.get("EventStatus")) if azure else None,
    )


def spelt(event: ScheduledEvent) -> tuple[str, ...]:
    """Return the names in Resources as they were spelt, each once."""
    return tuple(dict.fromkeys(name.removeprefix("_") for name in event.resources))


class StoredState(view_rows.Row, frozen=True, kw_only=True):
    """What is stored of the state of an event, beside its columns."""

    occurrences: tuple[OccurrenceRow, ...]
    outcomes: tuple[StoredOutcome, ...]

    @property
    def latest(self) -> OccurrenceRow | None:
        """The latest occurrence; None = there is none."""
        return self.occurrences[-1] if self.occurrences else None


state_in = msgspec.json.Decoder(StoredState).decode
summary_in = msgspec.json.Decoder(Summary).decode


def outcomes_of(state: State) -> tuple[StoredOutcome, ...]:
    """Return the results of approvals, the oldest first."""
    good = list(Trust)[: 1 if state.now and state.now.is_pinned else 2]
    return tuple(
        made(
            StoredOutcome,
            fact.outcome,
            reason=fact.outcome.reason or None,
            time=fact.time,
            reporter=ReporterRow.of(fact.reporter),
            is_doubtful=fact.trust not in good,
        )
        for fact in state.outcomes
        if fact.outcome is not None
    )


def _stored(life: Occurrence) -> OccurrenceRow:
    return made(
        OccurrenceRow,
        life,
        event=life.event.raw if life.event else None,
        first_reported_by=ReporterRow.of(life.first.reporter),
        azure=_azure(life.azure) if life.azure else None,
    )


class Details(Struct, frozen=True, kw_only=True):
    """What the rules need to know of the latest occurrence, and no list shows.

    Attributes:
        named: the machines in Resources: subscription, group, names.
        voices: who has reported it.
        addresses: those in kept messages, each with the vmId of its reporter.
        is_pinned: see ``Occurrence``.
        lists: the short lists of names that were needed: the next fold need not read
            them from bodies.
        full: see ``Folded``.
        heeded: see ``Folded``.
    """

    named: Named = ()
    voices: tuple[Voice, ...] = ()
    addresses: tuple[tuple[Address, str], ...] = ()
    is_pinned: bool = False
    lists: Mapping[str, tuple[str, ...]] = {}
    full: datetime | None = None
    heeded: tuple[Place, ...] = ()

    @property
    def machines(self) -> tuple[Machine, ...]:
        """The machines in Resources."""
        return tuple(
            Machine(subscription=subscription, group=group, name=name)
            for subscription, group, names in self.named
            for name in names
        )


details_in = msgspec.json.Decoder(Details).decode


def _details(now: Occurrence | None, folded: Folded) -> Details:
    room, kept = _MOST_LISTED, dict[str, tuple[str, ...]]()
    for name, names in sorted(folded.lists.items()):
        room -= len(names)
        if room >= 0:
            kept[name] = names
    return Details(
        named=_by_group(now.named if now else ()),
        voices=now.voices if now else (),
        addresses=tuple(sorted(set(_addresses(folded.kept)))),
        is_pinned=bool(now and now.is_pinned),
        lists=kept,
        full=folded.full,
        heeded=folded.heeded,
    )


def _addresses(kept: Sequence[Fact]) -> Iterator[tuple[Address, str]]:
    """Yield the addresses in messages.

    Nobody signs ReplyTo: a pinned bridge offers where it takes approvals.
    """
    for fact in kept:
        if fact.address is not None and fact.trust is Trust.PLAIN:
            yield fact.address, fact.reporter.vm_id


def _by_group(machines: tuple[Machine, ...]) -> Named:
    """Return machines by subscription and group, which takes less room."""
    found: dict[tuple[str, str], list[str]] = {}
    for one in machines:
        found.setdefault((one.subscription, one.group), []).append(one.name)
    return tuple((*place, tuple(names)) for place, names in found.items())


def events_in(state: bytes) -> dict[str, ScheduledEvent | None]:
    """Return the IMDS objects in a stored state, by their messages' fingerprints."""
    found: dict[str, ScheduledEvent | None] = {}
    for life in state_in(state).occurrences:
        for one in (life, life.azure):
            if one is not None and one.event is not None:
                event_id = clean(str(one.event.get("EventId")))
                found[one.digest] = ScheduledEvent(event_id=event_id, raw=one.event)
    return found


def _azure(fact: Fact) -> AzureReport:
    raw = fact.event.raw if fact.event else {}
    status = text_of(raw.get("EventStatus")) or None
    return AzureReport(status=status, event=raw, time=fact.time, digest=fact.digest)


def named_print(state: State) -> str:
    """Return the fingerprint of the machines of an event."""
    return digest_of(orjson.dumps(_by_group(state.now.machines if state.now else ())))


# -- Versions of events ----------------------------------------------------------------


def marked(
    connection: Connection, values: Sequence[Values]
) -> tuple[Values, Sequence[Values]]:
    """Give rows of events a new version and the id of the transaction.

    Returns the values that are the same for all rows, and the rows.
    """
    if connection.dialect.name == "postgresql":
        marks: Values = {
            "version": text("nextval('event_versions')"),
            "xid": text("pg_current_xact_id()::text::bigint"),
        }
        return marks, values
    newest = connection.scalar(select(func.max(events.c.version))) or 0
    numbered = enumerate(values, newest + 1)
    return {"xid": 0}, [{**row, "version": number} for number, row in numbered]


def mark_changed(connection: Connection, key: str) -> None:
    """Give an event a new version, so clients that follow changes read it again."""
    marks, (row,) = marked(connection, [{}])
    change = update(events).where(events.c.event_key == key)
    connection.execute(change.values(**marks, **row))


# -- Adds entries to the record of an event, and alarms about decisions ----------------


class Entry(Struct, frozen=True, kw_only=True):
    """One entry of the record.

    Attributes:
        decision: the id of the decision; "" = a vote, before there is a decision.
        what: voted, decided, refused, sent, done, failed, void and so on.
        person: who did it; "" = the hub.
        content: the fingerprint of the event at that time.
    """

    time: datetime
    event_key: str
    event_id: str
    life: int
    decision: str = ""
    what: str = ""
    via: str = ""
    person: str = ""
    detail: str = ""
    content: str = ""

    @classmethod
    def of(cls, row: Any, time: datetime, *, what: str, detail: str = "") -> Self:
        """Return an entry about a decision."""
        return cls(
            time=time,
            event_key=row.event_key,
            event_id=row.event_id,
            life=row.life,
            decision=row.id,
            what=what,
            via=row.via,
            detail=detail,
            content=row.content,
        )

    @classmethod
    def on(cls, current: CurrentEvent, time: datetime, *, what: str, via: str) -> Self:
        """Return an entry about an event."""
        return cls(
            time=time,
            event_key=current.key,
            event_id=current.event_id,
            life=current.life,
            what=what,
            via=via,
            content=current.content,
        )

    def by(self, person: str, detail: str = "", decision: str = "") -> Self:
        """Return a copy with the person, the detail and the id of the decision."""
        return replace(self, person=person, detail=detail, decision=decision)


def record(connection: Connection, entry: Entry) -> None:
    """Add an entry to the record; entries are never changed."""
    values = {name: getattr(entry, name) for name in entry.__struct_fields__}
    connection.execute(trail.insert(), {**values, "time": micros(entry.time)})


def alarm_id(same: Sequence[object]) -> str:
    """Return the id of an alarm, from what makes it the same alarm."""
    return digest_of(orjson.dumps(same))


def alarm_of(
    what: str, same: Sequence[object], time: datetime, data: Mapping[str, object]
) -> Values:
    """Return the row of an alarm ``hub.*``; its id is a hash of what makes it one."""
    return {
        "id": alarm_id(same),
        "kind": f"hub.{what}",
        "time": micros(time),
        "data": orjson.dumps(data),
        "handed": None,
    }


def add_alarms(connection: Connection, values: Sequence[Values]) -> None:
    """Add alarms, unless the same ones exist."""
    put(connection, insert(alarms).on_conflict_do_nothing(), values)


def alarm(connection: Connection, entry: Entry) -> None:
    """Add an alarm ``hub.approval.*``."""
    what = f"approval.{entry.what}"
    data = {
        "eventId": entry.event_id,
        "decision": entry.decision,
        "via": entry.via,
        "detail": entry.detail,
        "by": entry.person or None,
    }
    same = [f"hub.{what}", entry.decision, entry.detail]
    add_alarms(connection, [alarm_of(what, same, entry.time, data)])
