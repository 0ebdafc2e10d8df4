"""Reads what a decision depends on: the current event, and the bridges for it.

It also ends decisions, by outcomes or by the end of the event.
"""

import hashlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import orjson
from msgspec import Struct
from sqlalchemy import ColumnElement, Connection, and_, func, select, update

from bridge.events.vocabulary import KNOWN_TYPES, PRESENT
from bridge.hub.bridges import Liveness, Offer, address_in, bridge_in, liveness
from bridge.hub.decisions import SET_ASIDE, CurrentEvent, DecisionState, End, end_of
from bridge.hub.facts import Machine
from bridge.hub.fold import Voice
from bridge.hub.store.rows import (
    Entry,
    alarm,
    details_in,
    micros,
    moment_of,
    moment_or_none,
    record,
    state_in,
)
from bridge.hub.store.tables import (
    bridges,
    decisions,
    events,
    machines,
    messages,
    offers,
)
from bridge.hub.targets import Claims, EventBridges, has_offered, targets_of
from bridge.hub.view_rows import BridgeRow, Situation, StoredOutcome

_ENDS_A_VM = [name for name, known in KNOWN_TYPES.items() if known.ends_vm]
_MOST_CLAIMS = 20
_PASSED_ON = {Liveness.GONE, Liveness.STOPPED, Liveness.SILENT}


def current_event(connection: Connection, key: str) -> CurrentEvent | None:
    """Return the current state of an event; None = the store has no such event."""
    query = select(events).where(events.c.event_key == key)
    row = connection.execute(query).one_or_none()
    if row is None:
        return None
    life = state_in(row.state).latest
    azure = life.azure if life else None
    details = details_in(row.details)
    voices = details.voices
    aside = aside_of(connection, [key])
    return CurrentEvent(
        key=row.event_key,
        event_id=row.event_id,
        life=row.lives,
        is_open=row.is_open,
        status=row.status,
        content=row.content,
        event=life.event if life else None,
        is_whole=life is not None and life.is_whole,
        since=_content_since(connection, key) or moment_of(row.told),
        prefix=life.prefix if life else "",
        source=life.source if life else "",
        resource=life.resource if life else "",
        machines=life.machines if life else (),
        named=details.machines,
        voices=voices,
        addresses=details.addresses,
        homes=homes_of(connection, [key], {key: voices})[key],
        aside=frozenset(vm_id for _, life, vm_id in aside if life == row.lives),
        is_by_others=life is not None and life.is_by_others,
        is_pinned=details.is_pinned,
        azure=azure.event if azure else None,
        azure_seen=moment_or_none(row.azure_seen),
    )


def homes_of(
    connection: Connection, keys: Sequence[str], voices: Mapping[str, Sequence[Voice]]
) -> dict[str, dict[str, set[str]]]:
    """Return the resource groups of the bridges of each name in Resources.

    A bridge counts if its subscription was told by somebody in this occurrence. A name
    without such a bridge has no group.
    """
    found: dict[str, dict[str, set[str]]] = {key: {} for key in keys}
    told = {
        key: {subscription for one in mine for subscription, _ in one.groups}
        for key, mine in voices.items()
    }
    of, place = machines.c, (bridges.c.subscription, bridges.c.group)
    query = (
        select(of.event_key, of.name, *place)
        .join(bridges, bridges.c.name == of.name, isouter=True)
        .where(of.event_key.in_(keys))
    )
    for row in connection.execute(query):
        homes = found[row.event_key].setdefault(row.name, set())
        if row.group and row.subscription in told.get(row.event_key, ()):
            homes.add(row.group)
    return found


def aside_of(connection: Connection, keys: Sequence[str]) -> set[tuple[str, int, str]]:
    """Return the reporters that were set aside: event, occurrence and vmId."""
    of = decisions.c
    query = select(of.event_key, of.life, of.about)
    mine = query.where(of.event_key.in_(keys), of.action == SET_ASIDE)
    return {(row[0], row[1], row[2]) for row in connection.execute(mine)}


def _content_since(connection: Connection, key: str) -> datetime | None:
    """Return the time of the latest message with the content of an event."""
    query = select(func.max(messages.c.time)).where(
        messages.c.event_key == key, messages.c.kind.in_(sorted(PRESENT))
    )
    return moment_or_none(connection.scalar(query))


def event_bridges(
    connection: Connection, current: CurrentEvent, situation: Situation
) -> EventBridges:
    """Read the bridges of an event's machines, and the targets for its approvals."""
    is_open = not current.is_pinned  # to what any bridge says
    voices = () if is_open else {voice.reporter.vm_id for voice in current.voices}
    named_in_messages = [
        (address, vm_id)
        for address, vm_id in current.addresses
        if is_open or vm_id in voices
    ]
    found = [
        row
        for row in _bridge_rows_of(connection, current)
        if is_open or row.vm_id in voices or _machine(row) in current.machines
    ]
    fleet = bridge_rows(connection, found, situation)
    by_vm, now = {bridge.vm_id: bridge for bridge in fleet}, situation.now
    claims = _claims(connection, fleet, situation)
    mine = set(current.machines)
    return EventBridges(
        fleet=tuple(bridge for bridge in fleet if bridge.machine in mine),
        targets=tuple(targets_of(named_in_messages, by_vm, current, now, claims)),
    )


def _machine(row: Any) -> Machine:
    return Machine.at((row.subscription, row.group, row.name))


def _claims(
    connection: Connection, fleet: Sequence[BridgeRow], situation: Situation
) -> Claims:
    """Return which machines offer the sessions of an event's bridges; see ``Claims``.

    The first ones to offer a session are enough to see whose it is, or that it is
    shared.
    """
    places = {one.address.place for b in fleet for one in b.offers if one.address}
    found = {}
    for place in sorted(place for place in places if place[2]):
        query = select(offers.c.vm_id).where(
            offers.c.session == place[2],
            offers.c.origin == place[0],
            func.lower(offers.c.entity) == place[1],
        )
        first = query.order_by(offers.c.first_heard, offers.c.id).limit(_MOST_CLAIMS)
        rows = connection.execute(
            select(bridges).where(bridges.c.vm_id.in_(connection.scalars(first).all()))
        ).all()
        live = [
            bridge
            for bridge in bridge_rows(connection, rows, situation)
            if bridge.liveness not in _PASSED_ON
        ]
        found[place] = {
            bridge.machine: bridge.since(place)
            for bridge in live
            if bridge.address is not None and bridge.address.place == place
        }
    return found


def _bridge_rows_of(connection: Connection, current: CurrentEvent) -> list[Any]:
    """Return the rows of bridges that an event names, the last heard last.

    They are those of its machines and of its addresses.
    """
    is_its_machine = is_at(machines.c, bridges.c)
    by_machine = select(bridges).join(machines, is_its_machine)
    by_address = {vm_id for _, vm_id in current.addresses}
    found: dict[str, Any] = {}
    for query in (
        by_machine.where(machines.c.event_key == current.key),
        select(bridges).where(bridges.c.vm_id.in_(by_address)),
    ):
        found |= {row.vm_id: row for row in connection.execute(query)}
    return sorted(found.values(), key=lambda row: (row.heard, row.vm_id))


# -- rows of bridges, with whether each is alive ---------------------------------------


def is_at(columns: Any, machine: Any) -> ColumnElement[bool]:
    """Return a condition: a row is about a machine.

    Args:
        columns: subscription, group and name of the row.
        machine: a Machine, or the columns of another row.
    """
    names = ("subscription", "group", "name")
    return and_(*(getattr(columns, n) == getattr(machine, n) for n in names))


def bridge_rows(
    connection: Connection, found: Sequence[Any], situation: Situation
) -> list[BridgeRow]:
    """Convert rows of the table into BridgeRows, with whether each bridge is alive."""
    names = [row.name for row in found]
    gone = _machines_that_ended(connection, names)
    vm_ids = [row.vm_id for row in found]
    known = _offers(connection, offers.c.vm_id.in_(vm_ids) | offers.c.name.in_(names))
    return [_bridge(row, gone, situation, known) for row in found]


def offers_of(connection: Connection, vm_ids: Sequence[str]) -> Sequence[Offer]:
    """Return the offers that were heard in the names of bridges."""
    found = _offers(connection, offers.c.vm_id.in_(vm_ids))
    return [offer for of_vm in found.by_vm.values() for offer in of_vm]


class _Offers(Struct, frozen=True):
    """Offers by vmId, and by machine; without a resource group, no machine is known."""

    by_vm: Mapping[str, Sequence[Offer]]
    by_machine: Mapping[tuple[str, str, str], Sequence[Offer]]

    def of(self, row: Any) -> tuple[Offer, ...]:
        """Return the offers in the name of a bridge, or of its machine."""
        place = (row.subscription, row.group, row.name)
        found = (*self.by_vm.get(row.vm_id, ()), *self.by_machine.get(place, ()))
        return tuple({one.id: one for one in found}.values())


def _offers(connection: Connection, wanted: ColumnElement[bool]) -> _Offers:
    by_vm = defaultdict[str, list[Offer]](list)
    by_machine = defaultdict[tuple[str, str, str], list[Offer]](list)
    query = select(offers).where(wanted).order_by(offers.c.first_heard, offers.c.id)
    for row in connection.execute(query):
        by_vm[row.vm_id].append(found := offer_of(row))
        if row.group and row.name:
            by_machine[row.subscription, row.group, row.name].append(found)
    return _Offers(by_vm, by_machine)


def offer_of(row: Any) -> Offer:
    """Convert a row of the table into an Offer."""
    data = orjson.loads(row.offer)
    return Offer(
        id=row.id,
        vm_id=row.vm_id,
        address=address_in(data, row.origin, row.prefix),
        digest=row.digest,
        first_heard=moment_of(row.first_heard),
        heard=moment_of(row.heard),
        dropped=moment_or_none(row.dropped),
        data=data,
    )


def _machines_that_ended(
    connection: Connection, names: Sequence[str]
) -> dict[tuple[str, str, str], datetime]:
    """Return when machines were terminated or preempted."""
    place = (machines.c.subscription, machines.c.group, machines.c.name)
    is_end = and_(events.c.status == "completed", events.c.event_type.in_(_ENDS_A_VM))
    query = (
        select(*place, func.max(events.c.ended).label("ended"))
        .join(events, events.c.event_key == machines.c.event_key)
        .where(machines.c.name.in_(names), is_end, events.c.ended.is_not(None))
        .group_by(*place)
    )
    return {
        (row.subscription, row.group, row.name): moment_of(row.ended)
        for row in connection.execute(query)
    }


def _bridge(
    row: Any,
    gone: Mapping[tuple[str, str, str], datetime],
    situation: Situation,
    offered: _Offers,
) -> BridgeRow:
    mine = offered.of(row)
    state, place = bridge_in(row.reported), (row.subscription, row.group, row.name)
    ends = [gone.get(place), moment_or_none(row.forgotten)]
    known = [end for end in ends if end is not None]
    offer = state.current_offer(mine)
    return BridgeRow(
        vm_id=row.vm_id,
        machine=_machine(row),
        reporter=state.reporter,
        origin=row.origin,
        name=state.reporter.name,
        resource_id=state.reporter.resource_id or None,
        subscription=row.subscription or None,
        group=row.group or None,
        version=str(state.who.data.get("version", "")) or None,
        location=str(state.who.data.get("location", "")) or None,
        liveness=liveness(
            state,
            situation.now,
            listening=situation.listening.get(row.origin),
            forget_after=situation.forget_after,
            absent_until=situation.absent_until,
            gone=max(known, default=None),
        ),
        heard=state.heard,
        first_heard=moment_of(row.first_heard),
        stopped=moment_or_none(row.stopped),
        interval_seconds=state.interval or None,
        pending=_number(state.beat.data.get("pending")),
        dead=_number(state.beat.data.get("dead")),
        approvals=offer.data if offer else state.approvals,
        address=state.address(mine),
        offers=mine,
        was_silent=row.was_silent,
    )


def _number(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


# -- the ends of decisions -------------------------------------------------------------


def change(connection: Connection, row: Any, **values: object) -> None:
    """Change columns of a decision."""
    mine = update(decisions).where(decisions.c.id == row.id)
    connection.execute(mine.values(**values))


def void(connection: Connection, row: Any, situation: Situation, why: str) -> None:
    """Make a decision void that has not been carried out."""
    end = End(state=DecisionState.VOID, outcome="", reason=why)
    close(connection, row, end, situation.now)


def close(connection: Connection, row: Any, end: End, now: datetime) -> None:
    """Store the end of a decision, with an entry in the record and an alarm."""
    change(
        connection,
        row,
        state=end.state.value,
        outcome=end.outcome,
        outcome_reason=end.reason,
        closed=micros(now),
        due=None,
    )
    detail = ": ".join(filter(None, (end.outcome, end.reason)))
    entry = Entry.of(row, now, what=end.state.value, detail=detail)
    record(connection, entry)
    alarm(connection, entry)


EVENT_OVER = "event-over"  # the outcome of a decision whose event ended before


def settle_one(
    connection: Connection,
    row: Any,
    outcomes: Sequence[StoredOutcome],
    now: datetime,
) -> bool:
    """Close a decision by the outcomes of its event; returns whether one does."""
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


def _differs(row: Any, end: End) -> bool:
    """Whether an end differs from the stored state of a decision."""
    before = (row.state, row.outcome, row.outcome_reason)
    return before != (end.state.value, end.outcome, end.reason)
