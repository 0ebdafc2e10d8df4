"""Makes CloudEvents of transitions, of outcomes, and of the bridge's own lifecycle.

Pure. The id is a hash of the cause only: every VM makes the same one for a transition.

Source: config/events.md.
"""

from collections.abc import Mapping
from datetime import datetime
from functools import cached_property
from math import floor
from uuid import UUID

from msgspec import UNSET, Struct, to_builtins

from bridge.events.cloudevent import (
    SEVERITY,
    CloudEvent,
    clean,
    fitted,
    hash32,
    link_to,
    rfc3339,
)
from bridge.events.data import (
    BridgeData,
    DocumentData,
    ScheduledEventData,
    StartRequestData,
)
from bridge.events.document import Document, ScheduledEvent
from bridge.events.identity import Identity
from bridge.events.routing import Subject
from bridge.events.transitions import Transition
from bridge.events.vocabulary import (
    APPROVED,
    DISRUPTIVE,
    OutcomeKind,
    TransitionKind,
)

_LONG_ATTRIBUTE = 256


class OutgoingEvent(Struct, frozen=True, kw_only=True):
    """A CloudEvent for the outbox, and what the outbox must know about it.

    Attributes:
        event: the CloudEvent that is sent.
        cause: the hash of the cause, without a count; the outbox counts by it.
        subject: the values that routing decides by.
        key: events with the same key are delivered in order; None = no order.
        not_before: NotBefore if known; decides how urgent the event is.
        is_started: whether the impact has begun; decides how urgent the event is.
        is_last: whether no further event about the same EventId is expected.
    """

    event: CloudEvent
    cause: str
    subject: Subject
    key: str | None = None
    not_before: datetime | None = None
    is_started: bool = False
    is_last: bool = False


class EventContext(Struct, frozen=True, kw_only=True, dict=True):
    """What all events of this bridge share: type prefix, source, and this VM.

    Attributes:
        link: the address of an event, with ``{event_id}``; "" = there is none.
    """

    prefix: str
    source: str
    identity: Identity
    version: str
    link: str = ""

    @cached_property
    def reporter(self) -> Mapping[str, str | None]:
        """The ``reporter`` member of ``data``: computed once, see ``Reporter``."""
        return {**self.identity.members, "version": self.version}


def cause_of(transition: Transition) -> list[object]:
    """Return the values whose hash is the id of a transition's event."""
    before = transition.previous
    is_updated = transition.kind is TransitionKind.UPDATED
    return [
        transition.event.key,
        transition.kind.value,
        before.canonical if is_updated and before else None,
        None if transition.is_gone else transition.event.canonical,
    ]


def cause_of_document(event_context: EventContext, document: Document) -> list[object]:
    """Return the values whose hash is the id of a ``document.changed`` event."""
    kind = f"{event_context.prefix}.document.changed.v1"
    return [event_context.identity.vm_id, kind, document.raw]


def from_transition(  # noqa: PLR0913 - what one event tells of
    event_context: EventContext,
    transition: Transition,
    *,
    incarnation: int | None,
    observed_at: datetime,
    repeats: int,
    paused: float = 0.0,
) -> OutgoingEvent:
    """Make the event about a transition.

    Args:
        event_context: prefix, source and VM of the event.
        transition: the transition to publish.
        incarnation: that of the document in which the transition was seen.
        observed_at: when this bridge saw the transition.
        repeats: how often this bridge has published the same transition before.
        paused: how long this VM stood still before, in seconds; 0 = it did not.
    """
    event, is_gone = transition.event, transition.is_gone
    cause, not_before = cause_of(transition), event.not_before
    own_id, at = hash32([*cause, repeats] if repeats else cause), rfc3339(observed_at)
    data = ScheduledEventData(
        transition=transition.kind.value,
        event=event.raw,
        previous=transition.previous.raw if transition.previous else None,
        changes=list(transition.changes),
        announced=transition.announced,
        document_incarnation=incarnation,
        observed_at=at,
        not_before=rfc3339(not_before) if not_before else None,
        notice_seconds=floor((not_before - observed_at).total_seconds())
        if not_before
        else None,
        affects_this_vm=event_context.identity.is_named_in(event.resources),
        unobserved_seconds=transition.unobserved,
        paused_seconds=round(paused) if paused else UNSET,
        reporter=event_context.reporter,
        link=link_to(event_context.link, event.event_id),
        outcome="unknown" if transition.kind is TransitionKind.ENDED else UNSET,
    )
    cloud_event = CloudEvent(
        id=own_id,
        source=event_context.source,
        type=f"{event_context.prefix}.scheduledevent.{transition.kind}.v1",
        subject=clean(event.event_id),
        time=at,
        dataschema="urn:sebridge:schema:scheduledevent:v1",
        extensions=attributes_of(event, own_id) | SEVERITY[_severity_of(transition)],
        data=to_builtins(data),
    )
    return OutgoingEvent(
        event=fitted(cloud_event),
        cause=hash32(cause) if repeats else own_id,
        subject=Subject(
            transition=transition.kind.value,
            events=tuple(filter(None, (event, transition.previous))),
        ),
        key=event.key,
        not_before=None if is_gone else not_before,
        is_started=transition.kind is TransitionKind.STARTED,
        is_last=is_gone,
    )


class Outcome(Struct, frozen=True, kw_only=True):
    """The result of an approval for one EventId.

    Attributes:
        outcome: one of the outcomes of config/approvals.md.
        event_id: None if the message has no readable EventId.
        event: the scheduled event in the document; None if it was not there.
        imds_status: the HTTP status of the POST; None if there was no answer.
        confirmed: for ``relayed``: whether IMDS confirmed the POST; else None.
        reason: why, in words; None if there is nothing to add.
        request: ``messageId``, ``enqueuedAt``, ``approvedBy``, ``reason``,
            ``expiresAt`` of the message.
        origin: entity, MessageId and sequence number of the message; the event's id
            is made of them.
    """

    outcome: str
    event_id: str | None
    event: ScheduledEvent | None
    imds_status: int | None
    confirmed: bool | None
    reason: str | None
    request: Mapping[str, object]
    origin: tuple[str, str | None, int | None]


def from_outcome(
    event_context: EventContext, outcome: Outcome, observed_at: datetime
) -> OutgoingEvent:
    """Make the event about the outcome of an approval."""
    is_good = outcome.outcome in APPROVED
    cause = [*outcome.origin, outcome.event_id, outcome.outcome]
    if outcome.outcome == OutcomeKind.WITHHELD:
        cause.append(outcome.reason)  # may be withheld for another reason later
    # Prefer the document's spelling: sessions and subjects are case-sensitive.
    spelled = outcome.event.event_id if outcome.event else outcome.event_id
    own_id, seen = hash32(cause), dict[str, str | int]()
    if outcome.event:
        seen = attributes_of(outcome.event, own_id)
    elif spelled:
        seen = {"correlationid": clean(spelled), **trace(spelled.upper(), own_id)}
    cloud_event = CloudEvent(
        id=own_id,
        source=event_context.source,
        type=f"{event_context.prefix}.startrequest.{outcome.outcome}.v1",
        subject=clean(spelled) if spelled else None,
        time=rfc3339(observed_at),
        dataschema="urn:sebridge:schema:startrequest:v1",
        extensions=seen | SEVERITY["INFO" if is_good else "WARN"],
        data=to_builtins(
            StartRequestData(
                outcome=outcome.outcome,
                event_id=outcome.event_id,
                event=outcome.event.raw if outcome.event else None,
                imds_status=outcome.imds_status,
                confirmed=outcome.confirmed,
                reason=outcome.reason,
                request=outcome.request,
                observed_at=rfc3339(observed_at),
                reporter=event_context.reporter,
                link=link_to(event_context.link, spelled),
            )
        ),
    )
    return OutgoingEvent(
        event=fitted(cloud_event),
        cause=own_id,
        subject=Subject(events=(outcome.event,) if outcome.event else ()),
        key=outcome.event_id.upper() if outcome.event_id else None,
    )


def from_bridge(
    event_context: EventContext, what: str, data: BridgeData
) -> OutgoingEvent:
    """Make an event about the bridge itself.

    Args:
        event_context: prefix, source and VM of the event.
        what: what happened, as in the type: ``started``, ``heartbeat``, ….
        data: what it says; the time is also part of the id.
    """
    kind, at = f"{event_context.prefix}.bridge.{what}.v1", data.observed_at
    own_id = hash32([event_context.identity.vm_id, kind, at])
    cloud_event = CloudEvent(
        id=own_id,
        source=event_context.source,
        type=kind,
        subject=event_context.identity.vm_id,
        time=at,
        dataschema="urn:sebridge:schema:bridge:v1",
        extensions=SEVERITY["ERROR" if what == "imds-unreachable" else "INFO"],
        data=to_builtins(data),
    )
    return OutgoingEvent(
        event=fitted(cloud_event), cause=own_id, subject=Subject(is_lifecycle=True)
    )


def from_document(
    event_context: EventContext,
    document: Document,
    *,
    previous_incarnation: int | None,
    observed_at: datetime,
    repeats: int,
) -> OutgoingEvent:
    """Make the event about a new incarnation; it contains the whole document."""
    cause, at = cause_of_document(event_context, document), rfc3339(observed_at)
    own_id = hash32([*cause, repeats] if repeats else cause)
    cloud_event = CloudEvent(
        id=own_id,
        source=event_context.source,
        type=f"{event_context.prefix}.document.changed.v1",
        subject=event_context.identity.vm_id,
        time=at,
        dataschema="urn:sebridge:schema:document:v1",
        extensions=SEVERITY["INFO"],
        data=to_builtins(
            DocumentData(
                document_incarnation=document.incarnation,
                previous_incarnation=previous_incarnation,
                document=document.raw,
                observed_at=at,
                reporter=event_context.reporter,
            )
        ),
    )
    return OutgoingEvent(
        event=fitted(cloud_event),
        cause=hash32(cause) if repeats else own_id,
        subject=Subject(is_lifecycle=True),
    )


def attributes_of(event: ScheduledEvent, own_id: str) -> dict[str, str | int]:
    """Return the extension attributes that describe a scheduled event."""
    named = {
        "eventtype": event.event_type,
        "eventsource": event.event_source,
        "eventstatus": event.status,
    }
    short = {k: clean(v[:_LONG_ATTRIBUTE]) for k, v in named.items() if v}
    return {**short, "correlationid": clean(event.event_id), **trace(event.key, own_id)}


# -- Makes ``traceparent``: all events about one EventId belong to one trace. Pure -----
#
# Source: https://github.com/cloudevents/spec/blob/main/cloudevents/extensions/distributed-tracing.md;
#         https://www.w3.org/TR/trace-context/ (section 3.2)


def trace(key: str, event_id: str) -> dict[str, str | int]:
    """Return ``traceparent``: one trace for each EventId, one span for each event.

    The trace id is the EventId if it is a UUID, as in Azure; otherwise its hash. So all
    machines and all steps use the same trace. W3C forbids a trace id of zeros only.

    Args:
        key: the EventId in upper case.
        event_id: the ``id`` of the CloudEvent; its first 16 digits are the span id.
    """
    try:
        trace_id = UUID(key).hex
    except ValueError:
        trace_id = ""
    if not trace_id.strip("0"):
        trace_id = hash32(key)
    return {"traceparent": f"00-{trace_id}-{event_id[:16]}-01"}


def _severity_of(transition: Transition) -> str:
    """Return how severe a transition is: INFO, WARN or ERROR."""
    kind, event = transition.kind, transition.event
    if kind is TransitionKind.ENDED:
        return "WARN"
    has_impact = {TransitionKind.SCHEDULED, TransitionKind.STARTED}
    if kind not in has_impact or event.duration == 0:
        return "INFO"
    return "ERROR" if event.event_type in DISRUPTIVE else "WARN"
