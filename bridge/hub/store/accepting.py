"""Lists the keys that wait and those that people have accepted; accepts and withdraws.

As many different people must accept a key as the strictest rule asks; one person can
withdraw it. A key counts from a few seconds after the last vote: by then every
transaction that does not know it is over. The pins that it contradicts end then.

``[hub] keys`` wins: what it gives to others, directly or by rotation, nobody accepts.
"""

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from fnmatch import fnmatchcase

from msgspec import Struct
from msgspec.structs import replace
from sqlalchemy import Connection

from bridge.hub.access import AccessConfig, Person, Refusal
from bridge.hub.choices import (
    ACCEPT,
    ACCEPTED,
    KeyAsked,
    KeyList,
    KeyRefused,
    KeyRow,
    KeysAsked,
    KeysDecided,
)
from bridge.hub.pins import Pin, Pins
from bridge.hub.store.engine import lock
from bridge.hub.store.pin_rows import heirs_of, put_pins, stored_pins
from bridge.hub.store.rows import Entry, record
from bridge.hub.store.told_keys import (
    MOST,
    KeyVote,
    ToldKey,
    keep_votes,
    row_of,
    waiting,
)
from bridge.hub.view_rows import Situation
from bridge.hub.vote_rules import missing_votes

_LEAD = timedelta(seconds=5)  # longer than a batch of messages takes


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
    connection: Connection, known: Pins, situation: Situation, *, state: str, glob: str
) -> KeyList:
    """Return the keys that wait, or those that people have accepted, by their ids.

    Args:
        connection: a connection within a transaction.
        known: the pins.
        situation: the current Situation.
        state: "waiting" or "accepted".
        glob: only of machines whose resource id fits it; "" = of all.
    """
    access, now = situation.access, situation.now
    if state == ACCEPTED:
        found = [
            row_of(one, one.accepted_by, one.since)
            for one in known.owners.values()
            if one.accepted_by and (one.until is None or one.until > now)
        ]
    else:
        found = [row for _, row in waiting(connection, known, access, now).values()]
    wanted = glob.lower() or "*"
    rows = (one for one in found if fnmatchcase(one.resource_id, wanted))
    return KeyList(
        keys=tuple(sorted(rows, key=lambda one: one.id)),
        next=None,
        is_full=state != ACCEPTED and len(found) >= MOST,
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
    """Accept or withdraw keys.

    Args:
        connection: a connection within a transaction.
        asked: the keys, as they were shown.
        by: who decides.
        known: reads the pins.
    """
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
        keep_votes(case.connection, row.id, told)
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
