"""Converts rows into the values that the templates show. Pure."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from html import escape
from typing import Any
from urllib.parse import quote, urlencode

import orjson
from msgspec.structs import replace

from bridge.events.cloudevent import hash32
from bridge.hub.answers import DecisionRow, EventPage, EventRow, MessageRow, RecordEntry
from bridge.hub.bridges import Liveness
from bridge.hub.choices import KeyRow, Options
from bridge.hub.decisions import ARM, BRIDGE
from bridge.hub.facts import Machine
from bridge.hub.pages import words
from bridge.hub.pins import Doubt
from bridge.hub.view_rows import BridgeRow

Shown = dict[str, Any]
NOT_KNOWN = "-"  # in a path, in place of an unknown subscription or group
_FEW = 3
_MACHINES = 100
_LONGEST_NAME = 80
_LONGEST_TEXT = 512
_LONGEST_SEARCH = 256
_MOST_BYTES = 16 * 1024  # of a message on the page of its event
_KINDS = ("freeze", "reboot", "redeploy", "preempt", "terminate")
QUIET = {Liveness.SILENT, Liveness.STOPPED, Liveness.UNKNOWN}
LIVENESS = {"alive": "good", "silent": "bad", "gone": "soft", "stopped": "wait"}
WHY = {
    Doubt.NEW_MACHINE: "no key of this machine is pinned",
    Doubt.NEW_KEY: "this vmId has, or tells, another key",
    Doubt.SECOND_VM_ID: "another vmId has, or tells, this machine",
    Doubt.SHARED_KEY: "another vmId has, or tells, this key",
}


def event(row: EventRow, now: datetime) -> Shown:
    """Return the values of an event, as in lists."""
    decision = row.approval.decision
    text, kind = words.approval(row)
    is_waiting = row.status == "scheduled"
    return {
        "id": row.event_id,
        "row_id": f"e-{hash32(row.key)[:12]}",
        "href": page_of(row.event_id),
        "type": row.event_type or "Unknown type",
        "kind": kind_of(row.event_type),
        "source": row.event_source,
        "status": row.status,
        "status_words": words.status(row.status),
        "is_open": row.is_open,
        "is_unreported": row.unreported,
        "duration": words.duration(row.event),
        "description": short((row.event or {}).get("Description")),
        "names": few(row.machines, row.machine_count),
        "machine_count": row.machine_count,
        "group": short(row.resource_group),
        "key": row.key,
        "not_before": time(row.not_before, now) if is_waiting else None,
        "urgency": words.urgency(row.not_before, now) if is_waiting else "",
        "opened": time(row.opened, now),
        "ended": time(row.ended, now),
        "reporter": name_of(row.first_reported_by.name),
        "bridges_say": row.bridges_say,
        "doubts": [short(text) for text in words.doubts(row, now)],
        "azure": short(row.azure_status),
        "standing": _obstacle(decision),
        "is_undecided": is_waiting and not _is_decided(decision),
        "is_on_its_way": decision is not None and decision.state == "decided",
        "way": words.way(row),
        "missing": words.missing(row),
        "voter_ids": row.approval.voters(BRIDGE),
        "arm_voter_ids": row.approval.voters(ARM),
        "approval": text,
        "approval_kind": kind,
        "content": row.content,
        "voters": [words.voter(one) for one in row.approval.votes],
        "wanted": row.approval.persons.wanted,
    }


def kind_of(event_type: str | None) -> str:
    """Return the CSS class of an EventType."""
    kind = (event_type or "").lower()
    return kind if kind in _KINDS else "other"


def options(found: Options) -> Shown:
    """Return which decisions are possible, without times that change all the while."""
    bridge, arm = found.bridge, found.arm
    may_override = bridge.refused or (
        bridge.contested and any(one.refusal for one in found.addresses)
    )
    return {
        "closed": found.closed,
        "bridge_why": bridge.why,
        "is_contested": bridge.contested,
        "is_refused": bridge.refused,
        "may_override": may_override,
        "may_ask": not bridge.why or bridge.contested or bridge.refused,
        "addresses": found.addresses[:_MACHINES],
        "arm_why": arm.why,
        "arm_more": arm.more_persons,
        "offers": [
            {
                "id": one.id,
                "machine": one.vm_name,
                "answer": one.answer.value,
                "why": one.why,
            }
            for one in arm.offers
            if one.answer != "allows"
        ][:_MACHINES],
    }


def _is_decided(decision: DecisionRow | None) -> bool:
    """Whether a decision has not failed and is not void."""
    return decision is not None and decision.state not in {"failed", "void"}


def _obstacle(decision: DecisionRow | None) -> str:
    """Return why another decision is not possible; "" = it is."""
    if decision is None or decision.state not in {"sending", "sent", "done"}:
        return ""
    if decision.state == "done":
        return "It has been approved: the event begins soon."
    return "An approval is on its way: its outcome comes by itself."


def few(names: Sequence[str], count: int) -> Shown:
    """Return the first names of a list, and how many more there are."""
    first = [name_of(one) for one in names[:_FEW]]
    return {"first": first, "more": max(count - _FEW, 0)}


def name_of(name: str) -> str:
    """Return a name of a machine, shortened if it is longer than Azure allows."""
    return short(name, _LONGEST_NAME)


def short(text: object, most: int = _LONGEST_TEXT) -> str:
    """Return a text from outside, cut if it is very long; None is ""."""
    found = "" if text is None else str(text)
    return found if len(found) <= most else f"{found[:most]}…"


def time(moment: datetime | None, now: datetime) -> words.When | None:
    """Return a time in all its forms; None = there is none."""
    return None if moment is None else words.when(moment, now)


def page(found: EventPage, now: datetime, *, is_older: bool = False) -> Shown:
    """Return the values of the page of an event.

    Args:
        found: the event, with some of its messages.
        now: the present moment.
        is_older: whether these are not its newest messages.
    """
    steps = [(one.time, _message(one, now)) for one in found.messages]
    steps += [(one.time, _trail(one, now)) for one in found.record]
    steps.sort(key=lambda one: one[0])
    shown, names = event(found, now), found.machines
    href = str(shown["href"])
    return {
        **shown,
        "machines": [
            {"name": name_of(name), "href": machine_search(name)}
            for name in names[:_MACHINES]
        ],
        "more_machines": max(found.machine_count - _MACHINES, 0),
        "json": f"/api/v1{href}",
        "steps": [one for _, one in reversed(steps)],
        "messages": [_raw(one, href) for one in reversed(found.messages)],
        "is_older": is_older,
        "older": with_query(href, before=found.older_messages or "")
        if found.older_messages
        else "",
        "decisions": found.decisions,
        "outcomes": [words.outcome(one) for one in found.outcomes],
        "lives": len(found.occurrences),
    }


def with_query(href: str, **query: str) -> str:
    """Add parameters to an address of the hub."""
    return f"{href}{'&' if '?' in href else '?'}{urlencode(query)}"


def machine_search(name: str) -> str:
    """Return the address that finds a machine by its name."""
    return with_query("/machines", name=name[:_LONGEST_SEARCH])


def _message(row: MessageRow, now: datetime) -> Shown:
    given = row.body.get("data")
    data = given if isinstance(given, dict) else {}
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
        "who": name_of(str(who or "an unnamed VM")),
        "detail": short(detail),
    }


def _trail(row: RecordEntry, now: datetime) -> Shown:
    detail = row.detail or ""
    return {
        "time": time(row.time, now),
        "title": words.step(row.what),
        "kind": row.what.replace(" ", "-"),
        "who": row.person or "the hub",
        "detail": detail if row.via == "bridge" else f"{detail} (through ARM)",
    }


def _raw(row: MessageRow, href: str) -> Shown:
    """Return a message as it was received, cut: its page must not grow without end."""
    text = orjson.dumps(row.body, option=orjson.OPT_INDENT_2)
    cut = text[:_MOST_BYTES].decode(errors="ignore")
    while len(escape(cut, quote=False).encode()) > 2 * _MOST_BYTES:
        cut = cut[: len(cut) // 2]
    return {
        "seq": row.seq,
        "kind": words.step(row.kind),
        "id": row.id,
        "body": cut,
        "is_cut": len(cut.encode()) < len(text),
        "href": message_address(href, row.seq),
    }


def message_address(href: str, seq: int) -> str:
    """Return the address of one message of an event, from that of the event."""
    if "?" in href:
        return with_query(href, message=str(seq))
    return f"{href}/messages/{seq}"


def row_id(row: BridgeRow) -> str:
    """Return the id of a bridge's row."""
    return f"b-{hash32(row.vm_id)[:12]}"


def interval(row: BridgeRow) -> str:
    """Return how often a bridge sends a heartbeat."""
    every = row.interval_seconds
    return f"every {words.plain_span(every)}" if every else "off"


def takes(row: BridgeRow) -> str:
    """Return where a bridge takes approvals; "" = nowhere, or that is not known."""
    return short((row.approvals or {}).get("entity"))


def rules(row: BridgeRow) -> str:
    """Return how many rules of a bridge are known."""
    found = (row.approvals or {}).get("rules")
    count = len(found) if isinstance(found, list) else 0
    known = "1 rule" if count == 1 else f"{count} rules"
    return "rules not known" if row.approvals is None else known


def long(seconds: float | None) -> str:
    """Return a duration in words; "none" = there is none, or it is 0."""
    return words.plain_span(seconds) if seconds else "none"


def key_name(row: KeyRow) -> str:
    """Return the name of the machine of a key."""
    return name_of(row.vm_name or row.resource_id.rpartition("/")[2])


def named(rows: Iterable[KeyRow]) -> str:
    """Return exactly the keys that a form shows, and why each of them waits."""
    return " ".join(f"{one.id}:{one.why or ''}" for one in rows)


def page_of(event_id: str) -> str:
    """Return the path of an event's page.

    Browsers shorten a path that ends in "." or "..", also if it is percent-encoded.
    """
    if event_id in {".", ".."}:
        return f"/events?id={event_id}"
    return f"/events/{quote(event_id, safe='')}"


def machine_of(row: BridgeRow) -> str:
    """Return the path of the page of a bridge's machine."""
    return address_of(row.machine)


def address_of(machine: Machine) -> str:
    """Return the path of a machine's page."""
    parts = (machine.subscription, machine.group, machine.name)
    if not {".", ".."}.isdisjoint(parts):  # as in ``page_of``
        names = ("subscription", "group", "name")
        return f"/machines?{urlencode(dict(zip(names, parts, strict=True)))}"
    return "/machines/" + "/".join(quote(part, safe="") or NOT_KNOWN for part in parts)


def bridges(found: Iterable[BridgeRow]) -> Sequence[BridgeRow]:
    """Return bridges: silent and stopped ones first; without their many offers."""
    order = {"silent": 0, "stopped": 1, "unknown": 2, "alive": 3, "gone": 4}
    rows = sorted(found, key=lambda one: (order[one.liveness.value], one.name))
    return [replace(one, offers=()) for one in rows]


def tiles(rows: Sequence[Shown]) -> list[Shown]:
    """Return the figures above the list."""
    waits = [one for one in rows if one["status"] == "scheduled"]
    mine = [one for one in waits if one["is_undecided"]]
    figures = (
        ("wait for a decision", len(mine), "wait"),
        ("begin within 15 min", sum(1 for one in waits if one["urgency"]), "bad"),
        ("are running", sum(1 for o in rows if o["status"] == "started"), "run"),
        ("not reported by a bridge", sum(1 for o in rows if o["is_unreported"]), "bad"),
    )
    return [
        {"words": text, "count": count, "kind": kind if count else ""}
        for text, count, kind in figures
    ]
