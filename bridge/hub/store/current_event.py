"""Reads what a decision depends on: the current event, and the bridges for it."""

from collections.abc import Mapping, Sequence
from typing import Any

import orjson
from msgspec import Struct
from sqlalchemy import Connection, func, select

from bridge.events.vocabulary import PRESENT
from bridge.hub.bridges import Liveness
from bridge.hub.config import HubConfig
from bridge.hub.facts import Address
from bridge.hub.fold import Machine, Voice
from bridge.hub.store.fleet_view import bridge_rows, is_at
from bridge.hub.store.rows import moment_of, named_in, state_in, voices_in
from bridge.hub.store.tables import (
    addresses,
    bridges,
    decisions,
    events,
    machines,
    messages,
    offers,
)
from bridge.hub.store.tables import details as details_table
from bridge.hub.targets import (
    Claims,
    Target,
    TargetChoice,
    Wishes,
    choose_target,
    is_answered,
    targets_of,
)
from bridge.hub.view_rows import BridgeRow, Situation
from bridge.hub.voting import SET_ASIDE, CurrentEvent

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
    details = _details(connection, key)
    voices = voices_in(details)
    return CurrentEvent(
        key=row.event_key,
        event_id=row.event_id,
        life=row.lives,
        is_open=row.is_open,
        status=row.status,
        content=row.content,
        event=life.event if life else None,
        is_whole=life is not None and life.is_whole,
        since=moment_of(_content_since(connection, key) or row.told),
        prefix=life.prefix if life else "",
        source=life.source if life else "",
        resource=life.resource if life else "",
        machines=life.machines if life else (),
        named=named_in(details),
        voices=voices,
        homes=homes_of(connection, [key], {key: voices})[key],
        aside=aside_of(connection, key, row.lives),
        is_by_others=life is not None and life.is_by_others,
        is_pinned=bool(details.get("isPinned")),
        azure=azure.event if azure else None,
        azure_seen=None if row.azure_seen is None else moment_of(row.azure_seen),
    )


def homes_of(
    connection: Connection, keys: Sequence[str], voices: Mapping[str, Sequence[Voice]]
) -> dict[str, dict[str, set[str]]]:
    """Return the resource groups of the bridges of each name in Resources.

    A bridge counts if its subscription was told by somebody in this occurrence. A name
    without such a bridge has no group.

    Args:
        connection: a connection within a transaction.
        keys: the keys of events.
        voices: who has reported each of them.
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


def aside_of(connection: Connection, key: str, life: int) -> frozenset[str]:
    """Return the vmIds of the reporters of an occurrence that were set aside."""
    query = select(decisions.c.about).where(
        decisions.c.event_key == key,
        decisions.c.life == life,
        decisions.c.action == SET_ASIDE,
    )
    return frozenset(connection.scalars(query))


def _details(connection: Connection, key: str) -> dict[str, Any]:
    query = select(details_table.c.body).where(details_table.c.event_key == key)
    body = connection.scalar(query)
    return {} if body is None else orjson.loads(body)


def _content_since(connection: Connection, key: str) -> int | None:
    """Return the time of the latest message with the content of an event."""
    query = select(func.max(messages.c.time)).where(
        messages.c.event_key == key, messages.c.kind.in_(sorted(PRESENT))
    )
    found: int | None = connection.scalar(query)
    return found


class EventBridges(Struct, frozen=True, kw_only=True):
    """The bridges for an event, and the targets for its approvals.

    Attributes:
        fleet: the bridges of its machines.
        targets: the addresses for approvals, the best one first.
    """

    fleet: tuple[BridgeRow, ...]
    targets: tuple[Target, ...]

    def choose_target(
        self,
        config: HubConfig,
        current: CurrentEvent,
        situation: Situation,
        wishes: Wishes = Wishes(),  # noqa: B008 - frozen
    ) -> TargetChoice:
        """Choose the address to send an approval to."""
        return choose_target(
            config.bridge_sources, self.targets, current, situation.now, wishes
        )

    def is_answered(self, config: HubConfig) -> bool:
        """Whether a bridge answers for the event."""
        return is_answered(config.bridge_sources, self.targets)


def event_bridges(
    connection: Connection, current: CurrentEvent, situation: Situation
) -> EventBridges:
    """Read the bridges of an event's machines, and the targets for its approvals."""
    is_open = not current.is_pinned  # to what any bridge says
    voices = () if is_open else {voice.reporter.vm_id for voice in current.voices}
    named_in_messages = [
        (
            Address(
                source=row.origin,
                entity=row.entity,
                session=row.session,
                prefix=row.prefix,
            ),
            row.vm_id,
        )
        for row in connection.execute(
            select(addresses).where(addresses.c.event_key == current.key)
        )
        if is_open or row.vm_id in voices
    ]
    found = [
        row
        for row in _bridge_rows_of(connection, current.key)
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
    return Machine(subscription=row.subscription, group=row.group, name=row.name)


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


def _bridge_rows_of(connection: Connection, key: str) -> list[Any]:
    """Return the rows of bridges that an event names, the last heard last.

    They are those of its machines and of its addresses. A list of their names could be
    longer than a statement may be.
    """
    is_its_machine = is_at(machines.c, bridges.c)
    by_machine = select(bridges).join(machines, is_its_machine)
    by_address = select(addresses.c.vm_id).where(addresses.c.event_key == key)
    found: dict[str, Any] = {}
    for query in (
        by_machine.where(machines.c.event_key == key),
        select(bridges).where(bridges.c.vm_id.in_(by_address)),
    ):
        found |= {row.vm_id: row for row in connection.execute(query)}
    return sorted(found.values(), key=lambda row: (row.heard, row.vm_id))
