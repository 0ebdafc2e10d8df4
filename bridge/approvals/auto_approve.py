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
from collections.abc import Mapping
from dataclasses import dataclass, field

from msgspec import Struct

from bridge.approvals.context import ApprovalContext, Pending, intent_of
from bridge.approvals.message import Approval
from bridge.approvals.policy import Conclusion, Request, rule_that_approves
from bridge.approvals.requests import Requests
from bridge.approvals.rules import Ruling, content_of
from bridge.events.cloudevent import hash32
from bridge.events.document import ScheduledEvent
from bridge.events.vocabulary import OutcomeKind
from bridge.events.watch import Known, Moment
from bridge.foundation.workers import waking
from bridge.outbox.records import Decision

_LOOK_EVERY, _SLACK = 1.25, 0.5  # about each second, with a look at IMDS
_IDLE, _IDLE_SLACK = 60.0, 30.0  # while no event is known
_LEAST_WAIT = 0.001
_REST = 30.0  # seconds before an event is considered again, after an outcome or failure


class Withheld(Struct, frozen=True, kw_only=True):
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
        """Approve events until ``stop`` is set."""
        wake, state = self.context.outbox.wakeups.rules, self.context.outbox.state
        async with asyncio.TaskGroup() as flows, waking(stop, wake):
            while not stop.is_set():
                wake.clear()
                left = await self.step(flows) if state.knows_earlier_runs else _IDLE
                await self._pause(wake, left)

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

        What an earlier run has begun goes on first. Return the seconds until the first
        delay is over; infinite if there is none.
        """
        watch, now = self.context.poller.watch, self.context.clock.monotonic()
        self._resting = {one: end for one, end in self._resting.items() if end > now}
        for intent in await self.context.outbox.approvals.open_initiatives():
            self._begin(intent, flows)
        withheld, left = {}, float("inf")
        for key, known in watch.known.items():
            is_there = known.seen == watch.seen  # the last document contained it
            ruling = await self._ruling(known) if is_there else None
            if ruling is None or ruling.rule is None:
                continue
            event = known.event
            if ruling.hold is not None:
                withheld[key] = await self._withhold(event, ruling.rule, ruling.hold)
            elif ruling.left:
                left = min(left, ruling.left)
            else:
                content, rule = content_of(event), ruling.rule
                self._begin(intent_of(content, event.event_id, rule=rule), flows)
        self.withheld = withheld
        return left

    async def _ruling(self, known: Known) -> Ruling | None:
        context, event = self.context, known.event
        found = context.evidences(event, await context.standings(event.key))
        now = Moment(at=context.clock.now(), monotonic=context.clock.monotonic())
        return rule_that_approves(known, now, context.terms, found)

    async def _withhold(
        self, event: ScheduledEvent, rule: str, reason: str
    ) -> Withheld:
        """Publish that an event is withheld, unless that was published before."""
        content, kind = content_of(event), OutcomeKind.WITHHELD
        event_id = event.event_id
        found = Withheld(event_id=event_id, content=content, rule=rule, reason=reason)
        name = hash32([kind.value, content, reason])
        is_known = self.withheld.get(event.key) == found
        if not is_known and not await self.context.outbox.approvals.of_message(name):
            intent = intent_of(name, event_id, rule=rule)
            conclusion = Conclusion(kind=kind, event=event, reason=reason)
            await self._conclude(intent, conclusion, content)
        return found

    def _begin(self, intent: Decision, flows: asyncio.TaskGroup) -> None:
        if intent.message not in self._resting:
            self._resting[intent.message] = float("inf")
            flows.create_task(self._approve(intent))

    async def _approve(self, intent: Decision) -> None:
        context, content = self.context, intent.message
        decisions = await context.outbox.approvals.of_message(content)
        earlier, rest = decisions.get(intent.key), _REST
        if earlier is None or earlier.is_intent:
            request = Request(
                approval=Approval(event_ids=(intent.event_id,)),
                event_id=intent.event_id,
                enqueued_at=context.clock.now(),
                rule=intent.rule,
                content=content,
            )
            was_tried = earlier is not None and earlier.posted
            one = Pending(context, request, intent, was_tried)
            end = await Requests.pursue(one)
            if end is not None:
                if end.kind is OutcomeKind.FAILED or not await one.withdraw():
                    await self._conclude(intent, end, content)
                rest = 0.0 if end.kind is OutcomeKind.WITHHELD else _REST
        self._resting[content] = context.clock.monotonic() + rest

    async def _conclude(
        self, intent: Decision, conclusion: Conclusion, content: str
    ) -> None:
        """Publish and store the outcome of a rule's request."""
        unclaimed = dict.fromkeys(("messageId", "enqueuedAt", "reason", "expiresAt"))
        claims = {"approvedBy": f"rule:{intent.rule}", **unclaimed}
        outgoing = self.context.outgoing(conclusion, intent, content, claims)
        await self.context.conclude(outgoing, intent)
