"""The JSON Schema of an approval message."""

from bridge.configuration.schema_parts import (
    AT,
    DRAFT,
    EVENT_ID,
    IMDS_EVENT,
    PREFIX,
    TEXT_OR_NULL,
    TIME_OR_NULL,
    Json,
    field,
    record,
    ref,
)

_ENTRIES = [{"EventId": EVENT_ID}]
_BODY = {
    "StartRequests": field(
        {
            "type": "array",
            "minItems": 1,
            "maxItems": 100,
            "items": ref("StartRequest"),
        },
        "The events that Azure may start, in the format of IMDS.",
        _ENTRIES,
    )
}
_CLAIMS = {
    "approvedBy": field(
        TEXT_OR_NULL, "Who approved. It is recorded, and not checked.", "ops"
    ),
    "reason": field(TEXT_OR_NULL, "Why. It is recorded.", "drained"),
    "expiresAt": field(
        TIME_OR_NULL,
        "A limit: after this time nothing is sent to IMDS. Seconds may be left out.",
        AT,
    ),
    "approvedEvent": field(
        {"type": ["object", "null"]},
        "A limit: the event as the approver saw it. A worse event is denied.",
        IMDS_EVENT,
    ),
}
_START_REQUEST = record(
    "StartRequest",
    {
        "EventId": field(
            {"type": "string", "pattern": r"\S", "maxLength": 1024},
            "The event, as the bridge published it.",
            EVENT_ID,
        )
    },
)
_CLOUD_EVENT = record(
    "ApprovalEvent",
    {
        "specversion": field({"const": "1.0"}, "The version of CloudEvents.", "1.0"),
        "id": field(
            {"type": "string", "minLength": 1}, "The id of the approval.", "m-1"
        ),
        "source": field(
            {"type": "string", "minLength": 1}, "The sender.", "/contoso/approver"
        ),
        "type": field(
            {"type": "string", "pattern": rf"^{PREFIX}\.startrequest\.v1$"},
            "The type of an approval, after the bridge's events.type_prefix.",
            "sebridge.startrequest.v1",
        ),
        "data": field(
            ref("ApprovalData"), "The approved events.", {"StartRequests": _ENTRIES}
        ),
    },
    description="As a structured CloudEvent, which may have more attributes.",
)


def approval() -> Json:
    """Return the schema of an approval message's body: plain or as a CloudEvent."""
    definitions = [
        record(
            "ApprovalBody",
            {**_BODY, **_CLAIMS},
            _CLAIMS,
            "In the format of IMDS, with claims and limits beside StartRequests.",
        ),
        _CLOUD_EVENT,
        record("ApprovalData", {**_BODY, **_CLAIMS}, _CLAIMS),
        _START_REQUEST,
    ]
    return {
        "$schema": DRAFT,
        "$id": "urn:sebridge:schema:approval:v1",
        "title": "Approval",
        "description": (
            "The body of a message to the approval entity. The case of letters in the "
            "names of StartRequests, EventId, claims and limits does not matter. A "
            "member that looks like another limit makes the message invalid."
        ),
        "anyOf": [ref("ApprovalBody"), ref("ApprovalEvent")],
        "$defs": {found["title"]: found for found in definitions},
    }
