"""Converts rows into the JSON of the API. Pure."""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import orjson

from bridge.events.build import clean, rfc3339
from bridge.hub.report import Report
from bridge.hub.timeline import TimeLine
from bridge.hub.view_rows import (
    AddressOption,
    BridgeRow,
    DecisionRow,
    EventPage,
    EventRow,
    OfferOption,
    Options,
    Voter,
    visible,
)
from bridge.hub.voting import Persons

Json = dict[str, Any]
_NAMES = 100  # of a decision
REPORT_COLUMNS = (
    *("machine", "resourceGroup", "subscription", "eventType", "events"),
    *("noticeSeconds", "decisionSeconds", "downSeconds", "pausedSeconds"),
    *("plannedSeconds", "unplannedSeconds", "by"),
)
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "＝", "＋", "－", "＠")  # noqa: RUF001 - so a spreadsheet of Japan

_NOT_SHOWN = (
    "digest",
    "said",
    "saidBy",
    "saidUntil",
    "doubled",
)  # of an occurrence: shown with the event, or of no use


def event(row: EventRow) -> Json:
    """Return an event, as in lists."""
    return {
        "eventId": row.event_id,
        "version": row.version,
        "status": row.status,
        "isOpen": row.is_open,
        "eventType": row.event_type or None,
        "eventSource": row.event_source or None,
        "subscription": row.subscription or None,
        "resourceGroup": row.group or None,
        "machines": list(row.machines),
        "machineCount": row.machine_count,
        "content": row.content,
        "notBefore": _time(row.not_before),
        "opened": _time(row.opened),
        "ended": _time(row.ended),
        "lastTold": _time(row.last_reported),
        "firstReportedBy": _reporter(row.first_reported_by),
        "unreported": row.is_unreported,
        "bridgesSay": row.bridges_say,
        "saidToBeOver": _said(row),
        "twoReportsWithOneId": [_reporter(one) for one in row.doubled],
        "messagesNotKept": row.dropped,
        "azureStatus": (row.azure or {}).get("status"),
        "occurrence": row.lives,
        "event": row.event,
        "approval": {
            "votes": [voter(one) for one in row.voters],
            "persons": persons(row.persons) if row.persons else None,
            "decision": decision(row.decision) if row.decision else None,
        },
    }


def voter(row: Voter) -> Json:
    """Return a vote: whether it counts, and by which entry of ``approvers``."""
    return {
        "person": row.person,
        "via": row.via,
        "entry": row.entry or None,
        "counts": not row.lapse,
        "why": row.lapse or None,
    }


def persons(found: Persons) -> Json:
    """Return how many people must approve, by which rule, and whose word raised it."""
    return {
        "wanted": found.wanted,
        "rule": found.rule,
        "raisedBy": [_reporter(asdict(one)) for one in found.raised_by],
    }


def options(found: Options) -> Json:
    """Return which decisions are possible for an event, and why others are not."""
    return {
        "closed": found.closed or None,
        "bridge": {
            "why": found.bridge_why or None,
            "contested": found.is_contested,
            "refused": found.is_refused,
        },
        "addresses": [_address(one) for one in found.addresses],
        "arm": {
            "why": found.arm_why or None,
            "morePersons": found.arm_more,
            "offers": [_offer(one) for one in found.offers],
        },
    }


def _address(row: AddressOption) -> Json:
    return {
        "id": row.id,
        "entity": row.entity,
        "session": row.session or None,
        "prefix": row.prefix,
        "machines": list(row.machines),
        "answers": row.answers,
        "inResources": row.is_in_resources,
        "older": row.is_older,
        "contested": row.contested or None,
        "refusal": row.refusal or None,
        "best": row.is_best,
    }


def _offer(row: OfferOption) -> Json:
    return {
        "id": row.id,
        "vmName": row.machine,
        "vmId": row.vm_id,
        "firstHeard": _time(row.first_heard),
        "lastHeard": _time(row.heard),
        "answer": row.answer,
        "why": row.why or None,
    }


def page(found: EventPage) -> Json:
    """Return an event with its messages, outcomes, decisions and record."""
    return {
        **event(found.row),
        "occurrences": [
            {
                **{key: one[key] for key in one if key not in _NOT_SHOWN},
                "firstReportedBy": _reporter(one["firstReportedBy"]),
            }
            for one in found.occurrences
        ],
        "outcomes": [
            {
                "outcome": one["outcome"],
                "messageId": one["message_id"],
                "reason": one["reason"] or None,
                "time": one["time"],
                "reporter": _reporter(one["reporter"]),
                "standing": one["standing"],
            }
            for one in found.outcomes
        ],
        "messages": [
            {
                "id": one.id,
                "source": one.source,
                "kind": one.kind,
                "time": _time(one.time),
                "enqueued": _time(one.heard),
                "body": orjson.loads(one.body.removeprefix(b"\xef\xbb\xbf")),
            }
            for one in found.messages
        ],
        "olderMessages": found.older or None,
        "decisions": [decision(one) for one in found.decisions],
        "record": [
            {
                "time": _time(one.time),
                "what": one.what,
                "via": one.via,
                "person": one.person or None,
                "detail": one.detail or None,
                "decision": one.decision or None,
            }
            for one in found.trail
        ],
    }


def decision(row: DecisionRow) -> Json:
    """Return a decision."""
    return {
        "id": row.id,
        "eventId": row.event_id,
        "eventType": row.event_type or None,
        "machines": list(row.machines[:_NAMES]),
        "decision": row.action,
        "via": row.via,
        "state": row.state,
        "by": list(row.by),
        "rule": row.rule,
        "reason": row.reason or None,
        "time": _time(row.time),
        "outcome": row.outcome or None,
        "outcomeReason": row.outcome_reason or None,
        "address": row.address or None,
        "overridden": row.is_overridden,
        "about": row.about or None,
    }


def bridge(row: BridgeRow) -> Json:
    """Return a bridge."""
    return {
        "vmId": row.vm_id,
        "vmName": row.name,
        "resourceId": row.resource_id or None,
        "subscription": row.subscription or None,
        "resourceGroup": row.group or None,
        "version": row.version or None,
        "location": row.location or None,
        "state": row.liveness.value,
        "lastHeard": _time(row.heard),
        "intervalSeconds": row.interval or None,
        "pending": row.pending,
        "dead": row.dead,
        "approvals": row.approvals,
    }


def timeline(found: TimeLine) -> Json:
    """Return what happened to a machine, and its outages."""
    return {
        "entries": [
            {
                "time": _time(one.time),
                "what": one.what,
                "words": one.words or None,
                "seconds": one.seconds,
                "eventId": one.event_id or None,
            }
            for one in found.entries
        ],
        "outages": [
            {
                "time": _time(one.time),
                "until": _time(one.until),
                "seconds": one.seconds,
                "how": one.how,
                "planned": one.is_planned,
                "why": one.why,
                "eventId": one.event.event_id if one.event else None,
            }
            for one in found.outages
        ],
        "cut": found.is_cut,
    }


def report(found: Report) -> Json:
    """Return the numbers of a period; all durations are in seconds."""
    totals = asdict(found.totals)
    names = {"down": "downSeconds", "paused": "pausedSeconds"}
    names |= {"planned": "plannedSeconds", "unplanned": "unplannedSeconds"}
    names |= {"notice": "noticeSeconds", "waited": "decisionSeconds"}
    return {
        "from": _time(found.since),
        "to": _time(found.until),
        "totals": {names.get(key, key): value for key, value in totals.items()},
        "rows": [
            {
                "machine": one.machine.name,
                "resourceGroup": one.machine.group or None,
                "subscription": one.machine.subscription or None,
                "eventType": one.event_type or None,
                "events": one.count,
                "noticeSeconds": one.notice,
                "decisionSeconds": one.waited,
                "downSeconds": one.down,
                "pausedSeconds": one.paused,
                "plannedSeconds": one.planned,
                "unplannedSeconds": one.unplanned,
                "by": [f"{who} ({n})" if n > 1 else who for who, n in one.by.items()],
            }
            for one in found.rows
        ],
        "cut": found.is_cut,
    }


def csv_of(columns: Sequence[str], found: Sequence[Json]) -> str:
    """Write objects as CSV, every cell in quotes.

    Cells that a spreadsheet would run get a leading ', and characters that cannot be
    seen are marked as on the pages; the JSON has them as they came.
    """
    out = io.StringIO()
    writer = csv.writer(out, quoting=csv.QUOTE_ALL)
    writer.writerow(columns)
    for one in found:
        writer.writerow([_cell(one[name]) for name in columns])
    return out.getvalue()


def _cell(value: object) -> str:
    if isinstance(value, int | float):
        return str(round(value, 3))
    text = ", ".join(value) if isinstance(value, list) else str(value or "")
    plain = visible(clean(" ".join(text.split())))
    is_formula = plain.lstrip().startswith(_FORMULA)
    return f"'{plain}" if is_formula else plain


def _said(row: EventRow) -> Json | None:
    """Return the end by the word of others alone; None = there is none."""
    if row.said is None:
        return None
    return {
        "status": row.said,
        "by": _reporter(row.said_by or {}),
        "countsFrom": _time(row.said_until),
    }


def _reporter(found: Mapping[str, Any]) -> Json:
    return {
        "vmId": found.get("vm_id") or None,
        "vmName": found.get("name") or None,
        "resourceId": found.get("resource_id") or None,
    }


def _time(moment: Any) -> str | None:
    return None if moment is None else rfc3339(moment)
