"""Pursues one EventId of an approval to its outcome.

    intent on disk → fresh look → decide ─┬─ a conclusion
         ▲                                ├─ wait, and look again
         │                                └─ posted on disk → POST ─┬─ 200: relayed
         └────────── 400, no answer, anything else: later ──────────┘

A fresh look and a decision stand before each POST. The intent stays on disk when
the process dies: who finds it knows that a POST may have worked, and that it may be
the very reason why the process died.
"""

import asyncio
import logging
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from bridge.approvals.desk import Desk
from bridge.approvals.looking import Look
from bridge.approvals.policy import (
    Conclusion,
    OutcomeKind,
    Post,
    Request,
    Standing,
    Terms,
    Wait,
    deadline,
    decide,
    is_absent,
)
from bridge.errors import MetadataError, MetadataUnavailableError
from bridge.imds.document import ScheduledEvent
from bridge.outbox.records import Decision
from bridge.retry import RetryPolicy
from bridge.workers import unless

log = logging.getLogger(__name__)

INTENT = "intent"
_BACKOFF = RetryPolicy(first=1.0, max_backoff=30.0)
_LEAST_PAUSE = 0.25
_LOOK_AGAIN = 1.0
_LONGEST_WAIT = 60.0  # so that what expires meanwhile is told in time
_REFUSED_AGAIN = 1.75  # so that three tries lie within five seconds
_MOST_REFUSALS = 3
_FRESH_FOR = 5.0  # a machine that froze for longer has to look again
_RETURN_PATIENCE = 180.0  # after a reboot IMDS may take two minutes to answer


@dataclass(frozen=True, slots=True)
class _Anchor:
    """When the last look was: ``now`` by IMDS's clock, the others by ours."""

    now: datetime
    wall: datetime
    monotonic: float


@dataclass(slots=True, kw_only=True)
class Pursuit:
    """The way of one EventId, within one delivery of its message.

    Attributes:
        message: the key that the message is known by.
        was_tried: whether an earlier try has left its intent.
        terms: the desk's, or longer ones for this delivery.
    """

    desk: Desk
    request: Request
    message: str
    sequence: int | None
    was_tried: bool
    terms: Terms
    _began: float = field(init=False)
    _anchor: _Anchor = field(init=False)
    _may_have_worked: bool = field(init=False)
    _was_posted: bool = False
    _status: int | None = None
    _refusals: int = 0
    _failures: int = 0
    _absent_since: float | None = None
    _event: ScheduledEvent | None = None

    def __post_init__(self) -> None:
        clock = self.desk.clock
        self._began = clock.monotonic()
        self._anchor = _Anchor(clock.now(), clock.now(), self._began)
        self._may_have_worked = self.was_tried

    async def run(self, stop: asyncio.Event) -> Conclusion | None:
        """Return what became of it; None if ``stop`` came first.

        Raises:
            OutboxError: the state file cannot be read or written.
        """
        await self._intend(posted=False)
        while not stop.is_set():
            if conclusion := await self._try(stop):
                return replace(conclusion, imds_status=self._status)
        await self.withdraw()
        return None

    async def withdraw(self) -> bool:
        """Drop an intent that certainly came to nothing, so that nobody doubts it.

        Returns:
            Whether it was so.
        """
        is_moot = not (self.was_tried or self._was_posted)
        if is_moot:
            await self.desk.outbox.forget(self.message, self.request.key)
        return is_moot

    async def _intend(self, *, posted: bool) -> None:
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
        await self.desk.outbox.intend(intent, now=self.desk.clock.now().timestamp())

    async def _try(self, stop: asyncio.Event) -> Conclusion | None:
        """Look, and do what is to be done; None = again, after the wait it took."""
        try:
            look = await unless(stop, self.desk.watcher.fresh())
        except MetadataError as error:
            return await self._later(stop, error)
        if look is None:
            return None
        step = await self._decide(look)
        if isinstance(step, Conclusion):
            return step
        if isinstance(step, Post):
            return await self._post(step.event, look, stop)
        await self._wait(step, stop)
        return None

    async def _wait(self, step: Wait, stop: asyncio.Event) -> None:
        """Wait; but no longer than the event is known as it was just now."""
        clock, shown = self.desk.clock, self._shown()
        end = clock.monotonic() + min(step.seconds, _LONGEST_WAIT)
        while (left := end - clock.monotonic()) > 0 and self._shown() == shown:
            if await clock.wait(stop, min(left, _LOOK_AGAIN)):
                return

    def _shown(self) -> ScheduledEvent | None:
        known = self.desk.watcher.watch.known.get(self.request.key)
        return known.event if known else None

    async def _decide(self, look: Look) -> Conclusion | Post | Wait:
        clock, key = self.desk.clock, self.request.key
        now = clock.monotonic()
        self._anchor = _Anchor(look.now, clock.now(), now)
        event = look.document.events.get(key)
        self._event = event or self._event
        if self._absent_since is None and is_absent(key, look):
            self._absent_since = now
        since = now if self._absent_since is None else self._absent_since
        standing = Standing(
            may_have_worked=self._may_have_worked,
            was_seen=event is None and await self.desk.outbox.was_seen(key),
            absent_for=now - since,
        )
        return decide(self.request, look, standing, self.terms)

    async def _post(
        self, event: ScheduledEvent, look: Look, stop: asyncio.Event
    ) -> Conclusion | None:
        if stop.is_set():
            return None
        if not self._was_posted:
            self._was_posted = True
            await self._intend(posted=True)
        if self._is_stale():
            return None
        try:
            self._status = await self.desk.starter.start(
                event.event_id, incarnation=look.document.incarnation
            )
        except MetadataError as error:
            self._note(error)
            return await self._later(stop, error)
        return await self._answered(self._status, event, stop)

    def _note(self, error: MetadataError) -> None:
        """Remember what came of a POST: it may have worked unless IMDS said no."""
        self._status = int(error.outcome) if error.outcome.isdigit() else None
        is_doubtful = self._status is None or self._status >= 500
        self._may_have_worked = self._may_have_worked or is_doubtful
        self._refusals = 0

    async def _answered(
        self, status: int, event: ScheduledEvent, stop: asyncio.Event
    ) -> Conclusion | None:
        if status == 200:
            kind = OutcomeKind.RELAYED
            return Conclusion(kind=kind, event=event, confirmed=True)
        text = f"IMDS answered {status} to POST"
        if status != 400:
            error = MetadataError(text, outcome=str(status))
            self._note(error)
            return await self._later(stop, error)
        self._refusals += 1
        if self._refusals == _MOST_REFUSALS:
            return Conclusion(kind=OutcomeKind.REJECTED, event=event, reason=text)
        await self.desk.clock.wait(stop, _REFUSED_AGAIN)
        return None

    async def _later(
        self, stop: asyncio.Event, error: MetadataError
    ) -> Conclusion | None:
        """Wait after a failure, unless there is nothing left to wait for."""
        self._failures += 1
        log.warning(
            "approval not relayed yet",
            extra={"eventId": self.request.event_id, "fault": str(error)},
        )
        if (left := self._left()) <= 0:
            return await self._give_up(stop, str(error))
        wish = (
            error.retry_after if isinstance(error, MetadataUnavailableError) else None
        )
        delay = _BACKOFF.delay(
            self._failures, unit=self.desk.chance(), retry_after=wish
        )
        await self.desk.clock.wait(stop, min(max(delay, _LEAST_PAUSE), left))
        return None

    async def _give_up(self, stop: asyncio.Event, reason: str) -> Conclusion:
        """Conclude that it failed; what is in doubt is looked at once more."""
        failed = Conclusion(kind=OutcomeKind.FAILED, event=self._event, reason=reason)
        if not self._may_have_worked:
            return failed
        try:
            look = await unless(stop, self.desk.watcher.fresh())
        except MetadataError:
            return failed
        step = None if look is None else await self._decide(look)
        return step if isinstance(step, Conclusion) else failed

    def _left(self) -> float:
        """Return the seconds for which it makes sense to try again."""
        event = self._event or self._shown()
        not_before = event.not_before if event else None
        end = deadline(self.request, not_before, self.terms)
        left = (end - self._now()).total_seconds()
        if not self.was_tried:
            return left
        return max(left, self._began + _RETURN_PATIENCE - self.desk.clock.monotonic())

    def _now(self) -> datetime:
        """Return the time by IMDS's clock, if it has told it, else by ours."""
        gone = self.desk.clock.monotonic() - self._anchor.monotonic
        return self._anchor.now + timedelta(seconds=gone)

    def _is_stale(self) -> bool:
        """Whether so much time passed since the look that another is due."""
        clock, anchor = self.desk.clock, self._anchor
        by_wall = (clock.now() - anchor.wall).total_seconds()
        return max(by_wall, clock.monotonic() - anchor.monotonic) > _FRESH_FOR
