"""The autopilot: approves unasked what a rule with ``auto-approve`` speaks of.

    each second: what is known of the document ─▶ a rule approves, its delay is over
        ─▶ pursued as an approval message is ─▶ outcome and decision in one commit

An event is approved once as it is: what was decided on its content is kept on disk,
as is the intent before the POST, so that a restart neither repeats nor forgets it.
Other VMs that see the same event may approve it too: whoever comes second finds it
Started, or is answered 200 once more. A request that comes to nothing before any
POST is not told of: nobody had asked.
"""

import asyncio
import logging
from dataclasses import dataclass, field

import orjson

from bridge.approvals.context import Desk
from bridge.approvals.message import Approval
from bridge.approvals.policy import (
    Conclusion,
    Initiative,
    OutcomeKind,
    Request,
    rule_that_approves,
)
from bridge.approvals.rules import content_of
from bridge.approvals.start_request import INTENT, Pursuit
from bridge.events.build import Outcome, from_outcome
from bridge.events.watch import Moment
from bridge.outbox.records import Decision

log = logging.getLogger(__name__)

_LOOK_EVERY = 1.0
_REST = 30.0  # before what was decided, or came to nothing, is looked at again


@dataclass(slots=True)
class Autopilot:
    """Watches what is known of the document, and approves where a rule says so."""

    desk: Desk
    name: str = "autopilot"
    _resting: dict[str, float] = field(default_factory=dict)

    async def run(self, stop: asyncio.Event) -> None:
        """Approve until asked to stop; what is in doubt from before comes first."""
        async with asyncio.TaskGroup() as pursuits:
            for intent in await self.desk.outbox.open_initiatives():
                initiative = Initiative(rule=str(intent.rule), content=intent.message)
                self._begin(intent.event_id, initiative, stop, pursuits)
            while not stop.is_set():
                self.step(stop, pursuits)
                await self.desk.clock.wait(stop, _LOOK_EVERY)

    def step(self, stop: asyncio.Event, pursuits: asyncio.TaskGroup) -> None:
        """Begin to approve what is to be approved now."""
        watch, clock = self.desk.watcher.watch, self.desk.clock
        now = Moment(at=clock.now(), monotonic=clock.monotonic())
        self._resting = {
            content: until
            for content, until in self._resting.items()
            if until > clock.monotonic()
        }
        for known in watch.known.values():
            is_held = known.seen != watch.seen  # it was not in the last document
            rule = rule_that_approves(known, now, self.desk.terms)
            if is_held or rule is None:
                continue
            initiative = Initiative(rule=rule, content=content_of(known.event))
            if initiative.content not in self._resting:
                self._begin(known.event.event_id, initiative, stop, pursuits)

    def _begin(
        self,
        event_id: str,
        initiative: Initiative,
        stop: asyncio.Event,
        pursuits: asyncio.TaskGroup,
    ) -> None:
        self._resting[initiative.content] = float("inf")
        by = f"rule:{initiative.rule}"
        request = Request(
            approval=Approval(event_ids=(event_id,), approved_by=by),
            event_id=event_id,
            enqueued_at=self.desk.clock.now(),
            initiative=initiative,
        )
        pursuits.create_task(self._approve(request, initiative, stop))

    async def _approve(
        self, request: Request, initiative: Initiative, stop: asyncio.Event
    ) -> None:
        decisions = await self.desk.outbox.decisions(initiative.content)
        earlier = decisions.get(request.key)
        if earlier is None or earlier.state == INTENT:
            was_tried = earlier is not None and earlier.posted
            await self._pursue(request, initiative, stop, was_tried=was_tried)
        self._resting[initiative.content] = self.desk.clock.monotonic() + _REST

    async def _pursue(
        self,
        request: Request,
        initiative: Initiative,
        stop: asyncio.Event,
        *,
        was_tried: bool,
    ) -> None:
        pursuit = Pursuit(
            desk=self.desk,
            request=request,
            message=initiative.content,
            sequence=None,
            was_tried=was_tried,
            terms=self.desk.terms,
        )
        conclusion = await pursuit.run(stop)
        if conclusion is None:
            return
        if conclusion.kind is OutcomeKind.FAILED or not await pursuit.withdraw():
            await asyncio.shield(self._conclude(request, initiative, conclusion))

    async def _conclude(
        self, request: Request, initiative: Initiative, conclusion: Conclusion
    ) -> None:
        desk, now = self.desk, self.desk.clock.now()
        outcome = Outcome(
            outcome=conclusion.kind.value,
            event_id=request.event_id,
            event=conclusion.event,
            imds_status=conclusion.imds_status,
            confirmed=conclusion.confirmed,
            reason=conclusion.reason,
            request={
                "messageId": None,
                "enqueuedAt": None,
                "approvedBy": request.approval.approved_by,
                "reason": None,
                "expiresAt": None,
            },
            origin=(desk.entity, initiative.content, None),
        )
        told = from_outcome(desk.teller, outcome, now)
        decision = Decision(
            message=initiative.content,
            key=request.key,
            event_id=request.event_id,
            sequence=None,
            state=conclusion.kind.value,
            data=orjson.dumps(told.event.data),
            rule=initiative.rule,
        )
        await desk.conclude(outcome, told, decision, now=now.timestamp())
