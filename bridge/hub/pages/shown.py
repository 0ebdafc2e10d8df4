"""Converts rows into the values that the templates show. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any
from urllib.parse import quote, urlencode

import orjson

from bridge.events.build import rfc3339
from bridge.foundation.hashing import hash32
from bridge.hub.access_config import AccessConfig
from bridge.hub.fold import Machine, kept_name
from bridge.hub.pages import words
from bridge.hub.view_rows import (
    BridgeRow,
    DecisionRow,
    EventPage,
    EventRow,
    MessageRow,
    TrailRow,
)

Shown = dict[str, Any]
NOT_KNOWN = "-"  # in a path, in place of an unknown subscription or group
_MACHINES = 3
_KINDS = {
    "freeze": "freeze",
    "reboot": "reboot",
    "redeploy": "redeploy",
    "preempt": "preempt",
    "terminate": "terminate",
}
_LIVENESS = {"alive": "good", "silent": "bad", "gone": "soft", "stopped": "wait"}


def event(row: EventRow, access: AccessConfig, now: datetime) -> Shown:
    """Return the values of an event, as in lists."""
    wanted = row.persons.wanted if row.persons else access.most_persons
    text, kind = words.approval(row, wanted)
    is_waiting = row.status == "scheduled"
    return {
        "id": row.event_id,
        "row_id": f"e-{hash32(row.key)[:12]}",
        "href": page_of(row.event_id),
        "type": row.event_type or "Unknown type",
        "kind": _KINDS.get(row.event_type.lower(), "other"),
        "source": row.event_source,
        "status": row.status,
        "status_words": words.status(row.status),
        "is_open": row.is_open,
        "is_unreported": row.is_unreported,
        "duration": words.duration(row.event),
        "description": (row.event or {}).get("Description") or "",
        "machines": row.machines,
        "first_machines": row.machines[:_MACHINES],
        "more_machines": max(len(row.machines) - _MACHINES, 0),
        "group": row.group,
        "subscription": row.subscription,
        "not_before": time(row.not_before, now) if is_waiting else None,
        "urgency": words.urgency(row.not_before, now) if is_waiting else "",
        "opened": time(row.opened, now),
        "ended": time(row.ended, now),
        "reporter": row.first_reported_by.get("name") or "an unnamed VM",
        "bridges_say": row.bridges_say,
        "azure": (row.azure or {}).get("status"),
        "standing": _obstacle(row),
        "is_undecided": is_waiting and not _is_decided(row),
        "approval": text,
        "approval_kind": kind,
        "content": row.content,
        "voters": [words.voter(one) for one in row.voters],
        "wanted": wanted,
    }


def raised(row: EventRow) -> list[Shown]:
    """Return the reporters by whose word more people must approve an event."""
    found = row.persons.raised_by if row.persons else ()
    return [
        {"name": one.name or one.vm_id or "an unnamed VM", "vm_id": one.vm_id}
        for one in found
    ]


def _is_decided(row: EventRow) -> bool:
    """Whether the event has a decision that has not failed and is not void."""
    return row.decision is not None and row.decision.state not in {"failed", "void"}


def _obstacle(row: EventRow) -> str:
    """Return why another decision is not possible; "" = it is."""
    decision = row.decision
    if decision is None or decision.state not in {"sending", "sent", "done"}:
        return ""
    if decision.state == "done":
        return "It has been approved: the event begins soon."
    return "An approval is on its way: its outcome comes by itself."


def time(moment: datetime | None, now: datetime) -> Shown | None:
    """Return a time in three forms: for the browser, relative, and exact."""
    if moment is None:
        return None
    return {
        "iso": rfc3339(moment),
        "words": words.relative(moment, now),
        "exact": moment.strftime("%d %b %Y, %H:%M:%S UTC"),
    }


def page(found: EventPage, access: AccessConfig, now: datetime) -> Shown:
    """Return the values of the page of an event."""
    steps = [_message(one, now) for one in found.messages]
    steps += [_trail(one, now) for one in found.trail]
    steps.sort(key=lambda one: str(one["time"]["iso"]))
    return {
        **event(found.row, access, now),
        "steps": steps[::-1],
        "messages": [_raw(one) for one in found.messages],
        "decisions": [decision(one, now) for one in found.decisions],
        "outcomes": [words.outcome(one) for one in found.outcomes],
        "lives": len(found.occurrences),
    }


def _message(row: MessageRow, now: datetime) -> Shown:
    data = _data(row)
    reporter = data.get("reporter")
    who = reporter.get("vmName") if isinstance(reporter, dict) else "Azure"
    detail = ""
    if row.kind == "outcome":
        detail = " ".join(
            str(data.get(name)) for name in ("outcome", "reason") if data.get(name)
        )
    elif row.kind == "updated":
        changes = data.get("changes")
        detail = ", ".join(map(str, changes)) if isinstance(changes, list) else ""
    return {
        "time": time(row.time, now),
        "title": words.step(row.kind),
        "kind": row.kind,
        "who": who or "an unnamed VM",
        "detail": detail,
    }


def _data(row: MessageRow) -> Mapping[str, Any]:
    found = orjson.loads(row.body.removeprefix(b"\xef\xbb\xbf")).get("data")
    return found if isinstance(found, dict) else {}


def _trail(row: TrailRow, now: datetime) -> Shown:
    return {
        "time": time(row.time, now),
        "title": words.step(row.what),
        "kind": row.what.replace(" ", "-"),
        "who": row.person or "the hub",
        "detail": row.detail if row.via == "bridge" else f"{row.detail} (through ARM)",
    }


def _raw(row: MessageRow) -> Shown:
    text = orjson.dumps(
        orjson.loads(row.body.removeprefix(b"\xef\xbb\xbf")), option=orjson.OPT_INDENT_2
    )
    return {"kind": words.step(row.kind), "id": row.id, "body": text.decode()}


def decision(row: DecisionRow, now: datetime) -> Shown:
    """Return the values of a decision."""
    text, kind = words.decided(row)
    return {
        "id": row.id,
        "event_id": row.event_id,
        "href": page_of(row.event_id),
        "time": time(row.time, now),
        "action": words.action(row),
        "by": ", ".join(row.by),
        "rule": row.rule,
        "reason": row.reason,
        "via": "ARM" if row.via == "arm" else "bridge",
        "state": text,
        "kind": kind,
    }


def bridge(row: BridgeRow, now: datetime) -> Shown:
    """Return the values of a bridge."""
    offer = row.approvals or {}
    rules = offer.get("rules")
    count = len(rules) if isinstance(rules, list) else 0
    every = f"every {words.plain_span(row.interval)}" if row.interval else "off"
    known = "1 rule" if count == 1 else f"{count} rules"
    return {
        "name": row.name or row.vm_id,
        "href": _machine_address(row),
        "group": row.group,
        "state": row.liveness.value,
        "kind": _LIVENESS.get(row.liveness.value, ""),
        "heard": time(row.heard, now),
        "interval": every,
        "version": row.version,
        "location": row.location,
        "pending": row.pending,
        "dead": row.dead,
        "takes": offer.get("entity") or "",
        "rules": "rules not known" if row.approvals is None else known,
    }


def page_of(event_id: str) -> str:
    """Return the path of an event's page.

    Browsers shorten a path that ends in "." or "..", also if it is percent-encoded.
    """
    if event_id in {".", ".."}:
        return f"/events?id={event_id}"
    return f"/events/{quote(event_id, safe='')}"


def _machine_address(row: BridgeRow) -> str:
    name = kept_name(row.name)
    return address_of(
        Machine(subscription=row.subscription, group=row.group, name=name)
    )


def address_of(machine: Machine) -> str:
    """Return the path of a machine's page."""
    parts = (machine.subscription, machine.group, machine.name)
    if not {".", ".."}.isdisjoint(parts):  # as in ``page_of``
        names = ("subscription", "group", "name")
        return f"/machines?{urlencode(dict(zip(names, parts, strict=True)))}"
    return "/machines/" + "/".join(quote(part, safe="") or NOT_KNOWN for part in parts)


def bridges(found: Iterable[BridgeRow], now: datetime) -> Sequence[Shown]:
    """Return the values of bridges: silent and stopped ones first."""
    order = {"silent": 0, "stopped": 1, "unknown": 2, "alive": 3, "gone": 4}
    rows = sorted(found, key=lambda one: (order[one.liveness.value], one.name))
    return [bridge(row, now) for row in rows]


def tiles(rows: Sequence[Shown]) -> list[Shown]:
    """Return the figures above the list."""
    waits = [one for one in rows if one["status"] == "scheduled"]
    mine = [one for one in waits if one["is_undecided"]]
    figures = (
        ("wait for a decision", len(mine), "wait"),
        ("begin within 15 min", sum(1 for one in waits if one["urgency"]), "bad"),
        ("are running", sum(1 for o in rows if o["status"] == "started"), "run"),
        ("no bridge told of", sum(1 for o in rows if o["is_unreported"]), "bad"),
    )
    return [
        {"words": text, "count": count, "kind": kind if count else ""}
        for text, count, kind in figures
    ]
