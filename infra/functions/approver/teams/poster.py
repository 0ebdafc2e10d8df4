"""Keeps the card of each event in Teams as it should be.

    first step ──▶ posted ──change──▶ updated … ──over──▶ updated, then forgotten

* A card is changed only if it would show something else: several VMs tell the same.
* What Teams does not take now is tried again, after the time that it asks for: the app
  sends itself a reminder, so that no message of the bridge becomes a dead letter.
* When NotBefore passes, the card is looked at again: its buttons go.
* If the app dies between the post and its record, the card is posted twice: Teams has
  no key for that. Both work.
"""

import hashlib
import json
import logging
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

from approver.announcements import moment
from approver.ballots import Ballot, Notice
from approver.bus import Bus, Outgoing
from approver.polls import is_late
from approver.reminders import Reminder
from approver.settings import Settings
from approver.teams.card import Block, View, render, summary_of
from approver.teams.connector import Connector
from approver.teams.errors import TeamsError
from approver.teams.wording import status_of
from approver.vote_rules import Rules

_log = logging.getLogger("approver")

_MOST_TRIES: Final = 12
_LONGEST_WAIT: Final = 300.0
_SEND_SECONDS: Final = 10.0
_KEPT: Final = timedelta(minutes=15)  # messages of one event overtake each other
_FEW: Final = 60  # Teams refreshes a card for all of so few
_OLDEST_ROSTER: Final = timedelta(hours=1)


class Poster:
    """Posts and updates the cards.

    Args:
        settings: the rules, and where approvals may go.
        connector: the conversation.
        bus: for reminders.
        now: returns the time, in UTC.
    """

    def __init__(
        self,
        settings: Settings,
        connector: Connector,
        bus: Bus,
        now: Callable[[], datetime],
    ) -> None:
        self._settings = settings
        self._connector = connector
        self._bus = bus
        self._now = now
        self._users: tuple[str, ...] = ()
        self._users_read_at: datetime | None = None

    def view(self, ballot: Ballot) -> View:
        """Return what the card shows to everybody."""
        actions = ("approve", "refuse") if self.is_open(ballot) else ()
        return View(actions=actions, missing=missing_of(ballot, self._settings.rules))

    def is_open(self, ballot: Ballot) -> bool:
        """Whether a decision would still have an effect."""
        return (
            status_of(ballot) == "scheduled"
            and (ballot.decision is None or ballot.is_refused)
            and ballot.is_whole
            and ballot.reply_to in self._settings.approval_entities
            and not is_late(ballot, self._now())
        )

    async def show(self, ballot: Ballot, tries: int = 0) -> Ballot:
        """Post or update the card, if it would show something else.

        Args:
            ballot: as it is stored, and held.
            tries: how often Teams has refused it in a row.

        Returns:
            The ballot, with what the card shows now.

        Raises:
            AzureError: a reminder could not be sent.
        """
        notice = ballot.notice or Notice()
        card = render(ballot, self.view(ballot))
        mark = _fingerprint(card)
        if mark == notice.shown:
            return ballot
        try:
            activity = await self._put(ballot, notice)
        except TeamsError as error:
            later = await self._later(ballot, error, tries)
            return replace(ballot, notice=replace(notice, shown="" if later else mark))
        if ballot.is_over:
            await self._remind(
                ballot, Reminder(what="forget", event_id=_id(ballot)), _KEPT
            )
        until = await self._watched(ballot, notice)
        return replace(
            ballot, notice=Notice(activity=activity, shown=mark, until=until)
        )

    async def _put(self, ballot: Ballot, notice: Notice) -> str:
        """Post the card or update it; return the id of its message.

        Raises:
            TeamsError: it is not known to be there.
        """
        view = replace(self.view(ballot), users=await self._refreshed())
        card, summary = render(ballot, view), summary_of(ballot)
        if not notice.activity:
            return "" if ballot.is_over else await self._connector.post(card, summary)
        try:
            await self._connector.update(notice.activity, card, summary)
        except TeamsError as error:
            if error.status != 404 or ballot.is_over:
                raise
            return await self._connector.post(card, summary)  # somebody deleted it
        return notice.activity

    async def _later(self, ballot: Ballot, error: TeamsError, tries: int) -> bool:
        """Plan another try; return False if there will be none."""
        is_final = error.status in {400, 404, 413} or tries >= _MOST_TRIES
        if is_final:
            _log.error("event %s: no card in Teams: %s", _id(ballot), error)
        else:
            _log.warning("event %s: the card must wait: %s", _id(ballot), error)
            wait = max(error.wait, min(5.0 * 2**tries, _LONGEST_WAIT))
            again = Reminder(what="show", event_id=_id(ballot), tries=tries + 1)
            await self._remind(ballot, again, timedelta(seconds=wait))
        if is_final and ballot.is_over:
            await self._remind(
                ballot, Reminder(what="forget", event_id=_id(ballot)), _KEPT
            )
        return not is_final

    async def _watched(self, ballot: Ballot, notice: Notice) -> str:
        """Plan a look at NotBefore, once, where there are buttons then."""
        if not self.is_open(ballot) or ballot.not_before is None:
            return notice.until
        if ballot.not_before != notice.until:
            wait = moment(ballot.not_before) - self._now() + timedelta(seconds=1)
            show = Reminder(what="show", event_id=_id(ballot))
            await self._remind(ballot, show, wait)
        return ballot.not_before

    async def _remind(self, ballot: Ballot, what: Reminder, wait: timedelta) -> None:
        message = Outgoing(
            body=what.to_bytes(),
            message_id=f"{what.what}/{what.tries}/{_id(ballot)}",
            content_type="application/json",
            at=self._now() + wait,
        )
        await self._bus.send(self._settings.clicks_queue, message, _SEND_SECONDS)

    async def _refreshed(self) -> tuple[str, ...]:
        """Return whose card is refreshed by itself; none: everybody's, if they are few.

        Who belongs to a group only is not known here, and refreshes by hand in a
        conversation of more than 60.
        """
        now, read_at = self._now(), self._users_read_at
        if read_at is None or now - read_at > _OLDEST_ROSTER:
            self._users_read_at = now
            try:
                members = await self._connector.members()
            except TeamsError as error:
                _log.warning("the members are not known: %s", error)
                return self._users
            known = self._settings.rules.approvers & set(members)
            many = len(members) > _FEW
            self._users = tuple(sorted(members[one] for one in known)) if many else ()
        return self._users


def missing_of(ballot: Ballot, rules: Rules) -> str:
    """Return what votes still lack, in words."""
    if not ballot.votes or not (ballot.decision is None or ballot.is_refused):
        return ""
    return ", ".join(rules.missing([each.user for each in ballot.votes], ballot.names))


def _fingerprint(card: Block) -> str:
    text = json.dumps(card, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _id(ballot: Ballot) -> str:
    return str(ballot.event.get("EventId"))
