"""Decides on one EventId of an approval, look by look. Pure: time is passed in.

The first row that holds decides; the rows are those of the contract, in its order:

    may have worked before, and Started or gone now   → relayed, not confirmed
    past expiresAt or max_age                         → expired
    not in the document: held                         → wait
                         seen by this bridge before   → event-ended
                         absent for unknown_grace     → unknown-event, else wait
    Started                                           → already-started
    not allowed, or not what the approver saw         → denied
    a rule asks, and what it waits for is not done    → withheld, or wait
    a rule lets it wait                               → wait
    anything else                                     → one POST

What the POST brings (relayed, rejected, failed) is the flow's, not decided here.
A request that a rule has made goes the same way; it is denied as soon as the event,
or the rule that speaks of it, is no longer the one it was made for.

Source: DESIGN section 5.
"""

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum

from bridge.approvals.evidence import NO_EVIDENCE, Evidences
from bridge.approvals.message import Approval
from bridge.approvals.rules import NOBODY, Rule, Ruling, content_of, judge
from bridge.events.document import STARTED, ScheduledEvent
from bridge.events.identity import Identity
from bridge.events.look import Look
from bridge.events.material import is_material
from bridge.events.watch import Known, Moment

_SKEW = timedelta(seconds=60)  # between the sender's clock, the broker's and IMDS's


class OutcomeKind(StrEnum):
    """What became of one EventId; the values stand in CloudEvents types."""

    INVALID = "invalid"
    RELAYED = "relayed"
    EXPIRED = "expired"
    UNKNOWN_EVENT = "unknown-event"
    EVENT_ENDED = "event-ended"
    ALREADY_STARTED = "already-started"
    DENIED = "denied"
    REJECTED = "rejected"
    FAILED = "failed"
    WITHHELD = "withheld"  # only by a rule, and of no message

    @property
    def is_good(self) -> bool:
        """Whether what was asked for is so: it is never asked for again."""
        return self in {OutcomeKind.RELAYED, OutcomeKind.ALREADY_STARTED}


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What the configuration makes of approvals; spans are in seconds.

    Attributes:
        me: who this VM is: a rule with ``after`` speaks of its own events alone.
    """

    unknown_grace: float
    max_age: float
    allow_event_types: tuple[str, ...] = ()
    rules: tuple[Rule, ...] = ()
    me: Identity = NOBODY

    @property
    def commands(self) -> tuple[str, ...]:
        """The commands that any rule waits for."""
        named = (name for rule in self.rules for name in rule.after or ())
        return tuple(dict.fromkeys(named))


@dataclass(frozen=True, slots=True, kw_only=True)
class Initiative:
    """That nobody but a rule asks for it.

    Attributes:
        rule: its name.
        content: what the event was when the rule spoke, by ``content_of``.
    """

    rule: str
    content: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One EventId that an approval, or a rule, asks for."""

    approval: Approval
    event_id: str
    enqueued_at: datetime
    initiative: Initiative | None = None

    @property
    def key(self) -> str:
        """The EventId as it is compared: without case."""
        return self.event_id.upper()


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What this bridge knows of a request besides the document.

    Attributes:
        may_have_worked: an earlier try began a POST, or one of this try was left in
            doubt.
        was_seen: the EventId stood in a document here, within the retention.
        absent_for: seconds over which documents whose word counts had it not.
        was_posted: whether any POST was begun for it, whatever came of it.
        found: what commands have done for the event, by name.
    """

    may_have_worked: bool = False
    was_seen: bool = False
    absent_for: float = 0.0
    was_posted: bool = False
    found: Evidences = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Conclusion:
    """What became of a request.

    Attributes:
        event: as the document had it; None where it had not.
        confirmed: of ``relayed``: whether IMDS said so.
        reason: a word on why, where the outcome alone does not tell.
        imds_status: what IMDS answered to the last POST.
    """

    kind: OutcomeKind
    event: ScheduledEvent | None = None
    confirmed: bool | None = None
    reason: str | None = None
    imds_status: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Post:
    """The event is to be approved, now."""

    event: ScheduledEvent


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """Nothing can be said yet: look again.

    Attributes:
        seconds: after which the same event may be spoken of anew.
    """

    seconds: float = 1.0


def decide(
    request: Request, look: Look, standing: Standing, terms: Terms
) -> Conclusion | Post | Wait:
    """Say what is to be done about a request after a fresh look.

    Args:
        request: what is asked for.
        look: begun after the message was received, and after any POST before.
        standing: what else is known.
        terms: what is allowed.
    """
    event = look.document.events.get(request.key)
    if standing.may_have_worked and _is_begun_or_gone(request, look, standing):
        return Conclusion(kind=OutcomeKind.RELAYED, event=event, confirmed=False)
    if reason := _expiry(request, look.now, terms):
        return Conclusion(kind=OutcomeKind.EXPIRED, event=event, reason=reason)
    if event is None:
        return _absent(request, look, standing, terms)
    if event.status == STARTED:
        return Conclusion(kind=OutcomeKind.ALREADY_STARTED, event=event)
    return _waiting(event, request, look, standing, terms)


def rule_that_approves(
    known: Known, now: Moment, terms: Terms, found: Evidences = NO_EVIDENCE
) -> Ruling | None:
    """Return the ruling by which an event is approved unasked, now or later, if any is.

    Args:
        known: an event of the document.
        now: when.
        terms: what is allowed.
        found: what commands have done for the event, by name.
    """
    event = known.event
    if event.status == STARTED or not _is_allowed(event, terms):
        return None
    ruling = judge(
        terms.rules, event, age=known.age(now), now=now.at, me=terms.me, found=found
    )
    return ruling if ruling.action == "auto-approve" else None


def is_absent(key: str, look: Look) -> bool:
    """Whether a look says of an event never seen here that it is not there.

    A document with elements that could not be read, or one after the incarnation
    fell, says nothing about what is not in it.
    """
    return (
        key not in look.document.events
        and key not in look.watch.known
        and not look.document.faults
        and look.watch.fall is None
    )


def deadline(request: Request, not_before: datetime | None, terms: Terms) -> datetime:
    """Return when it makes no sense any more to try what fails.

    Args:
        request: what is asked for.
        not_before: of the event, as last known: then it starts anyway.
        terms: what is allowed.
    """
    ends = (not_before, request.approval.expires_at, _oldest(request, terms))
    return min(end for end in ends if end is not None)


def _is_begun_or_gone(request: Request, look: Look, standing: Standing) -> bool:
    event = look.document.events.get(request.key)
    if event is not None:
        return event.status == STARTED
    return standing.was_seen and request.key not in look.watch.known


def _oldest(request: Request, terms: Terms) -> datetime:
    try:
        return request.enqueued_at + timedelta(seconds=terms.max_age)
    except OverflowError:  # a max_age beyond the calendar is none
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
        return Conclusion(kind=OutcomeKind.EVENT_ENDED)
    if is_absent(request.key, look) and standing.absent_for >= terms.unknown_grace:
        return Conclusion(kind=OutcomeKind.UNKNOWN_EVENT)
    return Wait()


def _waiting(
    event: ScheduledEvent,
    request: Request,
    look: Look,
    standing: Standing,
    terms: Terms,
) -> Conclusion | Post | Wait:
    """Decide on an event that waits to be approved."""
    ruling = _ruling(event, look, standing, terms)
    if reason := _refusal(event, request, ruling, terms):
        return Conclusion(kind=OutcomeKind.DENIED, event=event, reason=reason)
    if ruling.action == "auto-approve" and request.initiative is None:
        return Post(event=event)  # who asks is not kept waiting
    if ruling.hold is not None and standing.was_posted:
        return Wait()  # what became of that POST is still to be told
    if ruling.hold is not None:
        kind = OutcomeKind.WITHHELD
        return Conclusion(kind=kind, event=event, reason=ruling.hold)
    return Wait(seconds=ruling.left) if ruling.left else Post(event=event)


def _ruling(
    event: ScheduledEvent, look: Look, standing: Standing, terms: Terms
) -> Ruling:
    known, seen = look.watch.known.get(event.key), look.watch.seen
    age = known.age(seen) if known and seen else 0.0
    return judge(
        terms.rules, event, age=age, now=look.now, me=terms.me, found=standing.found
    )


def _refusal(
    event: ScheduledEvent, request: Request, ruling: Ruling, terms: Terms
) -> str | None:
    """Return why an event may not be approved, if it may not."""
    if not _is_allowed(event, terms):
        return "EventTypeNotAllowed"
    if ruling.action == "deny":
        return f"DeniedByRule {ruling.rule}" if ruling.rule else "NoRuleAllows"
    if (initiative := request.initiative) is not None:
        return _change(event, initiative, ruling)
    seen = _approved(event, request.approval)
    return "EventChanged" if seen and is_material(seen, event) else None


def _change(
    event: ScheduledEvent, initiative: Initiative, ruling: Ruling
) -> str | None:
    """Return what is no longer so of that which a rule has asked for."""
    if content_of(event) != initiative.content:
        return "EventChanged"
    is_same = (ruling.action, ruling.rule) == ("auto-approve", initiative.rule)
    return None if is_same else "RuleChanged"


def _approved(event: ScheduledEvent, approval: Approval) -> ScheduledEvent | None:
    """Return what the approver saw of an event; None where nothing is said of it.

    Of several events that are approved at once, it can be only one that was shown.
    """
    raw = approval.approved_event
    if raw is None:
        return None
    seen = ScheduledEvent(event_id=str(raw.get("EventId", event.event_id)), raw=raw)
    is_of_another = seen.key != event.key and len(approval.event_ids) > 1
    return None if is_of_another else seen


def _is_allowed(event: ScheduledEvent, terms: Terms) -> bool:
    allowed = {name.casefold() for name in terms.allow_event_types}
    return not allowed or (event.event_type or "").casefold() in allowed
