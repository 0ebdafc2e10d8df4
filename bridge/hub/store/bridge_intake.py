"""Stores the reports of bridges about themselves; a part of ``intake``."""

from collections.abc import Collection, Sequence
from itertools import groupby
from typing import Any

from sqlalchemy import Connection, bindparam, delete, func, select, update

from bridge.foundation.hashing import hash32
from bridge.hub.bridge_messages import BridgeReport
from bridge.hub.bridges import MOST_OFFERS, BridgeState, of_report
from bridge.hub.facts import kept_name, table, text
from bridge.hub.store import rows
from bridge.hub.store.rows import Values, insert, lock, put
from bridge.hub.store.tables import bridges, offers

_KEPT = {"vm_id", "was_silent", "forgotten", "first_heard"}
_KEEP_OFFER = insert(offers)
_KEEP_OFFER = _KEEP_OFFER.on_conflict_do_update(
    index_elements=["id"],
    set_={"heard": _KEEP_OFFER.excluded.heard},
    where=offers.c.heard < _KEEP_OFFER.excluded.heard,
)
_REPEAT_OFFER = (
    update(offers)
    .where(
        offers.c.vm_id == bindparam("vm"),
        offers.c.digest == bindparam("said"),
        offers.c.heard < bindparam("now"),
    )
    .values(heard=bindparam("now"))
)


def keep_bridges(
    connection: Connection, reports: Sequence[tuple[BridgeReport, str]]
) -> None:
    """Merge reports into the stored states of bridges.

    Args:
        connection: a connection within a transaction.
        reports: each with the name of its source.
    """
    merged: dict[str, tuple[BridgeState, str]] = {}
    stops = dict[str, int]()
    for report, origin in reports:
        state = of_report(report)
        known = merged.get(state.vm_id)
        merged[state.vm_id] = (known[0].joined(state) if known else state, origin)
        if report.kind == "stopped":
            heard = rows.micros(report.heard)
            stops[state.vm_id] = max(stops.get(state.vm_id, heard), heard)
    names = sorted(merged)
    lock(connection, names, "bridges")
    query = select(bridges).where(bridges.c.vm_id.in_(names))
    for row in connection.execute(query):
        old = BridgeState.from_json(row.vm_id, rows.moment_of(row.heard), row.state)
        state, origin = merged[row.vm_id]
        merged[row.vm_id] = (old.joined(state), origin)
        if row.stopped is not None:
            stops[row.vm_id] = max(stops.get(row.vm_id, row.stopped), row.stopped)
    values = [{**_bridge(*merged[name]), "stopped": stops.get(name)} for name in names]
    statement = insert(bridges)
    kept = {c.name for c in bridges.c} - _KEPT
    fresh = {name: statement.excluded[name] for name in kept}
    change = statement.on_conflict_do_update(index_elements=["vm_id"], set_=fresh)
    put(connection, change, values)
    _keep_offers(connection, reports)
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
        "first_heard": rows.micros(state.heard),
        "was_silent": False,
        "state": state.to_json(),
    }


def _keep_offers(
    connection: Connection, reports: Sequence[tuple[BridgeReport, str]]
) -> None:
    """Store the offers that bridges have made, and when they repeated one."""
    values = dict[str, Values]()
    for report, origin in sorted(reports, key=lambda one: one[0].heard):
        if made := _offer(report, origin):
            first = values.setdefault(str(made["id"]), made)["first_heard"]
            values[str(made["id"])] = {**made, "first_heard": first}
    if values:
        full = _full_machines(connection, [str(one["name"]) for one in values.values()])
        found = [one for one in values.values() if _place(one) not in full]
        put(connection, _KEEP_OFFER, sorted(found, key=lambda one: str(one["id"])))
    beats = [
        {"vm": report.reporter.vm_id, "said": digest, "now": rows.micros(report.heard)}
        for report, _ in reports
        if (digest := text(table(report.data.get("approvals")).get("digest")))
    ]
    put(connection, _REPEAT_OFFER, sorted(beats, key=lambda one: str(one["vm"])))


def _offer(report: BridgeReport, origin: str) -> Values | None:
    """Return the row of the offer in ``bridge.started``; None = there is none."""
    offer = report.data.get("approvals")
    if report.kind != "started" or not isinstance(offer, dict):
        return None
    machine, heard = of_report(report).machine, rows.micros(report.heard)
    place = {
        "vm_id": report.reporter.vm_id,
        "subscription": machine.subscription,
        "group": machine.group,
        "name": machine.name,
        "origin": origin,
        "prefix": report.prefix,
    }
    return {
        **place,
        "id": hash32([place, offer]),
        "entity": text(offer.get("entity")),
        "session": text(offer.get("session")),
        "digest": text(offer.get("digest")),
        "first_heard": heard,
        "heard": heard,
        "dropped": None,
        "offer": rows.dumped(offer),
    }


def _place(row: Values) -> tuple[object, ...]:
    return row["subscription"], row["group"], row["name"]


def _full_machines(
    connection: Connection, names: Sequence[str]
) -> set[tuple[object, ...]]:
    """Return the machines with so many offers that no more are stored.

    Many offers in one machine's name are an attack: with so many nothing is approved
    through ARM. The oldest ones stay, since the attack came after them.
    """
    place = (offers.c.subscription, offers.c.group, offers.c.name)
    query = select(*place).where(offers.c.name.in_(names)).group_by(*place)
    found = connection.execute(query.having(func.count() >= MOST_OFFERS))
    return {tuple(row) for row in found}


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
