"""What is told outward: transitions, outcomes and the bridge's own life as CloudEvents.

Pure: time, identity and counts are passed in. An id is a function of its cause and
of nothing else (no clock, no VM, no incarnation, no chance), so that VMs which saw
the same step, and a restart or a replay, give it the same id.

Source: DESIGN section 4.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from bridge.events.cloudevent import CloudEvent
from bridge.events.config import FORBIDDEN
from bridge.events.document import Document, ScheduledEvent
from bridge.events.identity import Identity
from bridge.events.routing import Subject
from bridge.events.transitions import Transition, TransitionKind
from bridge.events.truncate import fitted
from bridge.foundation.hashing import hash32

_LONG_ATTRIBUTE = 256
_DISRUPTIVE = {"Reboot", "Redeploy", "Preempt", "Terminate"}
_SEVERITY_NUMBERS = {"INFO": 9, "WARN": 13, "ERROR": 17}
_WITHHELD = "withheld"


@dataclass(frozen=True, slots=True, kw_only=True)
class OutgoingEvent:
    """An event on its way to the outbox.

    Attributes:
        event: what is sent.
        cause: the hash its id was made of before any count, to count by.
        subject: what routing looks at.
        key: order is kept among events of the same key; None = no order.
        not_before: NotBefore as far as known, for urgency.
        is_started: whether it tells that the impact has begun, for urgency.
        is_last: whether nothing more is to be expected of its EventId.
    """

    event: CloudEvent
    cause: str
    subject: Subject
    key: str | None = None
    not_before: datetime | None = None
    is_started: bool = False
    is_last: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class EventContext:
    """Who tells: fixed before the first event, the same for all of them."""

    prefix: str
    source: str
    identity: Identity
    version: str

    @property
    def reporter(self) -> dict[str, object]:
        """The ``reporter`` member of ``data``."""
        me = self.identity
        return {
            "vmName": me.vm_name,
            "vmId": me.vm_id,
            "resourceId": me.resource_id,
            "location": me.location,
            "vmScaleSetName": me.vm_scale_set_name,
            "version": self.version,
        }


def cause_of(transition: Transition) -> list[object]:
    """Return what the id of a transition is the hash of."""
    before = transition.previous
    is_updated = transition.kind is TransitionKind.UPDATED
    return [
        transition.event.key,
        transition.kind.value,
        before.canonical if is_updated and before else None,
        None if transition.is_gone else transition.event.canonical,
    ]


def cause_of_document(event_context: EventContext, document: Document) -> list[object]:
    """Return what the id of a ``document.changed`` event is the hash of."""
    kind = f"{event_context.prefix}.document.changed.v1"
    return [event_context.identity.vm_id, kind, document.raw]


def numbered(cause: list[object], told: int) -> str:
    """Return the id of something that was told exactly so ``told`` times before."""
    return hash32([*cause, told] if told else cause)


def from_transition(
    event_context: EventContext,
    transition: Transition,
    *,
    incarnation: int | None,
    observed_at: datetime,
    told: int,
) -> OutgoingEvent:
    """Turn a transition into what is told of it.

    Args:
        event_context: who tells.
        transition: the step.
        incarnation: of the document that showed it.
        observed_at: when it was seen here.
        told: how often this bridge has told exactly that before.
    """
    event, cause = transition.event, cause_of(transition)
    data: dict[str, object] = {
        "transition": transition.kind.value,
        "event": event.raw,
        "previous": transition.previous.raw if transition.previous else None,
        "changes": list(transition.changes),
        "announced": transition.announced,
        "documentIncarnation": incarnation,
        "observedAt": rfc3339(observed_at),
        "notBefore": rfc3339(event.not_before) if event.not_before else None,
        "noticeSeconds": _notice(event, observed_at),
        "affectsThisVm": event_context.identity.is_named_in(event.resources),
        "unobservedSeconds": transition.unobserved,
        "reporter": event_context.reporter,
    }
    if transition.kind is TransitionKind.ENDED:
        data["outcome"] = "unknown"
    cloud_event = CloudEvent(
        id=numbered(cause, told),
        source=event_context.source,
        type=f"{event_context.prefix}.scheduledevent.{transition.kind}.v1",
        subject=clean(event.event_id),
        time=rfc3339(observed_at),
        dataschema="urn:sebridge:schema:scheduledevent:v1",
        extensions=attributes_of(event) | severity(_grade(transition)),
        data=data,
    )
    return OutgoingEvent(
        event=fitted(cloud_event),
        cause=hash32(cause),
        subject=Subject(
            transition=transition.kind.value,
            events=_looks(event, transition.previous),
        ),
        key=event.key,
        not_before=event.not_before if not transition.is_gone else None,
        is_started=transition.kind is TransitionKind.STARTED,
        is_last=transition.is_gone,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of one EventId of an approval.

    Attributes:
        outcome: one of the outcomes of DESIGN section 5.
        event_id: None where it could not be read.
        event: the event as the document had it; None where it had not.
        imds_status: what IMDS answered to the POST; None without an answer.
        confirmed: of ``relayed``: whether IMDS said so; None for the others.
        request: ``messageId``, ``enqueuedAt``, ``approvedBy``, ``reason``,
            ``expiresAt`` of the message.
        origin: entity, MessageId and sequence number, for the id.
    """

    outcome: str
    event_id: str | None
    event: ScheduledEvent | None
    imds_status: int | None
    confirmed: bool | None
    reason: str | None
    request: Mapping[str, object]
    origin: tuple[str, str | None, int | None]

    def data(
        self, event_context: EventContext, observed_at: datetime
    ) -> dict[str, object]:
        """Return the ``data`` of its event, which is also its part of a reply."""
        return {
            "outcome": self.outcome,
            "eventId": self.event_id,
            "event": self.event.raw if self.event else None,
            "imdsStatus": self.imds_status,
            "confirmed": self.confirmed,
            "reason": self.reason,
            "request": dict(self.request),
            "observedAt": rfc3339(observed_at),
            "reporter": event_context.reporter,
        }


def from_outcome(
    event_context: EventContext, outcome: Outcome, observed_at: datetime
) -> OutgoingEvent:
    """Turn the outcome of an approval into what is told of it."""
    is_good = outcome.outcome in {"relayed", "already-started"}
    cause = [*outcome.origin, outcome.event_id, outcome.outcome]
    if outcome.outcome == _WITHHELD:
        cause.append(outcome.reason)  # it may be so for another reason later
    # The document's spelling, where there is one: sessions and subjects have case.
    spelled = outcome.event.event_id if outcome.event else outcome.event_id
    seen: dict[str, str | int] = {}
    if outcome.event:
        seen = attributes_of(outcome.event)
    elif spelled:
        seen = {"correlationid": clean(spelled)}
    cloud_event = CloudEvent(
        id=hash32(cause),
        source=event_context.source,
        type=f"{event_context.prefix}.startrequest.{outcome.outcome}.v1",
        subject=clean(spelled) if spelled else None,
        time=rfc3339(observed_at),
        dataschema="urn:sebridge:schema:startrequest:v1",
        extensions=seen | severity("INFO" if is_good else "WARN"),
        data=outcome.data(event_context, observed_at),
    )
    return OutgoingEvent(
        event=fitted(cloud_event),
        cause=hash32(cause),
        subject=Subject(events=_looks(outcome.event, None)),
        key=outcome.event_id.upper() if outcome.event_id else None,
    )


def from_bridge(
    event_context: EventContext,
    what: str,
    *,
    observed_at: datetime,
    reason: str | None = None,
    more: Mapping[str, object] | None = None,
) -> OutgoingEvent:
    """Tell of the bridge itself, ``what`` being such as started or heartbeat."""
    kind = f"{event_context.prefix}.bridge.{what}.v1"
    at = rfc3339(observed_at)
    cause = [event_context.identity.vm_id, kind, at]
    cloud_event = CloudEvent(
        id=hash32(cause),
        source=event_context.source,
        type=kind,
        subject=event_context.identity.vm_id,
        time=at,
        dataschema="urn:sebridge:schema:bridge:v1",
        extensions=severity("ERROR" if what == "imds-unreachable" else "INFO"),
        data={
            "observedAt": at,
            "reporter": event_context.reporter,
            "reason": reason,
            **(more or {}),
        },
    )
    return OutgoingEvent(
        event=cloud_event, cause=hash32(cause), subject=Subject(is_lifecycle=True)
    )


def from_document(
    event_context: EventContext,
    document: Document,
    *,
    previous_incarnation: int | None,
    observed_at: datetime,
    told: int,
) -> OutgoingEvent:
    """Tell of a change of incarnation as such, with the whole document."""
    cause = cause_of_document(event_context, document)
    at = rfc3339(observed_at)
    cloud_event = CloudEvent(
        id=numbered(cause, told),
        source=event_context.source,
        type=f"{event_context.prefix}.document.changed.v1",
        subject=event_context.identity.vm_id,
        time=at,
        dataschema="urn:sebridge:schema:document:v1",
        extensions=severity("INFO"),
        data={
            "documentIncarnation": document.incarnation,
            "previousIncarnation": previous_incarnation,
            "document": document.raw,
            "observedAt": at,
            "reporter": event_context.reporter,
        },
    )
    return OutgoingEvent(
        event=fitted(cloud_event),
        cause=hash32(cause),
        subject=Subject(is_lifecycle=True),
    )


def _looks(
    event: ScheduledEvent | None, previous: ScheduledEvent | None
) -> tuple[Mapping[str, object], ...]:
    return tuple(look.raw for look in (event, previous) if look is not None)


def _notice(event: ScheduledEvent, observed_at: datetime) -> int | None:
    if event.not_before is None:
        return None
    return int((event.not_before - observed_at).total_seconds() // 1)


def _grade(transition: Transition) -> str:
    kind, event = transition.kind, transition.event
    if kind is TransitionKind.ENDED:
        return "WARN"
    if kind not in {TransitionKind.SCHEDULED, TransitionKind.STARTED}:
        return "INFO"
    if event.duration == 0:
        return "INFO"
    return "ERROR" if event.event_type in _DISRUPTIVE else "WARN"


def severity(text: str) -> dict[str, str | int]:
    """Return the attributes of a severity: INFO, WARN or ERROR."""
    return {"severitytext": text, "severitynumber": _SEVERITY_NUMBERS[text]}


def attributes_of(event: ScheduledEvent) -> dict[str, str | int]:
    """Return the attributes that tell of an event."""
    named = {
        "eventtype": event.event_type,
        "eventsource": event.event_source,
        "eventstatus": event.status,
    }
    short = {k: clean(v[:_LONG_ATTRIBUTE]) for k, v in named.items() if v}
    return {**short, "correlationid": clean(event.event_id)}


def clean(text: str) -> str:
    """Return a text as an attribute may hold it."""
    return FORBIDDEN.sub("\ufffd", text)


def rfc3339(moment: datetime) -> str:
    """Write a moment in UTC, with a fraction only where there is one."""
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")
