"""What every handling of an approval works with."""

import logging
from collections.abc import Callable
from dataclasses import dataclass

from bridge.approvals.evidence import NO_EVIDENCE, Evidences, SuccessCheck
from bridge.approvals.policy import Terms
from bridge.approvals.posting import Poster
from bridge.approvals.reply import ReplyRules
from bridge.approvals.rotation import STAYS, Rotation
from bridge.approvals.waits import Waits
from bridge.events.build import EventContext, Outcome, OutgoingEvent
from bridge.events.document import ScheduledEvent
from bridge.events.look import Watcher
from bridge.events.watch import Moment
from bridge.foundation.clock import Clock
from bridge.outbox.records import Decision, Reply
from bridge.outbox.store import Outbox

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalContext:
    """The collaborators and settings that all approvals of one entity share.

    Attributes:
        entity: what the approval entity is called in ids.
        abandons_unknown: whether a message about an event that is not known here is
            given back: another VM may know it.
        max_delivery_count: how often the entity delivers a message at most.
        chance: a random number in [0, 1) at each call.
        count: called with each outcome.
        rotation: takes this VM out before an event of its own is approved.
        successes: says what counts of what commands have done; None where no rule
            waits for any.
    """

    entity: str
    terms: Terms
    abandons_unknown: bool
    replies: ReplyRules
    outbox: Outbox
    event_context: EventContext
    watcher: Watcher
    poster: Poster
    waits: Waits
    clock: Clock
    chance: Callable[[], float]
    count: Callable[[str], None]
    max_delivery_count: int = 10
    rotation: Rotation = STAYS
    successes: SuccessCheck | None = None

    async def evidences(self, event: ScheduledEvent) -> Evidences:
        """Return what the commands that rules wait for have done for an event.

        Raises:
            OutboxError: the state file cannot be read.
        """
        if self.successes is None:
            return NO_EVIDENCE
        names = self.terms.commands
        standings = await self.outbox.command_standings(event.key, names)
        now = Moment(at=self.clock.now(), monotonic=self.clock.monotonic())
        return self.successes.evidences(event, standings, now)

    async def conclude(
        self,
        outcome: Outcome,
        told: OutgoingEvent,
        decision: Decision,
        *,
        now: float,
        reply: Reply | None = None,
    ) -> None:
        """Keep what became of an EventId, in one commit, and say so.

        Args:
            outcome: what became of it.
            told: what is told of it.
            decision: what is remembered of it.
            now: seconds since the epoch.
            reply: with the last outcome of a message.
        """
        await self.outbox.commit([told], now=now, decisions=[decision], reply=reply)
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
