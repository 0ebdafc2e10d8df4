"""Stores the keys that bridges tell and that are not pinned: they wait for a person.

A key waits once for each machine that it is told for, until it is pinned, or until its
bridge has not repeated it for ``forget_after``. The list is bounded, for each machine
and in all. What does not fit is refused: otherwise a stranger could push out what
others have told.
"""

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec
from msgspec.structs import replace
from sqlalchemy import Connection, func, or_, select, update

from bridge.events.alarm import KEY
from bridge.events.build import rfc3339
from bridge.hub.access import AccessConfig
from bridge.hub.bridge_messages import BridgeReport
from bridge.hub.choices import KeyRow
from bridge.hub.facts import table
from bridge.hub.pins import Doubt, Pin, Pins
from bridge.hub.store.engine import lock
from bridge.hub.store.pin_rows import id_of, told_pins
from bridge.hub.store.rows import add_alarms, alarm_of, micros, moment_of
from bridge.hub.store.tables import pins, told_keys

MOST = 2000  # keys that wait
MOST_OF_MACHINE = 4  # of one resource id
_TELLING = {"started", "heartbeat"}


class KeyVote(msgspec.Struct, frozen=True, kw_only=True):
    """A person who accepts a key, while others are missing.

    Attributes:
        entry: the entry of ``approvers`` that it counts by.
        why: why the key waited, as the person saw it.
    """

    person: str
    entry: str
    why: Doubt
    time: datetime


class ToldKey(msgspec.Struct, frozen=True, kw_only=True):
    """A key that a bridge has told, and that waits.

    Attributes:
        pin: what it would be pinned to.
        name: of the machine, as its bridge has told it.
    """

    pin: Pin
    name: str
    votes: tuple[KeyVote, ...] = ()

    def counted(
        self, access: AccessConfig, why: Doubt, now: datetime
    ) -> tuple[KeyVote, ...]:
        """Return the votes that count: who saw another reason has to vote again."""
        return tuple(
            one
            for one in self.votes
            if one.why is why
            and not access.lapse(one.entry, (now - one.time).total_seconds())
        )


def keep_told(
    connection: Connection, reports: Sequence[tuple[BridgeReport, bytes]], known: Pins
) -> None:
    """Store the keys that are not pinned; add an alarm for those that contradict.

    Args:
        connection: a connection within a transaction.
        reports: what bridges say, each with its body.
        known: the pins.
    """
    found = [
        (report, ToldKey(pin=pin, name=report.reporter.name))
        for report, body in reports
        if report.kind in _TELLING and table(report.data.get("signing")).get("keys")
        for pin in _unpinned(report, body, known)
    ]
    if not found:
        return
    lock(connection, ["told"], "pins")
    for report, told in found:
        if not _is_pinned(connection, told.pin, report.heard):
            _keep(connection, told, report.heard)
            if known.keys or known.required:
                _note(connection, report, told, known)


def _unpinned(report: BridgeReport, body: bytes, known: Pins) -> Iterator[Pin]:
    """Yield the keys that are not pinned to their machine, up to one that is.

    The new key comes first: what follows a pinned one is older, and replaced by it.
    """
    for pin in told_pins(report, body):
        if known.pinned(report.reporter, [pin.key], report.heard):
            return
        if pin.vm_id and pin.resource_id:
            yield pin


def _is_pinned(connection: Connection, pin: Pin, at: datetime) -> bool:
    """Whether a key has been pinned meanwhile: the message itself may have done it."""
    query = select(pins.c.until).where(pins.c.id == id_of(pin))
    row = connection.execute(query).one_or_none()
    return row is not None and (row.until is None or row.until > micros(at))


def _keep(connection: Connection, told: ToldKey, heard: datetime) -> None:
    of, now, pin = told_keys.c, micros(heard), told.pin
    here = of.id == id_of(pin)
    first = connection.scalar(select(of.heard).where(here))
    if first is not None:
        later = {"heard": max(first, now)}
        connection.execute(update(told_keys).where(here).values(later))
        return
    count = select(func.count()).select_from(told_keys)
    mine = connection.scalar(count.where(of.resource == pin.resource_id)) or 0
    if mine < MOST_OF_MACHINE and (connection.scalar(count) or 0) < MOST:
        row = {"id": id_of(pin), "key": pin.key, "resource": pin.resource_id}
        times = {"first_heard": now, "heard": now}
        body = msgspec.json.encode(told)
        connection.execute(told_keys.insert().values({**row, **times, "body": body}))


def _note(
    connection: Connection, report: BridgeReport, told: ToldKey, known: Pins
) -> None:
    """Add an alarm if a key contradicts others, or must be pinned; one a day."""
    pin, of = told.pin, told_keys.c
    alike = or_(of.resource == pin.resource_id, of.key == pin.key)
    rows = connection.execute(select(told_keys).where(alike).limit(MOST)).all()
    others = _tellers([pin, *(_told(row).pin for row in rows)])
    doubt = known.doubt(pin, told.name, report.heard, others)
    if doubt is Doubt.NEW_MACHINE and not known.is_required(pin.resource_id):
        return
    who, heard = report.reporter, rfc3339(report.heard)
    ids = {"vmId": who.vm_id, "resourceId": who.resource_id}
    data = {**ids, "vmName": who.name, "heard": heard, "key": {**pin.jwk, **ids}}
    same = [KEY, who.vm_id, pin.resource_id, heard[:10]]
    add_alarms(connection, [alarm_of(KEY, same, report.heard, data)])


def waiting(
    connection: Connection, known: Pins, access: AccessConfig, now: datetime
) -> dict[str, tuple[ToldKey, KeyRow]]:
    """Return the keys that wait, and how they are shown, by their ids.

    Args:
        connection: a connection within a transaction.
        known: the pins.
        access: whose votes count.
        now: the present moment.
    """
    rows = connection.execute(select(told_keys).order_by(told_keys.c.id)).all()
    found = [(row, _told(row)) for row in rows]
    others = _tellers([one.pin for _, one in found])
    shown = dict[str, tuple[ToldKey, KeyRow]]()
    for row, one in found:
        why = known.doubt(one.pin, one.name, now, others)
        persons = tuple(vote.person for vote in one.counted(access, why, now))
        made = replace(
            row_of(one.pin, persons),
            vm_name=one.name or None,
            first_heard=moment_of(row.first_heard),
            last_heard=moment_of(row.heard),
            why=why,
        )
        shown[row.id] = one, made
    return shown


def row_of(pin: Pin, persons: tuple[str, ...], since: datetime | None = None) -> KeyRow:
    """Return how a key is shown, without what its bridge has told.

    Args:
        pin: the key and its machine.
        persons: who has accepted it.
        since: from when on it counts; None = it waits.
    """
    return KeyRow(
        id=id_of(pin),
        vm_id=pin.vm_id,
        vm_name=None,
        resource_id=pin.resource_id,
        key=pin.key,
        jwk={**pin.jwk, "vmId": pin.vm_id, "resourceId": pin.resource_id},
        first_heard=None,
        last_heard=None,
        why=None,
        persons=persons,
        since=since,
    )


def keep_votes(connection: Connection, name: str, told: ToldKey) -> None:
    """Store the votes on a key that waits.

    Args:
        connection: a connection within a transaction.
        name: the id of the key.
        told: the key, with all its votes.
    """
    change = update(told_keys).where(told_keys.c.id == name)
    connection.execute(change.values(body=msgspec.json.encode(told)))


def _told(row: Any) -> ToldKey:
    return msgspec.json.decode(row.body, type=ToldKey)


def _tellers(found: Sequence[Pin]) -> Mapping[str, Collection[str]]:
    """Return who tells each key and resource id, and the keys of each vmId."""
    tellers = defaultdict[str, set[str]](set)
    for one in found:
        tellers[one.key].add(one.vm_id)
        tellers[one.resource_id].add(one.vm_id)
        tellers[one.vm_id].add(one.key)
    return tellers
