"""Each request for a POST, until its conclusion, and what all of an entity share.

A request is one EventId of a message, or of a rule. Its record on disk is the intent:

    asked ──its turn comes──▶ marked on disk ──POST──▶ may have worked
      ▲                              │
      └───no POST was sent: deleted──┘

The intent stays on disk if the process dies: a POST may have worked, and may even be
the reason why the process died.
"""

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime, timedelta
from itertools import count
from typing import Any

import orjson
from msgspec import Struct, field
from msgspec.structs import replace

from bridge.approvals.evidence import Evidences, SuccessCheck
from bridge.approvals.policy import (
    Conclusion,
    Post,
    Request,
    Standing,
    Terms,
    Wait,
    deadline,
    decide,
    is_absent,
)
from bridge.approvals.rotation import Rotation
from bridge.approvals.rules import ReplyRules
from bridge.events.build import EventContext, Outcome, OutgoingEvent, from_outcome
from bridge.events.document import ScheduledEvent
from bridge.events.look import Look
from bridge.events.start_result import StartAnswer, StartResult
from bridge.events.vocabulary import OutcomeKind
from bridge.events.watch import Moment
from bridge.foundation.clock import Clock, is_settled
from bridge.foundation.pace import RetryPolicy
from bridge.imds.poller import Poller
from bridge.outbox.records import INTENT, CommandStanding, Decision, Reply
from bridge.outbox.store import Outbox
from bridge.signing.approval import Approvers

log = logging.getLogger(__name__)

_BACKOFF = RetryPolicy(first=1.0, max_backoff=30.0)
_LEAST_PAUSE = 0.25
_REFUSED_AGAIN = 1.75  # so that three tries take less than five seconds
_MOST_REFUSALS = 3
_RETURN_PATIENCE = 180.0  # after a reboot IMDS may take two minutes to answer


class ApprovalContext(Struct, frozen=True, kw_only=True):
    """The parts and settings that all approvals of one entity share.

    Attributes:
        entity: the name of the approval entity in ids.
        abandons_unknown: whether a message about an unknown event is abandoned, because
            another VM may know the event.
        max_delivery_count: how often the entity delivers a message.
        rotation: None without a traffic probe.
        approvers: checks who has signed an approval; None = everybody may approve.
        successes: decides which successes of commands count.
    """

    entity: str
    terms: Terms
    abandons_unknown: bool
    replies: ReplyRules
    outbox: Outbox
    event_context: EventContext
    poller: Poller
    clock: Clock
    chance: Callable[[], float]
    max_delivery_count: int = 10
    rotation: Rotation | None = None
    approvers: Approvers | None = None
    successes: SuccessCheck = field(default_factory=SuccessCheck)

    async def standings(self, key: str) -> Mapping[str, CommandStanding]:
        """Return how the commands that rules require stand for an event, by name."""
        names = self.terms.commands
        return await self.outbox.commands.standings(key, names) if names else {}

    def evidences(
        self, event: ScheduledEvent, standings: Mapping[str, CommandStanding]
    ) -> Evidences:
        """Return the results, for an event, of the commands that rules require."""
        # Until the time is certain, no success gets a monotonic time.
        monotonic = self.clock.monotonic() if is_settled(self.clock) else None
        now = Moment(at=self.clock.now(), monotonic=monotonic)
        return self.successes.evidences(event, standings, now)

    def outgoing(
        self,
        conclusion: Conclusion,
        record: Decision,
        name: str | None,
        claims: Mapping[str, object],
    ) -> OutgoingEvent:
        """Return the event about the conclusion of a request.

        Args:
            conclusion: what it is about.
            record: the request's.
            name: the MessageId, or the content of the event for a rule.
            claims: who asked, and what else the message says of itself.
        """
        outcome = Outcome(
            outcome=conclusion.kind.value,
            event_id=record.event_id or None,
            event=conclusion.event,
            imds_status=conclusion.imds_status,
            confirmed=conclusion.confirmed,
            reason=conclusion.reason,
            request=claims,
            origin=(self.entity, name, record.sequence),
        )
        return from_outcome(self.event_context, outcome, self.clock.now())

    async def conclude(
        self, outgoing: OutgoingEvent, record: Decision, reply: Reply | None = None
    ) -> None:
        """Store an outcome in one commit, count and log it.

        The reply to a message is stored with its last outcome.
        """
        now = self.clock.now().timestamp()
        data: Mapping[str, Any] = outgoing.event.data
        decision = replace(record, state=data["outcome"], data=orjson.dumps(data))
        await self.outbox.commit([outgoing], now=now, decisions=[decision], reply=reply)
        self.poller.metrics.start_requests.labels(decision.state).inc()
        log.info(
            "approval decided",
            extra={
                "messageId": data["request"]["messageId"],
                "rule": decision.rule,
                "eventId": data["eventId"],
                "outcome": decision.state,
                "reason": data["reason"],
            },
        )


def intent_of(
    message: str, event_id: str, sequence: int | None = None, rule: str | None = None
) -> Decision:
    """Return the record of a request that has no conclusion yet.

    ``message`` is its key, or the content of the event for a rule; an ``event_id`` that
    is "" means the whole message.
    """
    return Decision(
        message=message,
        key=event_id.upper(),
        event_id=event_id,
        sequence=sequence,
        state=INTENT,
        rule=rule,
    )


class Pending(Struct, eq=False):
    """One EventId of a message, or of a rule, until its conclusion.

    Times are monotonic seconds.

    Attributes:
        record: its intent, without the mark.
        was_tried: whether a POST may have been sent before the restart.
        standing: what is known of it besides the document.
        is_marked: whether the mark is on disk, or has waited for it for long.
        rest: called whenever it waits: for a time, for IMDS or for its turn.
        key: the EventId in capitals, for comparisons.
        number: its own, in order.
        began: when it was asked for.
        after: only a look with a higher number serves: it began later.
        since: when it is to be decided, by a look that began then or later.
        end: when it fails for good; infinite until something has failed.
        is_last: whether the next look decides, for a POST is in doubt.
        step: the last decision, while it holds: a wait, or a POST that waits for its
            turn. A change of the event ends it.
        shown: the known event at that decision.
        nearness: its NotBefore then, in seconds since the epoch.
        proven: when the commands that a rule requires were looked up.
        work: what its own task writes now; the loop does not wait for that.
        bell: rings when there is work or it is over.
        conclusion: set at the end; None = the process stops.
    """

    context: ApprovalContext
    request: Request
    record: Decision
    was_tried: bool
    rest: Callable[[], None] = lambda: None
    standing: Standing = field(default_factory=Standing)
    is_marked: bool = False
    key: str = ""
    number: int = field(default_factory=count().__next__)
    began: float = 0.0
    after: int = 0
    since: float = 0.0
    end: float = math.inf
    is_last: bool = False
    step: Post | Wait | None = None
    shown: ScheduledEvent | None = None
    nearness: float = math.inf
    event: ScheduledEvent | None = None
    absent_since: float | None = None
    status: int | None = None
    refusals: int = 0
    failures: int = 0
    fault: str | None = None
    proven: float = -math.inf
    commands: Mapping[str, CommandStanding] = field(default_factory=dict)
    work: Callable[[], Awaitable[None]] | None = None
    bell: asyncio.Event = field(default_factory=asyncio.Event)
    is_over: bool = False
    conclusion: Conclusion | None = None

    def __post_init__(self) -> None:
        self.key = self.request.key
        self.standing.may_have_worked = self.standing.was_posted = self.was_tried
        self.is_marked = self.was_tried

    @property
    def known(self) -> ScheduledEvent | None:
        """The event as the last look has left it."""
        poller = self.context.poller
        watch = poller.latest.watch if poller.latest else poller.watch
        known = watch.known.get(self.key)
        return known.event if known else None

    async def mark(self) -> None:
        """Store that a POST begins; then look up the commands again."""
        now, approvals = self.context.clock.now(), self.context.outbox.approvals
        await approvals.save(replace(self.record, posted=True), now=now.timestamp())
        self.is_marked = True
        await self.prove()

    async def unmark(self) -> None:
        """Delete the mark if no POST was begun: it would leave the outcome in doubt."""
        if self.is_marked and not self.standing.was_posted:
            self.is_marked = False
            await self.context.outbox.approvals.delete(self.record.message, self.key)

    async def prove(self) -> None:
        """Look up the commands that a rule requires."""
        self.proven = math.inf
        if self.request.rule is not None:
            self.proven = self.context.clock.monotonic()
            self.commands = await self.context.standings(self.key)

    def decide(self, look: Look, now: float) -> Conclusion | Post | Wait:
        """Decide by a look, for the present time even if the look is older."""
        context, by_rule = self.context, self.request.rule is not None
        look = replace(look, now=_time_by(look, now))
        event = look.document.events.get(self.key)
        self.event, self.shown = event or self.event, self.known
        not_before = event.not_before if event else None
        self.nearness = not_before.timestamp() if not_before else math.inf
        if self.absent_since is None and is_absent(self.key, look):
            self.absent_since = now
        standing = self.standing
        standing.was_seen |= self.shown is not None
        if self.absent_since is not None:
            standing.absent_for = now - self.absent_since
        if event is not None and by_rule:
            standing.found = context.evidences(event, self.commands)
        step = decide(self.request, look, standing, context.terms)
        if _is_expired(step) and not is_settled(context.clock):
            return Wait()  # one odd Date must not refuse an approval
        if isinstance(step, Post) and self.failures and self.left(now) <= 0:
            return self.failed()
        if isinstance(step, Post) and context.rotation is not None:
            left = context.rotation.leave(step.event, settles=by_rule)
            if left > 0:  # only for a rule: an approval message does not wait
                return Wait(seconds=left)
        return step

    def answered(self, answer: StartAnswer, now: float) -> Conclusion | None:
        """Take the answer to a POST; return the conclusion, None = try again."""
        self.status = answer.status
        if answer.result is StartResult.ACCEPTED:
            return Conclusion(OutcomeKind.RELAYED, self.event, confirmed=True)
        if answer.result is not StartResult.REFUSED:
            self.refusals = 0
            if answer.result is StartResult.IN_DOUBT:
                self.standing.may_have_worked = True
            return self.fail(answer.text, answer.retry_after, now)
        self.refusals += 1
        if self.refusals == _MOST_REFUSALS:
            return Conclusion(OutcomeKind.REJECTED, self.event, reason=answer.text)
        self.since = now + _REFUSED_AGAIN
        return None

    def fail(
        self, fault: str, retry_after: float | None, now: float
    ) -> Conclusion | None:
        """Try later; conclude that it failed if the deadline has passed.

        If a POST is in doubt, one more look decides then.
        """
        self.rest()
        self.failures, self.fault, self.step = self.failures + 1, fault, None
        log.warning(
            "approval not relayed yet",
            extra={"eventId": self.request.event_id, "fault": fault},
        )
        left = max(self.left(now), 0.0)
        if not left and (self.is_last or not self.standing.may_have_worked):
            return self.failed()
        self.is_last = not left
        unit = self.context.chance()
        delay = _BACKOFF.delay(self.failures, unit=unit, retry_after=retry_after)
        self.end = now + left
        self.since = min(now + max(delay, _LEAST_PAUSE), self.end)
        return None

    def failed(self) -> Conclusion:
        """Return the conclusion that it failed."""
        return Conclusion(OutcomeKind.FAILED, self.event, reason=self.fault)

    def left(self, now: float) -> float:
        """Return the seconds until the deadline, after which no try makes sense."""
        context, last = self.context, self.context.poller.latest
        event = self.event or self.known
        not_before = event.not_before if event else None
        end = deadline(self.request, not_before, context.terms)
        at = context.clock.now() if last is None else _time_by(last, now)
        left = (end - at).total_seconds()
        if self.was_tried or last is None:
            left = max(left, self.began + _RETURN_PATIENCE - now)
        return left


def _time_by(look: Look, now: float) -> datetime:
    """Return the time by the clock of IMDS, some time after a look."""
    return look.now + timedelta(seconds=now - (look.read.monotonic or now))


def _is_expired(step: Conclusion | Post | Wait) -> bool:
    return isinstance(step, Conclusion) and step.kind is OutcomeKind.EXPIRED
