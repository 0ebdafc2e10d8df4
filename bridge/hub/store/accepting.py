"""Keeps the keys that bridges tell until people accept them.

A key that is not pinned waits once for each machine that it is told for, until it is
pinned, or until its bridge has not repeated it for ``forget_after``. The list is
bounded, for each machine and in all. What does not fit is refused: otherwise a stranger
could push out what others have told.

As many different people must accept a key as the strictest rule asks; one person can
withdraw it. A key counts from a few seconds after the last vote: by then every
transaction that does not know it is over. The pins that it contradicts end then.

``[hub] keys`` wins: what it gives to others, directly or by rotation, nobody accepts.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from fnmatch import fnmatchcase
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace
from sqlalchemy import Connection, func, or_, select, update

from bridge.events.alarm import KEY
from bridge.events.cloudevent import rfc3339
from bridge.hub.access import AccessConfig, Person, Refusal
from bridge.hub.bridge_messages import BridgeReport
from bridge.hub.choices import (
    ACCEPT,
    ACCEPTED,
    KeyAsked,
    KeyList,
    KeyRefused,
    KeyRow,
    KeysAsked,
    KeysDecided,
    KeysListed,
)
from bridge.hub.facts import table
from bridge.hub.pins import Doubt, Pin, Pins
from bridge.hub.store.engine import lock
from bridge.hub.store.pin_rows import heirs_of, id_of, put_pins, stored_pins, told_pins
from bridge.hub.store.rows import Entry, add_alarms, alarm_of, micros, moment_of, record
from bridge.hub.store.tables import pins, told_keys
from bridge.hub.view_rows import Situation
from bridge.hub.vote_rules import missing_votes

_LEAD = timedelta(seconds=5)  # longer than a batch of messages takes
MOST = 2000  # keys that wait
MOST_OF_MACHINE = 4  # of one resource id
_TELLING = {"started", "heartbeat"}


class KeyVote(Struct, frozen=True, kw_only=True):
    """A person who accepts a key, while others are missing.

    Attributes:
        entry: the entry of ``approvers`` that it counts by.
        why: why the key waited, as the person saw it.
    """

    person: str
    entry: str
    why: Doubt
    time: datetime


class ToldKey(Struct, frozen=True, kw_only=True):
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
    """Store the keys that are not pinned; add an alarm for those that contradict."""
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
    """Return the keys that wait, and how they are shown, by their ids."""
    rows = connection.execute(select(told_keys).order_by(told_keys.c.id)).all()
    found = [(row, _told(row)) for row in rows]
    others = _tellers([one.pin for _, one in found])
    shown = dict[str, tuple[ToldKey, KeyRow]]()
    for row, one in found:
        why = known.doubt(one.pin, one.name, now, others)
        persons = tuple(vote.person for vote in one.counted(access, why, now))
        made = replace(
            _row_of(one.pin, persons),
            vm_name=one.name or None,
            first_heard=moment_of(row.first_heard),
            last_heard=moment_of(row.heard),
            why=why,
        )
        shown[row.id] = one, made
    return shown


def _row_of(
    pin: Pin, persons: tuple[str, ...], since: datetime | None = None
) -> KeyRow:
    """Return how a key is shown, without what its bridge has told."""
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


def _keep_votes(connection: Connection, name: str, told: ToldKey) -> None:
    """Store the votes on a key that waits."""
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


# -- what people decide on them --------------------------------------------------------


class Decider(Struct, frozen=True, kw_only=True):
    """Who decides on keys, by which rules, and when."""

    person: Person
    access: AccessConfig
    now: datetime

    @property
    def entry(self) -> str:
        """The entry of ``approvers`` that the person counts by; "" = none."""
        return self.access.entry_of(self.person.id, self.person.roles)


def keys_of(
    connection: Connection, known: Pins, situation: Situation, asked: KeysListed
) -> KeyList:
    """Return the keys that wait, or those that people have accepted, by their ids."""
    access, now = situation.access, situation.now
    if asked.state == ACCEPTED:
        found = [
            _row_of(one, one.accepted_by, one.since)
            for one in known.owners.values()
            if one.accepted_by and (one.until is None or one.until > now)
        ]
    else:
        found = [row for _, row in waiting(connection, known, access, now).values()]
    wanted = asked.match.lower() or "*"
    rows = (one for one in found if fnmatchcase(one.resource_id, wanted))
    return KeyList(
        keys=tuple(sorted(rows, key=lambda one: one.id)),
        next=None,
        is_full=asked.state != ACCEPTED and len(found) >= MOST,
        wanted=access.most_persons,
    )


class _Case(Struct, frozen=True, kw_only=True):
    connection: Connection
    known: Pins
    by: Decider

    @property
    def now(self) -> datetime:
        return self.by.now

    def record(self, what: str, pin: Pin, why: str = "") -> None:
        owner = f"{pin.key} of vmId {pin.vm_id}, {pin.resource_id}"
        entry = Entry(
            time=self.now,
            event_key="",
            event_id="",
            life=0,
            what=what,
            person=self.by.person.id,
            detail=f"{owner}: {why}" if why else owner,
        )
        record(self.connection, entry)


def decide_keys(
    connection: Connection,
    asked: KeysAsked,
    by: Decider,
    known: Callable[[Connection], Pins],
) -> KeysDecided | Refusal:
    """Accept or withdraw keys."""
    if not by.entry:
        return Refusal(status=403, words="you may look, but not decide")
    is_vote = asked.decision == ACCEPT
    if is_vote and by.person.is_application and by.access.most_persons > 1:
        words = "an application has no vote where more than one person is wanted"
        return Refusal(status=403, words=words)
    for name in ("listed", "told"):
        lock(connection, [name], "pins")
    case = _Case(connection=connection, known=known(connection), by=by)
    found = _accept(case, asked.keys) if is_vote else _withdraw(case, asked.keys)
    if not found.done and not found.counted:
        return Refusal(status=409, words=found.refused[0].why)
    return found


def _accept(case: _Case, asked: Sequence[KeyAsked]) -> KeysDecided:
    found = waiting(case.connection, case.known, case.by.access, case.now)
    wanted = {one.id: one for one in asked}
    chosen = [found[name][0].pin for name in wanted if name in found]
    done, counted, refused = list[str](), list[str](), list[KeyRefused]()
    missing = 0
    for name, one in wanted.items():
        told, row = found.get(name, (None, None))
        if told is None or row is None:
            refused.append(KeyRefused(id=name, why="this key waits no more"))
        elif why := _objection(case, one, told.pin, row, chosen):
            refused.append(KeyRefused(id=name, why=why))
        elif lacks := _vote(case, told, row):
            counted.append(name)
            missing = max(missing, lacks)
        else:
            done.append(name)
    return KeysDecided(
        done=tuple(done),
        counted=tuple(counted),
        missing=missing,
        refused=tuple(refused),
    )


def _objection(
    case: _Case, asked: KeyAsked, pin: Pin, row: KeyRow, chosen: Sequence[Pin]
) -> str:
    """Return why a key cannot be accepted; "" = it can."""
    if asked.why != row.why:
        return f"the reason why it waits is {row.why} now: look at it again"
    if any(pin.contradicts(one) for one in chosen):
        return "another key that you chose contradicts it: accept one of them"
    if any(not one.accepted_by for one in case.known.rivals(pin, case.now + _LEAD)):
        return "hub.keys pins its vmId, machine or key to another: change that list"
    return ""


def _vote(case: _Case, told: ToldKey, row: KeyRow) -> int:
    """Count a vote, and pin the key with the last one; return how many are missing."""
    assert row.why is not None, "it waits"  # noqa: S101 - for mypy  # nosec B101
    own = KeyVote(
        person=case.by.person.id, entry=case.by.entry, why=row.why, time=case.now
    )
    others = (one for one in told.votes if one.person != own.person)
    told = replace(told, votes=(*others, own))
    counted = told.counted(case.by.access, row.why, case.now)
    persons = tuple(one.person for one in counted)
    if lacks := missing_votes(persons, case.by.access.most_persons):
        _keep_votes(case.connection, row.id, told)
        case.record("key voted", told.pin, row.why)
        return lacks
    since = case.now + _LEAD
    rivals = case.known.rivals(told.pin, since)
    for old in rivals:
        case.record("key ended", old, "another one was accepted")
    pin = replace(told.pin, since=since, accepted_by=persons)
    changed = [*(replace(old, until=since) for old in rivals), pin]
    put_pins(case.connection, [(one, False) for one in changed])
    case.record("key accepted", pin, row.why)
    return 0


def _withdraw(case: _Case, asked: Sequence[KeyAsked]) -> KeysDecided:
    """End accepted keys, and those that have replaced them since."""
    stored = stored_pins(case.connection)
    everyone = {name: pin for name, (pin, _) in stored.items()}
    changed, refused = dict[str, Pin](), list[KeyRefused]()
    for one in asked:
        if not _is_accepted(stored.get(one.id), case.now):
            why = "nobody has accepted this key, or it is over"
            refused.append(KeyRefused(id=one.id, why=why))
            continue
        for name in (one.id, *heirs_of(everyone[one.id], everyone)):
            if _is_accepted(stored[name], case.now):
                changed[name] = replace(everyone[name], until=case.now)
    put_pins(case.connection, [(pin, False) for pin in changed.values()])
    for pin in changed.values():
        case.record("key withdrawn", pin)
    done = tuple(changed)
    return KeysDecided(done=done, counted=(), missing=0, refused=tuple(refused))


def _is_accepted(row: tuple[Pin, bool] | None, now: datetime) -> bool:
    """Whether people have accepted a key, or the one before it, and it is not over."""
    pin, is_listed = row or (None, False)
    if pin is None or is_listed or not pin.accepted_by:
        return False
    return pin.until is None or pin.until > now
