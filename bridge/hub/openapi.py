"""The description of the API, OpenAPI 3.1. Pure.

Every member of an answer is described, is always there unless it is said to be left
out, and has one type; each object has a name, for generators of clients.
"""

from typing import Any

from bridge import __version__
from bridge.hub.bridges import Liveness
from bridge.hub.decisions import DecisionState
from bridge.hub.facts import Kind
from bridge.hub.targets import Verdict
from bridge.hub.view_rows import PAGE
from bridge.hub.voting import ACTIONS, CHANNELS

Json = dict[str, Any]

LONGEST_WORD = 1024  # of a parameter, and of a reason
LONGEST_CURSOR = 256  # of decisions
LONGEST_ADDRESS = 64

_TEXT: Json = {"type": "string"}
_MAYBE: Json = {"type": ["string", "null"]}
_YES: Json = {"type": "boolean"}
_COUNT: Json = {"type": "integer", "minimum": 0}
_LARGE: Json = {"type": "integer", "format": "int64", "minimum": 0}
_TIME: Json = {"type": "string", "format": "date-time"}
_MAYBE_TIME: Json = {"type": ["string", "null"], "format": "date-time"}
_OBJECT: Json = {"type": "object", "additionalProperties": True}
_MAYBE_OBJECT: Json = {"type": ["object", "null"], "additionalProperties": True}
_NAMES: Json = {
    "type": "array",
    "items": _TEXT,
    "maxItems": 100,
    "description": "The first 100 names.",
}
_WORD: Json = {"type": "string", "maxLength": LONGEST_WORD}


def _enum(*words: str) -> Json:
    return {"type": "string", "enum": list(words)}


def _ref(name: str) -> Json:
    return {"$ref": f"#/components/schemas/{name}"}


def _many(name: str) -> Json:
    return {"type": "array", "items": _ref(name)}


def _ref_or_null(name: str) -> Json:
    return {"anyOf": [_ref(name), {"type": "null"}]}


def _that(schema: Json, words: str) -> Json:
    return {**schema, "description": words}


def _object(words: str, properties: Json, *optional: str) -> Json:
    return {
        "type": "object",
        "description": words,
        "properties": properties,
        "required": [name for name in properties if name not in optional],
    }


_STATUS = _enum(
    *(kind for kind in Kind if kind not in ("updated", "outcome")), "unknown"
)
_VIA = _enum(*CHANNELS)
_ACTION = _enum(*ACTIONS)


def document() -> Json:
    """Return the description."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Hub of scheduled-events-bridge",
            "version": __version__,
            "description": "Events, bridges and decisions of a fleet, as JSON.",
        },
        "paths": {
            "/api/v1/events": {"get": _events()},
            "/api/v1/events/{id}": {"get": _one()},
            "/api/v1/events/{id}/approval": {"get": _options(), "post": _approval()},
            "/api/v1/decisions": {"get": _decisions()},
            "/api/v1/decisions.csv": {"get": _table()},
            "/api/v1/bridges": {"get": _bridges()},
            "/api/v1/openapi.json": {"get": _itself()},
        },
        "components": {"schemas": {**_EVENTS, **_DECISIONS, **_OTHERS}},
    }


# -- what is asked ---------------------------------------------------------------------


def _query(name: str, schema: Json, words: str) -> Json:
    return {"name": name, "in": "query", "description": words, "schema": schema}


_LIMIT = _query(
    "limit",
    {"type": "integer", "minimum": 1, "maximum": PAGE, "default": PAGE},
    "How many at most.",
)
_ID: Json = {
    "name": "id",
    "in": "path",
    "required": True,
    "description": "The EventId; the case of letters does not matter.",
    "schema": _TEXT,
}
_HEADER: Json = {
    "name": "X-Sebridge",
    "in": "header",
    "required": True,
    "description": "Shows that no page of another site has sent the request.",
    "schema": {"type": "string", "const": "1"},
}
_FILTERS = [
    _query(
        "open", _YES, "true: pending or running events; false: those that are over."
    ),
    _query("status", _STATUS, "Only events of this status."),
    _query("type", _WORD, "Only events of this EventType."),
    _query("source", _WORD, "Only events of this EventSource."),
    _query("resourceGroup", _WORD, "Only events of machines of this resource group."),
    _query("q", _WORD, "The beginning of an EventId or of a machine's name."),
]
_NUMBER: Json = {"type": "string", "pattern": "^[0-9]{1,19}$"}  # up to 2**62


def _next(schema: Json) -> Json:
    return _query("cursor", schema, "The value of next in the previous answer.")


def _events() -> Json:
    parameters = [*_FILTERS, _next(_NUMBER), _LIMIT]
    what = "The events, in the order in which they changed."
    return _get("listEvents", what, "EventList", parameters, "400")


def _one() -> Json:
    before = _query("before", _WORD, "The value of olderMessages: messages before it.")
    what = "One event with its messages, outcomes, decisions and record."
    return _get("getEvent", what, "EventPage", [_ID, before], "400", "404")


def _options() -> Json:
    what = "Which decisions are possible for an event, and why others are not."
    return _get("getApprovalOptions", what, "Options", [_ID], "404")


def _decisions() -> Json:
    parameters = [_next({**_TEXT, "maxLength": LONGEST_CURSOR}), _LIMIT]
    what = "The decisions, the newest first."
    return _get("listDecisions", what, "DecisionList", parameters, "400")


def _bridges() -> Json:
    what = "The bridges, in the order of their vmIds."
    return _get("listBridges", what, "BridgeList", [_next(_WORD), _LIMIT], "400")


def _itself() -> Json:
    good = {"description": "The description.", "content": _json(_OBJECT)}
    return {
        "operationId": "getDescription",
        "summary": "This description.",
        "responses": {"200": good, "304": _UNCHANGED, **_refusals()},
    }


def _table() -> Json:
    words = "The value of next in an answer of /api/v1/decisions."
    cursor = _query("cursor", {**_TEXT, "maxLength": LONGEST_CURSOR}, words)
    good = {"description": "A table.", "content": {"text/csv": {"schema": _TEXT}}}
    return {
        "operationId": "listDecisionsAsCsv",
        "summary": "The decisions as a table; no cell is a formula.",
        "parameters": [cursor, _LIMIT],
        "responses": {"200": good, **_refusals("400")},
    }


def _approval() -> Json:
    body = {"required": True, "content": _json(_ref("Approval"))}
    return {
        "operationId": "decide",
        "summary": "Approve or refuse.",
        "parameters": [_ID, _HEADER],
        "requestBody": body,
        "responses": {
            "200": {"description": "Decided.", "content": _json(_ref("Decided"))},
            "202": {
                "description": "Counted: votes of other people are missing.",
                "content": _json(_ref("Decided")),
            },
            **_refusals("400", "404", "409", "413", "415"),
        },
    }


# -- what is answered ------------------------------------------------------------------

_ETAG: Json = {"ETag": {"description": "For If-None-Match.", "schema": _TEXT}}
_UNCHANGED: Json = {
    "description": "Nothing has changed since the ETag in If-None-Match.",
    "headers": _ETAG,
}
_REFUSALS = {
    "400": "A parameter, the body or a header is invalid.",
    "401": "Nobody is signed in.",
    "403": "This person may not do it, or another site may have sent the request.",
    "404": "Nothing is known of this event.",
    "409": "The event has changed, or cannot be decided so.",
    "413": "The body is longer than 64 KiB.",
    "415": "The body is not application/json.",
    "421": "The Host is not this machine (access.mode loopback).",
    "503": "The store cannot be reached.",
}
_ALWAYS = ("400", "401", "403", "421", "503")  # access, and the store


def _refusals(*more: str) -> Json:
    return {
        status: {"description": _REFUSALS[status], "content": _json(_ref("Error"))}
        for status in sorted({*_ALWAYS, *more})
    }


def _get(name: str, words: str, kind: str, given: list[Json], *refusals: str) -> Json:
    good = {
        "description": "The answer.",
        "headers": _ETAG,
        "content": _json(_ref(kind)),
    }
    return {
        "operationId": name,
        "summary": words,
        "parameters": given,
        "responses": {"200": good, "304": _UNCHANGED, **_refusals(*refusals)},
    }


def _json(schema: Json) -> Json:
    return {"application/json": {"schema": schema}}


def _list(words: str, name: str, kind: str) -> Json:
    more = _that(_MAYBE, "The cursor of the next answer; null: this was the last.")
    return _object(words, {name: _many(kind), "next": more})


_EVENT: Json = {
    "eventId": _TEXT,
    "version": _that(_LARGE, "The number of its last change, over all events."),
    "status": _STATUS,
    "isOpen": _that(_YES, "Whether it is pending or running."),
    "eventType": _MAYBE,
    "eventSource": _MAYBE,
    "subscription": _MAYBE,
    "resourceGroup": _MAYBE,
    "machines": _NAMES,
    "machineCount": _COUNT,
    "content": _that(_TEXT, "Its fingerprint, which a vote must name; may be empty."),
    "notBefore": _MAYBE_TIME,
    "opened": _TIME,
    "ended": _MAYBE_TIME,
    "lastTold": _that(_TIME, "When somebody last reported it."),
    "firstReportedBy": _ref("Reporter"),
    "unreported": _that(_YES, "Azure has reported it, and no bridge did in time."),
    "bridgesSay": _that(_MAYBE, "The end by the bridges, if Azure says another one."),
    "saidToBeOver": _ref_or_null("SaidToBeOver"),
    "twoReportsWithOneId": _many("Reporter"),
    "messagesNotKept": _COUNT,
    "azureStatus": _that(_MAYBE, "The EventStatus that Azure has reported."),
    "occurrence": _that(_COUNT, "How many times the event has appeared."),
    "event": _that(
        _MAYBE_OBJECT,
        "The event as IMDS shows it; in a list, with the first 100 names of Resources.",
    ),
    "approval": _ref("ApprovalState"),
}
_EVENTS: Json = {
    "EventList": _list("Events.", "events", "Event"),
    "Event": _object("An event in a list.", _EVENT),
    "EventPage": _object(
        "An event with all that is known.",
        {
            **_EVENT,
            "occurrences": _that(_many("Occurrence"), "The oldest first."),
            "outcomes": _that(_many("Outcome"), "Of all approvals that were reported."),
            "messages": _that(_many("Message"), "20, the oldest of them first."),
            "olderMessages": _that(
                _MAYBE, "The value of before; null: there are none."
            ),
            "decisions": _that(_many("Decision"), "The last 20, the newest first."),
            "record": _that(_many("RecordEntry"), "The oldest first."),
        },
    ),
    "Reporter": _object(
        "Who reported something: a bridge, or, if all is null, Azure.",
        {"vmId": _MAYBE, "vmName": _MAYBE, "resourceId": _MAYBE},
    ),
    "SaidToBeOver": _object(
        "An end by the word of others than machines in Resources, which does not count"
        " yet.",
        {"status": _TEXT, "by": _ref("Reporter"), "countsFrom": _MAYBE_TIME},
    ),
    "ApprovalState": _object(
        "Votes and the latest decision of the present occurrence.",
        {
            "votes": _many("Vote"),
            "persons": _ref_or_null("Persons"),
            "decision": _ref_or_null("Decision"),
        },
    ),
    "Vote": _object(
        "A vote.",
        {
            "person": _TEXT,
            "via": _VIA,
            "entry": _that(_MAYBE, "The entry of approvers it counts by."),
            "counts": _YES,
            "why": _that(_MAYBE, "Why it does not count."),
        },
    ),
    "Persons": _object(
        "How many people must approve.",
        {
            "wanted": _COUNT,
            "rule": _TEXT,
            "raisedBy": _that(_many("Reporter"), "Whose word has raised the number."),
        },
    ),
    "Occurrence": _object(
        "One appearance of the event, until its end.",
        {
            "status": _STATUS,
            "event": _that(_MAYBE_OBJECT, "The event as IMDS shows it."),
            "isWhole": _that(_YES, "Whether its event was not truncated."),
            "opened": _TIME,
            "ended": _MAYBE_TIME,
            "firstReportedBy": _ref("Reporter"),
            "bridgesSay": _MAYBE,
            "azure": _ref_or_null("AzureReport"),
            "machines": _that(_many("Machine"), "The machines in Resources."),
            "isByOthers": _that(_YES, "No machine in Resources has reported it."),
            "prefix": _that(_TEXT, "The prefix of the types of events; may be empty."),
            "resource": _that(_TEXT, "The resource that Azure names; may be empty."),
        },
    ),
    "AzureReport": _object(
        "The last report of Azure.",
        {
            "status": _that(_MAYBE, "The EventStatus."),
            "event": _OBJECT,
            "time": _TIME,
            "digest": _TEXT,
        },
    ),
    "Machine": _object(
        "A machine.", {"subscription": _TEXT, "group": _TEXT, "name": _TEXT}
    ),
    "Outcome": _object(
        "What a bridge made of a StartRequest.",
        {
            "outcome": _TEXT,
            "messageId": _that(_TEXT, "Of the approval; empty: of a rule."),
            "reason": _MAYBE,
            "time": _TIME,
            "reporter": _ref("Reporter"),
            "standing": _that(
                _enum("counted", "not-asked", "rule", "elsewhere"),
                "counted: for a decision of this hub; not-asked: by a bridge that the"
                " hub did not ask; rule: by a rule of a bridge; elsewhere: without this"
                " hub.",
            ),
        },
    ),
    "Message": _object(
        "A message as it came.",
        {
            "id": _TEXT,
            "source": _TEXT,
            "kind": _enum(*Kind),
            "time": _TIME,
            "enqueued": _TIME,
            "body": _OBJECT,
        },
    ),
    "RecordEntry": _object(
        "A vote, a decision or an attempt to send it.",
        {
            "time": _TIME,
            "what": _TEXT,
            "via": _TEXT,
            "person": _that(_MAYBE, "null: the hub."),
            "detail": _MAYBE,
            "decision": _that(_MAYBE, "Its id; null: a vote before there was one."),
        },
    ),
}
_DECISION: Json = {
    "id": _TEXT,
    "eventId": _TEXT,
    "eventType": _MAYBE,
    "machines": _NAMES,
    "decision": _ACTION,
    "via": _VIA,
    "state": _enum(*DecisionState),
    "by": {"type": "array", "items": _TEXT},
    "rule": _TEXT,
    "reason": _MAYBE,
    "time": _TIME,
    "outcome": _MAYBE,
    "outcomeReason": _MAYBE,
    "address": _that(_MAYBE, "Where it was sent last."),
    "overridden": _that(_YES, "It was sent although a bridge would refuse it."),
    "about": _that(_MAYBE, "The vmId that is set aside, or the offer that is dropped."),
}
_ADDRESS: Json = {
    "id": _TEXT,
    "entity": _TEXT,
    "session": _MAYBE,
    "prefix": _TEXT,
    "machines": {"type": "array", "items": _TEXT},
    "answers": _that(_YES, "A bridge there is alive, or may be."),
    "inResources": _that(_YES, "A bridge there is on a machine in Resources."),
    "older": _that(_YES, "Named by bridges that made no offer."),
    "contested": _that(_MAYBE, "Why it is not known whose it is."),
    "refusal": _that(_MAYBE, "Why a bridge there would refuse."),
    "best": _that(_YES, "The hub sends to it by itself."),
}
_OFFER: Json = {
    "id": _TEXT,
    "vmName": _TEXT,
    "vmId": _TEXT,
    "firstHeard": _MAYBE_TIME,
    "lastHeard": _MAYBE_TIME,
    "answer": _enum(*Verdict),
    "why": _MAYBE,
}
_DECISIONS: Json = {
    "DecisionList": _list("Decisions.", "decisions", "Decision"),
    "Decision": _object("A decision and its outcome.", _DECISION),
    "Approval": _object(
        "A vote, or another decision.",
        {
            "decision": _ACTION,
            "content": _that(_TEXT, "The content of the event, as it was shown."),
            "via": _VIA,
            "reason": _WORD,
            "reporter": _that(_TEXT, "The vmId to set aside."),
            "offer": _that(_TEXT, "The id of the offer to drop."),
            "address": {
                "type": "string",
                "maxLength": LONGEST_ADDRESS,
                "description": "The id of the address to send to, if it is contested.",
            },
            "override": _that(_YES, "Send it although a bridge would refuse it."),
        },
        *("via", "reason", "reporter", "offer", "address", "override"),
    ),
    "Decided": _object(
        "The result of a vote.",
        {
            "state": _enum("decided", "counted"),
            "missing": _that(_COUNT, "How many more people must approve."),
            "id": _that(_MAYBE, "The id of the decision."),
        },
    ),
    "Options": _object(
        "Which decisions are possible.",
        {
            "closed": _that(_MAYBE, "Why nothing can be decided."),
            "bridge": _ref("BridgeOptions"),
            "addresses": _that(_many("Address"), "The best one first."),
            "arm": _ref("ArmOptions"),
        },
    ),
    "BridgeOptions": _object(
        "Whether a bridge can be asked.",
        {
            "why": _that(_MAYBE, "Why not."),
            "contested": _that(_YES, "If a person chooses the address."),
            "refused": _that(_YES, "If a person overrides a bridge that would refuse."),
        },
    ),
    "Address": _object("Where an approval may be sent.", _ADDRESS),
    "ArmOptions": _object(
        "Whether Azure Resource Manager can be asked.",
        {
            "why": _that(_MAYBE, "Why not."),
            "morePersons": _that(_COUNT, "How many people more that takes."),
            "offers": _many("Offer"),
        },
    ),
    "Offer": _object("An offer in the name of a machine of the event.", _OFFER),
}
_OTHERS: Json = {
    "BridgeList": _list("Bridges.", "bridges", "Bridge"),
    "Bridge": _object(
        "A bridge, and whether it is alive.",
        {
            "vmId": _TEXT,
            "vmName": _TEXT,
            "resourceId": _MAYBE,
            "subscription": _MAYBE,
            "resourceGroup": _MAYBE,
            "version": _that(_MAYBE, "Of the program."),
            "location": _MAYBE,
            "state": _enum(*Liveness),
            "lastHeard": _TIME,
            "intervalSeconds": _that(
                {"type": ["number", "null"]}, "Between heartbeats; null: not known."
            ),
            "pending": _that(
                {"type": ["integer", "null"], "minimum": 0},
                "Deliveries that wait, by its last heartbeat.",
            ),
            "dead": _that(
                {"type": ["integer", "null"], "minimum": 0},
                "Its dead letters, by its last heartbeat.",
            ),
            "approvals": _that(
                _MAYBE_OBJECT,
                "Where it takes approvals, by which rules: data.approvals of the event"
                " bridge.started.",
            ),
        },
    ),
    "Error": _object(
        "Why a request was refused.",
        {
            "error": _TEXT,
            "needs": _that(
                _enum("address", "override"),
                "Of 409: what the request lacks. Left out if it lacks nothing.",
            ),
            "event": {
                **_ref_or_null("Event"),
                "description": "Of 409: the event as it is now, if it has changed.",
            },
        },
        *("needs", "event"),
    ),
}
