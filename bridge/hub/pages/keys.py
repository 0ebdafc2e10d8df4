"""The keys on ``/bridges`` that bridges have told, and that wait for acceptance."""

from datetime import datetime

from bridge.hub.key_rows import KeyList, KeyRow
from bridge.hub.pages import shown
from bridge.hub.pins import Doubt
from bridge.hub.view_rows import PAGE

_WHY = {
    Doubt.NEW_MACHINE: "no key of this machine is pinned",
    Doubt.NEW_KEY: "another key is pinned to this vmId",
    Doubt.SECOND_VM_ID: "another vmId has, or tells, this machine",
    Doubt.SHARED_KEY: "another vmId has, or tells, this key",
}


def shown_keys(found: KeyList, now: datetime) -> shown.Shown:
    """Return the values of the keys that wait: the first 200 of them."""
    return {
        "rows": [_key(one, now) for one in found.keys[:PAGE]],
        "more": max(len(found.keys) - PAGE, 0),
        "is_full": found.is_full,
    }


def _key(one: KeyRow, now: datetime) -> shown.Shown:
    return {
        "row_id": f"k-{one.id[:12]}",
        "name": shown.name_of(one.vm_name or one.vm_id),
        "vm_id": shown.short(one.vm_id),
        "resource_id": shown.short(one.resource_id),
        "key": one.key,
        "why": _WHY[one.why],
        "kind": "soft" if one.why is Doubt.NEW_MACHINE else "bad",
        "first_heard": shown.time(one.first_heard, now),
        "heard": shown.time(one.last_heard, now),
    }
