"""Reads what a decision depends on: the current event, and the bridges for it."""

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, and_, func, select

from bridge.events.vocabulary import PRESENT
from bridge.hub.config import HubConfig
from bridge.hub.facts import Address, kept_name
from bridge.hub.fold import Machine
from bridge.hub.store.fleet_view import bridge_rows
from bridge.hub.store.rows import json_of, moment_of, named_in, voices_in
from bridge.hub.store.tables import addresses, bridges, events, machines, messages
from bridge.hub.store.tables import details as details_table
from bridge.hub.targets import (
    Target,
    TargetChoice,
    choose_target,
    is_answered,
    targets_of,
)
from bridge.hub.view_rows import BridgeRow, Situation
from bridge.hub.voting import CurrentEvent


def current_event(connection: Connection, key: str) -> CurrentEvent | None:
    """Return the current state of an event; None = the store has no such event."""
    query = select(events).where(events.c.event_key == key)
    row = connection.execute(query).one_or_none()
    if row is None:
        return None
    state: Any = json_of(row.state)
    lives = state["occurrences"]
    life = lives[-1] if lives else {}
    azure = life.get("azure") or {}
    details = _details(connection, key)
    return CurrentEvent(
        key=row.event_key,
        event_id=row.event_id,
        life=row.lives,
        is_open=row.is_open,
        status=row.status,
        content=row.content,
        event=life.get("event"),
        is_whole=bool(life.get("isWhole")),
        since=moment_of(_content_since(connection, key) or row.told),
        prefix=str(life.get("prefix", "")),
        resource=str(life.get("resource", "")),
        machines=tuple(Machine(**one) for one in life.get("machines", ())),
        named=named_in(details),
        voices=voices_in(details),
        is_by_others=bool(life.get("isByOthers")),
        azure=azure.get("event"),
        azure_seen=None if row.azure_seen is None else moment_of(row.azure_seen),
    )


def _details(connection: Connection, key: str) -> dict[str, Any]:
    query = select(details_table.c.body).where(details_table.c.event_key == key)
    body = connection.scalar(query)
    return {} if body is None else json_of(body)


def _content_since(connection: Connection, key: str) -> int | None:
    """Return the time of the latest message with the content of an event."""
    query = select(func.max(messages.c.time)).where(
        messages.c.event_key == key, messages.c.kind.in_(sorted(PRESENT))
    )
    found: int | None = connection.scalar(query)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class EventBridges:
    """The bridges for an event, and the targets for its approvals.

    Attributes:
        fleet: the bridges of its machines.
        targets: the addresses for approvals, the best one first.
    """

    fleet: tuple[BridgeRow, ...]
    targets: tuple[Target, ...]

    def choose_target(
        self, config: HubConfig, current: CurrentEvent, situation: Situation
    ) -> TargetChoice:
        """Choose the address to send an approval to."""
        return choose_target(
            config.bridge_sources, self.targets, current, situation.now
        )

    def is_answered(self, config: HubConfig) -> bool:
        """Whether a bridge answers for the event."""
        return is_answered(config.bridge_sources, self.targets)


def event_bridges(
    connection: Connection, current: CurrentEvent, situation: Situation
) -> EventBridges:
    """Read the bridges of an event's machines, and the targets for its approvals."""
    named_in_messages = [
        (
            Address(source=row.origin, entity=row.entity, session=row.session),
            row.vm_id,
        )
        for row in connection.execute(
            select(addresses).where(addresses.c.event_key == current.key)
        )
    ]
    found = _bridge_rows_of(connection, current.key)
    fleet = bridge_rows(connection, found, situation)
    mine = {(m.subscription, m.group, m.name) for m in current.machines}
    concerned = tuple(b for b in fleet if _place(b) in mine)
    return EventBridges(
        fleet=concerned,
        targets=tuple(
            targets_of(named_in_messages, {bridge.vm_id: bridge for bridge in fleet})
        ),
    )


def _bridge_rows_of(connection: Connection, key: str) -> list[Any]:
    """Return the rows of bridges that an event names, the last heard last.

    They are those of its machines and of its addresses. A list of their names could be
    longer than a statement may be.
    """
    is_its_machine = and_(
        machines.c.name == bridges.c.name,
        machines.c.subscription == bridges.c.subscription,
        machines.c.group == bridges.c.group,
    )
    by_machine = select(bridges).join(machines, is_its_machine)
    by_address = select(addresses.c.vm_id).where(addresses.c.event_key == key)
    found: dict[str, Any] = {}
    for query in (
        by_machine.where(machines.c.event_key == key),
        select(bridges).where(bridges.c.vm_id.in_(by_address)),
    ):
        found |= {row.vm_id: row for row in connection.execute(query)}
    return sorted(found.values(), key=lambda row: (row.heard, row.vm_id))


def _place(bridge: BridgeRow) -> tuple[str, str, str]:
    return bridge.subscription, bridge.group, kept_name(bridge.name)
