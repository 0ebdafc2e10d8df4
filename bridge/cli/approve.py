"""``sebridge approve``: send an approval from any machine."""

import os
import socket
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import IO, Any, NoReturn
from uuid import uuid4

import click
from msgspec import Struct
from msgspec.structs import replace

from bridge.app.approve_reply import Answers
from bridge.app.approve_request import (
    Approval,
    SeenEvent,
    address,
    event_id_of,
    reply_entity,
    signed_body,
    signed_limits,
)
from bridge.approvals.config import ApprovalsConfig
from bridge.cli import approve_view as view
from bridge.cli import completion
from bridge.cli.common import (
    Span,
    config_option,
    echo_json,
    hub_option,
    hub_scope_option,
    sign_key_option,
)
from bridge.cli.ending import FAILED, WRONG, fail
from bridge.cli.long_running import run
from bridge.configuration import load as configuration
from bridge.events.cloudevent import STRUCTURED_TYPE, CloudEvent
from bridge.events.vocabulary import APPROVED
from bridge.foundation.clock import SystemClock
from bridge.foundation.errors import DeliveryError
from bridge.foundation.printable import printable
from bridge.foundation.values import Duration
from bridge.servicebus.sender import Message, Sender
from bridge.sinks.base import ApprovalAddress
from bridge.telemetry.metrics import LogConfig, configure_logging

# -- Sends an approval, and waits for the reply if one is wanted -----------------------


class Answer(Struct, frozen=True, kw_only=True):
    """What is known about an approval that was sent.

    Attributes:
        outcomes: the outcomes in the reply; None while there is no reply.
        trouble: why the outcome is not known; None if no reply was asked for.
    """

    message_id: str
    event_id: str
    to: ApprovalAddress
    outcomes: list[dict[str, object]] | None = None
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
            return f"{self.event_id}: approval sent to {view.place_of(self.to)}"
        reason = next((one.get("reason") for one in self.outcomes or ()), None)
        return f"{self.event_id}: {self.outcome}" + (f": {reason}" if reason else "")


class Request(Struct, frozen=True, kw_only=True):
    """An approval that is to be sent.

    Attributes:
        to: the entity and session it is sent to.
        reply_to: the entity that receives the reply; None = do not wait for one.
        timeout: seconds to wait for the reply.
        seen: the event as received, or as stored here; None = not known.
        body: the event as it is sent: signed, if there is a key.
    """

    event: CloudEvent
    body: bytes
    event_id: str
    approvals: ApprovalsConfig
    to: ApprovalAddress
    reply_to: str | None
    timeout: Duration
    seen: SeenEvent | None = None

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
            asked = Answers(self.approvals, self.reply_to, SystemClock())
            try:
                answers = await stack.enter_async_context(asked)
            except DeliveryError as error:
                text = f"the approval was not sent, for --wait: {error}"
                raise DeliveryError(text, error.reason) from error
            await self._put(answers.session)
            outcomes = await answers.outcomes(self.event.id, self.timeout)
        trouble = None if outcomes else self._trouble(outcomes, answers.last_error)
        return replace(sent, outcomes=outcomes, trouble=trouble)

    async def _put(self, reply_session: str | None) -> None:
        sender = Sender(self.approvals, self.to.entity)
        message = Message(
            body=self.body,
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
        unknown = view.unknown(self.event_id)
        if outcomes is not None:
            return f"the reply at {self.reply_to} holds no outcome: {unknown}"
        why = f" ({last_error})" if last_error else ""
        return f"no reply at {self.reply_to} within {self.timeout:g} s{why}: {unknown}"


# -- ``sebridge approve``: send an approval from any machine ---------------------------


_ENDPOINT = "https://management.azure.com"
_FOR_REMOTE = ("resource", "refuse")


@click.command()
@click.argument(
    "event_id",
    metavar="[EVENT_ID]",
    required=False,
    shell_complete=completion.event_ids,
)
@config_option
@click.option(
    "--session",
    metavar="ID",
    help="The session of the approval entity that the bridge of the event accepts.",
)
@click.option(
    "--from-event",
    "source",
    type=click.File("rb"),
    help="A file with the CloudEvent as it was received, or - for standard input. "
    "The approval is for the event in it.",
)
@click.option(
    "--force", is_flag=True, help="Send EVENT_ID even if it does not look like a GUID."
)
@click.option(
    "--reason", metavar="TEXT", help="Why the event is approved; part of every outcome."
)
@click.option(
    "--approved-by",
    metavar="TEXT",
    help="Who approves the event.",
    show_default="your login name",
)
@sign_key_option
@click.option("--wait", is_flag=True, help="Wait for the outcome of the approval.")
@click.option(
    "--timeout",
    type=Span(),
    show_default="60s",
    help="The longest time to wait, for example 90s or 5m; needs --wait.",
)
@hub_option
@hub_scope_option
@click.option(
    "--via",
    type=click.Choice(["bridge", "arm"]),
    default="bridge",
    is_eager=True,
    show_default=True,
    help="Who gets the approval: the bridge, or Azure Resource Manager (arm) if no "
    "bridge answers. With arm, no right on Service Bus is needed.",
)
@click.option(
    "--resource",
    metavar="ID",
    help="The resource id of the virtual machine or scale set, for --via arm.",
)
@click.option(
    "--refuse",
    is_flag=True,
    help="Refuse the event instead of approving it; needs --hub.",
)
@click.option("--yes", "is_sure", is_flag=True, help="Do not ask.")
@click.option(
    "--dry-run",
    "is_rehearsal",
    is_flag=True,
    help="Show the event, and where the approval would be sent; send nothing.",
)
@click.option(
    "--arm-endpoint",
    "endpoint",
    default=_ENDPOINT,
    hidden=True,
    help="The address of Azure Resource Manager, in another cloud or simulated.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def approve(
    path: Path,
    *,
    source: IO[bytes] | None,
    timeout: Duration | None,
    as_json: bool,
    **given: Any,
) -> None:
    """Approve an event, so that Azure starts it now.

    A terminal shows the event and asks first; without a terminal nothing is asked.

    Four or more characters from the beginning of EVENT_ID are enough, if the state
    file on this machine, or the hub, has exactly one EventId that begins with them.

    Exit code 0: the broker or the hub has the approval; with --wait, the approval was
    relayed or the event had already started (with --refuse: the refusal is stored). 1:
    there was another outcome, or no reply in time; with --hub and --wait, also if more
    people must approve.

    Example: sebridge approve 9C1F2A34 --reason "drained" --wait
    """
    options = view.Options(
        timeout=view.TIMEOUT if timeout is None else timeout, **given
    )
    if timeout is not None and not options.wait:
        wrong("--timeout needs --wait")
    configure_logging(LogConfig(level="error", format="text"))
    if not _sent(path, options, source, as_json=as_json):
        raise SystemExit(FAILED)


def _sent(
    path: Path, options: view.Options, source: IO[bytes] | None, *, as_json: bool
) -> bool:
    """Send the approval, and print what came of it; return whether that is good."""
    is_remote = bool(options.hub) or options.via != "bridge"
    foreign = ("session", "force", "approved_by") if is_remote else _FOR_REMOTE
    for name in foreign:
        if getattr(options, name):
            how = "is for" if not is_remote else "cannot be used with"
            wrong(f"--{name.replace('_', '-')} {how} --hub or --via arm")
    try:
        if is_remote:
            # Loaded only for this: most machines have no hub.
            from bridge.cli import hub_approve  # noqa: PLC0415 - see above

            seen = source.read() if source else None
            return hub_approve.approve(options, seen, as_json=as_json)
        request = request_of(path, os.environ, options, source)
    except ValueError as error:
        wrong(str(error))
    subject = view.Subject.of(request.event_id, request.seen)
    if options.is_rehearsal:
        subject.rehearse(view.place_of(request.to), as_json=as_json)
        return True
    subject.confirm(is_sure=options.is_sure)
    answer = run(request.send())
    answer.show(as_json=as_json)
    return answer.is_good or not options.wait


def request_of(
    path: Path,
    environ: Mapping[str, str],
    options: view.Options,
    source: IO[bytes] | None,
) -> Request:
    """Build the approval that is sent.

    Args:
        path: the configuration file.
        environ: the environment.
        options: the options of the command.
        source: the event as it was received; None = only its id is known.

    Raises:
        ValueError: an option is wrong.
        ConfigError: the configuration is wrong.
    """
    config, targets = configuration.load_for_approver(path, environ)
    seen = _seen(source)
    is_shown = seen is not None or options.is_looked_up or bool(options.sign_key)
    if seen and seen.has_started:
        where = "--from-event: the event in it" if source else "the event"
        text = f"warning: {where} has already started"
        click.echo(text, err=True)
    event_id = event_id_of(
        options.event_id,
        seen,
        known=lambda start: view.observed(path, config, start),
        force=options.force,
    )
    lacks = options.session is None and view.lacks_session(config)
    if seen is None and (options.is_looked_up or lacks or options.sign_key):
        seen = view.stored(path, config, event_id)
    now = SystemClock().now()
    approval = Approval(
        id=uuid4().hex,
        event_id=event_id,
        approved_by=options.approved_by or view.login_name(),
        reason=options.reason,
        approved_event=seen.event if seen and is_shown else None,
        **signed_limits(seen, now) if options.sign_key else {},
    )
    approvals, to = address(config, session=options.session, seen=seen)
    prefix, host = config.events.type_prefix, socket.gethostname()
    event = approval.as_event(prefix=prefix, host=host, now=now)
    return Request(
        event=event,
        body=signed_body(event, options.sign_key),
        event_id=approval.event_id,
        approvals=approvals,
        to=to,
        reply_to=reply_entity(approvals, targets) if options.wait else None,
        timeout=options.timeout,
        seen=seen,
    )


def wrong(text: str) -> NoReturn:
    """End the command with a message about its arguments."""
    fail(text, code=WRONG)


def _seen(source: IO[bytes] | None) -> SeenEvent | None:
    if source is None:
        return None
    try:
        return SeenEvent.parse(source.read())
    except ValueError as error:
        raise ValueError(f"--from-event {error}") from error
