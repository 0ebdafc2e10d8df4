"""Reads what a decision depends on: the event as it stands, and who answers for it."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Connection, and_, func, or_, select

from bridge.events.vocabulary import PRESENT
from bridge.hub.config import HubConfig
from bridge.hub.facts import Address
from bridge.hub.fold import Machine, kept_name
from bridge.hub.reach import Reach, Way, is_answered, reach, ways
from bridge.hub.store.fleet_view import bridge_rows
from bridge.hub.store.rows import json_of, moment_of
from bridge.hub.store.tables import addresses, bridges, events, messages
from bridge.hub.view_rows import BridgeRow, Situation
from bridge.hub.voting import Standing


def standing_of(connection: Connection, key: str) -> Standing | None:
    """Return an event as it stands; None = nothing is known of it."""
    query = select(events).where(events.c.event_key == key)
    row = connection.execute(query).one_or_none()
    if row is None:
        return None
    state: Any = json_of(row.state)
    lives = state["occurrences"]
    life = lives[-1] if lives else {}
    azure = life.get("azure") or {}
    return Standing(
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
        azure=azure.get("event"),
        azure_seen=None if row.azure_seen is None else moment_of(row.azure_seen),
    )


def _content_since(connection: Connection, key: str) -> int | None:
    """Return when its content was told last: it is not younger than that."""
    query = select(func.max(messages.c.time)).where(
        messages.c.event_key == key, messages.c.kind.in_(sorted(PRESENT))
    )
    found: int | None = connection.scalar(query)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """The bridges of an event, and the ways to them.

    Attributes:
        fleet: the bridges of its machines.
        ways: the addresses, the one to take first first.
    """

    fleet: tuple[BridgeRow, ...]
    ways: tuple[Way, ...]

    def reach(
        self, config: HubConfig, standing: Standing, situation: Situation
    ) -> Reach:
        """Say where an approval goes."""
        return reach(config.bridge_sources, self.ways, standing, situation.now)

    def is_answered(self, config: HubConfig) -> bool:
        """Whether a bridge answers for the event."""
        return is_answered(config.bridge_sources, self.ways)


def surroundings_of(
    connection: Connection, standing: Standing, situation: Situation
) -> Surroundings:
    """Return who answers for an event, and who is concerned."""
    told = [
        (
            Address(source=row.origin, entity=row.entity, session=row.session),
            row.vm_id,
        )
        for row in connection.execute(
            select(addresses).where(addresses.c.event_key == standing.key)
        )
    ]
    named = or_(
        *_of_machines(standing.machines),
        bridges.c.vm_id.in_([vm_id for _, vm_id in told]),
    )
    found = connection.execute(select(bridges).where(named)).all()
    fleet = bridge_rows(connection, found, situation)
    mine = {(m.subscription, m.group, m.name) for m in standing.machines}
    concerned = tuple(b for b in fleet if _place(b) in mine)
    return Surroundings(
        fleet=concerned,
        ways=tuple(ways(told, {bridge.vm_id: bridge for bridge in fleet})),
    )


def _of_machines(machines: Iterable[Machine]) -> Iterator[ColumnElement[bool]]:
    """Yield what is so of the bridges of machines: SQLite takes 1000 terms at most."""
    names: dict[tuple[str, str], list[str]] = {}
    for one in machines:
        names.setdefault((one.subscription, one.group), []).append(one.name)
    for (subscription, group), these in names.items():
        yield and_(
            bridges.c.subscription == subscription,
            bridges.c.group == group,
            bridges.c.name.in_(these),
        )


def _place(bridge: BridgeRow) -> tuple[str, str, str]:
    return bridge.subscription, bridge.group, kept_name(bridge.name)
