"""The data of each kind of event, for the JSON Schema."""

from bridge.configuration.schema_parts import (
    AT,
    EVENT_ID,
    GROUP,
    IMDS_EVENT,
    IMDS_MEANINGS,
    LINK,
    TEXT,
    TEXT_OR_NULL,
    TEXTS,
    TIME,
    TIME_OR_NULL,
    VM_ID,
    WHOLE,
    WHOLE_OR_NULL,
    YES_NO_OR_NULL,
    Json,
    or_null,
    record,
    ref,
    said,
)
from bridge.events.vocabulary import TransitionKind
from bridge.telemetry.metrics import COMMAND_OUTCOMES, OUTCOMES

_OBSERVED_AT = said(TIME, "When this bridge observed it.", AT)


_TRUNCATED = said(
    TEXTS,
    "Fields that were left out to stay within 60 KiB.",
    ["previous"],
    ["Resources"],
)


DEFINITIONS = {
    "Reporter": record(
        "Reporter",
        {
            "vmName": said(TEXT_OR_NULL, "The name of the VM in Azure.", "web-1"),
            "vmId": said(TEXT_OR_NULL, "The id of the VM.", VM_ID),
            "resourceId": said(
                TEXT_OR_NULL,
                "The resource id of the VM.",
                f"{GROUP}/providers/Microsoft.Compute/virtualMachines/web-1",
            ),
            "location": said(TEXT_OR_NULL, "The Azure region.", "westeurope"),
            "vmScaleSetName": said(
                TEXT_OR_NULL, "The scale set of the VM.", "web", None
            ),
            "version": said(TEXT, "The version of the bridge.", "0.1.0"),
        },
        description="The VM whose bridge publishes. Others may publish the same event.",
    ),
    "ImdsEvent": record(
        "ImdsEvent",
        {
            name: said(TEXT if name == "EventId" else {}, words, IMDS_EVENT[name])
            for name, words in IMDS_MEANINGS.items()
        },
        optional=set(IMDS_MEANINGS) - {"EventId"},
        description="The event as IMDS shows it, including fields not known yet.",
    ),
    "ApprovalRequest": record(
        "ApprovalRequest",
        {
            "messageId": said(TEXT_OR_NULL, "The MessageId.", "m-1"),
            "enqueuedAt": said(
                TIME_OR_NULL, "When the broker received the message.", AT
            ),
            "approvedBy": said(
                TEXT_OR_NULL, "Who approved, as the sender claims.", "ops"
            ),
            "reason": said(TEXT_OR_NULL, "Why, as the sender claims.", "drained", None),
            "expiresAt": said(TIME_OR_NULL, "When the approval expires.", AT, None),
        },
        description="The approval message.",
    ),
}


_REPORTER = said(
    ref("Reporter"),
    "The VM whose bridge publishes.",
    {
        "vmName": "web-1",
        "vmId": VM_ID,
        "resourceId": f"{GROUP}/providers/Microsoft.Compute/virtualMachines/web-1",
        "location": "westeurope",
        "vmScaleSetName": None,
        "version": "0.1.0",
    },
)


_REQUEST = said(
    ref("ApprovalRequest"),
    "The approval message.",
    {
        "messageId": "m-1",
        "enqueuedAt": AT,
        "approvedBy": "ops",
        "reason": None,
        "expiresAt": None,
    },
)


_SCHEDULED_EVENT = record(
    "ScheduledEventData",
    {
        "transition": said(
            {"enum": [kind.value for kind in TransitionKind]},
            "The step of the event.",
            "scheduled",
        ),
        "event": said(
            ref("ImdsEvent"),
            "The event; if it is gone, as it was last seen.",
            IMDS_EVENT,
        ),
        "previous": said(
            or_null("ImdsEvent"),
            "The event before this step; null at first sight.",
            None,
            IMDS_EVENT,
        ),
        "changes": said(
            TEXTS, "The fields that changed, sorted.", ["EventStatus", "NotBefore"], []
        ),
        "announced": said(
            YES_NO_OR_NULL,
            "Whether it was seen here before it started; null: not known.",
            *(True, False, None),
        ),
        "documentIncarnation": said(
            WHOLE_OR_NULL, "The DocumentIncarnation that showed it.", 2, None
        ),
        "observedAt": _OBSERVED_AT,
        "notBefore": said(TIME_OR_NULL, "The earliest time of the start.", AT, None),
        "noticeSeconds": said(
            WHOLE_OR_NULL,
            "Seconds from observedAt to notBefore; may be negative.",
            *(900, -3, None),
        ),
        "affectsThisVm": said(
            YES_NO_OR_NULL,
            "Whether it affects the VM of the reporter; null: not known.",
            *(True, False, None),
        ),
        "unobservedSeconds": said(
            WHOLE_OR_NULL,
            "Seconds since the bridge had last read a document; null: not known.",
            *(1, None),
        ),
        "reporter": _REPORTER,
        "outcome": said(
            {"const": "unknown"},
            "For an event that ended: its outcome is not known.",
            "unknown",
        ),
        "truncated": _TRUNCATED,
        "durable": said(
            {"const": False}, "The state file could not be written.", *(False,)
        ),
        "test": said(
            {"const": True},
            "This is a test event, sent by `sebridge send-test`.",
            *(True,),
        ),
        "link": LINK,
    },
    optional=("outcome", "truncated", "durable", "test", "link"),
)


_START_REQUEST = record(
    "StartRequestData",
    {
        "outcome": said(
            {"enum": list(OUTCOMES)}, "The outcome of the approval.", "relayed"
        ),
        "eventId": said(
            TEXT_OR_NULL, "The EventId, if it could be read.", EVENT_ID, None
        ),
        "event": said(
            or_null("ImdsEvent"),
            "The event; null if the document did not show it.",
            IMDS_EVENT,
            None,
        ),
        "imdsStatus": said(
            WHOLE_OR_NULL,
            "The HTTP status that IMDS answered; null: no answer.",
            200,
            None,
        ),
        "confirmed": said(
            YES_NO_OR_NULL,
            "For relayed: whether IMDS confirmed it. Null for other outcomes.",
            *(True, False, None),
        ),
        "reason": said(
            TEXT_OR_NULL, "The reason, as text.", "the event has changed", None
        ),
        "request": _REQUEST,
        "observedAt": _OBSERVED_AT,
        "reporter": _REPORTER,
        "link": LINK,
    },
    optional=("link",),
)


_COMMAND = record(
    "CommandData",
    {
        "sink": said(TEXT, "The name of the command sink.", "drain"),
        "action": said(
            {"enum": ["prepare", "restore"]}, "The purpose of the run.", "prepare"
        ),
        "event": said(
            or_null("ImdsEvent"),
            "The event of the run; null at the start of the bridge.",
            *(IMDS_EVENT, None),
        ),
        "transition": said(
            {"enum": [*(kind.value for kind in TransitionKind), None]},
            "The step of the event; null at the start of the bridge.",
            *("scheduled", None),
        ),
        "exitCode": said(
            WHOLE_OR_NULL, "The exit code; null if there is none.", 0, None
        ),
        "signal": said(
            TEXT_OR_NULL,
            "The signal that ended the command; null: none.",
            "SIGKILL",
            None,
        ),
        "timedOut": said({"type": "boolean"}, "Whether it ran too long.", *(False,)),
        "seconds": said({"type": "number", "minimum": 0}, "How long it ran.", 4.2),
        "attempts": said(
            {"type": "integer", "minimum": 0}, "How many times it was started.", 1
        ),
        "output": said(
            TEXT_OR_NULL, "Its output, shortened; null: not kept.", "drained", None
        ),
        "reason": said(TEXT_OR_NULL, "The reason, as text.", "exit code 3", None),
        "observedAt": _OBSERVED_AT,
        "reporter": _REPORTER,
        "truncated": _TRUNCATED,
        "durable": said(
            {"const": False}, "The state file could not be written.", *(False,)
        ),
    },
    optional=("truncated", "durable"),
)


_BRIDGE = record(
    "BridgeData",
    {
        "observedAt": _OBSERVED_AT,
        "reporter": _REPORTER,
        "reason": said(TEXT_OR_NULL, "The reason, as text.", "timeout", None),
        "pending": said(WHOLE, "How many deliveries are pending.", 3),
        "dead": said(WHOLE, "How many deliveries are dead letters.", 0),
        "freeDiskBytes": said(
            WHOLE, "Free bytes on the disk of state.path.", 21474836480
        ),
        "intervalSeconds": said(
            {"type": "number"}, "Seconds between heartbeats; 0: none is sent.", 60
        ),
        "approvals": said(
            {"type": ["object", "null"]},
            "Where it takes approvals, and by which rules; of a heartbeat the digest.",
            {
                "entity": "vm-approvals",
                "session": None,
                "rules": [{"name": "short", "max_duration": 30, "action": "allow"}],
                "allowEventTypes": [],
                "digest": "5d41402abc4b2a76b9719d911017c592",
            },
            None,
        ),
        "eventId": said(
            TEXT_OR_NULL, "The event that took the VM out of rotation.", EVENT_ID, None
        ),
        "since": said(TIME, "When the probe began to say so.", AT),
    },
    optional=(
        *("pending", "dead", "freeDiskBytes", "eventId", "since"),
        *("intervalSeconds", "approvals"),
    ),
)


_DOCUMENT = record(
    "DocumentData",
    {
        "documentIncarnation": said(WHOLE_OR_NULL, "Its DocumentIncarnation.", 2, None),
        "previousIncarnation": said(
            WHOLE_OR_NULL, "The DocumentIncarnation before it.", 1, None
        ),
        "document": said(
            {"type": ["object", "null"]},
            "The document; null if it was too large.",
            {"DocumentIncarnation": 2, "Events": [IMDS_EVENT]},
        ),
        "observedAt": _OBSERVED_AT,
        "reporter": _REPORTER,
        "truncated": _TRUNCATED,
    },
    optional=("truncated",),
)


# For each kind: its title, the last parts of its types, and its data.
KINDS: dict[str, tuple[str, list[str], Json]] = {
    "scheduledevent": (
        "ScheduledEvent",
        [kind.value for kind in TransitionKind],
        _SCHEDULED_EVENT,
    ),
    "startrequest": ("StartRequestOutcome", list(OUTCOMES), _START_REQUEST),
    "command": ("CommandResult", list(COMMAND_OUTCOMES), _COMMAND),
    "bridge": (
        "BridgeEvent",
        [
            *("started", "stopped", "heartbeat", "imds-unreachable", "imds-recovered"),
            *("traffic-out", "traffic-in"),
        ],
        _BRIDGE,
    ),
    "document": ("DocumentEvent", ["changed"], _DOCUMENT),
}
