"""The description of the API, OpenAPI 3.1. Pure.

It has all parameters with their bounds. What is asked and answered is made from the
types in ``answers``, ``timeline`` and ``report``.
"""

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from bridge import __version__
from bridge.hub import answers, choices
from bridge.hub.answers import LONGEST_CURSOR, LONGEST_WORD, STATUSES
from bridge.hub.bridges import Liveness
from bridge.hub.choices import KEY_STATES, WAITING, KeyList, KeysAsked, KeysDecided
from bridge.hub.report import Report
from bridge.hub.timeline import TimeLine
from bridge.hub.view_rows import PAGE

Json = dict[str, Any]

TEXT: Json = {"type": "string"}
OBJECT: Json = {"type": "object"}
YES: Json = {"type": "boolean"}
WORD: Json = {"type": "string", "maxLength": LONGEST_WORD}
STATUS: Json = {"type": "string", "enum": list(STATUSES)}


def document() -> Json:
    """Return the description."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Hub of scheduled-events-bridge",
            "version": __version__,
            "description": "Events, bridges and decisions of a fleet, as JSON.",
        },
        "paths": _paths(),
        "components": {"schemas": schemas()},
    }


def _paths() -> Json:
    cursor = _cursor({**TEXT, "maxLength": LONGEST_CURSOR})
    before = _query("before", WORD, "The value of olderMessages: messages before it.")
    machine = [
        _query("name", WORD, "The name of the machine."),
        _query("resourceGroup", WORD, "Its resource group."),
        _query("subscription", WORD, "Its subscription."),
    ]
    options = _get(
        "getApprovalOptions",
        "Which decisions are possible for an event, and why others are not.",
        "Options",
        [_ID],
        "404",
    )
    keys = _get(
        "listKeys",
        "The keys that bridges have told and that are not in hub.keys, by their ids.",
        "KeyList",
        [
            _query(
                "state",
                {**TEXT, "enum": list(KEY_STATES), "default": WAITING},
                "waiting: they are not pinned; accepted: people have accepted them.",
            ),
            _query("match", WORD, "Only of machines whose resource id fits a glob."),
            _cursor(WORD),
            _LIMIT,
        ],
    )
    bridges = _get(
        "listBridges",
        "The bridges, in the order of their vmIds.",
        "BridgeList",
        [
            _query(
                "state", {**TEXT, "enum": list(Liveness)}, "Only bridges in this state."
            ),
            _query("q", WORD, "The beginning of the name of a bridge's machine."),
            _cursor(WORD),
            _LIMIT,
        ],
    )
    approval = _post(
        *("decide", "Approve or refuse.", "Approval", "Decided", "404", "409"),
        votes="Counted: votes of other people are missing.",
    )
    approval["parameters"] = [_ID, _HEADER]
    decide_keys = _post(
        "decideKeys",
        "Accept keys that wait, or withdraw accepted ones.",
        *("KeysAsked", "KeysDecided", "409"),
        done="At least one is done.",
        votes="Counted: others are missing.",
    )
    forget = _post(
        "decideBridge",
        "Say that a bridge is gone, until it is heard again.",
        *("BridgeAsked", "BridgeDecided", "404"),
    )
    return {
        "/api/v1/events": _get(
            "listEvents",
            "The events, in the order in which they changed.",
            "EventList",
            [*_FILTERS, _cursor(_NUMBER), _LIMIT],
        ),
        "/api/v1/events/{id}": _get(
            "getEvent",
            "One event with its messages, outcomes, decisions and record.",
            "EventPage",
            [_ID, before],
            "404",
        ),
        "/api/v1/events/{id}/approval": {**options, "post": approval},
        "/api/v1/decisions": _get(
            "listDecisions",
            "The decisions, the newest first.",
            "DecisionList",
            [cursor, _LIMIT],
        ),
        "/api/v1/decisions.csv": _table(
            "listDecisionsAsCsv", "The decisions", [cursor, _LIMIT]
        ),
        "/api/v1/bridges": {**bridges, "post": forget},
        "/api/v1/hub": _get(
            "getHub",
            "What the hub cannot do now, so that something may be missing; who asks.",
            "HubState",
        ),
        "/api/v1/keys": {**keys, "post": decide_keys},
        "/api/v1/timeline": _get(
            "getTimeLine",
            "What happened to a machine: why was it down, how long, planned or not.",
            "TimeLine",
            [*machine, *_period("since", "until")],
        ),
        "/api/v1/report": _get(
            "getReport",
            "Numbers for each machine and type of event, in at most 400 days.",
            "Report",
            _period("from", "to"),
        ),
        "/api/v1/report.csv": _table(
            "getReportAsCsv", "The rows of a report", _period("from", "to")
        ),
        "/api/v1/openapi.json": _get("getDescription", "This description."),
    }


# -- the types of answers --------------------------------------------------------------


_TYPES = (
    *(answers.Error, choices.Approval, choices.Decided, choices.Options),
    *(answers.EventList, answers.EventPage, answers.DecisionList, answers.BridgeList),
    *(answers.HubState, choices.BridgeAsked, choices.BridgeDecided),
    *(TimeLine, Report, KeyList, KeysAsked, KeysDecided),
)
_REF = "#/components/schemas/{name}"
_OF_REPORT = ("ReportRow", _REF.format(name="ReportRow"))
_NULL = {"type": "null"}
_ATTRIBUTE = re.compile(r"^ {8}(\w+): (.+(?:\n {12}.+)*)", re.MULTILINE)
_UNDERLINED = re.compile("_([a-z])")


def ref(name: str) -> Json:
    """Return a reference to a schema."""
    return {"$ref": _REF.format(name=name)}


def schemas() -> Json:
    """Return the schema of each type by its name, as generators of clients need it."""
    _, found = msgspec.json.schema_components(_TYPES, ref_template=_REF)
    docs = {name: _docs(one["description"]) for name, one in found.items()}
    docs["EventPage"] |= docs["EventRow"]
    for name, one in found.items():
        one["description"] = one["description"].partition("\n")[0]
        del one["title"]
        for key, words in docs[name].items():
            one["properties"][key]["description"] = words
    return {_plain(name): _plain(one) for name, one in found.items()}


def _docs(docstring: str) -> dict[str, str]:
    """Return what a docstring says of each member, by the member's name in JSON."""
    return {
        _UNDERLINED.sub(lambda found: found[1].upper(), name): _sentence(words)
        for name, words in _ATTRIBUTE.findall(docstring)
    }


def _sentence(words: str) -> str:
    text = " ".join(words.split())
    is_value = text.partition(" ")[0].endswith(":")  # "null: not known"
    return text if is_value else f"{text[:1].upper()}{text[1:]}"


def _plain(schema: Any) -> Any:
    """Return a schema in which a member has one type, and an object a name of its own.

    Rows of lists are named without "Row": an EventRow is an Event.
    """
    if isinstance(schema, str):
        return schema if schema in _OF_REPORT else schema.removesuffix("Row")
    if isinstance(schema, list | tuple):
        return [_plain(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    options = schema.get("anyOf", [])
    if len(options) == 2 and options[1] == _NULL and "type" in options[0]:
        rest = {key: one for key, one in schema.items() if key != "anyOf"}
        schema = {**options[0], **rest, "type": [options[0]["type"], "null"]}
    if "enum" in schema:
        schema = {"type": "string", **schema}
    return {key: _plain(one) for key, one in schema.items()}


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
    "schema": TEXT,
}
_HEADER: Json = {
    "name": "X-Sebridge",
    "in": "header",
    "required": True,
    "description": "Shows that no page of another site has sent the request.",
    "schema": {"type": "string", "const": "1"},
}
_WHEN = "RFC 3339, or a day of UTC such as 2026-11-27."
_FILTERS = [
    _query("open", YES, "true: pending or running events; false: those that are over."),
    _query("status", STATUS, "Only events of this status."),
    _query("type", WORD, "Only events of this EventType."),
    _query("source", WORD, "Only events of this EventSource."),
    _query("resourceGroup", WORD, "Only events of machines of this resource group."),
    _query("q", WORD, "The beginning of an EventId or of a machine's name."),
    _query("since", WORD, f"Only events that were not over by then: {_WHEN}"),
    _query("until", WORD, f"Only events that were known before: {_WHEN}"),
]
_NUMBER: Json = {"type": "string", "pattern": "^[0-9]{1,19}$"}  # up to 2**62


def _cursor(schema: Json) -> Json:
    return _query("cursor", schema, "The value of next in the previous answer.")


def _period(begin: str, end: str) -> list[Json]:
    return [
        _query(begin, WORD, f"Left out: a week before {end}. {_WHEN}"),
        _query(end, WORD, f"Left out: now. A day is included. {_WHEN}"),
    ]


def _post(  # noqa: PLR0913 - each is a word of it
    name: str,
    words: str,
    asked: str,
    decided: str,
    *refusals: str,
    done: str = "It is done.",
    votes: str = "",
) -> Json:
    """Return the description of a POST.

    Args:
        name: of the operation.
        words: what it does.
        asked: the name of the schema of its body.
        decided: that of its answer.
        refusals: the statuses besides those of each answer.
        done: what 200 says.
        votes: when it is only counted (202); "" = never.
    """
    content = _json(ref(decided))
    good = {"200": {"description": done, "content": content}}
    if votes:
        good["202"] = {"description": votes, "content": content}
    return {
        "operationId": name,
        "summary": words,
        "parameters": [_HEADER],
        "requestBody": {"required": True, "content": _json(ref(asked))},
        "responses": {**good, **_refusals("413", "415", *refusals)},
    }


# -- what is answered ------------------------------------------------------------------

_ETAG: Json = {"ETag": {"description": "For If-None-Match.", "schema": TEXT}}
_UNCHANGED: Json = {
    "description": "Nothing has changed since the ETag in If-None-Match.",
    "headers": _ETAG,
}
_REFUSALS = {
    "400": "A parameter, the body or a header is invalid.",
    "401": "Nobody is signed in.",
    "403": "This person may not do it, or another site may have sent the request.",
    "404": "Nothing is known of it.",
    "409": "The event has changed, or cannot be decided so.",
    "413": "The body is longer than 64 KiB.",
    "415": "The body is not application/json.",
    "421": "The Host is not this machine (access.mode loopback).",
    "503": "The store cannot be reached.",
}
_ALWAYS = ("400", "401", "403", "421", "503")  # access, and the store


def _refusals(*more: str) -> Json:
    return {
        status: {"description": _REFUSALS[status], "content": _json(ref("Error"))}
        for status in sorted({*_ALWAYS, *more})
    }


def _get(
    name: str, words: str, kind: str = "", given: Sequence[Json] = (), *refusals: str
) -> Json:
    """Return the description of a GET.

    Args:
        name: of the operation.
        words: what it answers.
        kind: the name of the answer's schema; "" = any object.
        given: the parameters.
        refusals: the statuses besides those of each answer.
    """
    content = _json(ref(kind) if kind else OBJECT)
    good = {"description": "The answer.", "headers": _ETAG, "content": content}
    more = {"304": _UNCHANGED, **_refusals(*refusals)}
    return _operation(name, words, given, {"200": good, **more})


def _table(name: str, what: str, given: Sequence[Json]) -> Json:
    good = {"description": "A table.", "content": {"text/csv": {"schema": TEXT}}}
    words = f"{what} as a table; no cell is a formula."
    return _operation(name, words, given, {"200": good, **_refusals()})


def _operation(name: str, words: str, given: Sequence[Json], found: Json) -> Json:
    parameters = {"parameters": list(given)} if given else {}
    about = {"operationId": name, "summary": words}
    return {"get": {**about, **parameters, "responses": found}}


def _json(schema: Json) -> Json:
    return {"application/json": {"schema": schema}}
