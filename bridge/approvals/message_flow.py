"""Handles one approval message, from its delivery to its settlement.

    parse ─┬─ invalid ───────────────────────────────────────┐
           ├─ not signed by an approver: denied ─────────────┤
           └─ each EventId: earlier decision, or run a flow ─┴▶ one commit ─▶ settle
                                              (outcome, decision and reply)

A message is settled only after all its outcomes are on disk. If the process dies
earlier, the redelivery finds the stored decisions and continues there.

Messages with the same MessageId and the same body share a decision. An outcome is
published once for each of them, with the same data as for the first. One exception: a
message that was sent after an earlier refusal is decided again. Its sender may have
resubmitted a dead letter, and wants a new decision.
"""

import asyncio
import hashlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import msgspec
import orjson
from msgspec.structs import replace

from bridge.approvals.context import ApprovalContext, Pending, intent_of
from bridge.approvals.message import Approval, parse
from bridge.approvals.policy import Conclusion, Request
from bridge.approvals.reply import ReplyEnvelope
from bridge.approvals.requests import Requests
from bridge.events.build import OutgoingEvent
from bridge.events.cloudevent import hash32, rfc3339
from bridge.events.document import ScheduledEvent
from bridge.events.vocabulary import APPROVED, OutcomeKind
from bridge.foundation.errors import MalformedApprovalError, OutboxUnavailableError
from bridge.outbox.records import Decision, Reply
from bridge.servicebus.decode import ABANDON, COMPLETE, ReceivedMessage, Settlement
from bridge.signing.approval import ID_TAKEN, Approvers, Checked, limits_alone

_HOLD_UNKNOWN = 10.0  # seconds before a message is abandoned, doubled each time
_LONGEST_HOLD = 300.0
_READ_AGAIN = 5.0
_MAKESHIFT = "urn:sebridge:"  # the source of events while none is known


def key_of(context: ApprovalContext, message: ReceivedMessage) -> str:
    """Return the key of a message: equal for redeliveries and repeated messages.

    A signed message is the same under another MessageId, which nobody has signed.
    """
    name = message.message_id or message.sequence_number
    if context.approvers is not None:
        name = "signed"
    return hash32([context.entity, name, hashlib.sha256(message.body).hexdigest()])


@dataclass(slots=True)
class Handling:
    """Handles one message.

    Attributes:
        message: the latest delivery of the message.
        key: see ``key_of``.
        on_rest: called once, when all EventIds that are left are waiting.
        rests: whether all EventIds that are left are waiting.
    """

    context: ApprovalContext
    message: ReceivedMessage
    key: str
    on_rest: Callable[[], None] = lambda: None
    rests: bool = False
    _sent: datetime = field(init=False)
    _approval: Approval | None = None
    _checked: Checked = field(default_factory=Checked)
    _earlier: Mapping[str, Decision] = field(default_factory=dict)
    _count: int = 1  # how many EventIds it has; the whole message is one, too
    _busy: set[str] = field(default_factory=set)
    # Of each EventId, with the data of its event.
    _ends: dict[str, tuple[Conclusion, Mapping[str, Any]]] = field(default_factory=dict)
    _unknown: dict[str, Conclusion] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._sent = self.message.enqueued_at or self.context.clock.now()

    async def run(self, stop: asyncio.Event) -> Settlement | None:
        """Return how to settle the message; None if ``stop`` came first."""
        with suppress(OutboxUnavailableError):  # not known: then it is relayed
            self._earlier = await self.context.outbox.approvals.of_message(
                self.key, self.message.sequence_number
            )
        try:
            self._approval = approval = self._parse()
            if (approvers := self.context.approvers) is not None:
                checked = await self._check(approvers, stop)
                if checked is None:
                    return None
                self._checked = checked
        except MalformedApprovalError as error:
            return await self._refuse(str(error))
        requests = [
            Request(approval=approval, event_id=event_id, enqueued_at=self._sent)
            for event_id in approval.event_ids
        ]
        self._count = len(requests)
        self._busy = {request.key for request in requests}
        async with asyncio.TaskGroup() as flows:
            for request in requests:
                flows.create_task(self._decide(request))
        return await self._settle(requests, stop)

    def _parse(self) -> Approval:
        if self.message.fault is not None:
            raise MalformedApprovalError(self.message.fault)
        properties = self.message.application_properties
        if self.context.approvers is not None:
            properties = limits_alone(properties)
        prefix = self.context.event_context.prefix
        return parse(self.message.body, properties, prefix=prefix)

    async def _check(self, approvers: Approvers, stop: asyncio.Event) -> Checked | None:
        """Check who has signed the message; None if ``stop`` came first.

        While the keys or earlier approvals cannot be read, the message waits.
        """
        context, body = self.context, self.message.body
        source = context.event_context.source
        own = None if source.startswith(_MAKESHIFT) else source
        while True:
            found = approvers.check(body, own, self._sent)
            with suppress(OutboxUnavailableError):
                if found is not None:
                    return await self._once(found) if found.name else found
            self.rest()
            if await context.clock.wait(stop, _READ_AGAIN):
                return None

    async def _once(self, checked: Checked) -> Checked:
        """Deny another message with the id of an earlier signed one."""
        approvals, now = self.context.outbox.approvals, self.context.clock.now()
        name = hash32([self.context.entity, checked.name])
        mine = Decision(
            message=name, key="", event_id="", sequence=None, state=checked.content
        )
        found = await approvals.claim(mine, now=now.timestamp())
        if found.state == checked.content:
            return checked
        return Checked(reason=ID_TAKEN, detail="another message has the same id")

    def rest(self) -> None:
        """Record that all EventIds wait, so that another message can be handled."""
        if not self.rests:
            self.rests = True
            self.on_rest()

    def _rest(self, key: str) -> None:
        """Record that one EventId waits."""
        self._busy.discard(key)
        if not self._busy:
            self.rest()

    async def _refuse(self, reason: str) -> Settlement:
        """Store the outcome "invalid" for the whole message."""
        conclusion = Conclusion(OutcomeKind.INVALID, reason=reason)
        if not await self._repeat(""):
            await self._commit("", conclusion)
        return replace(settlement_of([conclusion]), words=reason)

    async def _decide(self, request: Request) -> None:
        if await self._repeat(request.event_id):
            return
        if reason := self._checked.reason:
            detail = self._checked.detail
            denied = Conclusion(OutcomeKind.DENIED, reason=reason, detail=detail)
            await self._commit(request.event_id, denied)
            return
        earlier = self._earlier.get(request.key)
        was_tried = earlier is not None and earlier.is_intent
        record = self._record(request.event_id)
        one = Pending(self.context, request, record, was_tried)
        one.rest = lambda: self._rest(request.key)
        conclusion = await Requests.pursue(one)
        if conclusion is None:
            return
        is_unknown = conclusion.kind is OutcomeKind.UNKNOWN_EVENT
        if is_unknown and self.context.abandons_unknown:
            self._unknown[request.event_id] = conclusion
        else:
            await self._commit(request.event_id, conclusion)

    async def _repeat(self, event_id: str) -> bool:
        """Take over an earlier decision; return whether there is one that holds."""
        earlier = self._earlier.get(event_id.upper())
        if earlier is None or earlier.is_intent:
            return False
        data: Mapping[str, Any] = orjson.loads(earlier.data or b"{}")
        same = _conclusion_of(OutcomeKind(earlier.state), data)
        if earlier.sequence == self.message.sequence_number:
            self._ends[earlier.key] = same, data  # published before: only settle it
        elif self._still_holds(same.kind, data):
            await self._commit(event_id, same, data)
        return earlier.key in self._ends

    def _still_holds(self, kind: OutcomeKind, data: Mapping[str, Any]) -> bool:
        """Return whether a decision on an equal message also applies to this message.

        A good outcome always applies. A refusal applies only to a message that was sent
        before the refusal, and with the same claims.
        """
        if kind in APPROVED:
            return True
        decided = data.get("observedAt")
        if decided is None or self._sent > datetime.fromisoformat(decided):
            return False
        return _claims(data["request"]) == _claims(self._claimed())

    async def _settle(
        self, requests: list[Request], stop: asyncio.Event
    ) -> Settlement | None:
        if len(self._ends) + len(self._unknown) < self._count:
            return None  # stopped in between: the redelivery continues
        is_last = self.message.delivery_count + 1 >= self.context.max_delivery_count
        if not self._ends and not is_last:
            return await self._abandon(stop)
        for event_id, conclusion in self._unknown.items():
            await self._commit(event_id, conclusion)
        return settlement_of([self._ends[request.key][0] for request in requests])

    async def _abandon(self, stop: asyncio.Event) -> Settlement:
        """Wait before abandoning, so that the message is not redelivered at once."""
        self.rest()
        hold = min(_HOLD_UNKNOWN * 2.0**self.message.delivery_count, _LONGEST_HOLD)
        await self.context.clock.wait(stop, hold)
        return ABANDON

    def _record(self, event_id: str) -> Decision:
        return intent_of(self.key, event_id, self.message.sequence_number)

    async def _commit(
        self,
        event_id: str,
        conclusion: Conclusion,
        data: Mapping[str, Any] | None = None,
    ) -> None:
        """Store an outcome; with the last one of the message, also the reply.

        To repeat the decision on an equal message, ``data`` is that of its outcome.
        """
        claims, record = self._claimed(), self._record(event_id)
        outgoing = self.context.outgoing(
            conclusion, record, self.message.message_id, claims
        )
        if data:
            outgoing = _as_before(outgoing, data)
        self._ends[record.key] = conclusion, outgoing.event.data
        reply = self._reply() if len(self._ends) == self._count else None
        await self.context.conclude(outgoing, record, reply)

    def _claimed(self) -> dict[str, object]:
        """Return the member ``request`` of an outcome: the claims of the message.

        Nobody signs MessageId: where signatures count, the body is named by its hash.
        """
        approval, enqueued_at = self._approval, self.message.enqueued_at
        body = hashlib.sha256(self.message.body).hexdigest()
        expires_at = approval.expires_at if approval else None
        return {
            "messageId": self.message.message_id,
            "enqueuedAt": rfc3339(enqueued_at) if enqueued_at else None,
            "approvedBy": approval.approved_by if approval else None,
            "reason": approval.reason if approval else None,
            "expiresAt": rfc3339(expires_at) if expires_at else None,
            **({"bodyHash": body} if self.context.approvers is not None else {}),
        }

    def _reply(self) -> Reply | None:
        message = self.message
        entity = self.context.replies.entity(message.reply_to or "")
        if entity is None:
            return None
        ids = self._approval.event_ids if self._approval else ("",)
        outcomes = [self._ends[event_id.upper()][1] for event_id in ids]
        body = orjson.dumps({"messageId": message.message_id, "outcomes": outcomes})
        envelope = ReplyEnvelope(
            entity=entity,
            message_id=hash32([self.key, message.sequence_number, "reply"]),
            correlation_id=message.message_id,
            session_id=message.reply_to_session_id,
            body=body.decode(),
        )
        return Reply(key=self.key, body=msgspec.json.encode(envelope))


def _conclusion_of(kind: OutcomeKind, data: Mapping[str, Any]) -> Conclusion:
    """Return the conclusion that is stored in an earlier decision."""
    raw = data.get("event")
    return Conclusion(
        kind=kind,
        event=ScheduledEvent(event_id=raw["EventId"], raw=raw) if raw else None,
        confirmed=data.get("confirmed"),
        reason=data.get("reason"),
        imds_status=data.get("imdsStatus"),
    )


def _as_before(outgoing: OutgoingEvent, data: Mapping[str, Any]) -> OutgoingEvent:
    """Return an event about an outcome with the data and time of an earlier one.

    A signed message may come again under another MessageId, which its outcome names.
    """
    own: Any = outgoing.event.data["request"]
    if own["messageId"] != data["request"]["messageId"]:
        data = {**data, "request": own}
    event = replace(outgoing.event, data=data, time=str(data["observedAt"]))
    return replace(outgoing, event=event)


def _claims(request: Mapping[str, object]) -> dict[str, object]:
    """Return the member ``request`` without the time of sending."""
    return {name: value for name, value in request.items() if name != "enqueuedAt"}


_DEAD_LETTERS = {
    OutcomeKind.INVALID: ("InvalidMessage", "it cannot be read as an approval"),
    OutcomeKind.EXPIRED: ("Expired", "it came too late to be relayed"),
    OutcomeKind.UNKNOWN_EVENT: ("UnknownEvent", "this VM knows no such event"),
    OutcomeKind.DENIED: ("Denied", "this bridge may not approve the event"),
    OutcomeKind.REJECTED: ("RejectedByImds", "IMDS answered 400 to the approval"),
    OutcomeKind.FAILED: ("ImdsUnavailable", "IMDS could not be reached in time"),
}


def settlement_of(ends: Sequence[Conclusion]) -> Settlement:
    """Return how to settle a message by the conclusions of its EventIds, in order.

    The first refusal is the reason of a dead letter, unless one EventId was approved.
    """
    if APPROVED.isdisjoint(end.kind for end in ends):
        for end in ends:
            if end.kind in _DEAD_LETTERS:
                reason, *words = _DEAD_LETTERS[end.kind]
                whole = filter(None, (*words, end.reason, end.detail))
                return Settlement("dead-letter", reason, ": ".join(whole))
    return COMPLETE
