"""The JSON Schema of an approval message, in words."""

from bridge.configuration.schema_parts import (
    AT,
    DRAFT,
    EVENT_ID,
    IMDS_EVENT,
    PREFIX,
    TEXT_OR_NULL,
    TIME_OR_NULL,
    Json,
    record,
    ref,
    said,
)

_ENTRIES = [{"EventId": EVENT_ID}]
_BODY = {
    "StartRequests": said(
        {
            "type": "array",
            "minItems": 1,
            "maxItems": 100,
            "items": ref("StartRequest"),
        },
        "The events that may start, as IMDS takes them.",
        _ENTRIES,
    )
}
_CLAIMS = {
    "approvedBy": said(
        TEXT_OR_NULL, "Who approved: for the record, and not checked.", "ops"
    ),
    "reason": said(TEXT_OR_NULL, "Why: for the record.", "drained"),
    "expiresAt": said(TIME_OR_NULL, "After it nothing is sent to IMDS.", AT),
    "approvedEvent": said(
        {"type": ["object", "null"]},
        "The event as the approver saw it: if it has become worse, it is denied.",
        IMDS_EVENT,
    ),
}
_START_REQUEST = record(
    "StartRequest",
    {
        "EventId": said(
            {"type": "string", "pattern": r"\S", "maxLength": 1024},
            "The event, as it was announced.",
            EVENT_ID,
        )
    },
)
_CLOUD_EVENT = record(
    "ApprovalEvent",
    {
        "specversion": said({"const": "1.0"}, "The version of CloudEvents.", "1.0"),
        "id": said({"type": "string", "minLength": 1}, "Of this approval.", "m-1"),
        "source": said(
            {"type": "string", "minLength": 1}, "Who sends it.", "/contoso/approver"
        ),
        "type": said(
            {"type": "string", "pattern": rf"^{PREFIX}\.startrequest\.v1$"},
            "An approval, behind events.type_prefix of the bridge.",
            "sebridge.startrequest.v1",
        ),
        "data": said(
            ref("ApprovalData"), "What is approved.", {"StartRequests": _ENTRIES}
        ),
    },
    description="As a structured CloudEvent, which may say more.",
)


def approval() -> Json:
    """Return the schema of an approval message's body, in its two written forms."""
    definitions = [
        record("ApprovalBody", _BODY, description="As IMDS takes it."),
        _CLOUD_EVENT,
        record("ApprovalData", {**_BODY, **_CLAIMS}, _CLAIMS),
        _START_REQUEST,
    ]
    return {
        "$schema": DRAFT,
        "$id": "urn:sebridge:schema:approval:v1",
        "title": "Approval",
        "description": "What is sent to the approval entity.",
        "anyOf": [ref("ApprovalBody"), ref("ApprovalEvent")],
        "$defs": {found["title"]: found for found in definitions},
    }
