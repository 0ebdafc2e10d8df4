"""Queries for bridges, with whether each is alive."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import orjson
from msgspec import Struct
from sqlalchemy import ColumnElement, Connection, and_, func, select

from bridge.events.vocabulary import KNOWN_TYPES
from bridge.hub.bridges import BridgeState, Liveness, Offer, address_in, liveness
from bridge.hub.facts import kept_name
from bridge.hub.fold import Machine
from bridge.hub.store.rows import micros, moment_of, moment_or_none
from bridge.hub.store.tables import bridges, events, machines, offers, unreadable
from bridge.hub.view_rows import PAGE, BridgeRow, Situation

_SCANNED = 1000
_UNREAD = timedelta(days=1)
_ENDS_A_VM = [name for name, known in KNOWN_TYPES.items() if known.ends_vm]


def fleet(
    connection: Connection, situation: Situation, *, after: str = "", limit: int = PAGE
) -> list[BridgeRow]:
    """Return bridges in the order of their vmIds."""
    query = select(bridges).where(bridges.c.vm_id > after)
    found = connection.execute(query.order_by(bridges.c.vm_id).limit(limit)).all()
    return bridge_rows(connection, found, situation)


def search(
    connection: Connection,
    situation: Situation,
    *,
    state: str = "",
    text: str = "",
    after: str = "",
) -> tuple[list[BridgeRow], str, int]:
    """Return a page of bridges, the cursor of the next one, and how many there are.

    Args:
        connection: a connection within a transaction.
        situation: the current Situation.
        state: a value of Liveness; "" = all. It depends on the time, so the bridges
            are looked at one by one until the page is full.
        text: the beginning of a name; "" = all.
        after: the cursor of the previous page; "" = the first page.
    """
    is_named = bridges.c.name.startswith(kept_name(text), autoescape=True)
    query = select(bridges).where(is_named) if text else select(bridges)
    counted = select(func.count()).select_from(query.subquery())
    total = connection.scalar(counted) or 0
    found, at_once = list[BridgeRow](), _SCANNED if state else PAGE
    while True:
        chunk = query.where(bridges.c.vm_id > after).order_by(bridges.c.vm_id)
        rows = connection.execute(chunk.limit(at_once)).all()
        for row in bridge_rows(connection, rows, situation):
            after = row.vm_id
            if state in {"", row.liveness.value}:
                found.append(row)
            if len(found) == PAGE:
                return found, after, total
        if len(rows) < at_once:
            return found, "", total


def silent(connection: Connection, situation: Situation) -> list[BridgeRow]:
    """Return the bridges that are silent, as far as the last check of all has found."""
    query = select(bridges).where(bridges.c.was_silent.is_(True))
    found = connection.execute(query.order_by(bridges.c.name).limit(PAGE)).all()
    rows = bridge_rows(connection, found, situation)
    return [row for row in rows if row.liveness is Liveness.SILENT]


def count_unread(connection: Connection, now: datetime) -> int:
    """Return how many messages of the last day could not be read; at most 1,000."""
    since = micros(now - _UNREAD)
    query = select(func.count()).select_from(unreadable)
    return connection.scalar(query.where(unreadable.c.heard >= since)) or 0


def has_bridges(connection: Connection) -> bool:
    """Whether any bridge is known."""
    return connection.scalar(select(bridges.c.vm_id).limit(1)) is not None


def bridges_like(
    connection: Connection, text: str, limit: int
) -> list[tuple[str, Machine]]:
    """Return bridges' machines whose names begin with a text, as they are spelt."""
    of = bridges.c
    is_named = of.name.startswith(kept_name(text), autoescape=True)
    query = select(bridges).where(is_named).order_by(of.name, of.vm_id).limit(limit)
    found: dict[Machine, str] = {}
    for row in connection.execute(query):
        state = BridgeState.from_json(row.vm_id, moment_of(row.heard), row.state)
        place = {"subscription": row.subscription, "group": row.group}
        found[Machine(**place, name=row.name)] = state.reporter.name
    return [(name, machine) for machine, name in found.items()]


def machines_named(connection: Connection, name: str) -> list[Machine]:
    """Return all machines with a name, from events and from bridges."""
    found = set[tuple[str, str]]()
    for of in (machines.c, bridges.c):
        query = select(of.subscription, of.group).distinct()
        rows = connection.execute(query.where(of.name == name).limit(PAGE))
        found |= {(row.subscription, row.group) for row in rows}
    return [
        Machine(subscription=subscription, group=group, name=name)
        for subscription, group in sorted(found)
    ]


def is_at(columns: Any, machine: Any) -> ColumnElement[bool]:
    """Return a condition: a row is about a machine.

    Args:
        columns: subscription, group and name of the row.
        machine: a Machine, or the columns of another row.
    """
    names = ("subscription", "group", "name")
    return and_(*(getattr(columns, n) == getattr(machine, n) for n in names))


def bridges_of(
    connection: Connection, machine: Machine, situation: Situation
) -> list[BridgeRow]:
    """Return the bridges of a machine, the last heard first.

    There are several if the machine was created again and its resource id is not known.
    """
    of = bridges.c
    query = select(bridges).where(is_at(of, machine))
    found = connection.execute(query.order_by(of.heard.desc()).limit(PAGE)).all()
    return bridge_rows(connection, found, situation)


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
        found = offer_of(row)
        by_vm[row.vm_id].append(found)
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
    state = BridgeState.from_json(row.vm_id, moment_of(row.heard), row.state)
    ends = [
        gone.get((row.subscription, row.group, row.name)),
        moment_or_none(row.forgotten),
    ]
    known = [end for end in ends if end is not None]
    offer = state.current_offer(mine)
    return BridgeRow(
        vm_id=row.vm_id,
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


def forget_bridge(connection: Connection, vm_id: str, now: datetime) -> bool:
    """Declare a bridge gone, for a person; returns whether the bridge is known."""
    change = bridges.update().where(bridges.c.vm_id == vm_id)
    done = connection.execute(change.values(forgotten=micros(now)))
    return bool(done.rowcount)
