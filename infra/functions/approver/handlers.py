"""The work of the app's functions: events, clicks and approvals."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Self

from azure.core.exceptions import AzureError

from approver import announcements, buttons, clicks, replies, requests
from approver.announcements import Announcement
from approver.ballots import Vote
from approver.box import BallotBox
from approver.bus import Bus, Outgoing
from approver.clicks import Click
from approver.errors import UnreadableError
from approver.polls import Refused, Verdict
from approver.reminders import Reminder
from approver.settings import Settings
from approver.signing import Vault
from approver.teams.bot import Answer, Bot
from approver.teams.invoke import Invoke
from approver.timings import Timings

_log = logging.getLogger("approver")


class Handlers:
    """The work of the app's functions.

    Args:
        settings: the app settings.
        now: returns the time, in UTC.
        timings: how long a person may wait.
        bus: the namespace; None: that of the settings.
        vault: signs; None: that of the settings, if there is one.
    """

    def __init__(
        self,
        settings: Settings,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        timings: Timings | None = None,
        bus: Bus | None = None,
        vault: Vault | None = None,
    ) -> None:
        self._settings = settings
        self._timings = timings or Timings()
        self._bus = bus or Bus(settings.bus)
        self._vault = vault
        if settings.sign_keys and vault is None:
            client_id = settings.bus.client_id
            self._vault = Vault(settings.sign_keys, client_id=client_id)
        self._bot = None
        if settings.teams is not None:
            self._bot = Bot(settings, settings.teams, self._bus, now, self._timings)
        display = None if self._bot is None else self._bot.poster
        self._box = BallotBox(settings, self._bus, now, display, self._vault)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._bot is not None:
            await self._bot.close()
        if self._vault is not None:
            await self._vault.close()
        await self._bus.close()

    async def record(
        self, body: bytes, reply_to: str | None = None, session: str | None = None
    ) -> None:
        """Record a CloudEvent of the topic; a second time changes nothing.

        Args:
            body: the body of the message.
            reply_to: the approval entity, if the message names one.
            session: its ReplyToSessionId.

        Raises:
            UnreadableError: it is not one; after some tries it is a dead letter.
            AzureError: it must be tried again.
        """
        message = announcements.read(body, self._settings.prefix)
        if message is None:
            return
        if isinstance(message, Announcement):
            message = replace(message, reply_to=reply_to, session=session)
        await self._box.record(message)
        what = (
            message.transition if isinstance(message, Announcement) else message.outcome
        )
        _log.info("event %s: %s", message.event_id, what)

    async def accept_click(self, body: bytes, headers: Mapping[str, str]) -> int:
        """Put a click on its queue, and return the HTTP status for Slack.

        Slack sends a click only once, so 200 means that the click is stored. After any
        other status the person sees a warning and can click again.
        """
        if not clicks.is_signed(body, headers, self._settings.signing_secret):
            return 401
        try:
            click = clicks.read(body)
        except UnreadableError as error:
            _log.warning("a signed request was refused: %s", error)
            return 401
        if click is None:
            return 200
        message = Outgoing(
            body=click.to_bytes(), message_id=click.id, content_type="application/json"
        )
        try:
            queue = self._settings.clicks_queue
            await self._bus.send(queue, message, self._timings.store)
        except (AzureError, TimeoutError, ValueError) as error:
            _log.error("a click could not be stored: %s", type(error).__name__)
            return 503
        return 200

    async def hear_teams(self, body: bytes, headers: Mapping[str, str]) -> Answer:
        """Take what Teams sends; return the HTTP status and the body, if there is one.

        Without the settings of a bot, every request is refused with 401.
        """
        if self._bot is None:
            return 401, None
        named = {name.lower(): value for name, value in headers.items()}
        return await self._bot.hear(self._box, body, named.get("authorization", ""))

    async def count(self, body: bytes) -> None:
        """Count a stored click, or do what the app wanted to be reminded of.

        Raises:
            UnreadableError: the message is neither.
            AzureError: it must be tried again.
            TeamsError: likewise.
        """
        if (reminder := Reminder.from_bytes(body)) is not None:
            await self._box.remind(reminder)
        elif (late := Invoke.from_bytes(body)) is not None and self._bot is not None:
            await self._bot.count_later(self._box, late)
        else:
            await self._count_slack(Click.from_bytes(body))

    async def approve(self, body: bytes) -> tuple[int, dict[str, object]]:
        """Put an approval on the queue.

        Returns:
            The HTTP status and body: 202 when the broker has it; 400, 404, 409 or
            413 with what is wrong; 503 if Service Bus did not accept it.
        """
        try:
            asked = requests.read(body)
        except UnreadableError as error:
            return 400, {"error": str(error)}
        try:
            return await self._box.approve(asked)
        except (AzureError, TimeoutError) as error:
            _log.error("an approval could not be sent: %s", type(error).__name__)
            return 503, {"error": "Service Bus did not accept it"}

    async def _count_slack(self, click: Click) -> None:
        """Record the result of a click, act on it, then answer Slack."""
        verdict = await self._verdict(click)
        if isinstance(verdict, Refused):
            _log.info("a click of %s does not count: %s", click.user, verdict.words)
        await replies.send(click, verdict, self._settings.slack_hooks)

    async def _verdict(self, click: Click) -> Verdict:
        if words := self._settings.rules.refusal(click.user, click.team):
            return Refused(words=words)
        try:
            button = buttons.read(click.value, self._settings.button_secrets)
        except UnreadableError:
            return Refused(words="This is not a button of the bridge.")
        vote = Vote(user=click.user, click=click.id)
        _, verdict = await self._box.count(vote, button)
        return verdict
