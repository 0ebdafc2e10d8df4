"""The ``data`` of each kind of event: its members, in the order of sending. Pure.

``build`` fills them, and the JSON Schema is made of them: a docstring describes the
members, with ``Example:`` and JSON at the end. A member that may be ``UNSET`` may be
absent. Some are added later: ``truncated``, ``durable``, ``test``, ``chain``.

Source: config/events.md.
"""

from collections.abc import Mapping
from typing import Annotated, Any

from msgspec import UNSET, Meta, Struct, UnsetType

from bridge.events.vocabulary import OutcomeKind, TransitionKind


def _like(**schema: object) -> Meta:
    return Meta(extra_json_schema=schema)


Time = Annotated[str, _like(format="date-time")]
Whole = Annotated[int, _like(format="int64")]
Link = Annotated[str, _like(format="uri")]
Yes = Annotated[bool, _like(const=True)]
No = Annotated[bool, _like(const=False)]
Kind = Annotated[str, _like(enum=[*map(str, TransitionKind)])]
Object = Mapping[str, Any]
# Dicts of others: what Azure has written, the claims of an approval, and what one
# forwarder says of its VM in each event. Classes below describe the last two.
ImdsEvent = Annotated[Object, Meta(title="ImdsEvent")]
Claims = Annotated[Object, Meta(title="ApprovalRequest")]
Members = Annotated[Object, Meta(title="Reporter")]


class Data(Struct, frozen=True, kw_only=True, rename="camel"):
    """What several kinds of events have in their data.

    Attributes:
        observed_at: when this bridge observed it. Example: ``"2026-03-02T12:00:00Z"``.
        reporter: the VM whose bridge publishes.
        reason: the reason, as text. Example: ``null``, ``"the event has changed"``.
        paused_seconds: seconds for which the VM stood still before; absent: it did not.
            Example: ``33``, ``3``.
        link: the page about the event: events.link, or the page of the hub. Example:
            ``"https://maintenance.contoso.com/events/602d9444-d2cd-49c7-8624-8643e7171297"``.
        truncated: fields that were left out to stay within 60 KiB. Example:
            ``["previous"]``, ``["Resources"]``.
        durable: the state file could not be written. Example: ``false``.
        chain: its place among the signed events of a key; n is null if it is not on the
            disk. Example: ``{"key": "oKIywvGUpTVTyxMQ3bwIIeQUudfr_CkLMjCE19ECD-U",
            "run": "0a1b", "n": 7}``.
    """


class Reporter(Data, frozen=True, kw_only=True):
    """The VM whose bridge publishes. Others may publish the same event.

    Attributes:
        vm_name: the name of the VM in Azure. Example: ``"web-1"``.
        vm_id: the id of the VM. Example: ``"13f56399-bd52-4150-9748-7190aae1ff21"``.
        resource_id: the resource id of the VM. Example:
            ``"/subscriptions/00001111-aaaa-2222-bbbb-3333cccc4444/resourcegroups/web/providers/Microsoft.Compute/virtualMachines/web-1"``.
        location: the Azure region. Example: ``"westeurope"``.
        vm_scale_set_name: the scale set of the VM. Example: ``"web"``, ``null``.
        version: the version of the bridge. Example: ``"0.1.0"``.
    """

    vm_name: str | None
    vm_id: str | None
    resource_id: str | None
    location: str | None
    vm_scale_set_name: str | None
    version: str


class ApprovalRequest(Data, frozen=True, kw_only=True):
    """The approval message.

    Attributes:
        message_id: the MessageId. Example: ``"m-1"``.
        enqueued_at: when the broker received the message. Example:
            ``"2026-03-02T12:00:00Z"``.
        approved_by: who approved, as the sender claims. Example: ``"ops"``.
        reason: why, as the sender claims. Example: ``"drained"``, ``null``.
        expires_at: when the approval expires. Example: ``"2026-03-02T12:00:00Z"``,
            ``null``.
        body_hash: SHA-256 of the body, if signed ones count. Example: ``"9f"``.
    """

    message_id: str | None
    enqueued_at: Time | None
    approved_by: str | None
    reason: str | None
    expires_at: Time | None
    body_hash: str | UnsetType = UNSET


class ScheduledEventData(Data, frozen=True, kw_only=True):
    """A step of a scheduled event.

    Attributes:
        transition: the step of the event. Example: ``"scheduled"``.
        event: the event; if it is gone, as it was last seen.
        previous: the event before this step; null at first sight. Example: ``null``.
        changes: the fields that changed, sorted. Example: ``[]``,
            ``["EventStatus", "NotBefore"]``.
        announced: whether it was seen here before it started; null: not known. Example:
            ``true``, ``false``, ``null``.
        document_incarnation: the DocumentIncarnation that showed it. Example: ``2``,
            ``null``.
        not_before: the earliest time of the start. Example: ``"2026-03-02T12:15:00Z"``,
            ``null``.
        notice_seconds: seconds from observedAt to notBefore; may be negative. Example:
            ``900``, ``-3``, ``null``.
        affects_this_vm: whether it affects the VM of the reporter; null: not known.
            Example: ``true``, ``false``, ``null``.
        unobserved_seconds: seconds since the bridge had last read a document; null: not
            known. Example: ``1``, ``null``.
        outcome: for an event that ended: its outcome is not known. Example:
            ``"unknown"``.
        test: this is a test event, sent by `sebridge send-test`. Example: ``true``.
    """

    transition: Kind
    event: ImdsEvent
    previous: ImdsEvent | None
    changes: list[str]
    announced: bool | None
    document_incarnation: Whole | None
    observed_at: Time
    not_before: Time | None
    notice_seconds: Whole | None
    affects_this_vm: bool | None
    unobserved_seconds: Whole | None
    paused_seconds: Whole | UnsetType = UNSET
    reporter: Members
    link: Link | UnsetType = UNSET
    outcome: Annotated[str, _like(const="unknown")] | UnsetType = UNSET
    truncated: list[str] | UnsetType = UNSET
    durable: No | UnsetType = UNSET
    test: Yes | UnsetType = UNSET
    chain: Object | UnsetType = UNSET


class StartRequestData(Data, frozen=True, kw_only=True):
    """The outcome of an approval for one EventId; a reply contains it, too.

    Attributes:
        outcome: the outcome of the approval. Example: ``"relayed"``.
        event_id: the EventId, if it could be read. Example:
            ``"602d9444-d2cd-49c7-8624-8643e7171297"``, ``null``.
        event: the event; null if the document did not show it.
        imds_status: the HTTP status that IMDS answered; null: no answer. Example:
            ``200``, ``null``.
        confirmed: for relayed: whether IMDS confirmed it. Null for other outcomes.
            Example: ``true``, ``false``, ``null``.
        request: the approval message.
    """

    outcome: Annotated[str, _like(enum=[*map(str, OutcomeKind)])]
    event_id: str | None
    event: ImdsEvent | None
    imds_status: Whole | None
    confirmed: bool | None
    reason: str | None
    request: Claims
    observed_at: Time
    reporter: Members
    link: Link | UnsetType = UNSET
    chain: Object | UnsetType = UNSET


class CommandData(Data, frozen=True, kw_only=True):
    """The result of a command for one transition.

    Attributes:
        sink: the name of the command sink. Example: ``"drain"``.
        action: the purpose of the run. Example: ``"prepare"``.
        event: the event of the run; null at the start of the bridge.
        transition: the step of the event; null at the start of the bridge. Example:
            ``"scheduled"``, ``null``.
        exit_code: the exit code; null if there is none. Example: ``0``, ``null``.
        signal: the signal that ended the command; null: none. Example: ``null``,
            ``"SIGKILL"``.
        timed_out: whether it ran too long. Example: ``false``.
        seconds: how long it ran. Example: ``4.2``.
        attempts: how many times it was started. Example: ``1``.
        output: its output, shortened; null: not kept. Example: ``"drained"``, ``null``.
    """

    sink: str
    action: Annotated[str, _like(enum=["prepare", "restore"])]
    event: ImdsEvent | None
    transition: Kind | None
    exit_code: Whole | None
    signal: str | None
    timed_out: bool
    seconds: Annotated[float, Meta(ge=0)]
    attempts: Annotated[Whole, Meta(ge=0)]
    output: str | None
    reason: str | None
    observed_at: Time
    reporter: Members
    truncated: list[str] | UnsetType = UNSET
    durable: No | UnsetType = UNSET
    chain: Object | UnsetType = UNSET


class BridgeData(Data, frozen=True, kw_only=True):
    """What the bridge says of itself.

    Attributes:
        event_id: the event that took the VM out of rotation. Example:
            ``"602d9444-d2cd-49c7-8624-8643e7171297"``, ``null``.
        since: when the VM left or entered the rotation. Example:
            ``"2026-03-02T12:00:00Z"``.
        pending: how many deliveries are pending. Example: ``3``.
        dead: how many deliveries are dead letters. Example: ``0``.
        interval_seconds: seconds between heartbeats; 0: none is sent. Example: ``60``.
        approvals: where the bridge receives approvals, its rules, and whether they must
            be signed; in a heartbeat only the digest, but for one a day. Example:
            ``{"entity": "vm-approvals", "session": null, "rules": [{"name": "short",
            "max_duration": 30, "action": "allow"}], "allowEventTypes": [], "digest":
            "5d41402abc4b2a76b9719d911017c592"}``, ``null``.
        signing: with events.sign: the number of the last signed event before this one
            (null: none since the start), and in the start and one heartbeat a day the
            public keys (JWK). Example: ``{"n": 41, "keys": []}``.
        clock_offset_seconds: how many seconds the VM's clock is ahead of IMDS's time.
            Example: ``0``, ``7200``.
        free_disk_bytes: free bytes on the disk of state.path. Example: ``21474836480``.
    """

    observed_at: Time
    reporter: Members
    reason: str | None
    event_id: str | UnsetType | None = UNSET
    since: Time | UnsetType = UNSET
    pending: Whole | UnsetType = UNSET
    dead: Whole | UnsetType = UNSET
    interval_seconds: float | UnsetType = UNSET
    approvals: Object | UnsetType | None = UNSET
    signing: Object | UnsetType = UNSET
    clock_offset_seconds: Whole | UnsetType = UNSET
    paused_seconds: Whole | UnsetType = UNSET
    free_disk_bytes: Whole | UnsetType = UNSET
    truncated: list[str] | UnsetType = UNSET
    chain: Object | UnsetType = UNSET


class DocumentData(Data, frozen=True, kw_only=True):
    """A new incarnation of the document.

    Attributes:
        document_incarnation: its DocumentIncarnation. Example: ``2``, ``null``.
        previous_incarnation: the DocumentIncarnation before it. Example: ``1``,
            ``null``.
        document: the document; null if it was too large. Example:
            ``{"DocumentIncarnation": 2, "Events": []}``.
    """

    document_incarnation: Whole | None
    previous_incarnation: Whole | None
    document: Object | None
    observed_at: Time
    reporter: Members
    truncated: list[str] | UnsetType = UNSET
    chain: Object | UnsetType = UNSET


class HubReporter(Data, frozen=True, kw_only=True):
    """The hub that publishes the event.

    Attributes:
        vm_name: the address of the hub, or its machine. Example: ``"hub-1"``.
        version: the version of the hub. Example: ``"0.1.0"``.
    """

    vm_name: str
    version: str


class HubData(Data, frozen=True, kw_only=True):
    """An alarm of a hub, its weekly report, or a step of an approval.

    Attributes:
        observed_at: when this hub observed it. Example: ``"2026-03-02T12:00:00Z"``.
        headline: a summary in one line. Example: ``"1 bridge is silent: a"``.
        reporter: the hub that publishes the event.
        count: the number of bridges or events that the event is about. Example: ``1``.
        bridges: the bridges, at most 50. Example:
            ``[{"vmId": "13f56399-bd52-4150-9748-7190aae1ff21", "vmName": "web-1",
            "heard": "2026-03-02T12:00:00Z", "state": "silent"}]``.
        events: the events that no bridge has reported, at most 50. Example:
            ``[{"eventId": "602d9444-d2cd-49c7-8624-8643e7171297", "eventType":
            "Reboot", "machines": ["web-1"]}]``.
        messages: the messages that took too long to be stored, at most 50. Example:
            ``[{"source": "bridges", "heard": "2026-03-02T12:00:00Z"}]``.
        clocks: the machines of hubs whose clocks are wrong, at most 50. Example:
            ``[{"host": "hub-1", "fault": "the clock of this machine is 90 s ahead"}]``.
        keys: the keys that speak for a machine with another, or with none, at most 50.
            Example: ``[{"vmId": "13f56399-bd52-4150-9748-7190aae1ff21", "vmName":
            "web-1", "heard": "2026-03-02T12:00:00Z", "key": {"kty": "EC"}}]``.
        still_silent: how many bridges are silent now. Example: ``1``.
        lines: the report of a week, as lines of text. Example:
            ``["web-1, Reboot: 4 min 12 s down, 0 s paused"]``.
        event_id: the event that was decided on. Example:
            ``"602d9444-d2cd-49c7-8624-8643e7171297"``.
        decision: the id of the decision. Example: ``"5d41402abc4b2a76"``.
        via: who gets the decision. Example: ``"bridge"``.
        detail: the outcome, as text. Example: ``"rejected: HTTP 400"``.
        by: who decided; null: the hub. Example: ``"ann"``, ``null``.
    """

    observed_at: Time
    headline: str
    reason: str | None
    reporter: HubReporter
    count: Whole | UnsetType = UNSET
    bridges: list[Object] | UnsetType = UNSET
    events: list[Object] | UnsetType = UNSET
    messages: list[Object] | UnsetType = UNSET
    clocks: list[Object] | UnsetType = UNSET
    keys: list[Object] | UnsetType = UNSET
    still_silent: Whole | UnsetType = UNSET
    lines: list[str] | UnsetType = UNSET
    event_id: str | UnsetType = UNSET
    decision: str | UnsetType = UNSET
    via: Annotated[str, _like(enum=["bridge", "arm"])] | UnsetType = UNSET
    detail: str | UnsetType = UNSET
    by: str | UnsetType | None = UNSET
    link: Link | UnsetType = UNSET
