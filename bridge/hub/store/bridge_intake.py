"""Stores the reports of bridges about themselves; a part of ``intake``."""

from collections.abc import Collection, Sequence
from itertools import groupby
from typing import Any

from sqlalchemy import Connection, delete, select, update

from bridge.hub.bridge_messages import BridgeReport
from bridge.hub.bridges import BridgeState, of_report
from bridge.hub.facts import kept_name
from bridge.hub.store import rows
from bridge.hub.store.statements import Values, insert, lock, put
from bridge.hub.store.tables import bridges


def keep_bridges(
    connection: Connection, reports: Sequence[tuple[BridgeReport, str]]
) -> None:
    """Merge reports into the stored states of bridges.

    Args:
        connection: a connection within a transaction.
        reports: each with the name of its source.
    """
    merged: dict[str, tuple[BridgeState, str]] = {}
    for report, origin in reports:
        state = of_report(report)
        known = merged.get(state.vm_id)
        merged[state.vm_id] = (known[0].joined(state) if known else state, origin)
    names = sorted(merged)
    lock(connection, names, "bridges")
    query = select(bridges).where(bridges.c.vm_id.in_(names))
    for row in connection.execute(query):
        old = BridgeState.from_json(row.vm_id, rows.moment_of(row.heard), row.state)
        state, origin = merged[row.vm_id]
        merged[row.vm_id] = (old.joined(state), origin)
    values = [_bridge(*merged[name]) for name in names]
    statement = insert(bridges)
    kept = {c.name for c in bridges.c} - {"vm_id", "was_silent", "forgotten"}
    fresh = {name: statement.excluded[name] for name in kept}
    change = statement.on_conflict_do_update(index_elements=["vm_id"], set_=fresh)
    put(connection, change, values)
    _replace_older(connection, {str(value["resource"]) for value in values} - {""})


def _bridge(state: BridgeState, origin: str) -> Values:
    machine = state.machine
    return {
        "vm_id": state.vm_id,
        "origin": origin,
        "subscription": machine.subscription,
        "group": machine.group,
        "name": kept_name(state.reporter.name),
        "resource": state.reporter.resource_id.lower(),
        "heard": rows.micros(state.heard),
        "was_silent": False,
        "state": state.to_json(),
    }


def _replace_older(connection: Connection, resources: Collection[str]) -> None:
    """Delete older bridges that have the same resource id as a newer one.

    A machine that was deleted and created again has the same resource id, but another
    vmId.
    """
    kept = (bridges.c.vm_id, bridges.c.resource, bridges.c.was_silent)
    query = select(*kept).where(bridges.c.resource.in_(resources))
    order = (bridges.c.resource, bridges.c.heard.desc(), bridges.c.vm_id.desc())
    found = connection.execute(query.order_by(*order)).all()
    for _, group in groupby(found, key=lambda row: row.resource):
        newest, *older = group
        if older:
            _replace(connection, newest, older)


def _replace(connection: Connection, newest: Any, older: Sequence[Any]) -> None:
    gone = bridges.c.vm_id.in_([row.vm_id for row in older])
    connection.execute(delete(bridges).where(gone))
    # After an alarm about the old bridge, the new one must cause "bridge-back".
    if any(row.was_silent for row in older):
        change = update(bridges).where(bridges.c.vm_id == newest.vm_id)
        connection.execute(change.values(was_silent=True))
