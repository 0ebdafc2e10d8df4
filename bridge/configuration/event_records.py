"""The data of each kind of event, for the JSON Schema."""

from bridge.configuration.schema_parts import (
    AT,
    CHAIN,
    EVENT_ID,
    GROUP,
    IMDS_EVENT,
    IMDS_MEANINGS,
    LINK,
    NOT_BEFORE,
    SIGNING,
    TEXT,
    TEXT_OR_NULL,
    TEXTS,
    TIME,
    TIME_OR_NULL,
    TRUNCATED,
    VM_ID,
    WHOLE,
    WHOLE_OR_NULL,
    YES_NO_OR_NULL,
    Json,
    field,
    or_null,
    record,
    ref,
)
from bridge.events.alarm import BACK, CLOCK, KEY, REPORT, SILENT, SLOW, UNREPORTED
from bridge.events.vocabulary import TransitionKind
from bridge.telemetry.metrics import COMMAND_OUTCOMES, OUTCOMES

_OBSERVED_AT = field(TIME, "When this bridge observed it.", AT)


DEFINITIONS = {
    "Reporter": record(
        "Reporter",
        {
            "vmName": field(TEXT_OR_NULL, "The name of the VM in Azure.", "web-1"),
            "vmId": field(TEXT_OR_NULL, "The id of the VM.", VM_ID),
            "resourceId": field(
                TEXT_OR_NULL,
                "The resource id of the VM.",
                f"{GROUP}/providers/Microsoft.Compute/virtualMachines/web-1",
            ),
            "location": field(TEXT_OR_NULL, "The Azure region.", "westeurope"),
            "vmScaleSetName": field(
                TEXT_OR_NULL, "The scale set of the VM.", "web", None
            ),
            "version": field(TEXT, "The version of the bridge.", "0.1.0"),
        },
        description="The VM whose bridge publishes. Others may publish the same event.",
    ),
    "ImdsEvent": record(
        "ImdsEvent",
        {
            name: field(TEXT if name == "EventId" else {}, words, IMDS_EVENT[name])
            for name, words in IMDS_MEANINGS.items()
        },
        optional=set(IMDS_MEANINGS) - {"EventId"},
        description="The event as IMDS shows it, including fields not known yet.",
    ),
    "ApprovalRequest": record(
        "ApprovalRequest",
        {
            "messageId": field(TEXT_OR_NULL, "The MessageId.", "m-1"),
            "enqueuedAt": field(
                TIME_OR_NULL, "When the broker received the message.", AT
            ),
            "approvedBy": field(
                TEXT_OR_NULL, "Who approved, as the sender claims.", "ops"
            ),
            "reason": field(
                TEXT_OR_NULL, "Why, as the sender claims.", "drained", None
            ),
            "expiresAt": field(TIME_OR_NULL, "When the approval expires.", AT, None),
            "bodyHash": field(TEXT, "SHA-256 of the body, if signed ones count.", "9f"),
        },
        optional=("bodyHash",),
        description="The approval message.",
    ),
}


_REPORTER = field(
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


_PAUSED = field(
    WHOLE,
    "Seconds for which the VM stood still before; absent: it did not.",
    *(33, 3),
)


_REQUEST = field(
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
        "transition": field(
            {"enum": [kind.value for kind in TransitionKind]},
            "The step of the event.",
            "scheduled",
        ),
        "event": field(
            ref("ImdsEvent"),
            "The event; if it is gone, as it was last seen.",
            IMDS_EVENT,
        ),
        "previous": field(
            or_null("ImdsEvent"),
            "The event before this step; null at first sight.",
            None,
            IMDS_EVENT,
        ),
        "changes": field(
            TEXTS, "The fields that changed, sorted.", [], ["EventStatus", "NotBefore"]
        ),
        "announced": field(
            YES_NO_OR_NULL,
            "Whether it was seen here before it started; null: not known.",
            *(True, False, None),
        ),
        "documentIncarnation": field(
            WHOLE_OR_NULL, "The DocumentIncarnation that showed it.", 2, None
        ),
        "observedAt": _OBSERVED_AT,
        "notBefore": field(
            TIME_OR_NULL, "The earliest time of the start.", NOT_BEFORE, None
        ),
        "noticeSeconds": field(
            WHOLE_OR_NULL,
            "Seconds from observedAt to notBefore; may be negative.",
            *(900, -3, None),
        ),
        "affectsThisVm": field(
            YES_NO_OR_NULL,
            "Whether it affects the VM of the reporter; null: not known.",
            *(True, False, None),
        ),
        "unobservedSeconds": field(
            WHOLE_OR_NULL,
            "Seconds since the bridge had last read a document; null: not known.",
            *(1, None),
        ),
        "pausedSeconds": _PAUSED,
        "reporter": _REPORTER,
        "chain": CHAIN,
        "outcome": field(
            {"const": "unknown"},
            "For an event that ended: its outcome is not known.",
            "unknown",
        ),
        "truncated": TRUNCATED,
        "durable": field(
            {"const": False}, "The state file could not be written.", *(False,)
        ),
        "test": field(
            {"const": True},
            "This is a test event, sent by `sebridge send-test`.",
            *(True,),
        ),
        "link": LINK,
    },
    optional=(
        *("outcome", "pausedSeconds", "truncated", "durable", "test"),
        *("link", "chain"),
    ),
)


_START_REQUEST = record(
    "StartRequestData",
    {
        "outcome": field(
            {"enum": list(OUTCOMES)}, "The outcome of the approval.", "relayed"
        ),
        "eventId": field(
            TEXT_OR_NULL, "The EventId, if it could be read.", EVENT_ID, None
        ),
        "event": field(
            or_null("ImdsEvent"),
            "The event; null if the document did not show it.",
            IMDS_EVENT,
            None,
        ),
        "imdsStatus": field(
            WHOLE_OR_NULL,
            "The HTTP status that IMDS answered; null: no answer.",
            200,
            None,
        ),
        "confirmed": field(
            YES_NO_OR_NULL,
            "For relayed: whether IMDS confirmed it. Null for other outcomes.",
            *(True, False, None),
        ),
        "reason": field(
            TEXT_OR_NULL, "The reason, as text.", None, "the event has changed"
        ),
        "request": _REQUEST,
        "observedAt": _OBSERVED_AT,
        "reporter": _REPORTER,
        "chain": CHAIN,
        "link": LINK,
    },
    optional=("link", "chain"),
)


_COMMAND = record(
    "CommandData",
    {
        "sink": field(TEXT, "The name of the command sink.", "drain"),
        "action": field(
            {"enum": ["prepare", "restore"]}, "The purpose of the run.", "prepare"
        ),
        "event": field(
            or_null("ImdsEvent"),
            "The event of the run; null at the start of the bridge.",
            *(IMDS_EVENT, None),
        ),
        "transition": field(
            {"enum": [*(kind.value for kind in TransitionKind), None]},
            "The step of the event; null at the start of the bridge.",
            *("scheduled", None),
        ),
        "exitCode": field(
            WHOLE_OR_NULL, "The exit code; null if there is none.", 0, None
        ),
        "signal": field(
            TEXT_OR_NULL,
            "The signal that ended the command; null: none.",
            None,
            "SIGKILL",
        ),
        "timedOut": field({"type": "boolean"}, "Whether it ran too long.", *(False,)),
        "seconds": field({"type": "number", "minimum": 0}, "How long it ran.", 4.2),
        "attempts": field({**WHOLE, "minimum": 0}, "How many times it was started.", 1),
        "output": field(
            TEXT_OR_NULL, "Its output, shortened; null: not kept.", "drained", None
        ),
        "reason": field(TEXT_OR_NULL, "The reason, as text.", None, "exit code 3"),
        "observedAt": _OBSERVED_AT,
        "reporter": _REPORTER,
        "chain": CHAIN,
        "truncated": TRUNCATED,
        "durable": field(
            {"const": False}, "The state file could not be written.", *(False,)
        ),
    },
    optional=("truncated", "durable", "chain"),
)


_BRIDGE = record(
    "BridgeData",
    {
        "observedAt": _OBSERVED_AT,
        "reporter": _REPORTER,
        "chain": CHAIN,
        "reason": field(TEXT_OR_NULL, "The reason, as text.", None, "timeout"),
        "pending": field(WHOLE, "How many deliveries are pending.", 3),
        "dead": field(WHOLE, "How many deliveries are dead letters.", 0),
        "freeDiskBytes": field(
            WHOLE, "Free bytes on the disk of state.path.", 21474836480
        ),
        "intervalSeconds": field(
            {"type": "number"}, "Seconds between heartbeats; 0: none is sent.", 60
        ),
        "clockOffsetSeconds": field(
            WHOLE, "How many seconds the VM's clock is ahead of IMDS's time.", 0, 7200
        ),
        "pausedSeconds": _PAUSED,
        "approvals": field(
            {"type": ["object", "null"]},
            "Where the bridge receives approvals, its rules, and whether they must be "
            "signed; in a heartbeat only the digest, but for one a day.",
            {
                "entity": "vm-approvals",
                "session": None,
                "rules": [{"name": "short", "max_duration": 30, "action": "allow"}],
                "allowEventTypes": [],
                "digest": "5d41402abc4b2a76b9719d911017c592",
            },
            None,
        ),
        "signing": SIGNING,
        "truncated": TRUNCATED,
        "eventId": field(
            TEXT_OR_NULL, "The event that took the VM out of rotation.", EVENT_ID, None
        ),
        "since": field(TIME, "When the VM left or entered the rotation.", AT),
    },
    optional=(
        *("pending", "dead", "freeDiskBytes", "eventId", "since", "chain"),
        *("intervalSeconds", "approvals", "clockOffsetSeconds", "pausedSeconds"),
        *("truncated", "signing"),
    ),
)


_DOCUMENT = record(
    "DocumentData",
    {
        "documentIncarnation": field(
            WHOLE_OR_NULL, "Its DocumentIncarnation.", 2, None
        ),
        "previousIncarnation": field(
            WHOLE_OR_NULL, "The DocumentIncarnation before it.", 1, None
        ),
        "document": field(
            {"type": ["object", "null"]},
            "The document; null if it was too large.",
            {"DocumentIncarnation": 2, "Events": [IMDS_EVENT]},
        ),
        "observedAt": _OBSERVED_AT,
        "reporter": _REPORTER,
        "chain": CHAIN,
        "truncated": TRUNCATED,
    },
    optional=("truncated", "chain"),
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


# -- The data of a hub's events, for the JSON Schema -----------------------------------


APPROVALS = ("decided", "refused", "done", "failed", "void")

HUB_STEPS = [
    *(SILENT, BACK, UNREPORTED, SLOW, CLOCK, KEY, REPORT),
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
        "clocks": _objects(
            "The machines of hubs whose clocks are wrong, at most 50.",
            {"host": "hub-1", "fault": "the clock of this machine is 90 s ahead"},
        ),
        "keys": _objects(
            "The keys that speak for a machine with another, or with none, at most 50.",
            {"vmId": VM_ID, "vmName": "web-1", "heard": AT, "key": {"kty": "EC"}},
        ),
        "lines": field(
            {"type": "array", "items": TEXT},
            "The report of a week, as lines of text.",
            ["web-1, Reboot: 4 min 12 s down, 0 s paused"],
        ),
        "eventId": field(TEXT, "The event that was decided on.", EVENT_ID),
        "decision": field(TEXT, "The id of the decision.", "5d41402abc4b2a76"),
        "via": field({"enum": ["bridge", "arm"]}, "Who gets the decision.", "bridge"),
        "detail": field(TEXT, "The outcome, as text.", "rejected: HTTP 400"),
        "by": field(TEXT_OR_NULL, "Who decided; null: the hub.", "ann", None),
    },
    optional=(
        *("link", "count", "bridges", "stillSilent", "events", "messages", "clocks"),
        "keys",
        *("lines", "eventId", "decision", "via", "detail", "by"),
    ),
)
