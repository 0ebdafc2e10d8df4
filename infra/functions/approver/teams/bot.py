"""The bot: it takes what Teams sends, and answers.

A click is counted at once, as Teams waits for the answer and sends no click twice. If
the namespace cannot count it in time, it is put on the queue of the clicks, and counted
from there.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Final, cast

from azure.core.exceptions import AzureError

from approver.ballots import Ballot, Vote
from approver.box import BallotBox
from approver.bus import Bus, Outgoing
from approver.buttons import Action, Button
from approver.errors import UnreadableError
from approver.polls import Refused, Verdict, objection_of
from approver.settings import Settings
from approver.teams import invoke
from approver.teams.callers import Callers
from approver.teams.card import Block, View, render
from approver.teams.config import TeamsConfig
from approver.teams.connector import Connector
from approver.teams.credential import Credential
from approver.teams.errors import StrangerError, TeamsError
from approver.teams.groups import Groups
from approver.teams.invoke import Invoke
from approver.teams.poster import Poster
from approver.teams.web import Web
from approver.timings import Timings

_log = logging.getLogger("approver")

_STRANGER: Final = "You are not among those who may decide on scheduled events."
_STORED: Final = "Your click is stored and will be counted; the card will show it."
_LOST: Final = "Your click could not be stored. Please click again."

Answer = tuple[int, dict[str, object] | None]


class Bot:
    """The bot of one conversation.

    Args:
        settings: the app settings.
        config: those of the bot.
        bus: the namespace.
        now: returns the time, in UTC.
        timings: how long a person may wait.

    Attributes:
        poster: keeps the cards; the ballots are shown by it.
    """

    def __init__(
        self,
        settings: Settings,
        config: TeamsConfig,
        bus: Bus,
        now: Callable[[], datetime],
        timings: Timings,
    ) -> None:
        self._settings = settings
        self._timings = timings
        self._config = config
        self._bus = bus
        self._now = now
        self._web = Web()
        self._credential = Credential(config, self._web)
        self._callers = Callers(config, self._web)
        self._groups = Groups(config, self._credential, self._web)
        connector = Connector(config, self._credential, self._web)
        self.poster = Poster(settings, connector, bus, now)

    async def close(self) -> None:
        """Close all connections."""
        await self._credential.close()
        await self._web.close()

    async def hear(self, box: BallotBox, body: bytes, authorization: str) -> Answer:
        """Take an activity of Teams; return the HTTP status and body.

        Args:
            box: the ballots.
            body: of the request.
            authorization: the header of that name; "" if there is none.
        """
        try:
            activity = invoke.activity_of(body)
            await self._callers.check(authorization, activity)
        except (UnreadableError, StrangerError) as error:
            _log.warning("a request to the bot was refused: %s", error)
            return 401, None
        except TeamsError as error:
            _log.error("nobody can be let in: %s", error)
            return 503, None
        return await self._heard(box, activity)

    async def _heard(self, box: BallotBox, activity: Mapping[str, object]) -> Answer:
        """Take an activity that Teams sent."""
        if not invoke.is_of(activity, self._config.tenant):
            _log.warning("a request to the bot was refused: it is of another tenant")
            return 403, None
        place = invoke.conversation_of(activity)
        if activity.get("type") != "invoke":
            _log.info("the bot is in the conversation %s", place)
            return 200, None
        if activity.get("name") != invoke.NAME:
            return 501, None
        if place != self._config.conversation:
            return 200, invoke.with_error(
                403, "Forbidden", "This is not the bot's card."
            )
        return 200, await self._answer(box, activity)

    async def count_later(self, box: BallotBox, click: Invoke) -> None:
        """Count a click that was stored.

        Raises:
            AzureError: it must be tried again.
            TeamsError: likewise.
        """
        if await self._may_decide(click.user):
            await box.count(_vote(click), _button(click))

    async def _answer(
        self, box: BallotBox, activity: Mapping[str, object]
    ) -> dict[str, object]:
        try:
            click = invoke.read(activity)
        except UnreadableError as error:
            _log.warning("a click in Teams was refused: %s", error)
            return invoke.with_error(400, "BadRequest", "This is not the bot's button.")
        try:
            may_decide = await self._may_decide(click.user)
        except TeamsError as error:
            _log.error("a group could not be looked up: %s", error)
            words = (
                "It cannot be found out now whether you may decide. Please try again."
            )
            return invoke.with_error(500, "Unavailable", words)
        if click.verb == "look":
            return await self._looked(box, click, may_decide=may_decide)
        if not may_decide:
            _log.info("a click of teams:%s does not count", click.user)
            return invoke.with_words(_STRANGER)
        return await self._counted(box, click)

    async def _may_decide(self, user: str) -> bool:
        if user in self._settings.rules.approvers:
            return True
        return await self._groups.has(user)

    async def _looked(
        self, box: BallotBox, click: Invoke, *, may_decide: bool
    ) -> dict[str, object]:
        try:
            async with asyncio.timeout(self._timings.count):
                ballot = await box.look(click.event_id)
        except (AzureError, TimeoutError) as error:
            _log.warning("a card was not refreshed: %s", type(error).__name__)
            return invoke.with_error(500, "Unavailable", "Please refresh again.")
        if ballot is None:
            return invoke.with_words("The event is over.")
        return invoke.with_card(self._seen_by(click, ballot, may_decide=may_decide))

    async def _counted(self, box: BallotBox, click: Invoke) -> dict[str, object]:
        try:
            async with asyncio.timeout(self._timings.count):
                ballot, verdict = await box.count(_vote(click), _button(click))
        except (AzureError, TimeoutError) as error:
            _log.warning("a click was not counted at once: %s", type(error).__name__)
            return await self._stored(click)
        return self._told(click, ballot, verdict)

    def _told(
        self, click: Invoke, ballot: Ballot | None, verdict: Verdict
    ) -> dict[str, object]:
        if isinstance(verdict, Refused) or ballot is None:
            words = verdict.words if isinstance(verdict, Refused) else _LOST
            _log.info("a click of teams:%s does not count: %s", click.user, words)
            return invoke.with_words(words)
        return invoke.with_card(self._seen_by(click, ballot, may_decide=True))

    async def _stored(self, click: Invoke) -> dict[str, object]:
        message = Outgoing(
            body=click.to_bytes(), message_id=click.id, content_type="application/json"
        )
        try:
            queue = self._settings.clicks_queue
            await self._bus.send(queue, message, self._timings.store)
        except (AzureError, TimeoutError, ValueError) as error:
            _log.error("a click could not be stored: %s", type(error).__name__)
            return invoke.with_error(500, "Unavailable", _LOST)
        return invoke.with_words(_STORED)

    def _seen_by(self, click: Invoke, ballot: Ballot, *, may_decide: bool) -> Block:
        """Return the card as this person may use it."""
        view = self.poster.view(ballot)
        if not view.actions:
            return render(ballot, view)
        if not may_decide:
            return render(ballot, View(missing=view.missing, note=_STRANGER))
        rules = self._settings.rules
        refused = objection_of(ballot, click.user, rules, self._now())
        if refused is None:
            return render(ballot, view)
        own = [each for each in ballot.votes if rules.is_same(each.user, click.user)]
        actions = ("refuse",) if own else ()
        return render(ballot, replace(view, actions=actions, note=refused.words))


def _vote(click: Invoke) -> Vote:
    return Vote(user=click.user, click=click.id, name=click.name)


def _button(click: Invoke) -> Button:
    return Button(
        action=cast("Action", click.verb),
        event_id=click.event_id,
        digest=click.digest,
        reply_to="",
        session=None,
    )
