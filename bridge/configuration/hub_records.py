"""The data of a hub's events, for the JSON Schema."""

from bridge.configuration.schema_parts import (
    AT,
    EVENT_ID,
    LINK,
    TEXT,
    TEXT_OR_NULL,
    TIME,
    VM_ID,
    WHOLE,
    Json,
    field,
    record,
    ref,
)
from bridge.events.alarm import BACK, SILENT, SLOW, UNREPORTED

APPROVALS = ("decided", "refused", "done", "failed", "void")

HUB_STEPS = [
    SILENT,
    BACK,
    UNREPORTED,
    SLOW,
    *(f"approval.{word}" for word in APPROVALS),
]

HUB_DEFINITIONS: dict[str, Json] = {
    "HubReporter": record(
        "HubReporter",
        {
            "vmName": field(TEXT, "The address of the hub, or its machine.", "hub-1"),
            "version": field(TEXT, "The version of the hub.", "0.1.0"),
        },
        description="The hub that publishes the event.",
    ),
}


def _objects(description: str, example: Json) -> Json:
    return field({"type": "array", "items": {"type": "object"}}, description, [example])


HUB = record(
    "HubData",
    {
        "observedAt": field(TIME, "When this hub observed it.", AT),
        "headline": field(TEXT, "A summary in one line.", "1 bridge is silent: a"),
        "reason": field(TEXT_OR_NULL, "The reason, as text.", "no answer", None),
        "reporter": field(
            ref("HubReporter"),
            "The hub that publishes the event.",
            {"vmName": "hub-1", "version": "0.1.0"},
        ),
        "link": LINK,
        "count": field(
            WHOLE, "The number of bridges or events that the event is about.", 1
        ),
        "bridges": _objects(
            "The bridges, at most 50.",
            {"vmId": VM_ID, "vmName": "web-1", "heard": AT, "state": "silent"},
        ),
        "stillSilent": field(WHOLE, "How many bridges are silent now.", 1),
        "events": _objects(
            "The events that no bridge has reported, at most 50.",
            {"eventId": EVENT_ID, "eventType": "Reboot", "machines": ["web-1"]},
        ),
        "messages": _objects(
            "The messages that took too long to be stored, at most 50.",
            {"source": "bridges", "heard": AT},
        ),
        "eventId": field(TEXT, "The event that was decided on.", EVENT_ID),
        "decision": field(TEXT, "The id of the decision.", "5d41402abc4b2a76"),
        "via": field({"enum": ["bridge", "arm"]}, "Who gets the decision.", "bridge"),
        "detail": field(TEXT, "The outcome, as text.", "rejected: HTTP 400"),
        "by": field(TEXT_OR_NULL, "Who decided; null: the hub.", "ann", None),
    },
    optional=(
        *("link", "count", "bridges", "stillSilent", "events", "messages"),
        *("eventId", "decision", "via", "detail", "by"),
    ),
)
