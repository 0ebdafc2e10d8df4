"""The description of the API, OpenAPI 3.1. Pure."""

from typing import Any

from bridge import __version__
from bridge.hub.decisions import DecisionState
from bridge.hub.voting import ACTIONS

Json = dict[str, Any]

_TEXT: Json = {"type": "string"}
_MAYBE: Json = {"type": ["string", "null"]}
_NAMES: Json = {
    "type": "array",
    "items": _TEXT,
    "description": "The first 100 names.",
}
_TIME: Json = {"type": ["string", "null"], "format": "date-time"}
_STATUSES = (
    *("scheduled", "started", "completed", "cancelled", "ended", "other", "unknown"),
)


_WHEN = "RFC 3339, or a day of UTC such as 2026-11-27, included."


def document() -> Json:
    """Return the description."""
    return {
        "openapi": "3.1.0",
        "info": {"title": "Hub of scheduled-events-bridge", "version": __version__},
        "paths": {
            "/api/v1/events": {"get": _list("events", "Event", _filters())},
            "/api/v1/events/{id}": {"get": _one()},
            "/api/v1/events/{id}/approval": {"get": _options(), "post": _approval()},
            "/api/v1/decisions": {"get": _list("decisions", "Decision", [])},
            "/api/v1/decisions.csv": {"get": _table()},
            "/api/v1/bridges": {"get": _list("bridges", "Bridge", [])},
            "/api/v1/timeline": {"get": _timeline()},
            "/api/v1/report": {"get": _report(_json(_ref("Report")))},
            "/api/v1/report.csv": {"get": _report({"text/csv": {"schema": _TEXT}})},
        },
        "components": {"schemas": _schemas()},
    }


def _filters() -> list[Json]:
    words = {
        "open": "true: pending or running events; false: events that are over.",
        "status": "One of the statuses.",
        "type": "EventType.",
        "source": "EventSource.",
        "resourceGroup": "The resource group of the machines.",
        "q": "The beginning of an EventId or of a machine's name.",
        "since": f"Only events that were not over by then: {_WHEN}",
        "until": f"Only events that were known before: {_WHEN}",
    }
    return [_query(name, what) for name, what in words.items()]


def _query(name: str, what: str) -> Json:
    return {"name": name, "in": "query", "description": what, "schema": _TEXT}


def _list(name: str, kind: str, filters: list[Json]) -> Json:
    items = {"type": "array", "items": {"$ref": f"#/components/schemas/{kind}"}}
    schema = {"type": "object", "properties": {name: items, "next": _MAYBE}}
    cursor = _query("cursor", "The value of next in the previous answer.")
    limit = _query("limit", "1 to 200.")
    return {
        "summary": f"The {name}; with an ETag.",
        "parameters": [*filters, cursor, limit],
        "responses": _responses(schema, "400", "401", "403", "503"),
    }


def _one() -> Json:
    schema = {"$ref": "#/components/schemas/Event"}
    return {
        "summary": "One event with its messages, outcomes and decisions.",
        "parameters": [_id(), _query("before", "The value of olderMessages.")],
        "responses": _responses(schema, "401", "403", "404", "503"),
    }


def _options() -> Json:
    return {
        "summary": "Which decisions are possible for an event, and why others are not.",
        "parameters": [_id()],
        "responses": _responses(_ref("Options"), "401", "403", "404", "503"),
    }


def _id() -> Json:
    return {"name": "id", "in": "path", "required": True, "schema": _TEXT}


def _approval() -> Json:
    header = {
        "name": "X-Sebridge",
        "in": "header",
        "required": True,
        "schema": {"const": "1"},
    }
    body = {"application/json": {"schema": {"$ref": "#/components/schemas/Approval"}}}
    schema = {"$ref": "#/components/schemas/Decided"}
    refusals = ("400", "401", "403", "404", "409", "415", "503")
    return {
        "summary": "Approve or refuse. 200: decided; 202: counted, votes are missing.",
        "parameters": [_id(), header],
        "requestBody": {"required": True, "content": body},
        "responses": _responses(schema, *refusals)
        | {"202": {"description": "Counted.", "content": _json(schema)}},
    }


def _timeline() -> Json:
    names = {
        "name": "The name of the machine.",
        "resourceGroup": "Its resource group.",
        "subscription": "Its subscription.",
        "since": f"A week before until, if it is left out. {_WHEN}",
        "until": f"Now, if it is left out. {_WHEN}",
    }
    return {
        "summary": "What happened to a machine: why was it down, how long, planned?",
        "parameters": [_query(name, what) for name, what in names.items()],
        "responses": _responses(_ref("TimeLine"), "400", "401", "403", "503"),
    }


def _report(content: Json) -> Json:
    names = {"from": f"A week before to. {_WHEN}", "to": f"Now. {_WHEN}"}
    good = {"200": {"description": "The report.", "content": content}}
    bad = _responses(_ref("Report"), "400", "401", "403", "503")
    return {
        "summary": "Numbers for each machine and type of event, of at most 400 days.",
        "parameters": [_query(name, what) for name, what in names.items()],
        "responses": bad | good,
    }


def _table() -> Json:
    good = {"description": "A table.", "content": {"text/csv": {"schema": _TEXT}}}
    return {
        "summary": "The decisions as a table; no cell is a formula.",
        "parameters": [
            _query("cursor", "The value of next in an answer of /api/v1/decisions."),
            _query("limit", "1 to 200."),
        ],
        "responses": {"200": good},
    }


def _responses(schema: Json, *refusals: str) -> Json:
    refused = {
        "description": "The reason of the error.",
        "content": _json({"type": "object", "properties": {"error": _TEXT}}),
    }
    good = {"description": "The answer.", "content": _json(schema)}
    return {"200": good} | dict.fromkeys(refusals, refused)


def _json(schema: Json) -> Json:
    return {"application/json": {"schema": schema}}


def _schemas() -> Json:
    vote = {
        "person": _TEXT,
        "via": {"enum": ["bridge", "arm"]},
        "entry": {**_MAYBE, "description": "The entry of approvers it counts by."},
        "counts": {"type": "boolean"},
        "why": {**_MAYBE, "description": "Why it does not count."},
    }
    event = {
        "eventId": _TEXT,
        "version": {"type": "integer"},
        "status": {"enum": list(_STATUSES)},
        "isOpen": {"type": "boolean"},
        "eventType": _MAYBE,
        "eventSource": _MAYBE,
        "subscription": _MAYBE,
        "resourceGroup": _MAYBE,
        "machines": _NAMES,
        "machineCount": {"type": "integer"},
        "content": _TEXT,
        "notBefore": _TIME,
        "opened": _TIME,
        "ended": _TIME,
        "lastTold": _TIME,
        "unreported": {"type": "boolean"},
        "bridgesSay": _MAYBE,
        "saidToBeOver": {
            "type": ["object", "null"],
            "description": "An end by the word of others than machines in Resources:"
            " its status, by whom, and from when it counts.",
        },
        "twoReportsWithOneId": {"type": "array", "items": {"type": "object"}},
        "messagesNotKept": {"type": "integer"},
        "azureStatus": _MAYBE,
        "occurrence": {"type": "integer"},
        "event": {
            "type": ["object", "null"],
            "description": "In a list, with the first 100 names of Resources.",
        },
        "approval": _object(
            {
                "votes": {"type": "array", "items": _object(vote)},
                "persons": {"anyOf": [_ref("Persons"), {"type": "null"}]},
                "decision": {"anyOf": [_ref("Decision"), {"type": "null"}]},
            }
        ),
        "messages": {"type": "array", "description": "Of one event: the newest 20."},
        "olderMessages": {
            **_MAYBE,
            "description": "The value of before for the messages before these.",
        },
    }
    bridge = {
        "vmId": _TEXT,
        "vmName": _TEXT,
        "resourceId": _MAYBE,
        "state": {"enum": ["alive", "silent", "stopped", "gone", "unknown"]},
        "lastHeard": _TIME,
        "intervalSeconds": {"type": ["number", "null"]},
        "approvals": {"type": ["object", "null"]},
    }
    approval = {
        "decision": {"enum": list(ACTIONS)},
        "reporter": {**_TEXT, "description": "The vmId to set aside."},
        "offer": {**_TEXT, "description": "The id of the offer to drop."},
        "reason": _TEXT,
        "via": {"enum": ["bridge", "arm"]},
        "content": {
            **_TEXT,
            "description": "The content of the event, as it was shown.",
        },
        "address": {
            **_TEXT,
            "description": "The id of the address to send to, if it is contested.",
        },
        "override": {
            "type": "boolean",
            "description": "Send it although a bridge would refuse it.",
        },
    }
    decision = {
        "id": _TEXT,
        "eventId": _TEXT,
        "eventType": _MAYBE,
        "machines": _NAMES,
        "decision": {"enum": list(ACTIONS)},
        "via": {"enum": ["bridge", "arm"]},
        "state": {"enum": [state.value for state in DecisionState]},
        "by": {"type": "array", "items": _TEXT},
        "rule": _TEXT,
        "reason": _MAYBE,
        "time": _TIME,
        "outcome": _MAYBE,
        "outcomeReason": _MAYBE,
        "address": {**_MAYBE, "description": "Where it was sent last."},
        "overridden": {
            "type": "boolean",
            "description": "Whether it was sent although a bridge would refuse it.",
        },
        "about": {
            **_MAYBE,
            "description": "The vmId that is set aside, or the offer that is dropped.",
        },
    }
    decided = {
        "state": {"enum": ["decided", "counted"]},
        "missing": {"type": "integer"},
        "id": _MAYBE,
    }
    return {
        "Event": _object(event),
        "Bridge": _object(bridge),
        "Approval": {**_object(approval), "required": ["decision", "content"]},
        "Decided": _object(decided),
        "Decision": _object(decision),
        "Persons": _object(
            {
                "wanted": {"type": "integer"},
                "rule": _TEXT,
                "raisedBy": {"type": "array", "items": {"type": "object"}},
            }
        ),
        "Options": _possible(),
        **_of_reports(),
    }


def _possible() -> Json:
    yes: Json = {"type": "boolean"}
    address = {
        "id": _TEXT,
        "entity": _TEXT,
        "session": _MAYBE,
        "prefix": _TEXT,
        "machines": {"type": "array", "items": _TEXT},
        "answers": yes,
        "inResources": yes,
        "older": {**yes, "description": "Named by bridges that made no offer."},
        "contested": {**_MAYBE, "description": "Why it is not known whose it is."},
        "refusal": {**_MAYBE, "description": "Why a bridge there would refuse."},
        "best": {**yes, "description": "The hub sends to it by itself."},
    }
    offer = {
        "id": _TEXT,
        "vmName": _TEXT,
        "vmId": _TEXT,
        "firstHeard": _TIME,
        "lastHeard": _TIME,
        "answer": {"enum": ["allows", "waits", "denies", "unknown"]},
        "why": _MAYBE,
    }
    bridge = {"why": _MAYBE, "contested": yes, "refused": yes}
    arm = {
        "why": _MAYBE,
        "morePersons": {"type": "integer"},
        "offers": {"type": "array", "items": _object(offer)},
    }
    return _object(
        {
            "closed": {**_MAYBE, "description": "Why nothing can be decided."},
            "bridge": _object(bridge),
            "addresses": {"type": "array", "items": _object(address)},
            "arm": _object(arm),
        }
    )


def _of_reports() -> Json:
    """Return the schemas of time lines and reports."""
    number: Json = {"type": ["number", "null"]}
    entry = {
        "time": _TIME,
        "what": _TEXT,
        "words": _MAYBE,
        "seconds": number,
        "eventId": _MAYBE,
    }
    how = {"enum": ["paused", "silent", "unavailable", "stopped"]}
    outage = {
        "time": _TIME,
        "until": _TIME,
        "seconds": {"type": "number"},
        "how": how,
        "planned": {"type": ["boolean", "null"], "description": "null: not known."},
        "why": {**_TEXT, "description": "Such as: planned: host maintenance."},
        "eventId": _MAYBE,
    }
    numbers = ("noticeSeconds", "decisionSeconds", "downSeconds", "pausedSeconds")
    values = dict.fromkeys((*numbers, "plannedSeconds", "unplannedSeconds"), number)
    whole = {"type": "integer"}
    totals = {**values, **dict.fromkeys(("events", "machines", "approved"), whole)}
    names = ("machine", "resourceGroup", "subscription", "eventType")
    row = {**dict.fromkeys(names, _MAYBE), **values, "events": whole}
    row["by"] = {"type": "array", "items": _TEXT}
    cut = {"type": "boolean", "description": "Whether the store holds more."}
    lists = {"entries": _many(entry), "outages": _many(outage), "cut": cut}
    report = {"from": _TIME, "to": _TIME, "totals": _object(totals), "cut": cut}
    return {
        "TimeLine": _object(lists),
        "Report": _object({**report, "rows": _many(row)}),
    }


def _many(properties: Json) -> Json:
    return {"type": "array", "items": _object(properties)}


def _ref(name: str) -> Json:
    return {"$ref": f"#/components/schemas/{name}"}


def _object(properties: Json) -> Json:
    return {"type": "object", "properties": properties}
