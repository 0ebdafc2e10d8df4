"""Stores the reports of bridges about themselves, and notes; a part of ``intake``.

A note tells of the state of a machine: see ``facts.Note``.
"""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from itertools import groupby
from typing import Any

import msgspec
import orjson
from msgspec.structs import asdict, astuple
from sqlalchemy import (
    ColumnElement,
    Connection,
    bindparam,
    delete,
    func,
    select,
    update,
)

from bridge.events.cloudevent import hash32
from bridge.hub.bridge_messages import BridgeReport
from bridge.hub.bridges import MOST_OFFERS, BridgeState, bridge_in, has_terms, of_report
from bridge.hub.facts import Note, NoteKind, table, text
from bridge.hub.fold import State
from bridge.hub.pins import Runs
from bridge.hub.store import rows
from bridge.hub.store.engine import Values, insert, lock, put, upsert
from bridge.hub.store.tables import bridges, machines, notes, offers, runs

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
    """Merge reports, each with the name of its source, into the states of bridges."""
    lock(connection, sorted({one.reporter.vm_id for one, _ in reports}), "bridges")
    reports = _fresh(connection, reports)
    merged: dict[str, tuple[BridgeState, str]] = {}
    stops, quiet = dict[str, int](), set[str]()
    for report, origin in reports:
        state = of_report(report)
        known = merged.get(state.vm_id)
        merged[state.vm_id] = (known[0].joined(state) if known else state, origin)
        if report.kind == "stopped":
            heard = rows.micros(report.heard)
            stops[state.vm_id] = max(stops.get(state.vm_id, heard), heard)
    names = sorted(merged)
    query = select(bridges).where(bridges.c.vm_id.in_(names))
    for row in connection.execute(query):
        state, origin = merged[row.vm_id]
        merged[row.vm_id] = (bridge_in(row.reported).joined(state), origin)
        if row.was_silent:
            quiet.add(row.vm_id)
        if row.stopped is not None:
            stops[row.vm_id] = max(stops.get(row.vm_id, row.stopped), row.stopped)
    values = [{**_bridge(*merged[name]), "stopped": stops.get(name)} for name in names]
    fresh = sorted({c.name for c in bridges.c} - _KEPT)
    put(connection, upsert(bridges, *fresh), values)
    _keep_offers(connection, reports)
    _keep_stops(connection, [one for one, _ in reports], quiet | set(stops))
    _replace_older(connection, {str(value["resource"]) for value in values} - {""})


def _fresh(
    connection: Connection, reports: Sequence[tuple[BridgeReport, str]]
) -> Sequence[tuple[BridgeReport, str]]:
    """Return the reports without the replays of those of pinned bridges."""
    if not (found := {one.reporter.vm_id: Runs() for one, _ in reports if one.mark}):
        return reports
    for row in connection.execute(select(runs).where(runs.c.vm_id.in_(found))):
        found[row.vm_id] = msgspec.json.decode(row.body, type=Runs)
    fresh, heard = [], dict[str, int]()
    for one, origin in reports:
        vm_id, mark = one.reporter.vm_id, one.mark
        if mark is None or found[vm_id].take(mark, one.heard.timestamp()):
            fresh.append((one, origin))
            heard[vm_id] = rows.micros(one.heard)
    changed = [
        {"vm_id": name, "heard": heard[name], "body": msgspec.json.encode(run)}
        for name, run in found.items()
        if name in heard
    ]
    connection.execute(delete(runs).where(runs.c.vm_id.in_(heard)))
    put(connection, runs.insert(), changed)
    return fresh


def _bridge(state: BridgeState, origin: str) -> Values:
    return {
        "vm_id": state.vm_id,
        "origin": origin,
        **asdict(state.machine),
        "resource": state.reporter.resource_id.lower(),
        "heard": rows.micros(state.heard),
        "first_heard": rows.micros(state.heard),
        "was_silent": False,
        "has_beats": state.interval > 0,
        "reported": msgspec.json.encode(state),
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
    """Return the row of the offer in a report; None = there is none."""
    offer = report.data.get("approvals")
    if not has_terms(report) or not isinstance(offer, dict):
        return None
    heard = rows.micros(report.heard)
    place = {
        "vm_id": report.reporter.vm_id,
        **asdict(of_report(report).machine),
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
        "offer": orjson.dumps(offer),
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
    names = ("vm_id", "resource", "was_silent", "heard")
    kept = [bridges.c[n] for n in (*names, "subscription", "group", "name")]
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
    these = _open_silences((newest.subscription, newest.group, newest.name))
    change = update(notes).where(*these, notes.c.time < newest.heard)
    connection.execute(change.values(until=newest.heard))
    # After an alarm about the old bridge, the new one must cause "bridge-back".
    if any(row.was_silent for row in older):
        change = update(bridges).where(bridges.c.vm_id == newest.vm_id)
        connection.execute(change.values(was_silent=True))


def keep_machines(
    connection: Connection, states: Mapping[str, State], before: Mapping[str, Any]
) -> None:
    """Store the machines of events whose Resources have changed."""
    changed = {
        key: state.now.machines if state.now else ()
        for key, state in states.items()
        if key not in before or before[key]["named"] != rows.named_print(state)
    }
    if not changed:
        return
    connection.execute(delete(machines).where(machines.c.event_key.in_(list(changed))))
    values: list[Values] = [
        {"event_key": key, **asdict(machine)}
        for key, found in changed.items()
        for machine in found
    ]
    put(connection, machines.insert(), values)


# -- notes: what happened to a machine -------------------------------------------------


_QUIET = (NoteKind.SILENT.value, NoteKind.STOPPED.value)
_MOST_OF_A_KIND = 100  # notes of one kind about a machine: the newest


def keep_notes(connection: Connection, found: Sequence[Note]) -> None:
    """Store notes; of each kind, the newest 100 about a machine.

    Each kind is bounded alone: whoever speaks in the name of a bridge cannot displace
    what Azure says.
    """
    unique = {(one.id, one.is_last): one for one in found}
    for is_last in (False, True):
        values = [_note(one) for one in unique.values() if one.is_last is is_last]
        change = upsert(notes, "time", "until", "data")
        keep = change if is_last else insert(notes).on_conflict_do_nothing()
        put(connection, keep, sorted(values, key=lambda one: str(one["id"])))
    for machine, kind in sorted({(one.machine, one.kind) for one in found}):
        _forget_more(connection, machine, kind)


def _note(note: Note) -> Values:
    subscription, group, name = note.machine
    return {
        "id": note.id,
        "kind": note.kind.value,
        "subscription": subscription,
        "group": group,
        "name": name,
        "event_key": note.event_key,
        "time": rows.micros(note.time),
        "until": None if note.until is None else rows.micros(note.until),
        "data": orjson.dumps(dict(note.data)),
    }


def _of_machine(machine: tuple[str, str, str]) -> list[ColumnElement[bool]]:
    names = ("subscription", "group", "name")
    return [notes.c[n] == value for n, value in zip(names, machine, strict=True)]


def _forget_more(
    connection: Connection, machine: tuple[str, str, str], kind: NoteKind
) -> None:
    mine = [*_of_machine(machine), notes.c.kind == kind.value]
    order = (notes.c.time.desc(), notes.c.id)
    query = select(notes.c.id).where(*mine).order_by(*order)
    old = connection.scalars(query.offset(_MOST_OF_A_KIND)).all()
    if old:
        connection.execute(delete(notes).where(notes.c.id.in_(old)))


def keep_silence(
    connection: Connection, vm_id: str, machine: tuple[str, str, str], since: datetime
) -> None:
    """Store that nothing was heard from a bridge since a time."""
    name = hash32([NoteKind.SILENT, vm_id, rows.micros(since)])
    note = Note(id=name, kind=NoteKind.SILENT, time=since, machine=machine)
    keep_notes(connection, [note])


def end_silence(
    connection: Connection, machine: tuple[str, str, str], until: datetime
) -> None:
    """Store that a machine is heard again, or is gone."""
    change = update(notes).where(*_open_silences(machine))
    connection.execute(change.values(until=rows.micros(until)))


def _open_silences(machine: tuple[str, str, str]) -> list[ColumnElement[bool]]:
    is_quiet = notes.c.kind.in_(_QUIET)
    return [*_of_machine(machine), is_quiet, notes.c.until.is_(None)]


def _keep_stops(
    connection: Connection, reports: Sequence[BridgeReport], quiet: Collection[str]
) -> None:
    """Store when bridges stopped, and that silent or stopped ones are heard again.

    Args:
        connection: a connection within a transaction.
        reports: new reports of bridges.
        quiet: the vmIds of bridges that were silent, or have stopped at any time.
    """
    mine = [one for one in reports if one.reporter.vm_id in quiet]
    stops = [one for one in mine if one.kind == "stopped"]
    keep_notes(connection, [_stop(one) for one in stops])
    for one in sorted(mine, key=lambda one: one.heard):
        if one.kind != "stopped":
            heard = rows.micros(one.heard)
            these = _open_silences(_machine_of(one))
            change = update(notes).where(*these, notes.c.time < heard)
            connection.execute(change.values(until=heard))


def _stop(report: BridgeReport) -> Note:
    return Note(
        id=hash32([NoteKind.STOPPED, report.reporter.vm_id, report.id]),
        kind=NoteKind.STOPPED,
        time=report.heard,
        machine=_machine_of(report),
    )


def _machine_of(report: BridgeReport) -> tuple[str, str, str]:
    found: tuple[str, str, str] = astuple(of_report(report).machine)
    return found
