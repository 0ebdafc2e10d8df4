"""The settings and parts that are shared by all approvals of one entity."""

import logging
from collections.abc import Callable

from msgspec import Struct

from bridge.approvals.evidence import NO_EVIDENCE, Evidences, SuccessCheck
from bridge.approvals.policy import Terms
from bridge.approvals.posting import Waits
from bridge.approvals.reply import ReplyRules
from bridge.approvals.rotation import STAYS, Rotation
from bridge.events.build import EventContext, Outcome, OutgoingEvent
from bridge.events.document import ScheduledEvent
from bridge.events.look import Watcher
from bridge.events.watch import Moment
from bridge.foundation.clock import Clock, is_settled
from bridge.outbox.records import Decision, Reply
from bridge.outbox.store import Outbox
from bridge.signing.approval import Approvers

log = logging.getLogger(__name__)


class ApprovalContext(Struct, frozen=True, kw_only=True):
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
    watcher: Watcher
    waits: Waits
    clock: Clock
    chance: Callable[[], float]
    count: Callable[[str], None]
    max_delivery_count: int = 10
    rotation: Rotation = STAYS
    approvers: Approvers | None = None
    successes: SuccessCheck | None = None

    async def evidences(self, event: ScheduledEvent) -> Evidences:
        """Return the results, for an event, of the commands that rules require.

        Raises:
            OutboxError: the state file cannot be read.
        """
        if self.successes is None:
            return NO_EVIDENCE
        names = self.terms.commands
        standings = await self.outbox.commands.standings(event.key, names)
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
