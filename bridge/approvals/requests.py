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
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime, timedelta

from msgspec import Struct, field
from msgspec.structs import replace

from bridge.approvals.context import ApprovalContext, Intent
from bridge.approvals.evidence import NO_EVIDENCE
from bridge.approvals.policy import (
    Conclusion,
    Post,
    Request,
    Standing,
    Wait,
    deadline,
    decide,
    is_absent,
)
from bridge.events.document import ScheduledEvent
from bridge.events.look import Look, Need
from bridge.events.start_result import StartAnswer, StartResult
from bridge.events.vocabulary import NOTHING_TO_APPROVE, OutcomeKind
from bridge.foundation.clock import is_settled
from bridge.foundation.errors import MetadataError
from bridge.foundation.retry import RetryPolicy
from bridge.imds.poller import Poller
from bridge.outbox.records import CommandStanding

log = logging.getLogger(__name__)

_BACKOFF = RetryPolicy(first=1.0, max_backoff=30.0)
_LEAST_PAUSE = 0.25
_LEAST_WAIT = 0.001
_LONGEST_WAIT = 60.0  # then decide again: the approval may have expired
_REFUSED_AGAIN = 1.75  # so that three tries take less than five seconds
_MOST_REFUSALS = 3
_RETURN_PATIENCE = 180.0  # after a reboot IMDS may take two minutes to answer
_PROOF_AGE = 5.0  # a rule's commands are looked up again after so many seconds


class Pending(Struct, eq=False):
    """One EventId of a message, or of a rule, until its conclusion.

    Times are monotonic seconds.

    Attributes:
        rest: called whenever it waits: for a time, for IMDS or for its turn.
        key: the EventId in capitals, for comparisons.
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

    intent: Intent
    rest: Callable[[], None]
    may_have_worked: bool = False
    key: str = ""
    began: float = 0.0
    after: int = 0
    since: float = 0.0
    end: float = math.inf
    is_last: bool = False
    step: Post | Wait | None = None
    shown: ScheduledEvent | None = None
    nearness: float = math.inf
    was_seen: bool = False
    event: ScheduledEvent | None = None
    absent_since: float | None = None
    status: int | None = None
    refusals: int = 0
    failures: int = 0
    fault: str | None = None
    proven: float = -math.inf
    standings: Mapping[str, CommandStanding] = field(default_factory=dict)
    work: Callable[[], Awaitable[None]] | None = None
    bell: asyncio.Event = field(default_factory=asyncio.Event)
    is_over: bool = False
    conclusion: Conclusion | None = None

    def __post_init__(self) -> None:
        self.key = self.request.key

    @property
    def context(self) -> ApprovalContext:
        """The parts and settings that all approvals of its entity share."""
        return self.intent.context

    @property
    def request(self) -> Request:
        """The EventId, and the approval that asks for it."""
        return self.intent.request

    @property
    def known(self) -> ScheduledEvent | None:
        """The event as the last look has left it."""
        poller = self.context.requests.poller
        watch = poller.latest.watch if poller.latest else poller.watch
        known = watch.known.get(self.key)
        return known.event if known else None

    async def prove(self) -> None:
        """Look up the commands that a rule requires."""
        self.proven = math.inf
        if self.request.initiative is not None:
            self.proven = self.context.clock.monotonic()
            self.standings = await self.context.standings(self.key)

    async def mark(self) -> None:
        """Store that a POST begins; then look up the commands again."""
        await self.intent.mark()
        await self.prove()

    def write(self, work: Callable[[], Awaitable[None]]) -> None:
        """Let its own task write something, unless that writes already."""
        if self.work is None:
            self.work = work
            self.bell.set()

    def decide(self, look: Look, now: float) -> Conclusion | Post | Wait:
        """Decide by a look, for the present time even if the look is older."""
        context, by_rule = self.context, self.request.initiative is not None
        look = replace(look, now=_time_by(look, now))
        event = look.document.events.get(self.key)
        self.event, self.shown = event or self.event, self.known
        self.was_seen = self.was_seen or self.shown is not None
        not_before = event.not_before if event else None
        self.nearness = not_before.timestamp() if not_before else math.inf
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
        if isinstance(step, Post) and self.failures and self.left(now) <= 0:
            return self.failed()
        if isinstance(step, Post):
            left = context.rotation.leave(step.event, settles=by_rule)
            if left > 0:  # only for a rule: an approval message does not wait
                return Wait(seconds=left)
        return step

    def answered(self, answer: StartAnswer, now: float) -> Conclusion | None:
        """Take the answer to a POST; return the conclusion, None = try again."""
        self.status = answer.status
        if answer.result is StartResult.ACCEPTED:
            kind = OutcomeKind.RELAYED
            return Conclusion(kind=kind, event=self.event, confirmed=True)
        if answer.result is not StartResult.REFUSED:
            self.refusals = 0
            if answer.result is StartResult.IN_DOUBT:
                self.may_have_worked = True
            return self.fail(answer.text, answer.retry_after, now)
        self.refusals += 1
        if self.refusals == _MOST_REFUSALS:
            kind = OutcomeKind.REJECTED
            return Conclusion(kind=kind, event=self.event, reason=answer.text)
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

    def left(self, now: float) -> float:
        """Return the seconds until the deadline, after which no try makes sense."""
        context, last = self.context, self.context.requests.poller.latest
        event = self.event or self.known
        not_before = event.not_before if event else None
        end = deadline(self.request, not_before, context.terms)
        at = context.clock.now() if last is None else _time_by(last, now)
        left = (end - at).total_seconds()
        if self.intent.was_tried or last is None:
            left = max(left, self.began + _RETURN_PATIENCE - now)
        return left


class Requests:
    """All requests that have no conclusion yet; the loop of ``poller`` decides them."""

    def __init__(self, poller: Poller) -> None:
        self.poller = poller
        self._all: list[Pending] = []
        self._ready: list[Pending] = []  # those that share the next POST
        self._posting: list[Pending] = []

    async def pursue(
        self, intent: Intent, rest: Callable[[], None] = lambda: None
    ) -> Conclusion | None:
        """Return the conclusion for an intent; None if the process stops first.

        Raises:
            OutboxError: the state file cannot be read or written.
        """
        context = intent.context
        one = Pending(intent, rest, intent.was_tried)
        await intent.store()
        one.was_seen = await context.outbox.observations.was_seen(one.key)
        await one.prove()
        one.is_over, one.after = self.poller.is_over, self.poller.reads
        one.began = one.since = context.clock.monotonic()
        self._all.append(one)
        self.poller.requests = self
        try:
            await self._work(one)
        finally:
            self._drop(one)
        if one.conclusion is None or intent.is_marked:
            await intent.withdraw()
        return one.conclusion

    async def _work(self, one: Pending) -> None:
        """Write what is to be written for a request, until its conclusion."""
        while not one.is_over:
            self.poller.wake.set()
            await one.bell.wait()
            one.bell.clear()
            if one.work is not None:
                await one.work()
                one.work = None

    def turn(self, look: Look | None) -> Need:
        """Decide what can be decided now; return what is to be done next.

        Args:
            look: the last look, if a POST may follow it.
        """
        now, need = self.poller.clock.monotonic(), Need()
        agreed = dict[str, list[Pending]]()
        for one in [*self._all]:
            if one.step is not None and one.known != one.shown:
                one.step, one.since = None, -math.inf
            if one.since > now:
                need.at = min(need.at, one.since)
            elif look is None or look.number <= one.after or look.began < one.since:
                need.look = True
            elif isinstance(one.step, Post) or self._agrees(one, look, now):
                agreed.setdefault(one.key, []).append(one)
        if look is not None:
            need.event = self._next(agreed, look, now)
        return need

    def _next(
        self, agreed: Mapping[str, list[Pending]], look: Look, now: float
    ) -> ScheduledEvent | None:
        """Return the most urgent event whose mark is there; let the next be marked."""
        self._ready = []
        writing = {one.key for one in self._all if one.work is not None}
        for key in sorted(agreed, key=lambda key: _place(agreed[key])):
            is_marked = any(one.intent.is_marked for one in agreed[key])
            if self._ready if is_marked else writing - {key}:
                continue  # one EventId at a time: most marks would be in vain
            line = [one for one in agreed[key] if self._agrees(one, look, now)]
            for one in line:
                if not one.intent.is_marked:
                    one.write(one.mark)
            if any(one.work for one in line):
                writing.add(key)
            else:
                self._ready = line
        step = self._ready[0].step if self._ready else None
        return step.event if isinstance(step, Post) else None

    def _agrees(self, one: Pending, look: Look, now: float) -> bool:
        """Decide a request; return whether it may be posted."""
        if now - one.proven > _PROOF_AGE:
            one.write(one.prove)
            return False
        step = one.decide(look, now)
        if isinstance(step, Conclusion):
            self._conclude(one, step)
            return False
        one.step = step
        one.rest()
        if isinstance(step, Wait):
            one.since = now + max(min(step.seconds, _LONGEST_WAIT), _LEAST_WAIT)
            if one.intent.is_marked:
                one.write(one.intent.unmark)
        return isinstance(step, Post)

    def _conclude(self, one: Pending, conclusion: Conclusion | None) -> None:
        if not self._drop(one):
            return  # the caller was cancelled meanwhile
        if conclusion is not None:
            one.conclusion = replace(conclusion, imds_status=one.status)
            is_last = all(other.key != one.key for other in self._all)
            if is_last and conclusion.kind not in NOTHING_TO_APPROVE:
                one.context.rotation.stay(one.key)
        one.is_over = True
        one.bell.set()

    def _drop(self, one: Pending) -> bool:
        if one not in self._all:
            return False
        self._all.remove(one)
        if not self._all:
            self.poller.requests = None
        return True

    def begin(self) -> None:
        """Take note that the POST begins."""
        self._posting = self._ready
        for one in self._posting:
            one.intent.was_sent = True

    def answered(self, answer: StartAnswer) -> None:
        """Take the answer to the POST."""
        now, posting, self._posting = self.poller.clock.monotonic(), self._posting, []
        for one in self._all:
            if one.key == posting[0].key:
                one.since, one.step = max(one.since, now), None
                one.after = self.poller.reads
        for one in posting:
            if end := one.answered(answer, now):
                self._conclude(one, end)

    def failed(self, error: MetadataError, began: float) -> None:
        """Take note of a read that has failed."""
        now = self.poller.clock.monotonic()
        wish = getattr(error, "retry_after", None)
        for one in [*self._all]:
            has_waited = one.since <= began and one.after < self.poller.reads
            if has_waited and (end := one.fail(str(error), wish, now)):
                self._conclude(one, end)

    def end_late(self, began: float = -math.inf) -> float:
        """Give up what has failed until its deadline, unless a POST is in doubt.

        Args:
            began: when the present read began: it decides what was late already.

        Returns:
            The seconds until the next deadline; infinite if there is none.
        """
        now, least = self.poller.clock.monotonic(), math.inf
        for one in [*self._all]:
            if one.may_have_worked or one in self._posting or one.end <= began:
                continue
            if one.end <= now:
                self._conclude(one, one.failed())
            else:
                least = min(least, one.end - now)
        return max(least, _LEAST_WAIT)

    def close(self) -> None:
        """End all requests but those whose POST is in flight: the process stops."""
        for one in [*self._all]:
            if one not in self._posting:
                self._conclude(one, None)


def _time_by(look: Look, now: float) -> datetime:
    """Return the time by the clock of IMDS, some time after a look."""
    return look.now + timedelta(seconds=now - (look.read.monotonic or now))


def _place(line: list[Pending]) -> tuple[float, float]:
    """Return the place in line: by NotBefore, then who has waited longest."""
    return min((one.nearness, one.since) for one in line)


def _is_expired(step: Conclusion | Post | Wait) -> bool:
    return isinstance(step, Conclusion) and step.kind is OutcomeKind.EXPIRED
