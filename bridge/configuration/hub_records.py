"""The data of what a hub tells, for the JSON Schema."""

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
    record,
    ref,
    said,
)
from bridge.events.alarm import BACK, SILENT, UNREPORTED

APPROVALS = ("decided", "refused", "done", "failed", "void")

HUB_STEPS = [SILENT, BACK, UNREPORTED, *(f"approval.{word}" for word in APPROVALS)]

HUB_DEFINITIONS: dict[str, Json] = {
    "HubReporter": record(
        "HubReporter",
        {
            "vmName": said(TEXT, "The address of the hub, or its machine.", "hub-1"),
            "version": said(TEXT, "The version of the hub.", "0.1.0"),
        },
        description="The hub that tells.",
    ),
}


def _objects(description: str, example: Json) -> Json:
    return said({"type": "array", "items": {"type": "object"}}, description, [example])


HUB = record(
    "HubData",
    {
        "observedAt": said(TIME, "When this hub told it.", AT),
        "headline": said(TEXT, "One line that says it all.", "1 bridge is silent: a"),
        "reason": said(TEXT_OR_NULL, "The reason, as text.", "no answer", None),
        "reporter": said(
            ref("HubReporter"),
            "The hub that tells.",
            {"vmName": "hub-1", "version": "0.1.0"},
        ),
        "link": LINK,
        "count": said(WHOLE, "How many bridges or events it is about.", 1),
        "bridges": _objects(
            "The bridges, at most 50.",
            {"vmId": VM_ID, "vmName": "web-1", "heard": AT, "state": "silent"},
        ),
        "stillSilent": said(WHOLE, "How many bridges are silent now.", 1),
        "events": _objects(
            "The events that no bridge told of, at most 50.",
            {"eventId": EVENT_ID, "eventType": "Reboot", "machines": ["web-1"]},
        ),
        "eventId": said(TEXT, "The event that was decided on.", EVENT_ID),
        "decision": said(TEXT, "The id of the decision.", "5d41402abc4b2a76"),
        "via": said({"enum": ["bridge", "arm"]}, "The way it goes.", "bridge"),
        "detail": said(TEXT, "What became of it.", "rejected: HTTP 400"),
        "by": said(TEXT_OR_NULL, "Who decided; null: the hub.", "ann", None),
    },
    optional=(
        *("link", "count", "bridges", "stillSilent", "events"),
        *("eventId", "decision", "via", "detail", "by"),
    ),
)
