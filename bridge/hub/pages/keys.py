"""The keys on ``/bridges``: those that wait for acceptance, and the accepted ones."""

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from bridge.hub.answers import LONGEST_ADDRESS
from bridge.hub.api import BadQueryError
from bridge.hub.key_rows import (
    ACCEPT,
    WITHDRAW,
    KeyAsked,
    KeyList,
    KeyRow,
    KeysAsked,
    KeysDecided,
)
from bridge.hub.pages import shown
from bridge.hub.pins import Doubt, Pin
from bridge.hub.store.told_keys import MOST_OF_MACHINE, row_of
from bridge.hub.view_rows import PAGE

_WHY = {
    Doubt.NEW_MACHINE: "no key of this machine is pinned",
    Doubt.NEW_KEY: "this vmId has, or tells, another key",
    Doubt.SECOND_VM_ID: "another vmId has, or tells, this machine",
    Doubt.SHARED_KEY: "another vmId has, or tells, this key",
}


def shown_keys(waiting: KeyList, accepted: Sequence[Pin], now: datetime) -> shown.Shown:
    """Return the values of keys, by resource id: the first 200 of each kind."""
    rows = sorted(waiting.keys, key=lambda one: (one.resource_id, one.id))
    first, wanted = rows[:PAGE], waiting.wanted
    counts = Counter(one.resource_id for one in rows)
    known = [row_of(one, one.accepted_by, one.since) for one in accepted[:PAGE]]
    return {
        "rows": [
            {
                **_key(one, wanted, now),
                "is_crowded": counts[one.resource_id] >= MOST_OF_MACHINE,
            }
            for one in first
        ],
        "more": max(len(rows) - PAGE, 0),
        "all": _named(first),
        "is_full": waiting.is_full,
        "wanted": wanted,
        "accepted": [_key(one, wanted, now) for one in known],
        "more_accepted": max(len(accepted) - PAGE, 0),
    }


def _key(one: KeyRow, wanted: int, now: datetime) -> shown.Shown:
    return {
        "row_id": f"k-{one.id[:12]}",
        "named": _named([one]),
        "name": shown.name_of(one.vm_name or one.resource_id.rpartition("/")[2]),
        "vm_id": shown.short(one.vm_id),
        "resource_id": shown.short(one.resource_id),
        "key": one.key,
        "why": _WHY[one.why] if one.why else "",
        "kind": "soft" if one.why is Doubt.NEW_MACHINE else "bad",
        "first_heard": shown.time(one.first_heard, now),
        "heard": shown.time(one.last_heard, now),
        "since": shown.time(one.since, now),
        "persons": one.persons,
        "missing": max(wanted - len(one.persons), 0),
    }


def _named(rows: Sequence[KeyRow]) -> str:
    """Return exactly the keys that a form shows, and why each of them waits."""
    return " ".join(f"{one.id}:{one.why or ''}" for one in rows)


def asked_keys(form: Mapping[str, str]) -> KeysAsked:
    """Return which keys a form accepts or withdraws.

    Raises:
        BadQueryError: a field is missing or invalid.
    """
    decision: Any = form.get("decision", "")
    pairs = [one.partition(":") for one in form.get("keys", "").split()]
    is_long = any(len(id_) > LONGEST_ADDRESS for id_, _, _ in pairs)
    if decision not in {ACCEPT, WITHDRAW} or not 0 < len(pairs) <= PAGE or is_long:
        raise BadQueryError("the form names no keys")
    named = tuple(KeyAsked(id=id_, why=why) for id_, _, why in pairs)
    return KeysAsked(decision=decision, keys=named)


def refusals(found: KeysDecided) -> str:
    """Return which keys of a form were refused; "" = none."""
    count = len(found.refused)
    if not count:
        return ""
    keys = "1 key was" if count == 1 else f"{count} keys were"
    others = f"{len(found.done) + len(found.counted)} others were taken"
    return f"{keys} refused: {found.refused[0].why}; {others}"
