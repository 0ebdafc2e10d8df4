"""The auto-approver: approves events by rules with the action ``auto-approve``.

    a document has changed, a command has ended, a delay is over, or a second has passed
    with a known event; for each of them:
        ─▶ a rule approves, nothing holds the event, the delay has passed
           ─▶ the same flow as for a message ─▶ outcome and decision in one commit
        ─▶ a rule approves, but its commands have not succeeded ─▶ withheld, published
                                                                   once

While the state file of an earlier run cannot be read, no rule approves: it is not known
what was approved before. An event is approved once for its present content. The intent
before the POST and the decision are stored, so a restart neither repeats nor forgets
them. Other VMs that see the same event may approve it, too: the second VM finds it
Started, or IMDS answers 200 again. If a request ends before any POST, no outcome is
published, because no person had asked. The outcome ``withheld`` is published once for
each content and reason, also across restarts.
"""

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field

import orjson

from bridge.approvals.context import ApprovalContext, Pending
from bridge.approvals.message import Approval
from bridge.approvals.policy import Conclusion, Initiative, Request, rule_that_approves
from bridge.approvals.requests import Requests
from bridge.approvals.rules import Ruling, content_of
from bridge.events.cloudevent import hash32
from bridge.events.document import ScheduledEvent
from bridge.events.vocabulary import OutcomeKind
from bridge.events.watch import Known, Moment
from bridge.foundation.workers import waking
from bridge.outbox.records import Decision

log = logging.getLogger(__name__)

_LOOK_EVERY, _SLACK = 1.25, 0.5  # about each second, with a look at IMDS
_IDLE, _IDLE_SLACK = 60.0, 30.0  # while no event is known
_LEAST_WAIT = 0.001
_REST = 30.0  # seconds before an event is considered again, after an outcome or failure


@dataclass(frozen=True, slots=True, kw_only=True)
class Withheld:
    """An event to which an auto-approve rule applies, but which is held.

    Attributes:
        event_id: spelled as in the document.
        content: ``content_of`` the event.
        rule: the label of the rule.
        reason: why the event is not approved yet.
    """

    event_id: str
    content: str
    rule: str
    reason: str


@dataclass(slots=True)
class AutoApprover:
    """Watches the known events, and approves them where a rule says so.

    Attributes:
        withheld: the events that are held now, by key.
    """

    context: ApprovalContext
    name: str = "auto_approver"
    withheld: Mapping[str, Withheld] = field(default_factory=dict)
    _resting: dict[str, float] = field(default_factory=dict)

    async def run(self, stop: asyncio.Event) -> None:
        """Approve events until ``stop`` is set; first continue the stored intents."""
        wake = self.context.outbox.wakeups.rules
        is_first = True
        async with asyncio.TaskGroup() as flows, waking(stop, wake):
            while not stop.is_set():
                wake.clear()
                left = float("inf")
                if self.context.outbox.state.knows_earlier_runs:
                    if is_first:
                        await self._go_on(flows)
                        is_first = False
                    left = await self.step(flows)
                if not stop.is_set():
                    await self._pause(wake, left)

    async def _go_on(self, flows: asyncio.TaskGroup) -> None:
        """Go on with what an earlier run has begun."""
        for intent in await self.context.outbox.approvals.open_initiatives():
            initiative = Initiative(rule=str(intent.rule), content=intent.message)
            self._begin(intent.event_id, initiative, flows)

    async def _pause(self, wake: asyncio.Event, left: float) -> None:
        """Wait until a delay is over or the next look is due, or ``wake`` is set."""
        clock = self.context.clock
        if left < _LOOK_EVERY:
            await clock.wait(wake, max(left, _LEAST_WAIT))
        elif self.context.poller.watch.known:
            await clock.wait(wake, _LOOK_EVERY, slack=_SLACK)
        else:
            await clock.wait(wake, _IDLE, slack=_IDLE_SLACK)

    async def step(self, flows: asyncio.TaskGroup) -> float:
        """Begin a flow for each event to approve now; publish which ones are withheld.

        Returns:
            The seconds until the first delay is over; infinite if there is none.

        Raises:
            OutboxError: the state file cannot be read or written.
        """
        watch, clock = self.context.poller.watch, self.context.clock
        self._resting = {
            content: until
            for content, until in self._resting.items()
            if until > clock.monotonic()
        }
        withheld, left = {}, float("inf")
        for key, known in watch.known.items():
            is_there = known.seen == watch.seen  # the last document contained it
            ruling = await self._ruling(known) if is_there else None
            if ruling is None or ruling.rule is None:
                continue
            event = known.event
            initiative = Initiative(rule=ruling.rule, content=content_of(event))
            if ruling.hold is not None:
                withheld[key] = await self._withhold(event, initiative, ruling.hold)
            elif ruling.left:
                left = min(left, ruling.left)
            else:
                self._begin(event.event_id, initiative, flows)
        self.withheld = withheld
        return left

    async def _ruling(self, known: Known) -> Ruling | None:
        clock, terms = self.context.clock, self.context.terms
        context, event = self.context, known.event
        found = context.evidences(event, await context.standings(event.key))
        now = Moment(at=clock.now(), monotonic=clock.monotonic())
        return rule_that_approves(known, now, terms, found)

    async def _withhold(
        self, event: ScheduledEvent, initiative: Initiative, reason: str
    ) -> Withheld:
        """Publish that an event is withheld, unless that was published before."""
        found = Withheld(
            event_id=event.event_id,
            content=initiative.content,
            rule=initiative.rule,
            reason=reason,
        )
        kind = OutcomeKind.WITHHELD
        key = hash32([kind.value, found.content, reason])
        is_known = self.withheld.get(event.key) == found
        if not is_known and not await self.context.outbox.approvals.of_message(key):
            request = self._request(event.event_id, initiative)
            conclusion = Conclusion(kind=kind, event=event, reason=reason)
            await asyncio.shield(self._conclude(request, initiative, conclusion, key))
        return found

    def _begin(
        self, event_id: str, initiative: Initiative, flows: asyncio.TaskGroup
    ) -> None:
        if initiative.content in self._resting:
            return
        self._resting[initiative.content] = float("inf")
        request = self._request(event_id, initiative)
        flows.create_task(self._approve(request, initiative))

    def _request(self, event_id: str, initiative: Initiative) -> Request:
        by = f"rule:{initiative.rule}"
        return Request(
            approval=Approval(event_ids=(event_id,), approved_by=by),
            event_id=event_id,
            enqueued_at=self.context.clock.now(),
            initiative=initiative,
        )

    async def _approve(self, request: Request, initiative: Initiative) -> None:
        context, content = self.context, initiative.content
        decisions = await context.outbox.approvals.of_message(content)
        earlier, rest = decisions.get(request.key), _REST
        if earlier is None or earlier.is_intent:
            was_tried = earlier is not None and earlier.posted
            one = Pending(context, request, content, None, was_tried)
            end = await Requests.pursue(one)
            if end is not None:
                if end.kind is OutcomeKind.FAILED or not await one.withdraw():
                    await asyncio.shield(
                        self._conclude(request, initiative, end, content)
                    )
                rest = 0.0 if end.kind is OutcomeKind.WITHHELD else _REST
        self._resting[content] = context.clock.monotonic() + rest

    async def _conclude(
        self,
        request: Request,
        initiative: Initiative,
        conclusion: Conclusion,
        message: str,
    ) -> None:
        """Publish the outcome of a rule's request, and store it under ``message``."""
        unclaimed = dict.fromkeys(("messageId", "enqueuedAt", "reason", "expiresAt"))
        claims = {"approvedBy": request.approval.approved_by, **unclaimed}
        outgoing = self.context.outgoing(
            conclusion, request.event_id, claims, (initiative.content, None)
        )
        decision = Decision(
            message=message,
            key=request.key,
            event_id=request.event_id,
            sequence=None,
            state=conclusion.kind.value,
            data=orjson.dumps(outgoing.event.data),
            rule=initiative.rule,
        )
        await self.context.conclude(outgoing, decision)
