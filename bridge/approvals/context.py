"""What all approvals of one entity share, and the record of each on disk."""

import logging
from collections.abc import Callable, Mapping
from typing import Protocol

from msgspec import Struct

from bridge.approvals.evidence import NO_EVIDENCE, Evidences, SuccessCheck
from bridge.approvals.policy import Conclusion, Request, Terms
from bridge.approvals.reply import ReplyRules
from bridge.approvals.rotation import STAYS, Rotation
from bridge.events.build import EventContext, Outcome, OutgoingEvent
from bridge.events.document import ScheduledEvent
from bridge.events.watch import Moment
from bridge.foundation.clock import Clock, is_settled
from bridge.imds.poller import Poller
from bridge.outbox.records import INTENT, CommandStanding, Decision, Reply
from bridge.outbox.store import Outbox
from bridge.signing.approval import Approvers

log = logging.getLogger(__name__)


class Pursuit(Protocol):
    """Takes what asks for POSTs: ``bridge.approvals.requests``."""

    @property
    def poller(self) -> Poller:
        """The loop that decides and posts."""
        ...

    async def pursue(
        self, intent: "Intent", rest: Callable[[], None] = lambda: None
    ) -> Conclusion | None:
        """Return the conclusion for an intent; None if the process stops first.

        Args:
            intent: the request.
            rest: called whenever it waits.

        Raises:
            OutboxError: the state file cannot be read or written.
        """
        ...


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
    requests: Pursuit
    clock: Clock
    chance: Callable[[], float]
    count: Callable[[str], None]
    max_delivery_count: int = 10
    rotation: Rotation = STAYS
    approvers: Approvers | None = None
    successes: SuccessCheck | None = None

    async def standings(self, key: str) -> Mapping[str, CommandStanding]:
        """Return how the commands that rules require stand for an event, by name.

        Raises:
            OutboxError: the state file cannot be read.
        """
        if self.successes is None:
            return {}
        return await self.outbox.commands.standings(key, self.terms.commands)

    def evidences(
        self, event: ScheduledEvent, standings: Mapping[str, CommandStanding]
    ) -> Evidences:
        """Return the results, for an event, of the commands that rules require."""
        if self.successes is None:
            return NO_EVIDENCE
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


class Intent(Struct):
    """The intent for one EventId of one message, or of a rule: its record on disk.

        stored ◀──no POST was sent──▶ marked as posted ──POST──▶ may have worked
          └──────given up: deleted

    It stays on disk if the process dies. If it is marked as posted, a POST may have
    worked, and may even be the reason why the process died.

    Attributes:
        message: the key of the message, or the content of the event for a rule.
        sequence: the sequence number of the message; None for a rule.
        was_tried: whether a POST may have been sent before the restart.
        was_sent: whether a POST was sent since then.
        is_marked: whether the mark is on disk, or has waited for it for long.
    """

    context: ApprovalContext
    request: Request
    message: str
    sequence: int | None
    was_tried: bool
    was_sent: bool = False
    is_marked: bool = False

    def __post_init__(self) -> None:
        self.is_marked = self.was_tried

    @property
    def was_posted(self) -> bool:
        """Whether a POST was sent, or may have been sent before the restart."""
        return self.was_tried or self.was_sent

    async def store(self) -> None:
        """Store the intent; an intent that is already stored stays as it is."""
        await self._save(posted=False)

    async def mark(self) -> None:
        """Store that a POST begins; called before the POST."""
        await self._save(posted=True)
        self.is_marked = True

    async def unmark(self) -> None:
        """Undo ``mark`` if no POST was sent."""
        if not self.was_posted:
            self.is_marked = False
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
