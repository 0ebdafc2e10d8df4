"""Decides about one EventId of an approval, after each look. Pure: time is passed in.

The first row that applies decides:

    a POST may have worked; now Started or gone       → relayed, not confirmed
    past expiresAt or max_age, by over 60 s           → expired
    not in the document: held                         → wait
                         seen by this bridge before   → event-ended
                         absent for unknown_grace     → unknown-event, else wait
    Started                                           → already-started
    not allowed, or not what the approver saw         → denied
    asked by a rule whose commands have not succeeded → withheld, or wait
    a rule's delay has not passed                     → wait
    anything else                                     → one POST

The 60 s are for clocks that differ: expiresAt is a time of the sender's clock, the age
counts from the broker's, and both are compared with IMDS's or this machine's. "Not what
the approver saw": the event has become worse since, in EventType, duration or Resources
(``events.material``); other changes do not matter.

The result of the POST (relayed, rejected, failed) is handled by the flow, not here. A
request that a rule has made is decided in the same way. It is denied if the event, or
the rule that applies to it, has changed since the request was made.

Source: config/approvals.md.
"""

from datetime import datetime, timedelta

from msgspec import Struct, field

from bridge.approvals.evidence import NO_EVIDENCE, Evidences
from bridge.approvals.message import Approval
from bridge.approvals.rules import UNKNOWN_VM, Rule, Ruling, content_of, judge
from bridge.events.document import ScheduledEvent
from bridge.events.identity import Identity
from bridge.events.look import Look
from bridge.events.material import is_material, material_changes
from bridge.events.vocabulary import EventStatus, OutcomeKind
from bridge.events.watch import Known, Moment

EVENT_CHANGED = "EventChanged"  # the reason of a denial
_SKEW = timedelta(seconds=60)  # between the sender's clock, the broker's and IMDS's


class Terms(Struct, frozen=True, kw_only=True):
    """What the configuration says about approvals; durations are in seconds.

    Attributes:
        me: the identity of this VM: a rule with ``after`` fits only its own events.
    """

    unknown_grace: float
    max_age: float
    allow_event_types: tuple[str, ...] = ()
    rules: tuple[Rule, ...] = ()
    me: Identity = UNKNOWN_VM

    @property
    def commands(self) -> tuple[str, ...]:
        """The names of all commands that rules require."""
        named = (name for rule in self.rules for name in rule.after or ())
        return tuple(dict.fromkeys(named))

    def allow(self, event: ScheduledEvent) -> bool:
        """Return whether events of this type may be approved at all."""
        allowed = {name.casefold() for name in self.allow_event_types}
        return not allowed or (event.event_type or "").casefold() in allowed

    def ruling(
        self, event: ScheduledEvent, age: float, now: datetime, found: Evidences
    ) -> Ruling:
        """Return what the rules decide about an event; see ``judge``."""
        return judge(self.rules, event, age=age, now=now, me=self.me, found=found)


class Request(Struct, frozen=True, kw_only=True):
    """One EventId for which an approval message or a rule asks.

    Attributes:
        enqueued_at: when the message was sent, or the rule made the request.
        rule: the label of the rule that made the request; None = a message made it.
        content: ``content_of`` the event when the rule made the request.
    """

    approval: Approval
    event_id: str
    enqueued_at: datetime
    rule: str | None = None
    content: str = ""

    @property
    def key(self) -> str:
        """The EventId in capitals, for comparisons: case does not matter."""
        return self.event_id.upper()


class Standing(Struct, kw_only=True):
    """What is known of a request besides the document.

    Attributes:
        may_have_worked: whether a POST was begun before a restart, or is in doubt.
        was_seen: whether the EventId was in a document here, within the retention.
        absent_for: for how many seconds no document had it whose absences count.
        was_posted: whether any POST was begun for the EventId.
        found: the results of commands for the event, by name.
    """

    may_have_worked: bool = False
    was_seen: bool = False
    absent_for: float = 0.0
    was_posted: bool = False
    found: Evidences = field(default_factory=dict)


class Conclusion(Struct, frozen=True):
    """The outcome of a request.

    Attributes:
        kind: the outcome.
        event: the event in the document; None if it was not there.
        confirmed: for ``relayed``: whether IMDS confirmed the POST.
        reason: why, if the outcome alone does not say it.
        imds_status: the HTTP status of the last POST.
        detail: more about the reason, for the dead letter.
    """

    kind: OutcomeKind
    event: ScheduledEvent | None = None
    confirmed: bool | None = None
    reason: str | None = None
    imds_status: int | None = None
    detail: str | None = None


class Post(Struct, frozen=True, kw_only=True):
    """Decision: send a StartRequest for the event now."""

    event: ScheduledEvent


class Wait(Struct, frozen=True, kw_only=True):
    """Decision: wait, and look again.

    Attributes:
        seconds: how long to wait, if the event does not change.
    """

    seconds: float = 1.0


def decide(
    request: Request, look: Look, standing: Standing, terms: Terms
) -> Conclusion | Post | Wait:
    """Decide about a request after a fresh look.

    The look began after the message was received, and after any earlier POST.
    """
    event = look.document.events.get(request.key)
    if standing.may_have_worked and _is_begun_or_gone(request, look, standing):
        return Conclusion(OutcomeKind.RELAYED, event, confirmed=False)
    if reason := _expiry(request, look.now, terms):
        return Conclusion(OutcomeKind.EXPIRED, event, reason=reason)
    if event is None:
        return _absent(request, look, standing, terms)
    if event.status == EventStatus.STARTED:
        return Conclusion(OutcomeKind.ALREADY_STARTED, event)
    return _waiting(event, request, look, standing, terms)


def rule_that_approves(
    known: Known, now: Moment, terms: Terms, found: Evidences = NO_EVIDENCE
) -> Ruling | None:
    """Return the ruling if an auto-approve rule applies to an event, else None."""
    event = known.event
    if event.status == EventStatus.STARTED or not terms.allow(event):
        return None
    ruling = terms.ruling(event, known.age(now), now.at, found)
    return ruling if ruling.action == "auto-approve" else None


def is_absent(key: str, look: Look) -> bool:
    """Return whether a look shows that an event, never seen here, does not exist.

    Absence does not count in a document with invalid elements, nor after the
    incarnation fell.
    """
    return (
        key not in look.document.events
        and key not in look.watch.known
        and not look.document.faults
        and look.watch.fall is None
    )


def deadline(request: Request, not_before: datetime | None, terms: Terms) -> datetime:
    """Return the time after which no further try makes sense.

    After its last known NotBefore, an event starts without an approval.
    """
    ends = (not_before, request.approval.expires_at, _oldest(request, terms))
    return min(end for end in ends if end is not None)


def _is_begun_or_gone(request: Request, look: Look, standing: Standing) -> bool:
    event = look.document.events.get(request.key)
    if event is not None:
        return event.status == EventStatus.STARTED
    return standing.was_seen and request.key not in look.watch.known


def _oldest(request: Request, terms: Terms) -> datetime:
    try:
        return request.enqueued_at + timedelta(seconds=terms.max_age)
    except OverflowError:  # a huge max_age means no limit
        return datetime.max.replace(tzinfo=request.enqueued_at.tzinfo)


def _expiry(request: Request, now: datetime, terms: Terms) -> str | None:
    surely = now - _SKEW
    if (expires_at := request.approval.expires_at) and surely > expires_at:
        return "ExpiresAt"
    return "MaxAge" if surely > _oldest(request, terms) else None


def _absent(
    request: Request, look: Look, standing: Standing, terms: Terms
) -> Conclusion | Wait:
    if request.key in look.watch.known:
        return Wait()  # held: its absence does not count yet
    if standing.was_seen:
        return Conclusion(OutcomeKind.EVENT_ENDED)
    if is_absent(request.key, look) and standing.absent_for >= terms.unknown_grace:
        return Conclusion(OutcomeKind.UNKNOWN_EVENT)
    return Wait()


def _waiting(
    event: ScheduledEvent,
    request: Request,
    look: Look,
    standing: Standing,
    terms: Terms,
) -> Conclusion | Post | Wait:
    """Decide about an event that is in the document and has not started."""
    known, seen = look.watch.known.get(event.key), look.watch.seen
    age = known.age(seen) if known and seen else 0.0
    ruling = terms.ruling(event, age, look.now, standing.found)
    if refusal := _refusal(event, request, ruling, terms):
        reason, detail = refusal
        return Conclusion(OutcomeKind.DENIED, event, reason=reason, detail=detail)
    if ruling.action == "auto-approve" and request.rule is None:
        return Post(event=event)  # a message does not wait for the rule
    if ruling.hold is not None and standing.was_posted:
        return Wait()  # the result of that POST is not known yet
    if ruling.hold is not None:
        return Conclusion(OutcomeKind.WITHHELD, event, reason=ruling.hold)
    return Wait(seconds=ruling.left) if ruling.left else Post(event=event)


def _refusal(
    event: ScheduledEvent, request: Request, ruling: Ruling, terms: Terms
) -> tuple[str, str | None] | None:
    """Return why an event may not be approved, with details; None if it may."""
    if not terms.allow(event):
        return "EventTypeNotAllowed", None
    if ruling.action == "deny":
        return f"DeniedByRule {ruling.rule}" if ruling.rule else "NoRuleAllows", None
    if request.rule is not None:
        if content_of(event) != request.content:
            return EVENT_CHANGED, None
        is_same = (ruling.action, ruling.rule) == ("auto-approve", request.rule)
        return None if is_same else ("RuleChanged", None)
    seen = _approved(event, request.approval)
    if seen is None or not is_material(seen, event):
        return None
    return EVENT_CHANGED, _changed_members(seen, event)


def _changed_members(seen: ScheduledEvent, event: ScheduledEvent) -> str:
    """Return which members of approvedEvent do not fit the event, in words."""
    changed = material_changes(seen, event)
    missing = [name for name in changed if seen.raw.get(name) is None]
    differ = [name for name in changed if name not in missing]
    words = [f"{', '.join(missing)} missing in approvedEvent"] if missing else []
    if differ:
        words.append(f"{', '.join(differ)} not as in approvedEvent")
    return "; ".join(words)


def _approved(event: ScheduledEvent, approval: Approval) -> ScheduledEvent | None:
    """Return the event as the approver saw it; None if the approval does not say.

    If an approval has several EventIds, ``approved_event`` describes only one of them.
    """
    if (raw := approval.approved_event) is None:
        return None
    named = raw.get("EventId", event.event_id)
    seen = ScheduledEvent(event_id=named if isinstance(named, str) else "", raw=raw)
    is_of_another = seen.key != event.key and len(approval.event_ids) > 1
    return None if is_of_another else seen
