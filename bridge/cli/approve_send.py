"""Sends an approval, and waits for the reply if one is wanted."""

from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

import click

from bridge.app.approve_reply import Answers
from bridge.approvals.config import ApprovalsConfig
from bridge.cli.common import echo_json
from bridge.events.cloudevent import STRUCTURED_TYPE, CloudEvent
from bridge.events.vocabulary import APPROVED
from bridge.foundation.clock import SystemClock
from bridge.foundation.printable import printable
from bridge.foundation.values import Duration
from bridge.servicebus.sender import Message, Sender
from bridge.sinks.base import ApprovalAddress


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What is known about an approval that was sent.

    Attributes:
        outcomes: the outcomes in the reply; None while there is no reply.
        trouble: why the outcome is not known; None if no reply was asked for.
    """

    message_id: str
    event_id: str
    to: ApprovalAddress
    outcomes: list[dict[str, object]] | None = field(default=None)
    trouble: str | None = None

    @property
    def outcome(self) -> str | None:
        """The outcome for the one EventId in the approval; None without a reply."""
        found = [one.get("outcome") for one in self.outcomes or ()]
        return str(found[0]) if found else None

    @property
    def is_good(self) -> bool:
        """Whether the event starts, or has started."""
        return self.outcome in APPROVED

    def show(self, *, as_json: bool) -> None:
        """Print one JSON object, or one line; ``trouble`` goes to standard error."""
        if as_json:
            echo_json(
                {
                    "messageId": self.message_id,
                    "eventId": self.event_id,
                    "entity": self.to.entity,
                    "session": self.to.session,
                    "outcome": self.outcome,
                    "outcomes": self.outcomes or [],
                }
            )
        else:
            click.echo(printable(self._line()))
        if self.trouble:
            click.echo(f"sebridge: {printable(self.trouble)}", err=True)

    def _line(self) -> str:
        if self.outcome is None:
            session = f", session {self.to.session}" if self.to.session else ""
            return f"{self.event_id}: approval sent to {self.to.entity}{session}"
        reason = next((one.get("reason") for one in self.outcomes or ()), None)
        return f"{self.event_id}: {self.outcome}" + (f": {reason}" if reason else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """An approval that is to be sent.

    Attributes:
        to: the entity and session it is sent to.
        reply_to: the entity that receives the reply; None = do not wait for one.
        timeout: seconds to wait for the reply.
    """

    event: CloudEvent
    event_id: str
    approvals: ApprovalsConfig
    to: ApprovalAddress
    reply_to: str | None
    timeout: Duration

    async def send(self) -> Answer:
        """Send the approval. If a reply is wanted, wait for it.

        The reply entity is opened first: without the right to read it, nothing is sent.

        Raises:
            DeliveryError: the approval cannot be sent, or the reply entity cannot be
                read.
        """
        sent = Answer(message_id=self.event.id, event_id=self.event_id, to=self.to)
        async with AsyncExitStack() as stack:
            if self.reply_to is None:
                await self._put(None)
                return sent
            answers = await stack.enter_async_context(
                Answers(self.approvals, self.reply_to, SystemClock())
            )
            await self._put(answers.session)
            outcomes = await answers.outcomes(self.event.id, self.timeout)
        return Answer(
            message_id=sent.message_id,
            event_id=sent.event_id,
            to=sent.to,
            outcomes=outcomes,
            trouble=None if outcomes else self._trouble(outcomes, answers.last_error),
        )

    async def _put(self, reply_session: str | None) -> None:
        sender = Sender(self.approvals, self.to.entity)
        message = Message(
            body=self.event.to_json(),
            content_type=STRUCTURED_TYPE,
            message_id=self.event.id,
            subject=self.event.type,
            correlation_id=self.event_id,
            session_id=self.to.session,
            reply_to=self.reply_to,
            reply_to_session_id=reply_session,
        )
        try:
            await sender.send(message)
        finally:
            await sender.close()

    def _trouble(
        self, outcomes: Sequence[object] | None, last_error: str | None
    ) -> str:
        unknown = "the outcome of the approval is not known"
        if outcomes is not None:
            return f"the reply at {self.reply_to} holds no outcome: {unknown}"
        why = f" ({last_error})" if last_error else ""
        return f"no reply at {self.reply_to} within {self.timeout:g} s{why}: {unknown}"
