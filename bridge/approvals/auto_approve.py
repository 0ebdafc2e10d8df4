"""The auto-approver: approves events by rules with the action ``auto-approve``.

    a read has ended, a command has ended, or a delay is over: the poller's loop asks;
    for each known event:
        ─▶ a rule approves, nothing holds the event, the delay has passed
           ─▶ a request as for a message ─▶ outcome and decision in one commit
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
import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from bridge.approvals.context import ApprovalContext, Pending, intent_of
from bridge.approvals.message import Approval
from bridge.approvals.policy import Conclusion, Request, rule_that_approves
from bridge.approvals.requests import Requests
from bridge.approvals.rules import Ruling, content_of
from bridge.events.cloudevent import hash32
from bridge.events.document import ScheduledEvent
from bridge.events.look import Withheld
from bridge.events.vocabulary import OutcomeKind
from bridge.events.watch import Known, Moment
from bridge.foundation.errors import OutboxUnavailableError
from bridge.outbox.records import Decision

_LEAST_WAIT = 0.001
_REST = 30.0  # seconds before an event is considered again, after an outcome or failure


@dataclass(slots=True)
class AutoApprover:
    """Approves the known events where a rule says so, whenever the loop asks.

    Attributes:
        withheld: the events that are held now, by key.
    """

    context: ApprovalContext
    withheld: Mapping[str, Withheld] = field(default_factory=dict)
    _resting: dict[str, float] = field(default_factory=dict)
    _at: float = -math.inf  # when to decide next, in monotonic seconds
    _reads: int = 0  # how many reads had begun at the last decision
    _is_deciding: bool = False

    def __post_init__(self) -> None:
        self.context.outbox.wakeups.rules = self._wake

    def _wake(self) -> None:
        self._at = -math.inf
        self.context.poller.wake.set()

    def turn(self, flows: asyncio.TaskGroup) -> float:
        """Begin to decide after a read, a wakeup or a delay.

        Return when to ask again at the latest, in monotonic seconds.
        """
        poller = self.context.poller
        if self._is_deciding or not self.context.outbox.state.knows_earlier_runs:
            return math.inf
        if self._reads == poller.reads and self._at > poller.clock.monotonic():
            return self._at
        self._reads, self._at, self._is_deciding = poller.reads, math.inf, True
        flows.create_task(self._decide(flows))
        return math.inf

    async def _decide(self, flows: asyncio.TaskGroup) -> None:
        left, clock = math.inf, self.context.clock
        with suppress(OutboxUnavailableError):  # decided after the next read
            left = await self.step(flows)
        self._at = min(self._at, clock.monotonic() + max(left, _LEAST_WAIT))
        self._is_deciding = False
        if self._at < math.inf:
            self.context.poller.wake.set()

    async def step(self, flows: asyncio.TaskGroup) -> float:
        """Begin a request for each event to approve now; publish which are withheld.

        What an earlier run has begun goes on first. Return the seconds until the first
        delay is over; infinite if there is none.
        """
        context = self.context
        watch, now = context.poller.watch, context.clock.monotonic()
        self._resting = {one: end for one, end in self._resting.items() if end > now}
        for intent in await context.outbox.approvals.open_initiatives():
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
            elif not await context.outbox.approvals.of_message(content_of(event)):
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
        name = hash32([kind.value, content, reason])
        if not await self.context.outbox.approvals.of_message(name):
            intent = intent_of(name, event.event_id, rule=rule)
            conclusion = Conclusion(kind, event, reason=reason)
            await self._conclude(intent, conclusion, content)
        return Withheld(event.event_id, rule, reason)

    def _begin(self, intent: Decision, flows: asyncio.TaskGroup) -> None:
        if intent.message not in self._resting:
            self._resting[intent.message] = float("inf")
            flows.create_task(self._approve(intent))

    async def _approve(self, intent: Decision) -> None:
        context, content, rest = self.context, intent.message, _REST
        request = Request(
            approval=Approval(event_ids=(intent.event_id,)),
            event_id=intent.event_id,
            enqueued_at=context.clock.now(),
            rule=intent.rule,
            content=content,
        )
        one = Pending(context, request, intent, was_tried=intent.posted)
        end = await Requests.pursue(one)
        if end is not None:
            if end.kind is OutcomeKind.FAILED or one.standing.was_posted:
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
