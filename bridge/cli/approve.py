"""``sebridge approve``: the remote side of approvals."""

import asyncio
import getpass
import os
import socket
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, NoReturn
from uuid import uuid4

import click

from bridge.app.approve_reply import Answers
from bridge.app.approve_request import (
    Approval,
    SeenEvent,
    address,
    event_id_of,
    reply_entity,
)
from bridge.approvals.config import ApprovalsConfig
from bridge.approvals.policy import OutcomeKind
from bridge.cli import completion
from bridge.cli.common import FAILED, WRONG, config_option, echo_json, fail
from bridge.configuration import load as configuration
from bridge.events.cloudevent import STRUCTURED_TYPE, CloudEvent
from bridge.foundation.clock import SystemClock
from bridge.foundation.errors import BridgeError
from bridge.foundation.values import Duration
from bridge.outbox.admin import Ledger
from bridge.outbox.statefile import is_there
from bridge.outbox.storage.database import Database
from bridge.servicebus.sender import Message, Sender
from bridge.sinks.base import ApprovalAddress
from bridge.telemetry.metrics import LogConfig, configure_logging, printable

_TIMEOUT = Duration(60)
_GOOD = {OutcomeKind.RELAYED, OutcomeKind.ALREADY_STARTED}


class Span(click.ParamType[Duration]):
    """A duration in the words of the configuration."""

    name = "duration"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> Duration:
        """Read seconds, or a number with a unit."""
        try:
            return Duration.parse(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


@click.command()
@click.argument(
    "event_id",
    metavar="[EVENT_ID]",
    required=False,
    shell_complete=completion.event_ids,
)
@config_option
@click.option("--session", metavar="ID", help="That the bridge in question accepts.")
@click.option(
    "--from-event",
    "source",
    type=click.File("rb"),
    help="The CloudEvent as it was received, or -: what it says is what is approved.",
)
@click.option(
    "--force", is_flag=True, help="Send EVENT_ID as it is, whatever it looks like."
)
@click.option("--reason", metavar="TEXT", help="Why; part of every outcome.")
@click.option(
    "--approved-by", metavar="TEXT", help="Who.", show_default="your login name"
)
@click.option("--wait", is_flag=True, help="Wait for what becomes of it.")
@click.option(
    "--timeout", type=Span(), show_default="60s", help="How long to wait at most."
)
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def approve(  # noqa: PLR0913  each is an option
    event_id: str | None,
    path: Path,
    *,
    session: str | None,
    source: IO[bytes] | None,
    force: bool,
    reason: str | None,
    approved_by: str | None,
    wait: bool,
    timeout: Duration | None,
    as_json: bool,
) -> None:
    """Approve an event: ask the bridge to let Azure start it now.

    Of an EventId that the state file here knows, four characters or more of its
    beginning will do, if no other one begins so.

    Exit code 0: the broker has the approval; with --wait, it was relayed or the event
    had already started. 1: anything else became of it, or no reply came in time.
    """
    if timeout is not None and not wait:
        wrong("--timeout needs --wait")
    configure_logging(LogConfig(level="error", format="text"))
    config, targets = configuration.load_for_approver(path, os.environ)
    try:
        seen = _seen(source)
        if seen and seen.has_started:
            click.echo(
                "warning: --from-event says that it has started already", err=True
            )
        approval = Approval(
            id=uuid4().hex,
            event_id=event_id_of(
                event_id, seen, known=lambda start: observed(path, start), force=force
            ),
            approved_by=approved_by or login_name(),
            reason=reason,
            approved_event=seen.event if seen else None,
        )
        approvals, to = address(config, session=session, seen=seen)
        request = Request(
            event=approval.as_event(
                prefix=config.events.type_prefix,
                host=socket.gethostname(),
                now=SystemClock().now(),
            ),
            event_id=approval.event_id,
            approvals=approvals,
            to=to,
            reply_to=reply_entity(approvals, targets) if wait else None,
            timeout=_TIMEOUT if timeout is None else timeout,
        )
    except ValueError as error:
        wrong(str(error))
    answer = asyncio.run(request.send())
    answer.show(as_json=as_json)
    if wait and not answer.is_good:
        raise SystemExit(FAILED)


def wrong(text: str) -> NoReturn:
    """End the command for what is wrong with its arguments."""
    fail(text, code=WRONG)


def observed(path: Path, start: str) -> list[str]:
    """Return the EventIds with this start that the state file here knows.

    An approver's machine has none, and where there is one it may be another user's.
    """

    async def asked(state: Path) -> list[str]:
        async with Database.open(state) as database:
            return await Ledger(database).observed(start)

    try:
        state = Path(configuration.load_state(path, os.environ).path)
        return asyncio.run(asked(state)) if is_there(state) else []
    except BridgeError:
        return []


def login_name() -> str | None:
    """Return who is logged in; None where nobody is."""
    try:
        return getpass.getuser()
    except (ImportError, KeyError, OSError):
        return None


def _seen(source: IO[bytes] | None) -> SeenEvent | None:
    if source is None:
        return None
    try:
        return SeenEvent.parse(source.read())
    except ValueError as error:
        raise ValueError(f"--from-event {error}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What is known of an approval that was sent.

    Attributes:
        outcomes: what the reply says; None as long as there is none.
        trouble: why it is not known what became of it; None if nobody asked.
    """

    message_id: str
    event_id: str
    to: ApprovalAddress
    outcomes: list[dict[str, object]] | None = field(default=None)
    trouble: str | None = None

    @property
    def outcome(self) -> str | None:
        """What became of the one EventId that was asked for."""
        found = [one.get("outcome") for one in self.outcomes or ()]
        return str(found[0]) if found else None

    @property
    def is_good(self) -> bool:
        """Whether the event starts, or has started."""
        return self.outcome in _GOOD

    def show(self, *, as_json: bool) -> None:
        """Print it: one JSON object, or a line; on stderr why no more is known."""
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
    """An approval on its way.

    Attributes:
        to: the entity and session it is sent to.
        reply_to: where to wait for the reply; None = nobody waits.
        timeout: seconds to wait for it.
    """

    event: CloudEvent
    event_id: str
    approvals: ApprovalsConfig
    to: ApprovalAddress
    reply_to: str | None
    timeout: Duration

    async def send(self) -> Answer:
        """Return when the broker has it or, if a reply is wanted, when that is there.

        The reply's queue is opened first: whoever may not read it sends nothing.

        Raises:
            DeliveryError: the approval cannot be sent, or no reply be received.
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
        unknown = "what becomes of the approval is not known"
        if outcomes is not None:
            return f"the reply at {self.reply_to} says nothing: {unknown}"
        why = f" ({last_error})" if last_error else ""
        return f"no reply at {self.reply_to} within {self.timeout:g} s{why}: {unknown}"
