"""Handles one EventId of an approval until its outcome.

    intent on disk → fresh look → decide ─┬─ a conclusion
         ▲                                ├─ wait, and look again
         │                                └─ wait for the turn; with the turn:
         │                                   decide → posted on disk → POST ─┬─ relayed
         └────────── refused, no answer, anything else: later ───────────────┘

Before each POST, and within its turn at IMDS, the document is read and a decision is
made (see ``posting``). The decision before that only says that a POST is needed. The
intent stays on disk if the process dies. If the intent is marked as posted, a POST may
have worked, and may even be the reason why the process died. Any other intent starts
again from the beginning.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from msgspec import Struct
from msgspec.structs import replace

from bridge.approvals.context import ApprovalContext
from bridge.approvals.evidence import NO_EVIDENCE, Evidences
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
from bridge.approvals.posting import post
from bridge.events.document import ScheduledEvent
from bridge.events.look import Look
from bridge.events.start_result import StartAnswer, StartResult
from bridge.events.vocabulary import NOTHING_TO_APPROVE, OutcomeKind
from bridge.foundation.clock import Clock, is_settled
from bridge.foundation.errors import MetadataError, MetadataUnavailableError
from bridge.foundation.retry import RetryPolicy
from bridge.foundation.workers import unless
from bridge.outbox.records import Decision

# -- The intent of a StartRequest: its record in the state file before the outcome -----
#
#     stored ◀──no POST was sent──▶ marked as posted ──POST──▶ may have worked
#       └──────given up: deleted
#
# The intent stays on disk if the process dies. If it is marked as posted, a POST may
# have worked, and may even be the reason why the process died.


INTENT = "intent"


class Intent(Struct):
    """The intent for one EventId of one message, or of a rule.

    Attributes:
        request: the EventId, and the approval that asks for it.
        message: the key of the message.
        sequence: the sequence number of the message; None for a rule.
        was_tried: whether a POST was begun before the restart, and its outcome is not
            known.
        was_sent: whether a POST was sent since then.
    """

    context: ApprovalContext
    request: Request
    message: str
    sequence: int | None
    was_tried: bool
    was_sent: bool = False
    _is_marked: bool = False

    def __post_init__(self) -> None:
        self._is_marked = self.was_tried

    @property
    def was_posted(self) -> bool:
        """Whether a POST was sent, or may have been sent before the restart."""
        return self.was_tried or self.was_sent

    async def store(self) -> None:
        """Store the intent; an intent that is already stored stays as it is."""
        await self._save(posted=False)

    async def mark(self) -> None:
        """Store that a POST begins; called before the POST."""
        if not self._is_marked:
            self._is_marked = True
            await self._save(posted=True)

    async def unmark(self) -> None:
        """Undo ``mark`` if no POST was sent."""
        if self._is_marked and not self.was_posted:
            self._is_marked = False
            await self._delete()
            await self._save(posted=False)

    async def withdraw(self) -> bool:
        """Delete the intent if no POST was begun; return whether it was deleted.

        Otherwise a redelivery would treat the outcome as unknown.
        """
        if not self.was_posted:
            await self._delete()
        return not self.was_posted

    async def _delete(self) -> None:
        await self.context.outbox.approvals.delete(self.message, self.request.key)

    async def _save(self, *, posted: bool) -> None:
        initiative = self.request.initiative
        intent = Decision(
            message=self.message,
            key=self.request.key,
            event_id=self.request.event_id,
            sequence=self.sequence,
            state=INTENT,
            posted=posted,
            rule=initiative.rule if initiative else None,
        )
        now = self.context.clock.now().timestamp()
        await self.context.outbox.approvals.save(intent, now=now)


# -- Handles one EventId of an approval until its outcome ------------------------------


log = logging.getLogger(__name__)

_BACKOFF = RetryPolicy(first=1.0, max_backoff=30.0)
_LEAST_PAUSE = 0.25
_REFUSED_AGAIN = 1.75  # so that three tries take less than five seconds
_MOST_REFUSALS = 3
_RETURN_PATIENCE = 180.0  # after a reboot IMDS may take two minutes to answer


@dataclass(frozen=True, slots=True)
class _Anchor:
    """When the last look was: ``now`` by the clock of IMDS, ``monotonic`` by ours.

    Before the first look, ``now`` is a guess by the clock of this machine, which may be
    wrong by hours.
    """

    now: datetime
    monotonic: float
    is_guess: bool = False

    @classmethod
    def at_first(cls, look: Look | None, clock: Clock) -> "_Anchor":
        """Return the anchor of a new flow; ``look`` is the last one of the poller."""
        if look is None or look.read.monotonic is None:
            return cls(clock.now(), clock.monotonic(), is_guess=True)
        return cls(look.now, look.read.monotonic)


@dataclass(slots=True, kw_only=True)
class StartRequestFlow:
    """Handles one EventId, within one delivery of its message.

    Each method is one step of the diagram above, and passes its results to later steps
    in fields. Any step may be the last one.

    Attributes:
        intent: the request, and its record in the state file.
        rest: called when the flow begins to wait: for a time, for IMDS or its turn.
        began: when the flow began, in monotonic seconds.
    """

    context: ApprovalContext
    intent: Intent
    rest: Callable[[], None] = lambda: None
    began: float = field(init=False)
    _anchor: _Anchor = field(init=False)
    _may_have_worked: bool = field(init=False)
    _status: int | None = None
    _refusals: int = 0
    _failures: int = 0
    _fault: str | None = None
    _absent_since: float | None = None
    _event: ScheduledEvent | None = None

    def __post_init__(self) -> None:
        clock = self.context.clock
        self.began = clock.monotonic()
        self._anchor = _Anchor.at_first(self.context.watcher.latest, clock)
        self._may_have_worked = self.intent.was_tried

    @property
    def request(self) -> Request:
        """The EventId, and the approval that asks for it."""
        return self.intent.request

    @property
    def key(self) -> str:
        """The EventId in capitals, for comparisons."""
        return self.request.key

    async def run(self, stop: asyncio.Event) -> Conclusion | None:
        """Return the conclusion; None if ``stop`` came first.

        Raises:
            OutboxError: the state file cannot be read or written.
        """
        await self.intent.store()
        while not stop.is_set():
            if conclusion := await self._try(stop):
                if conclusion.kind not in NOTHING_TO_APPROVE:
                    self.context.rotation.stay(self.key)
                return replace(conclusion, imds_status=self._status)
        await self.intent.withdraw()
        return None

    async def decide(self, look: Look) -> Conclusion | Post | Wait:
        """Decide by a look, for the present time even if the look is older."""
        now = self.context.clock.monotonic()
        since_read = now - (look.read.monotonic or now)
        look = replace(look, now=look.now + timedelta(seconds=since_read))
        self._anchor = _Anchor(look.now, now)
        event = look.document.events.get(self.key)
        self._event = event or self._event
        if self._absent_since is None and is_absent(self.key, look):
            self._absent_since = now
        since = now if self._absent_since is None else self._absent_since
        standing = Standing(
            may_have_worked=self._may_have_worked,
            was_seen=event is None
            and await self.context.outbox.observations.was_seen(self.key),
            absent_for=now - since,
            was_posted=self.intent.was_posted,
            found=await self._evidences(event),
        )
        step = decide(self.request, look, standing, self.context.terms)
        if _is_expired(step) and not is_settled(self.context.clock):
            return Wait()  # one odd Date must not refuse an approval
        if isinstance(step, Post) and self._failures and self._left() <= 0:
            return self._failed(self._fault)
        if isinstance(step, Post):
            by_rule = self.request.initiative is not None
            left = self.context.rotation.leave(step.event, settles=by_rule)
            if left > 0:  # only for a rule: an approval message does not wait
                return Wait(seconds=left)
        return step

    async def _evidences(self, event: ScheduledEvent | None) -> Evidences:
        """Return the results of commands for an event; only a rule requires them."""
        if event is None or self.request.initiative is None:
            return NO_EVIDENCE
        return await self.context.evidences(event)

    async def mark(self) -> None:
        """Store that a POST begins; called before the POST."""
        await self.intent.mark()

    async def _try(self, stop: asyncio.Event) -> Conclusion | None:
        """Look, decide and act; return the conclusion, None = try again."""
        try:
            look = await unless(stop, self.context.watcher.fresh())
        except MetadataError as error:
            return await self._later(stop, str(error), _retry_after_of(error))
        if look is None:
            return None
        step: Conclusion | Post | Wait | None = await self.decide(look)
        if isinstance(step, Post):
            step = await self._post(stop)
        if isinstance(step, Wait):
            self.rest()
            await self.context.waits.wait(self.key, step.seconds, stop)
            return None
        return step

    async def _post(self, stop: asyncio.Event) -> Conclusion | Wait | None:
        self.rest()
        result = await post(self.context.watcher, self)
        if isinstance(result, StartAnswer):
            self.intent.was_sent, self._status = True, result.status
            return await self._answered(result, stop)
        await self.intent.unmark()
        if isinstance(result, MetadataError):
            return await self._later(stop, str(result), _retry_after_of(result))
        return result

    async def _answered(
        self, answer: StartAnswer, stop: asyncio.Event
    ) -> Conclusion | None:
        if answer.result is StartResult.ACCEPTED:
            kind = OutcomeKind.RELAYED
            return Conclusion(kind=kind, event=self._event, confirmed=True)
        if answer.result is not StartResult.REFUSED:
            self._refusals = 0
            if answer.result is StartResult.IN_DOUBT:
                self._may_have_worked = True
            return await self._later(stop, answer.text, answer.retry_after)
        self._refusals += 1
        if self._refusals == _MOST_REFUSALS:
            kind = OutcomeKind.REJECTED
            return Conclusion(kind=kind, event=self._event, reason=answer.text)
        await self.context.clock.wait(stop, _REFUSED_AGAIN)
        return None

    async def _later(
        self, stop: asyncio.Event, fault: str, retry_after: float | None
    ) -> Conclusion | None:
        """Wait after a failure; give up if the deadline has passed."""
        self.rest()
        self._failures, self._fault = self._failures + 1, fault
        log.warning(
            "approval not relayed yet",
            extra={"eventId": self.request.event_id, "fault": fault},
        )
        if (left := self._left()) <= 0:
            return await self._give_up(stop)
        delay = _BACKOFF.delay(
            self._failures, unit=self.context.chance(), retry_after=retry_after
        )
        await self.context.clock.wait(stop, min(max(delay, _LEAST_PAUSE), left))
        return None

    async def _give_up(self, stop: asyncio.Event) -> Conclusion:
        """Conclude that the approval failed; if a POST is in doubt, look once more."""
        failed = self._failed(self._fault)
        if not self._may_have_worked:
            return failed
        try:
            look = await unless(stop, self.context.watcher.fresh())
        except MetadataError:
            return failed
        step = None if look is None else await self.decide(look)
        return step if isinstance(step, Conclusion) else failed

    def _failed(self, reason: str | None) -> Conclusion:
        return Conclusion(kind=OutcomeKind.FAILED, event=self._event, reason=reason)

    def _left(self) -> float:
        """Return the seconds until the deadline, after which no try makes sense."""
        known = self.context.watcher.watch.known.get(self.key)
        event = self._event or (known.event if known else None)
        not_before = event.not_before if event else None
        end = deadline(self.request, not_before, self.context.terms)
        left = (end - self._now()).total_seconds()
        if not (self.intent.was_tried or self._anchor.is_guess):
            return left
        return max(left, self.began + _RETURN_PATIENCE - self.context.clock.monotonic())

    def _now(self) -> datetime:
        """Return the time by the clock of IMDS if a look gave it, else by ours."""
        gone = self.context.clock.monotonic() - self._anchor.monotonic
        return self._anchor.now + timedelta(seconds=gone)


def _is_expired(step: Conclusion | Post | Wait) -> bool:
    return isinstance(step, Conclusion) and step.kind is OutcomeKind.EXPIRED


def _retry_after_of(error: MetadataError) -> float | None:
    return error.retry_after if isinstance(error, MetadataUnavailableError) else None
