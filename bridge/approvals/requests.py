"""Requests for POSTs: data until their conclusion, decided in the poller's loop.

    asked ─▶ look ─▶ decide ─┬─ a conclusion
      ▲                      ├─ wait: for a time, or until the event changes
      │                      └─ agreed ─▶ its turn: marked on disk ─▶ decided anew ─▶
      │                                                        POST ─┬─ relayed
      └──────── refused, no answer, no document: later, or failed ◀──┘

All requests for one EventId share a POST; each is decided separately. One that joins
shares it if the look began after it had joined. The loop waits for no write: a mark is
written meanwhile, and when it is there, the request is decided anew by the newest look.
It was written after the commit of its look, so a mark on disk proves that the look is,
too. After a POST, its EventId needs a look that began after that POST had ended.
"""

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from msgspec import Struct, field
from msgspec.structs import replace as with_fields

from bridge.approvals.evidence import NO_EVIDENCE, Evidences, SuccessCheck
from bridge.approvals.intent import Intent
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
from bridge.approvals.reply import ReplyRules
from bridge.approvals.rotation import STAYS, Rotation
from bridge.events.build import EventContext, Outcome, OutgoingEvent
from bridge.events.document import ScheduledEvent
from bridge.events.look import Look
from bridge.events.start_result import StartAnswer, StartResult
from bridge.events.vocabulary import NOTHING_TO_APPROVE, OutcomeKind
from bridge.events.watch import Moment, Watch
from bridge.foundation.clock import Clock, is_settled
from bridge.foundation.errors import MetadataError
from bridge.foundation.retry import RetryPolicy
from bridge.imds.poller import Need, Poller, Posting
from bridge.outbox.records import CommandStanding, Decision, Reply
from bridge.outbox.store import Outbox
from bridge.signing.approval import Approvers

log = logging.getLogger(__name__)

_BACKOFF = RetryPolicy(first=1.0, max_backoff=30.0)
_LEAST_PAUSE = 0.25
_LEAST_WAIT = 0.001
_LONGEST_WAIT = 60.0  # then decide again: the approval may have expired
_REFUSED_AGAIN = 1.75  # so that three tries take less than five seconds
_MOST_REFUSALS = 3
_RETURN_PATIENCE = 180.0  # after a reboot IMDS may take two minutes to answer
_PROOF_AGE = 5.0  # a rule's commands are looked up again after so many seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalContext:
    """The parts and settings that all approvals of one entity share.

    Attributes:
        entity: the name of the approval entity in ids.
        abandons_unknown: whether a message about an unknown event is abandoned, because
            another VM may know the event.
        max_delivery_count: how often the entity delivers a message.
        chance: returns a random number in [0, 1) at each call.
        count: called with each outcome.
        rotation: takes this VM out of rotation before an event of its own is approved.
        approvers: checks who has signed an approval; None = everybody may approve.
        successes: decides which successes of commands count; None if no rule requires
            a command.
    """

    entity: str
    terms: Terms
    abandons_unknown: bool
    replies: ReplyRules
    outbox: Outbox
    event_context: EventContext
    requests: "Requests"
    clock: Clock
    chance: Callable[[], float]
    count: Callable[[str], None]
    max_delivery_count: int = 10
    rotation: Rotation = STAYS
    approvers: Approvers | None = None
    successes: SuccessCheck | None = None

    async def standings(self, key: str) -> Mapping[str, CommandStanding]:
        """Return how the commands that rules require stand for an event, by name.

        Raises:
            OutboxError: the state file cannot be read.
        """
        if self.successes is None:
            return {}
        return await self.outbox.commands.standings(key, self.terms.commands)

    def evidences(
        self, event: ScheduledEvent, standings: Mapping[str, CommandStanding]
    ) -> Evidences:
        """Return the results, for an event, of the commands that rules require."""
        if self.successes is None:
            return NO_EVIDENCE
        # Until the time is certain, no success gets a monotonic time.
        monotonic = self.clock.monotonic() if is_settled(self.clock) else None
        now = Moment(at=self.clock.now(), monotonic=monotonic)
        return self.successes.evidences(event, standings, now)

    async def conclude(
        self,
        outcome: Outcome,
        outgoing: OutgoingEvent,
        decision: Decision,
        *,
        now: float,
        reply: Reply | None = None,
    ) -> None:
        """Store the outcome of an EventId in one commit, count and log it.

        Args:
            outcome: the outcome.
            outgoing: the event about the outcome.
            decision: the record of the outcome.
            now: seconds since the epoch.
            reply: the reply, with the last outcome of a message; else None.
        """
        await self.outbox.commit([outgoing], now=now, decisions=[decision], reply=reply)
        self.count(outcome.outcome)
        log.info(
            "approval decided",
            extra={
                "messageId": outcome.request["messageId"],
                "rule": decision.rule,
                "eventId": outcome.event_id,
                "outcome": outcome.outcome,
                "reason": outcome.reason,
            },
        )


class Pending(Struct, eq=False):
    """One EventId of a message, or of a rule, until its conclusion.

    Times are monotonic seconds.

    Attributes:
        done: gets the conclusion; None = the process stops.
        rest: called whenever it waits: for a time, for IMDS or for its turn.
        since: when it is to be decided, by a look that began then or later.
        after: only a look with a higher number serves: it began later.
        is_agreed: whether that look lets it be posted: it waits for its turn.
        shown: the known event when a wait began; a change ends the wait.
        waits: whether it waits for a time.
        end: when it fails for good; infinite until something has failed.
        is_last: whether the next look decides, for a POST is in doubt.
        proven: when the commands that a rule requires were looked up.
        writing: what is being written for it; the loop does not wait for that.
    """

    context: ApprovalContext
    intent: Intent
    done: "asyncio.Future[Conclusion | None]"
    rest: Callable[[], None]
    began: float = 0.0
    since: float = 0.0
    after: int = 0
    end: float = math.inf
    is_last: bool = False
    is_agreed: bool = False
    waits: bool = False
    may_have_worked: bool = False
    was_seen: bool = False
    shown: ScheduledEvent | None = None
    event: ScheduledEvent | None = None
    absent_since: float | None = None
    status: int | None = None
    refusals: int = 0
    failures: int = 0
    fault: str | None = None
    proven: float = -math.inf
    standings: Mapping[str, CommandStanding] = field(default_factory=dict)
    writing: "asyncio.Task[None] | None" = None

    @property
    def request(self) -> Request:
        """The EventId, and the approval that asks for it."""
        return self.intent.request

    @property
    def key(self) -> str:
        """The EventId in capitals, for comparisons."""
        return self.request.key

    def is_proven(self, now: float) -> bool:
        """Whether the results of a rule's commands are known, and new enough."""
        needs = self.request.initiative is not None and self.context.successes
        return not needs or now - self.proven <= _PROOF_AGE

    async def prove(self) -> None:
        """Look up the commands that a rule requires."""
        now = self.context.clock.monotonic()
        if self.request.initiative is not None:
            self.standings = await self.context.standings(self.key)
        self.proven = now

    async def mark(self) -> None:
        """Store that a POST begins; then look up the commands again."""
        await self.intent.mark()
        await self.prove()

    def decide(self, look: Look, now: float) -> Conclusion | Post | Wait:
        """Decide by a look, for the present time even if the look is older."""
        context, by_rule = self.context, self.request.initiative is not None
        look = with_fields(look, now=_time_by(look, now))
        event = look.document.events.get(self.key)
        self.event = event or self.event
        if self.absent_since is None and is_absent(self.key, look):
            self.absent_since = now
        found = NO_EVIDENCE
        if event is not None and by_rule:
            found = context.evidences(event, self.standings)
        standing = Standing(
            may_have_worked=self.may_have_worked,
            was_seen=self.was_seen,
            absent_for=0.0 if self.absent_since is None else now - self.absent_since,
            was_posted=self.intent.was_posted,
            found=found,
        )
        step = decide(self.request, look, standing, context.terms)
        if _is_expired(step) and not is_settled(context.clock):
            return Wait()  # one odd Date must not refuse an approval
        if isinstance(step, Post) and self.failures and self.left(look, now) <= 0:
            return self.failed()
        if isinstance(step, Post):
            left = context.rotation.leave(step.event, settles=by_rule)
            if left > 0:  # only for a rule: an approval message does not wait
                return Wait(seconds=left)
        return step

    def wait(self, seconds: float, look: Look, now: float) -> None:
        """Wait some seconds, but only as long as the event does not change."""
        self.is_agreed, self.waits = False, True
        self.since = now + max(min(seconds, _LONGEST_WAIT), _LEAST_WAIT)
        self.shown = _shown(self.key, look)

    def see(self, look: Look) -> None:
        """Take note of a look; a changed event ends a wait."""
        self.was_seen = self.was_seen or self.key in look.watch.known
        if self.waits and _shown(self.key, look) != self.shown:
            self.waits, self.since = False, look.began

    def answer(self, answer: StartAnswer, last: Look, now: float) -> Conclusion | None:
        """Take the answer to a POST; return the conclusion, None = try again."""
        self.status = answer.status
        if answer.result is StartResult.ACCEPTED:
            kind = OutcomeKind.RELAYED
            return Conclusion(kind=kind, event=self.event, confirmed=True)
        if answer.result is not StartResult.REFUSED:
            self.refusals = 0
            if answer.result is StartResult.IN_DOUBT:
                self.may_have_worked = True
            return self.fail(answer.text, answer.retry_after, last, now)
        self.refusals += 1
        if self.refusals == _MOST_REFUSALS:
            kind = OutcomeKind.REJECTED
            return Conclusion(kind=kind, event=self.event, reason=answer.text)
        self.since = now + _REFUSED_AGAIN
        return None

    def fail(
        self,
        fault: str,
        retry_after: float | None,
        last: Look | None,
        now: float,
    ) -> Conclusion | None:
        """Try later; conclude that it failed if the deadline has passed.

        If a POST is in doubt, one more look decides then.
        """
        self.rest()
        self.failures, self.fault, self.is_agreed = self.failures + 1, fault, False
        log.warning(
            "approval not relayed yet",
            extra={"eventId": self.request.event_id, "fault": fault},
        )
        left = max(self.left(last, now), 0.0)
        if not left and (self.is_last or not self.may_have_worked):
            return self.failed()
        self.is_last = not left
        unit = self.context.chance()
        delay = _BACKOFF.delay(self.failures, unit=unit, retry_after=retry_after)
        self.end = now + left
        self.since = min(now + max(delay, _LEAST_PAUSE), self.end)
        return None

    def failed(self) -> Conclusion:
        """Return the conclusion that it failed."""
        kind = OutcomeKind.FAILED
        return Conclusion(kind=kind, event=self.event, reason=self.fault)

    def left(self, last: Look | None, now: float) -> float:
        """Return the seconds until the deadline, after which no try makes sense.

        Args:
            last: the last good look, which has the clock of IMDS; None = there is none.
            now: the present time.
        """
        context = self.context
        known = context.requests.watch.known.get(self.key)
        event = self.event or (known.event if known else None)
        not_before = event.not_before if event else None
        end = deadline(self.request, not_before, context.terms)
        at = context.clock.now() if last is None else _time_by(last, now)
        left = (end - at).total_seconds()
        if self.intent.was_tried or last is None:
            left = max(left, self.began + _RETURN_PATIENCE - now)
        return left


class Requests:
    """All requests that have no conclusion yet, by EventId.

    Attributes:
        poller: the loop that decides and posts them.
        last: the last good look, even if a later read has failed.
    """

    def __init__(self, poller: Poller) -> None:
        self.poller = poller
        self.clock = poller.clock
        self.last: Look | None = None
        self._lines: dict[str, list[Pending]] = {}
        self._posting: tuple[Pending, ...] = ()
        self._marking: dict[str, int] = {}  # marks being written, by EventId
        poller.requests = self

    @property
    def watch(self) -> Watch:
        """What is known of the events from the last look, even if that is old."""
        return self.poller.watch

    def __bool__(self) -> bool:
        return bool(self._lines)

    def _all(self) -> Iterator[Pending]:
        return (one for line in [*self._lines.values()] for one in [*line])

    async def pursue(
        self,
        context: ApprovalContext,
        intent: Intent,
        rest: Callable[[], None] = lambda: None,
    ) -> Conclusion | None:
        """Return the conclusion for an intent; None if the process stops first.

        Raises:
            OutboxError: the state file cannot be read or written.
        """
        done: asyncio.Future[Conclusion | None]
        done = asyncio.get_running_loop().create_future()
        one = Pending(context, intent, done, rest, may_have_worked=intent.was_tried)
        await intent.store()
        observations = context.outbox.observations
        one.was_seen = await observations.was_seen(one.key)
        await one.prove()
        if self.poller.is_over:
            done.set_result(None)
        one.began = one.since = self.clock.monotonic()
        one.after = self.poller.reads
        self._lines.setdefault(one.key, []).append(one)
        self.poller.wake.set()
        try:
            conclusion = await done
        finally:
            self._drop(one)
        if one.writing is not None:
            await one.writing
        if conclusion is None:
            await intent.withdraw()
        return conclusion

    def _drop(self, one: Pending) -> None:
        line = self._lines.get(one.key, [])
        if one in line:
            line.remove(one)
            if not line:
                del self._lines[one.key]

    def saw(self, look: Look) -> None:
        """Take note of a document that was read, compared and committed."""
        self.last = look
        for one in self._all():
            one.see(look)

    def turn(self, look: Look | None) -> Need:
        """Decide what can be decided now; return what is to be done next.

        Args:
            look: the last look, if a POST may follow it.
        """
        now, need, agreed = self.clock.monotonic(), Need(), dict[str, None]()
        for one in self._all():
            if one.since > now:
                need.at = min(need.at, one.since)
                continue
            need.at = min(need.at, one.end)
            if look is None or look.number <= one.after or look.began < one.since:
                need.look = True
            elif one.is_agreed or self._decided(one, look, now):
                agreed[one.key] = None
        if look is not None:
            need.posting = self._next(sorted(agreed, key=self._urgency), look, now)
        return need

    def _next(self, keys: list[str], look: Look, now: float) -> Posting | None:
        """Return the most urgent POST whose mark is there; let the next be marked."""
        found: Posting | None = None
        for key in keys:
            line = [one for one in self._lines.get(key, ()) if one.is_agreed]
            is_marked = any(one.intent.is_marked for one in line)
            if is_marked and found is not None:
                continue
            if not is_marked and self._marking.keys() - {key}:
                continue  # one EventId at a time: most marks would be in vain
            events = {one: self._decided(one, look, now) for one in line}
            ready = [one for one, event in events.items() if event is not None]
            marked = tuple(one for one in ready if one.intent.is_marked)
            if not marked:
                for one in ready:
                    self._write(one, one.mark)
            elif not any(one.writing for one in ready):
                event = events[marked[0]]
                found = None if event is None else Posting(event, marked)
        return found

    def _decided(self, one: Pending, look: Look, now: float) -> ScheduledEvent | None:
        """Decide a request; return the event if it may be posted."""
        if not one.is_proven(now):
            self._write(one, one.prove)
            return None
        step, one.waits = one.decide(look, now), False
        if not isinstance(step, Conclusion):
            one.rest()
        if isinstance(step, Post):
            one.is_agreed = True
            return step.event
        if isinstance(step, Wait):
            one.wait(step.seconds, look, now)
            if one.intent.is_marked:
                self._write(one, one.intent.unmark)
        else:
            self._conclude(one, step)
        return None

    def _write(self, one: Pending, work: Callable[[], Awaitable[None]]) -> None:
        """Let something be written for a request, unless it is being written to."""
        if one.writing is None:
            self._marking[one.key] = self._marking.get(one.key, 0) + 1
            one.writing = self.poller.spawn(self._written(one, work))

    async def _written(self, one: Pending, work: Callable[[], Awaitable[None]]) -> None:
        await work()
        one.writing = None
        self._marking[one.key] -= 1
        if not self._marking[one.key]:
            del self._marking[one.key]
        self.poller.wake.set()

    def _urgency(self, key: str) -> float:
        """Return NotBefore in seconds since the epoch: the nearest goes first."""
        known = self.watch.known.get(key)
        not_before = known.event.not_before if known else None
        return not_before.timestamp() if not_before else math.inf

    def _conclude(self, one: Pending, conclusion: Conclusion | None) -> None:
        self._drop(one)
        is_last = one.key not in self._lines
        if conclusion is not None:
            conclusion = replace(conclusion, imds_status=one.status)
            if is_last and conclusion.kind not in NOTHING_TO_APPROVE:
                one.context.rotation.stay(one.key)
        if not one.done.done():  # done if the caller was cancelled meanwhile
            one.done.set_result(conclusion)

    def begin(self, posting: Posting) -> None:
        """Take note that a POST begins."""
        self._posting = posting.requests
        for one in self._posting:
            one.intent.was_sent = True

    def answered(self, posting: Posting, answer: StartAnswer) -> None:
        """Take the answer to a POST."""
        now, self._posting = self.clock.monotonic(), ()
        for one in self._lines.get(posting.event.key, ()):
            one.since, one.is_agreed, one.waits = max(one.since, now), False, False
            one.after = self.poller.reads
        for one in posting.requests:
            conclusion = one.answer(answer, self.last, now)
            if conclusion is not None:
                self._conclude(one, conclusion)

    def failed(self, error: MetadataError, began: float) -> None:
        """Take note of a read that has failed."""
        now = self.clock.monotonic()
        wish = getattr(error, "retry_after", None)
        for one in self._all():
            if one.since <= began and one.after < self.poller.reads:
                end = one.fail(str(error), wish, self.last, now)
                if end is not None:
                    self._conclude(one, end)

    def has_failed(self, patience: float) -> bool:
        """Return whether a request may reach its deadline in a read that hangs.

        Args:
            patience: for so many seconds, a read that begins after a deadline may
                still show how it ended.
        """
        now = self.clock.monotonic()
        late = [o for o in self._all() if o.end < math.inf and not o.may_have_worked]
        for one in late:
            if one.end <= now:
                one.end = now + patience
        return bool(late)

    def end_late(self) -> float:
        """Give up what has failed until its deadline.

        Returns:
            The seconds until the next deadline; infinite if there is none.
        """
        now, least = self.clock.monotonic(), math.inf
        for one in self._all():
            if one.may_have_worked or one in self._posting:
                continue  # the next look decides
            if one.end <= now:
                self._conclude(one, one.failed())
            else:
                least = min(least, one.end - now)
        return max(least, _LEAST_WAIT)

    def close(self) -> None:
        """End all requests but those whose POST is in flight: the process stops."""
        for one in self._all():
            if one not in self._posting:
                self._conclude(one, None)


def _time_by(look: Look, now: float) -> datetime:
    """Return the time by the clock of IMDS, some time after a look."""
    return look.now + timedelta(seconds=now - (look.read.monotonic or now))


def _shown(key: str, look: Look) -> ScheduledEvent | None:
    known = look.watch.known.get(key)
    return known.event if known else None


def _is_expired(step: Conclusion | Post | Wait) -> bool:
    return isinstance(step, Conclusion) and step.kind is OutcomeKind.EXPIRED
