"""The auto_approver: approves unasked what a rule with ``auto-approve`` speaks of.

    each second: what is known of the document
        ─▶ a rule approves, nothing holds it, its delay is over
           ─▶ pursued as an approval message is ─▶ outcome and decision in one commit
        ─▶ a rule approves, but what it waits for is not done ─▶ withheld, told once

An event is approved once as it is: what was decided on its content is kept on disk,
as is the intent before the POST, so that a restart neither repeats nor forgets it.
Other VMs that see the same event may approve it too: whoever comes second finds it
Started, or is answered 200 once more. A request that comes to nothing before any
POST is not told of: nobody had asked. That an event is withheld is told once for each
content and reason, also over restarts.
"""

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field

import orjson

from bridge.approvals.context import ApprovalContext
from bridge.approvals.message import Approval
from bridge.approvals.policy import (
    Conclusion,
    Initiative,
    OutcomeKind,
    Request,
    rule_that_approves,
)
from bridge.approvals.rules import Ruling, content_of
from bridge.approvals.start_request import INTENT, StartRequestFlow
from bridge.events.build import Outcome, from_outcome
from bridge.events.document import ScheduledEvent
from bridge.events.watch import Known, Moment
from bridge.foundation.hashing import hash32
from bridge.outbox.records import Decision

log = logging.getLogger(__name__)

_LOOK_EVERY = 1.0
_REST = 30.0  # before what was decided, or came to nothing, is looked at again


@dataclass(frozen=True, slots=True, kw_only=True)
class Withheld:
    """An event that a rule would approve, but for a reason.

    Attributes:
        event_id: in the document's own spelling.
        content: what the event is now, by ``content_of``.
        rule: what the rule is called.
        reason: why it is not approved yet.
    """

    event_id: str
    content: str
    rule: str
    reason: str


@dataclass(slots=True)
class AutoApprover:
    """Watches what is known of the document, and approves where a rule says so.

    Attributes:
        withheld: what is held now, by key of the EventId.
    """

    context: ApprovalContext
    name: str = "auto_approver"
    withheld: Mapping[str, Withheld] = field(default_factory=dict)
    _resting: dict[str, float] = field(default_factory=dict)

    async def run(self, stop: asyncio.Event) -> None:
        """Approve until asked to stop; what is in doubt from before comes first."""
        async with asyncio.TaskGroup() as pursuits:
            for intent in await self.context.outbox.open_initiatives():
                initiative = Initiative(rule=str(intent.rule), content=intent.message)
                self._begin(intent.event_id, initiative, stop, pursuits)
            while not stop.is_set():
                await self.step(stop, pursuits)
                await self.context.clock.wait(stop, _LOOK_EVERY)

    async def step(self, stop: asyncio.Event, pursuits: asyncio.TaskGroup) -> None:
        """Begin to approve what is to be approved now, and tell of what is withheld.

        Raises:
            OutboxError: the state file cannot be read or written.
        """
        watch, clock = self.context.watcher.watch, self.context.clock
        self._resting = {
            content: until
            for content, until in self._resting.items()
            if until > clock.monotonic()
        }
        withheld = {}
        for key, known in watch.known.items():
            is_there = known.seen == watch.seen  # it was in the last document
            ruling = await self._ruling(known) if is_there else None
            if ruling is None or ruling.rule is None:
                continue
            if ruling.hold is not None:
                withheld[key] = await self._withhold(known.event, ruling, ruling.hold)
            elif not ruling.left:
                initiative = Initiative(
                    rule=ruling.rule, content=content_of(known.event)
                )
                self._begin(known.event.event_id, initiative, stop, pursuits)
        self.withheld = withheld

    async def _ruling(self, known: Known) -> Ruling | None:
        clock, terms = self.context.clock, self.context.terms
        found = await self.context.evidences(known.event)
        now = Moment(at=clock.now(), monotonic=clock.monotonic())
        return rule_that_approves(known, now, terms, found)

    async def _withhold(
        self, event: ScheduledEvent, ruling: Ruling, reason: str
    ) -> Withheld:
        """Tell that an event is withheld, and why, unless that was told before."""
        initiative = Initiative(rule=str(ruling.rule), content=content_of(event))
        found = Withheld(
            event_id=event.event_id,
            content=initiative.content,
            rule=initiative.rule,
            reason=reason,
        )
        kind = OutcomeKind.WITHHELD
        told = hash32([kind.value, found.content, reason])
        is_known = self.withheld.get(event.key) == found
        if not is_known and not await self.context.outbox.decisions(told):
            request = self._request(event.event_id, initiative)
            conclusion = Conclusion(kind=kind, event=event, reason=reason)
            await asyncio.shield(self._conclude(request, conclusion, message=told))
        return found

    def _begin(
        self,
        event_id: str,
        initiative: Initiative,
        stop: asyncio.Event,
        pursuits: asyncio.TaskGroup,
    ) -> None:
        if initiative.content in self._resting:
            return
        self._resting[initiative.content] = float("inf")
        request = self._request(event_id, initiative)
        pursuits.create_task(self._approve(request, initiative, stop))

    def _request(self, event_id: str, initiative: Initiative) -> Request:
        by = f"rule:{initiative.rule}"
        return Request(
            approval=Approval(event_ids=(event_id,), approved_by=by),
            event_id=event_id,
            enqueued_at=self.context.clock.now(),
            initiative=initiative,
        )

    async def _approve(
        self, request: Request, initiative: Initiative, stop: asyncio.Event
    ) -> None:
        decisions = await self.context.outbox.decisions(initiative.content)
        earlier, rest = decisions.get(request.key), _REST
        if earlier is None or earlier.state == INTENT:
            was_tried = earlier is not None and earlier.posted
            kind = await self._pursue(request, initiative, stop, was_tried=was_tried)
            rest = 0.0 if kind is OutcomeKind.WITHHELD else _REST
        self._resting[initiative.content] = self.context.clock.monotonic() + rest

    async def _pursue(
        self,
        request: Request,
        initiative: Initiative,
        stop: asyncio.Event,
        *,
        was_tried: bool,
    ) -> OutcomeKind | None:
        flow = StartRequestFlow(
            context=self.context,
            request=request,
            message=initiative.content,
            sequence=None,
            was_tried=was_tried,
            terms=self.context.terms,
        )
        conclusion = await flow.run(stop)
        if conclusion is None:
            return None
        if conclusion.kind is OutcomeKind.FAILED or not await flow.withdraw():
            message = initiative.content
            await asyncio.shield(self._conclude(request, conclusion, message=message))
        return conclusion.kind

    async def _conclude(
        self, request: Request, conclusion: Conclusion, *, message: str
    ) -> None:
        """Tell what became of a request of a rule, and keep it under ``message``."""
        context, now = self.context, self.context.clock.now()
        initiative = request.initiative
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
            origin=(context.entity, initiative.content if initiative else None, None),
        )
        told = from_outcome(context.event_context, outcome, now)
        decision = Decision(
            message=message,
            key=request.key,
            event_id=request.event_id,
            sequence=None,
            state=conclusion.kind.value,
            data=orjson.dumps(told.event.data),
            rule=initiative.rule if initiative else None,
        )
        await context.conclude(outcome, told, decision, now=now.timestamp())
