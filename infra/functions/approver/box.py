"""The ballots: one for each event, in the state of a Service Bus session.

Whoever changes one holds its session meanwhile. The change is stored first; then the
StartRequest is sent, and then the card in Teams is changed. So the card never shows
what is not stored, and an older card never comes after a newer one.
"""

import logging
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Final, Protocol
from uuid import uuid4

from approver.announcements import Announcement, Outcome, moment
from approver.ballots import Ballot, Decision, Vote
from approver.bus import Bus, Outgoing, State
from approver.buttons import Button
from approver.polls import Refused, Verdict, announced, cast, reopened, sent
from approver.reminders import Reminder
from approver.requests import ApprovalRequest
from approver.settings import Settings
from approver.signing import Vault
from approver.startrequest import CONTENT_TYPE, MOST_BYTES, StartRequest

_log = logging.getLogger("approver")

_SEND_SECONDS: Final = 15.0


class Display(Protocol):
    """Shows a ballot somewhere; the bot in Teams is one."""

    async def show(self, ballot: Ballot, tries: int = 0) -> Ballot:
        """Show what is known; return the ballot with what is shown now."""
        ...


class BallotBox:
    """All ballots.

    Args:
        settings: the rules, and the names of the entities.
        bus: the namespace.
        now: returns the time, in UTC.
        display: shows each change; None: nothing does.
        vault: signs StartRequests; None: they are not signed.
    """

    def __init__(
        self,
        settings: Settings,
        bus: Bus,
        now: Callable[[], datetime],
        display: Display | None = None,
        vault: Vault | None = None,
    ) -> None:
        self._settings = settings
        self._bus = bus
        self._now = now
        self._display = display
        self._vault = vault

    async def record(self, message: Announcement | Outcome) -> None:
        """Record what a bridge published; a second time changes nothing.

        Raises:
            AzureError: it must be tried again.
        """
        async with self._held(message.event_id) as state:
            before = Ballot.from_bytes(await state.read())
            await self._store(state, before, _updated(before, message))

    async def look(self, event_id: str) -> Ballot | None:
        """Return what is known of an event; None: nothing.

        Raises:
            AzureError: it cannot be read now.
        """
        async with self._held(event_id) as state:
            return Ballot.from_bytes(await state.read())

    async def count(self, vote: Vote, button: Button) -> tuple[Ballot | None, Verdict]:
        """Count a click of a person who may vote; return the ballot, and the result.

        Args:
            vote: who clicked.
            button: what was clicked; with an empty ``reply_to``, the entity and the
                session are those that were published.

        Raises:
            AzureError: it must be tried again.
        """
        async with self._held(button.event_id) as state:
            before = Ballot.from_bytes(await state.read())
            button = _addressed(button, before)
            is_addressed = before is not None or button.reply_to != ""
            if is_addressed and button.reply_to not in self._settings.approval_entities:
                words = "This app may not send to the entity of this event."
                return before, Refused(words=words)
            rules, now = self._settings.rules, self._now()
            ballot, verdict = cast(before, vote, button, rules, now)
            if ballot is None:
                return None, verdict
            if ballot != before:
                await state.write(ballot.to_bytes())
            if decision := ballot.unsent:
                request = _start_request(ballot, decision)
                if self._vault is not None:
                    request = await self._signed(request, ballot, decision)
                    decision = replace(decision, signature=request.signature)
                    ballot = replace(ballot, decision=decision)
                    # The same bytes again: the bridge takes an id with one signature.
                    await state.write(ballot.to_bytes())
                await self._send(request, decision)
                ballot = sent(ballot)
                await state.write(ballot.to_bytes())
            return await self._shown(state, ballot), verdict

    async def approve(self, asked: ApprovalRequest) -> tuple[int, dict[str, object]]:
        """Put an approval of a tool on the queue; return HTTP status and answer.

        Raises:
            AzureError: it could not be sent.
            TimeoutError: it is not known whether it was sent.
        """
        async with self._held(asked.event_id) as state:
            ballot = Ballot.from_bytes(await state.read())
            if ballot is not None and ballot.is_over:
                ballot = None  # kept only for its card
            if fault := self._fault(asked, ballot):
                return fault
            decision = self._decision(asked, ballot)
            request = _asked_for(asked, ballot, decision)
            if self._vault is not None:
                if not (asked.audience or (ballot and ballot.source)):
                    return 409, {"error": "give audience: the source of the event"}
                request = await self._signed(request, ballot, decision)
            if len(self._body(request)) > MOST_BYTES:
                return 413, {"error": f"the message is larger than {MOST_BYTES} bytes"}
            await self._send(request, decision)
            if ballot is not None and ballot.decision is None:
                closed = replace(ballot, decision=replace(decision, is_sent=True))
                await self._store(state, ballot, closed)
        return 202, {
            "messageId": decision.request_id,
            "entity": decision.reply_to,
            "sessionId": decision.session,
        }

    async def remind(self, reminder: Reminder) -> None:
        """Do what the app wanted to be reminded of.

        Raises:
            AzureError: it must be tried again.
        """
        async with self._held(reminder.event_id) as state:
            ballot = Ballot.from_bytes(await state.read())
            if ballot is None:
                return
            if reminder.what == "show":
                await self._shown(state, ballot, reminder.tries)
            elif ballot.is_over:
                await state.write(None)

    def _held(self, event_id: str) -> AbstractAsyncContextManager[State]:
        """Hold the ballot of an event; EventIds are compared without case."""
        return self._bus.held(self._settings.votes_queue, event_id.upper())

    async def _store(
        self, state: State, before: Ballot | None, after: Ballot | None
    ) -> None:
        if after != before:
            await state.write(None if after is None else after.to_bytes())
        if after is not None:
            await self._shown(state, after)

    async def _shown(self, state: State, ballot: Ballot, tries: int = 0) -> Ballot:
        """Return the stored ballot after it was shown."""
        if self._display is None:
            return ballot
        shown = await self._display.show(ballot, tries)
        if shown != ballot:
            await state.write(shown.to_bytes())
        return shown

    async def _send(self, request: StartRequest, decision: Decision) -> None:
        message = Outgoing(
            body=self._body(request),
            message_id=request.id,
            content_type=CONTENT_TYPE,
            session_id=decision.session,
            correlation_id=request.event_id,
        )
        await self._bus.send(decision.reply_to, message, _SEND_SECONDS)
        by, entity = request.approved_by, decision.reply_to
        _log.info("event %s: approved by %s, sent to %s", request.event_id, by, entity)

    async def _signed(
        self, request: StartRequest, ballot: Ballot | None, decision: Decision
    ) -> StartRequest:
        """Return a request with its limits, its audience and its signature.

        Raises:
            UnsignedError: Key Vault did not sign now.
        """
        source = ballot.source if ballot is not None else ""
        limited = replace(
            request,
            audience=request.audience or source,
            expires_at=_expiry(request, ballot),
            time=_second(moment(decision.time)),
            signature=decision.signature,
        )
        if limited.signature or self._vault is None:
            return limited
        event = limited.attributes(self._settings.prefix, self._settings.source)
        found = await self._vault.material(event, limited.data)
        return replace(limited, signature=found)

    def _body(self, request: StartRequest) -> bytes:
        return request.to_bytes(self._settings.prefix, self._settings.source)

    def _fault(
        self, asked: ApprovalRequest, ballot: Ballot | None
    ) -> tuple[int, dict[str, object]] | None:
        """Return why an approval is not sent, as status and body."""
        allowed = self._settings.approval_entities
        if asked.reply_to is not None and asked.reply_to not in allowed:
            return 400, {"error": f"replyTo must be one of {', '.join(allowed)}"}
        if ballot is None and asked.approved_event is None:
            error = "this event is not known here; give approvedEvent as you saw it"
            return 404, {"error": error}
        if ballot is None:
            return None
        if not ballot.is_whole and asked.approved_event is None:
            error = "the event was published with fewer Resources; give approvedEvent"
            return 409, {"error": error}
        if ballot.decision is not None and ballot.is_refused:
            people = ", ".join(ballot.decision.by)
            error = f"the event was refused by {people}; people can still approve it"
            return 409, {"error": error}
        return None

    def _decision(self, asked: ApprovalRequest, ballot: Ballot | None) -> Decision:
        allowed = self._settings.approval_entities
        published = ballot.reply_to if ballot is not None else None
        session = ballot.session if ballot is not None else None
        return Decision(
            action="approve",
            by=(asked.approved_by,),
            reason=asked.reason or "",
            time=self._now().isoformat(),
            request_id=uuid4().hex,
            reply_to=asked.reply_to
            or (published if published in allowed else None)
            or allowed[0],
            session=asked.session or session,
        )


def _updated(ballot: Ballot | None, message: Announcement | Outcome) -> Ballot | None:
    if isinstance(message, Outcome):
        return reopened(ballot, message)
    return announced(ballot, message)


def _addressed(button: Button, ballot: Ballot | None) -> Button:
    if button.reply_to or ballot is None:
        return button
    return replace(button, reply_to=ballot.reply_to or "", session=ballot.session)


def _expiry(request: StartRequest, ballot: Ballot | None) -> str:
    """Return how long a signed approval is valid: NotBefore, but in 1 min to 24 h."""
    now, day = moment(request.time), timedelta(hours=24)
    ends = [request.expires_at, ballot.not_before if ballot is not None else None]
    wanted = min((moment(one) for one in ends if one), default=now + day)
    return _second(min(max(wanted, now + timedelta(minutes=1)), now + day))


def _second(when: datetime) -> str:
    return when.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _start_request(ballot: Ballot, decision: Decision) -> StartRequest:
    """Return the approval of the event in the form that people voted on."""
    return StartRequest(
        id=decision.request_id,
        event_id=str(ballot.event.get("EventId")),
        approved_by=", ".join(decision.by),
        approved_event=ballot.event,
        time=decision.time,
        reason=decision.reason,
    )


def _asked_for(
    asked: ApprovalRequest, ballot: Ballot | None, decision: Decision
) -> StartRequest:
    announced_event = ballot.event if ballot is not None else {}
    return StartRequest(
        id=decision.request_id,
        event_id=asked.event_id,
        approved_by=asked.approved_by,
        approved_event=asked.approved_event or announced_event,
        time=decision.time,
        reason=asked.reason,
        expires_at=asked.expires_at,
        audience=asked.audience,
    )
