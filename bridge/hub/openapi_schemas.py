"""The schemas of the API's answers, for ``openapi``. Pure.

Every member of an answer is always there unless it is said to be left out, and has one
type; each object has a name, for generators of clients.
"""

from typing import Any

from bridge.hub.bridges import Liveness
from bridge.hub.decisions import DecisionState
from bridge.hub.facts import Kind
from bridge.hub.targets import Verdict
from bridge.hub.voting import ACTIONS, CHANNELS

Json = dict[str, Any]

LONGEST_WORD = 1024  # of a parameter, and of a reason
LONGEST_CURSOR = 256  # of decisions
LONGEST_ADDRESS = 64

TEXT: Json = {"type": "string"}
_MAYBE: Json = {"type": ["string", "null"]}
YES: Json = {"type": "boolean"}
_COUNT: Json = {"type": "integer", "minimum": 0}
_LARGE: Json = {"type": "integer", "format": "int64", "minimum": 0}
_TIME: Json = {"type": "string", "format": "date-time"}
_MAYBE_TIME: Json = {"type": ["string", "null"], "format": "date-time"}
OBJECT: Json = {"type": "object", "additionalProperties": True}
_MAYBE_OBJECT: Json = {"type": ["object", "null"], "additionalProperties": True}
_NAMES: Json = {
    "type": "array",
    "items": TEXT,
    "maxItems": 100,
    "description": "The first 100 names.",
}
WORD: Json = {"type": "string", "maxLength": LONGEST_WORD}


def _enum(*words: str) -> Json:
    return {"type": "string", "enum": list(words)}


def ref(name: str) -> Json:
    """Return a reference to a schema."""
    return {"$ref": f"#/components/schemas/{name}"}


def _many(name: str) -> Json:
    return {"type": "array", "items": ref(name)}


def _ref_or_null(name: str) -> Json:
    return {"anyOf": [ref(name), {"type": "null"}]}


def _that(schema: Json, words: str) -> Json:
    return {**schema, "description": words}


def _object(words: str, properties: Json, *optional: str) -> Json:
    return {
        "type": "object",
        "description": words,
        "properties": properties,
        "required": [name for name in properties if name not in optional],
    }


def _list(words: str, name: str, kind: str) -> Json:
    more = _that(_MAYBE, "The cursor of the next answer; null: this was the last.")
    return _object(words, {name: _many(kind), "next": more})


STATUS = _enum(
    *(kind for kind in Kind if kind not in ("updated", "outcome")), "unknown"
)
_VIA = _enum(*CHANNELS)
_ACTION = _enum(*ACTIONS)


_EVENT: Json = {
    "eventId": TEXT,
    "version": _that(_LARGE, "The number of its last change, over all events."),
    "status": STATUS,
    "isOpen": _that(YES, "Whether it is pending or running."),
    "eventType": _MAYBE,
    "eventSource": _MAYBE,
    "subscription": _MAYBE,
    "resourceGroup": _MAYBE,
    "machines": _NAMES,
    "machineCount": _COUNT,
    "content": _that(TEXT, "Its fingerprint, which a vote must name; may be empty."),
    "notBefore": _MAYBE_TIME,
    "opened": _TIME,
    "ended": _MAYBE_TIME,
    "lastTold": _that(_TIME, "When somebody last reported it."),
    "firstReportedBy": ref("Reporter"),
    "unreported": _that(YES, "Azure has reported it, and no bridge did in time."),
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
    "approval": ref("ApprovalState"),
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
        {"status": TEXT, "by": ref("Reporter"), "countsFrom": _MAYBE_TIME},
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
            "person": TEXT,
            "via": _that(
                TEXT,
                "bridge or arm; of a vote on something else, such as set-aside, what"
                " it is and whom it is about.",
            ),
            "entry": _that(_MAYBE, "The entry of approvers it counts by."),
            "counts": YES,
            "why": _that(_MAYBE, "Why it does not count."),
        },
    ),
    "Persons": _object(
        "How many people must approve.",
        {
            "wanted": _COUNT,
            "rule": TEXT,
            "raisedBy": _that(_many("Reporter"), "Whose word has raised the number."),
        },
    ),
    "Occurrence": _object(
        "One appearance of the event, until its end.",
        {
            "status": STATUS,
            "event": _that(_MAYBE_OBJECT, "The event as IMDS shows it."),
            "isWhole": _that(YES, "Whether its event was not truncated."),
            "opened": _TIME,
            "ended": _MAYBE_TIME,
            "firstReportedBy": ref("Reporter"),
            "bridgesSay": _MAYBE,
            "azure": _ref_or_null("AzureReport"),
            "machines": _that(_many("Machine"), "The machines in Resources."),
            "isByOthers": _that(YES, "No machine in Resources has reported it."),
            "prefix": _that(TEXT, "The prefix of the types of events; may be empty."),
            "source": _that(TEXT, "The source of the events; may be empty."),
            "resource": _that(TEXT, "The resource that Azure names; may be empty."),
        },
    ),
    "AzureReport": _object(
        "The last report of Azure.",
        {
            "status": _that(_MAYBE, "The EventStatus."),
            "event": OBJECT,
            "time": _TIME,
            "digest": TEXT,
        },
    ),
    "Machine": _object(
        "A machine.", {"subscription": TEXT, "group": TEXT, "name": TEXT}
    ),
    "Outcome": _object(
        "What a bridge made of a StartRequest.",
        {
            "outcome": TEXT,
            "messageId": _that(TEXT, "Of the approval; empty: of a rule."),
            "reason": _MAYBE,
            "time": _TIME,
            "reporter": ref("Reporter"),
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
            "id": TEXT,
            "source": TEXT,
            "kind": _enum(*Kind),
            "time": _TIME,
            "enqueued": _TIME,
            "body": OBJECT,
        },
    ),
    "RecordEntry": _object(
        "A vote, a decision or an attempt to send it.",
        {
            "time": _TIME,
            "what": TEXT,
            "via": TEXT,
            "person": _that(_MAYBE, "null: the hub."),
            "detail": _MAYBE,
            "decision": _that(_MAYBE, "Its id; null: a vote before there was one."),
        },
    ),
}
_DECISION: Json = {
    "id": TEXT,
    "eventId": TEXT,
    "eventType": _MAYBE,
    "machines": _NAMES,
    "decision": _ACTION,
    "via": _VIA,
    "state": _enum(*DecisionState),
    "by": {"type": "array", "items": TEXT},
    "rule": TEXT,
    "reason": _MAYBE,
    "time": _TIME,
    "outcome": _MAYBE,
    "outcomeReason": _MAYBE,
    "address": _that(_MAYBE, "Where it was sent last."),
    "overridden": _that(YES, "It was sent although a bridge would refuse it."),
    "about": _that(_MAYBE, "The vmId that is set aside, or the offer that is dropped."),
}
_ADDRESS: Json = {
    "id": TEXT,
    "entity": TEXT,
    "session": _MAYBE,
    "prefix": TEXT,
    "machines": {"type": "array", "items": TEXT},
    "answers": _that(YES, "A bridge there is alive, or may be."),
    "inResources": _that(YES, "A bridge there is on a machine in Resources."),
    "older": _that(YES, "Named by bridges that made no offer."),
    "contested": _that(_MAYBE, "Why it is not known whose it is."),
    "refusal": _that(_MAYBE, "Why a bridge there would refuse."),
    "best": _that(YES, "The hub sends to it by itself."),
}
_OFFER: Json = {
    "id": TEXT,
    "vmName": TEXT,
    "vmId": TEXT,
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
            "content": _that(TEXT, "The content of the event, as it was shown."),
            "via": _VIA,
            "reason": WORD,
            "reporter": _that(TEXT, "The vmId to set aside."),
            "offer": _that(TEXT, "The id of the offer to drop."),
            "address": {
                "type": "string",
                "maxLength": LONGEST_ADDRESS,
                "description": "The id of the address to send to, if it is contested.",
            },
            "override": _that(YES, "Send it although a bridge would refuse it."),
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
            "bridge": ref("BridgeOptions"),
            "addresses": _that(_many("Address"), "The best one first."),
            "arm": ref("ArmOptions"),
        },
    ),
    "BridgeOptions": _object(
        "Whether a bridge can be asked.",
        {
            "why": _that(_MAYBE, "Why not."),
            "contested": _that(YES, "If a person chooses the address."),
            "refused": _that(YES, "If a person overrides a bridge that would refuse."),
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
            "vmId": TEXT,
            "vmName": TEXT,
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
            "error": TEXT,
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
_SECONDS: Json = {"type": "number", "minimum": 0}
_MAYBE_SECONDS: Json = {"type": ["number", "null"], "minimum": 0}
_CUT = _that(YES, "Whether the store holds more than was read.")
_NUMBERS: Json = {
    "noticeSeconds": _that(_MAYBE_SECONDS, "From announcement to NotBefore: median."),
    "decisionSeconds": _that(_MAYBE_SECONDS, "From announcement to approval: median."),
    "downSeconds": _that(_SECONDS, "Down, by whatever was seen of it."),
    "pausedSeconds": _that(_SECONDS, "Stood still."),
    "plannedSeconds": _that(_SECONDS, "Those of both that were planned."),
    "unplannedSeconds": _that(_SECONDS, "Those of both that were not."),
}
_REPORTS: Json = {
    "TimeLine": _object(
        "What happened to a machine, the oldest first.",
        {"entries": _many("TimeLineEntry"), "outages": _many("Outage"), "cut": _CUT},
    ),
    "TimeLineEntry": _object(
        "One line of a time line.",
        {
            "time": _TIME,
            "what": _that(TEXT, "Such as announced, started, silent, back."),
            "words": _MAYBE,
            "seconds": _that(_MAYBE_SECONDS, "Its length; of announced: the notice."),
            "eventId": _MAYBE,
        },
    ),
    "Outage": _object(
        "A time in which the machine was down or paused.",
        {
            "time": _TIME,
            "until": _that(_MAYBE_TIME, "null: it goes on."),
            "seconds": _SECONDS,
            "how": _enum("paused", "silent", "unavailable", "stopped"),
            "planned": _that({"type": ["boolean", "null"]}, "null: not known."),
            "why": _that(TEXT, "Such as: planned: host maintenance."),
            "eventId": _MAYBE,
        },
    ),
    "Report": _object(
        "The numbers of a period.",
        {
            "from": _TIME,
            "to": _TIME,
            "totals": ref("ReportTotals"),
            "rows": _many("ReportRow"),
            "cut": _CUT,
        },
    ),
    "ReportTotals": _object(
        "The numbers of the fleet.",
        {"events": _COUNT, "machines": _COUNT, "approved": _COUNT, **_NUMBERS},
    ),
    "ReportRow": _object(
        "The numbers of one machine and one type of event.",
        {
            "machine": TEXT,
            "resourceGroup": _MAYBE,
            "subscription": _MAYBE,
            "eventType": _that(_MAYBE, "null: outages that belong to no event."),
            "events": _COUNT,
            **_NUMBERS,
            "by": _that({"type": "array", "items": TEXT}, "Who decided."),
        },
    ),
}
SCHEMAS: Json = {**_EVENTS, **_DECISIONS, **_OTHERS, **_REPORTS}
