"""Where events, clicks and approvals meet: what each function of the app does."""

import logging
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final, Self
from uuid import uuid4

from azure.core.exceptions import AzureError

from approver import announcements, buttons, clicks, replies, requests
from approver.announcements import Announcement, Outcome
from approver.ballot import (
    Ballot,
    Decision,
    Refused,
    Verdict,
    Vote,
    announced,
    cast,
    reopened,
    sent,
)
from approver.bus import Bus, Outgoing, State
from approver.buttons import Button
from approver.clicks import Click
from approver.errors import UnreadableError
from approver.requests import ApprovalRequest
from approver.settings import Settings
from approver.startrequest import CONTENT_TYPE, MOST_BYTES, StartRequest

_log = logging.getLogger("approver")

_SEND_SECONDS: Final = 15.0
_CLICK_SECONDS: Final = 2.4  # Slack waits three


class Desk:
    """The app.

    Args:
        settings: what it is told.
        now: the time, in UTC.
    """

    def __init__(
        self,
        settings: Settings,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._settings = settings
        self._now = now
        self._bus = Bus(settings.bus)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._bus.close()

    async def hear(
        self, body: bytes, reply_to: str | None = None, session: str | None = None
    ) -> None:
        """Take in a CloudEvent of the topic; twice is as good as once.

        Args:
            body: of the message.
            reply_to: the approval entity, where the message names one.
            session: its ReplyToSessionId.

        Raises:
            UnreadableError: it is none: after some tries it is a dead letter.
            AzureError: it is to be tried again.
        """
        told = announcements.read(body, self._settings.prefix)
        if told is None:
            return
        if isinstance(told, Announcement):
            told = replace(told, reply_to=reply_to, session=session)
        async with self._held(told.event_id) as state:
            before = Ballot.from_bytes(await state.read())
            after = _heard(before, told)
            if after != before:
                await state.write(None if after is None else after.to_bytes())
        what = told.transition if isinstance(told, Announcement) else told.outcome
        _log.info("event %s: %s", told.event_id, what)

    async def accept_click(self, body: bytes, headers: Mapping[str, str]) -> int:
        """Put a click on its queue, and return the HTTP status for Slack.

        Slack does not tell of a click twice, so 200 means that it is kept. With any
        other status the person sees a warning, and can click again.
        """
        if not clicks.is_signed(body, headers, self._settings.signing_secret):
            return 401
        try:
            click = clicks.read(body)
        except UnreadableError as error:
            _log.warning("a signed request was not taken: %s", error)
            return 401
        if click is None:
            return 200
        message = Outgoing(
            body=click.to_bytes(), message_id=click.id, content_type="application/json"
        )
        try:
            queue = self._settings.clicks_queue
            await self._bus.send(queue, message, _CLICK_SECONDS)
        except (AzureError, TimeoutError, ValueError) as error:
            _log.error("a click could not be kept: %s", type(error).__name__)
            return 503
        return 200

    async def count(self, body: bytes) -> None:
        """Count a click: record what comes of it, act on it, then tell Slack.

        Raises:
            UnreadableError: the message is no click.
            AzureError: it is to be tried again.
        """
        click = Click.from_bytes(body)
        verdict = await self._verdict(click)
        if isinstance(verdict, Refused):
            _log.info("a click of %s counts for nothing: %s", click.user, verdict.words)
        await replies.send(click, verdict, self._settings.slack_hooks)

    async def approve(self, body: bytes) -> tuple[int, dict[str, object]]:
        """Put an approval on the queue.

        Returns:
            The HTTP status and body: 202 when the broker has it; 400, 404, 409 or
            413 with what is wrong; 503 when Service Bus did not take it.
        """
        try:
            asked = requests.read(body)
        except UnreadableError as error:
            return 400, {"error": str(error)}
        try:
            return await self._approve(asked)
        except (AzureError, TimeoutError) as error:
            _log.error("an approval could not be sent: %s", type(error).__name__)
            return 503, {"error": "Service Bus did not take it"}

    def _held(self, event_id: str) -> AbstractAsyncContextManager[State]:
        """Hold the session of an event; EventIds are compared without case."""
        return self._bus.held(self._settings.votes_queue, event_id.upper())

    async def _verdict(self, click: Click) -> Verdict:
        rules = self._settings.rules
        if words := rules.refusal(click.user, click.team):
            return Refused(words=words)
        try:
            button = buttons.read(click.value, self._settings.button_secrets)
        except UnreadableError:
            return Refused(words="This button is not one of the bridge's.")
        if button.reply_to not in self._settings.approval_entities:
            return Refused(words="This app may not send to the entity of this event.")
        return await self._counted(click, button)

    async def _counted(self, click: Click, button: Button) -> Verdict:
        vote = Vote(user=click.user, click=click.id)
        async with self._held(button.event_id) as state:
            before = Ballot.from_bytes(await state.read())
            ballot, verdict = cast(
                before, vote, button, self._settings.rules, self._now()
            )
            if ballot is not None and ballot != before:
                await state.write(ballot.to_bytes())
            if ballot is not None and (decision := ballot.unsent):
                await self._send(_start_request(ballot, decision), decision)
                await state.write(sent(ballot).to_bytes())
        return verdict

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

    def _body(self, request: StartRequest) -> bytes:
        return request.to_bytes(self._settings.prefix, self._settings.source)

    async def _approve(self, asked: ApprovalRequest) -> tuple[int, dict[str, object]]:
        async with self._held(asked.event_id) as state:
            ballot = Ballot.from_bytes(await state.read())
            if fault := self._fault(asked, ballot):
                return fault
            decision = self._decision(asked, ballot)
            request = _asked_for(asked, ballot, decision)
            if len(self._body(request)) > MOST_BYTES:
                return 413, {"error": f"the message is larger than {MOST_BYTES} bytes"}
            await self._send(request, decision)
            if ballot is not None and ballot.decision is None:
                closed = replace(ballot, decision=replace(decision, is_sent=True))
                await state.write(closed.to_bytes())
        return 202, {
            "messageId": decision.request_id,
            "entity": decision.reply_to,
            "sessionId": decision.session,
        }

    def _fault(
        self, asked: ApprovalRequest, ballot: Ballot | None
    ) -> tuple[int, dict[str, object]] | None:
        """Return why an approval is not sent on, as status and body."""
        allowed = self._settings.approval_entities
        if asked.reply_to is not None and asked.reply_to not in allowed:
            return 400, {"error": f"replyTo must be one of {', '.join(allowed)}"}
        if ballot is None and asked.approved_event is None:
            error = "this event is not known here; give approvedEvent as you saw it"
            return 404, {"error": error}
        if ballot is None:
            return None
        if not ballot.is_whole and asked.approved_event is None:
            error = "the event was announced with fewer Resources; give approvedEvent"
            return 409, {"error": error}
        if ballot.decision is not None and ballot.decision.action == "refuse":
            people = ", ".join(ballot.decision.by)
            return 409, {"error": f"the event was refused by {people}"}
        return None

    def _decision(self, asked: ApprovalRequest, ballot: Ballot | None) -> Decision:
        allowed = self._settings.approval_entities
        told = ballot.reply_to if ballot is not None else None
        session = ballot.session if ballot is not None else None
        return Decision(
            action="approve",
            by=(asked.approved_by,),
            reason=asked.reason or "",
            time=self._now().isoformat(),
            request_id=uuid4().hex,
            reply_to=asked.reply_to
            or (told if told in allowed else None)
            or allowed[0],
            session=asked.session or session,
        )


def _heard(ballot: Ballot | None, told: Announcement | Outcome) -> Ballot | None:
    if isinstance(told, Outcome):
        return reopened(ballot, told)
    return announced(ballot, told)


def _start_request(ballot: Ballot, decision: Decision) -> StartRequest:
    """Return the approval of the event as it was voted on."""
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
    )
