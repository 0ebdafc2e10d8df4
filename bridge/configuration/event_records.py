"""What each kind of event holds, for its JSON Schema: a record for each."""

from bridge.configuration.schema_parts import (
    AT,
    EVENT_ID,
    GROUP,
    IMDS_EVENT,
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
from bridge.events.transitions import TransitionKind
from bridge.telemetry.metrics import COMMAND_OUTCOMES, OUTCOMES

_IMDS_MEANINGS = {
    "EventId": "What identifies the event; compare it without case.",
    "EventType": "Freeze, Reboot, Redeploy, Preempt, Terminate, or one to come.",
    "ResourceType": "What kind of resource is affected.",
    "Resources": "The names of the VMs that are affected.",
    "EventStatus": "Scheduled, or Started.",
    "NotBefore": "When the event may start at the earliest; empty once it has started.",
    "Description": "Words about the event: never trust them as markup.",
    "EventSource": "Platform, or User.",
    "DurationInSeconds": "How long the impact lasts; -1 is not known.",
}


_OBSERVED_AT = said(TIME, "When this bridge observed it.", AT)


_TRUNCATED = said(
    TEXTS, "What was left out, to stay within 60 KiB.", ["previous"], ["Resources"]
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
                TEXT_OR_NULL, "The scale set that the VM is of.", "web", None
            ),
            "version": said(TEXT, "The version of the bridge.", "0.1.0"),
        },
        description="The VM whose bridge reports: others may report the same event.",
    ),
    "ImdsEvent": record(
        "ImdsEvent",
        {
            name: said(TEXT if name == "EventId" else {}, words, IMDS_EVENT[name])
            for name, words in _IMDS_MEANINGS.items()
        },
        optional=set(_IMDS_MEANINGS) - {"EventId"},
        description="The event as IMDS tells of it, with fields yet unknown.",
    ),
    "ApprovalRequest": record(
        "ApprovalRequest",
        {
            "messageId": said(TEXT_OR_NULL, "The MessageId.", "m-1"),
            "enqueuedAt": said(TIME_OR_NULL, "When the broker had the message.", AT),
            "approvedBy": said(
                TEXT_OR_NULL, "Who approved: a claim of the sender.", "ops"
            ),
            "reason": said(
                TEXT_OR_NULL, "Why: a claim of the sender.", "drained", None
            ),
            "expiresAt": said(TIME_OR_NULL, "When the approval became void.", AT, None),
        },
        description="The message that asked.",
    ),
}


_REPORTER = said(
    ref("Reporter"),
    "The VM whose bridge reports.",
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
    "The message that asked.",
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
            "The step that the event took.",
            "scheduled",
        ),
        "event": said(
            ref("ImdsEvent"),
            "The event; where it is gone, as it was seen last.",
            IMDS_EVENT,
        ),
        "previous": said(
            or_null("ImdsEvent"),
            "The event as it was before; null on first sight.",
            None,
            IMDS_EVENT,
        ),
        "changes": said(
            TEXTS, "The fields that differ, sorted.", ["EventStatus", "NotBefore"], []
        ),
        "announced": said(
            YES_NO_OR_NULL,
            "Whether it was seen here before it started; null is not known.",
            *(True, False, None),
        ),
        "documentIncarnation": said(
            WHOLE_OR_NULL, "The number of the document that it stood in.", 2, None
        ),
        "observedAt": _OBSERVED_AT,
        "notBefore": said(TIME_OR_NULL, "When it may start at the earliest.", AT, None),
        "noticeSeconds": said(
            WHOLE_OR_NULL,
            "From observedAt to notBefore: may be negative.",
            *(900, -3, None),
        ),
        "affectsThisVm": said(
            YES_NO_OR_NULL,
            "Whether it names the VM of the reporter; null is not known.",
            *(True, False, None),
        ),
        "unobservedSeconds": said(
            WHOLE_OR_NULL,
            "How long nobody had looked; null is not known.",
            *(1, None),
        ),
        "reporter": _REPORTER,
        "outcome": said(
            {"const": "unknown"},
            "Of an event that ended: what became of it is not known.",
            "unknown",
        ),
        "truncated": _TRUNCATED,
        "durable": said(
            {"const": False}, "The state file could not be written.", *(False,)
        ),
        "test": said(
            {"const": True},
            "Nothing has happened: `sebridge send-test` sent it.",
            *(True,),
        ),
    },
    optional=("outcome", "truncated", "durable", "test"),
)


_START_REQUEST = record(
    "StartRequestData",
    {
        "outcome": said(
            {"enum": list(OUTCOMES)}, "What became of the approval.", "relayed"
        ),
        "eventId": said(
            TEXT_OR_NULL, "The EventId, where it could be read.", EVENT_ID, None
        ),
        "event": said(
            or_null("ImdsEvent"),
            "The event; null where the document had none.",
            IMDS_EVENT,
            None,
        ),
        "imdsStatus": said(
            WHOLE_OR_NULL, "What IMDS answered; null is no answer.", 200, None
        ),
        "confirmed": said(
            YES_NO_OR_NULL,
            "Of relayed: whether IMDS said so. Null for the others.",
            *(True, False, None),
        ),
        "reason": said(TEXT_OR_NULL, "Why, in words.", "the event has changed", None),
        "request": _REQUEST,
        "observedAt": _OBSERVED_AT,
        "reporter": _REPORTER,
    },
)


_COMMAND = record(
    "CommandData",
    {
        "sink": said(TEXT, "The name of the command's sink.", "drain"),
        "action": said(
            {"enum": ["prepare", "restore"]}, "What the command was run for.", "prepare"
        ),
        "event": said(
            or_null("ImdsEvent"),
            "The event that it was run for; null at the start of the bridge.",
            *(IMDS_EVENT, None),
        ),
        "transition": said(
            {"enum": [*(kind.value for kind in TransitionKind), None]},
            "The step of the event that it was run for; null at the start.",
            *("scheduled", None),
        ),
        "exitCode": said(
            WHOLE_OR_NULL, "Its exit code; null where it has none.", 0, None
        ),
        "signal": said(
            TEXT_OR_NULL, "The signal that ended it; null is none.", "SIGKILL", None
        ),
        "timedOut": said({"type": "boolean"}, "Whether it took too long.", *(False,)),
        "seconds": said({"type": "number", "minimum": 0}, "How long it ran.", 4.2),
        "attempts": said(
            {"type": "integer", "minimum": 0}, "How often it was begun.", 1
        ),
        "output": said(
            TEXT_OR_NULL, "What it wrote, shortened; null is not kept.", "drained", None
        ),
        "reason": said(TEXT_OR_NULL, "Why, in words.", "exit code 3", None),
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
        "reason": said(TEXT_OR_NULL, "Why, in words.", "timeout", None),
        "pending": said(WHOLE, "How many deliveries wait.", 3),
        "dead": said(WHOLE, "How many deliveries are dead letters.", 0),
        "freeDiskBytes": said(WHOLE, "What is free under state.path.", 21474836480),
        "eventId": said(
            TEXT_OR_NULL, "The event that took the VM out of rotation.", EVENT_ID, None
        ),
        "since": said(TIME, "Since when the probe has said so.", AT),
    },
    optional=("pending", "dead", "freeDiskBytes", "eventId", "since"),
)


_DOCUMENT = record(
    "DocumentData",
    {
        "documentIncarnation": said(WHOLE_OR_NULL, "Its number.", 2, None),
        "previousIncarnation": said(
            WHOLE_OR_NULL, "The number of the one before.", 1, None
        ),
        "document": said(
            {"type": ["object", "null"]},
            "The document; null where it was too large.",
            {"DocumentIncarnation": 2, "Events": [IMDS_EVENT]},
        ),
        "observedAt": _OBSERVED_AT,
        "reporter": _REPORTER,
        "truncated": _TRUNCATED,
    },
    optional=("truncated",),
)


# Of each kind: its title, what its types end in, and its data.
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
