"""The votes on one event, and what they decide. Pure.

    none ──announced──▶ open ──vote──▶ open ──last vote──▶ approved ──sent──▶ approved
                         ▲ └─refusal──▶ refused ──last vote────┤
                         └──── the event changed, or the approval failed

A refusal deletes all votes. The event can still be approved, by as many people as the
rule wants from the start.

What was announced last is kept with the votes: it is the ``approvedEvent`` of the
StartRequest. Gone events leave no state behind, except where a card in Teams still has
to say so: then the state stays for a while. Everything here may happen twice: what is
redelivered changes nothing the second time.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from approver.announcements import Announcement, Outcome, moment
from approver.ballots import Ballot, Decision, Mark, Vote
from approver.buttons import Button
from approver.people import mentions, place_of
from approver.vote_rules import Rules, digest

_MOST_MARKS: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """A click that counts for nothing; ``words`` are for whoever clicked."""

    words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """A vote that does not decide yet; ``missing`` says what is wanted.

    Attributes:
        voters: as ``person_of`` names them.
        names: what Teams calls them, in the same order.
    """

    voters: tuple[str, ...]
    missing: tuple[str, ...]
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """The click that decided."""

    decision: Decision


Verdict = Refused | Counted | Decided


def announced(ballot: Ballot | None, told: Announcement) -> Ballot | None:
    """Return the ballot after an announcement; None: the event is gone.

    An announcement older than what is known changes nothing: messages may overtake
    one another, and VMs that see the same event tell of it one by one.
    """
    if ballot is not None and told.time < moment(ballot.time):
        return ballot
    if told.is_end and (ballot is None or ballot.notice is None):
        return None
    fresh = Ballot(
        event=told.event,
        time=told.time.isoformat(),
        is_whole=told.is_whole,
        reply_to=told.reply_to,
        session=told.session,
        step=told.transition,
        not_before=None if told.not_before is None else told.not_before.isoformat(),
        trail=_marked((), _mark_of(told)),
        source=told.source,
    )
    if ballot is None or (ballot.is_over and not told.is_end):
        return fresh
    fresh = replace(
        fresh, trail=_marked(ballot.trail, _mark_of(told)), notice=ballot.notice
    )
    if told.reply_to is None:
        fresh = replace(fresh, reply_to=ballot.reply_to, session=ballot.session)
    is_changed = digest(ballot.event) != digest(told.event)
    if is_changed and not fresh.is_started and not fresh.is_over:
        return fresh
    return replace(
        fresh, votes=ballot.votes, decision=ballot.decision, deleted=ballot.deleted
    )


def reopened(ballot: Ballot | None, outcome: Outcome) -> Ballot | None:
    """Return the ballot after the outcome of an approval: a failed one is void."""
    if ballot is None:
        return None
    ballot = replace(ballot, trail=_marked(ballot.trail, _mark_of(outcome)))
    if ballot.decision is None or outcome.is_good:
        return ballot
    if ballot.decision.request_id != outcome.message_id:
        return ballot
    return replace(ballot, votes=(), decision=None)


def cast(
    ballot: Ballot | None, vote: Vote, button: Button, rules: Rules, now: datetime
) -> tuple[Ballot | None, Verdict]:
    """Count a click of a person who may vote.

    Args:
        ballot: None where nothing is known of the event.
        vote: who clicked.
        button: what was clicked.
        rules: what decides.
        now: the time of the decision, if this is one.
    """
    if ballot is None or ballot.is_over:
        words = (
            "This app does not know the event: it is over, or was only just published."
        )
        return ballot, Refused(words=words)
    if ballot.decision is not None and ballot.decision.click == vote.click:
        return ballot, Decided(decision=ballot.decision)
    objection = _objection(ballot, vote, button, now)
    objection = objection or _no_vote(ballot, vote, button, rules)
    if objection:
        return ballot, Refused(words=objection)
    if button.action == "refuse":
        return _decided(_without_votes(ballot), vote, button, rules, now)
    others = tuple(
        each for each in ballot.votes if not rules.is_same(each.user, vote.user)
    )
    open_ballot = replace(ballot, votes=(*others, vote))
    voters = tuple(each.user for each in open_ballot.votes)
    if missing := rules.missing(voters, ballot.names):
        return open_ballot, counted(open_ballot, missing)
    return _decided(open_ballot, vote, button, rules, now)


def _without_votes(ballot: Ballot) -> Ballot:
    deleted = (*ballot.deleted, *(each.click for each in ballot.votes))
    return replace(ballot, votes=(), deleted=deleted)


def counted(ballot: Ballot, missing: Sequence[str]) -> Counted:
    """Return what the votes so far amount to."""
    return Counted(
        voters=tuple(each.person for each in ballot.votes),
        missing=tuple(missing),
        names=tuple(each.name for each in ballot.votes),
    )


def sent(ballot: Ballot) -> Ballot:
    """Return the ballot with its StartRequest marked as sent."""
    decision = ballot.decision
    return (
        ballot if decision is None else _with(ballot, replace(decision, is_sent=True))
    )


def is_late(ballot: Ballot, now: datetime) -> bool:
    """Whether NotBefore has passed, so that Azure starts the event by itself."""
    return ballot.not_before is not None and moment(ballot.not_before) <= now


def objection_of(
    ballot: Ballot, user: str, rules: Rules, now: datetime
) -> Refused | None:
    """Return why a person cannot approve an event as it is now; None: they can."""
    button = Button(
        action="approve",
        event_id=str(ballot.event.get("EventId")),
        digest=digest(ballot.event),
        reply_to="",
        session=None,
    )
    _, verdict = cast(ballot, Vote(user=user, click=""), button, rules, now)
    return verdict if isinstance(verdict, Refused) else None


def _mark_of(told: Announcement | Outcome) -> Mark:
    if isinstance(told, Announcement):
        return Mark(id=told.id, what=told.transition, time=told.time.isoformat())
    return Mark(
        id=told.id,
        what=told.outcome,
        time=told.time,
        by=told.by,
        because=told.because,
    )


def _marked(trail: tuple[Mark, ...], mark: Mark) -> tuple[Mark, ...]:
    """Return the trail with one more mark; what several VMs tell stands there once."""
    if any(each.id == mark.id for each in trail):
        return trail
    longer = (*trail, mark)
    if len(longer) <= _MOST_MARKS:
        return longer
    return (longer[0], *longer[1 - _MOST_MARKS :])


def _with(ballot: Ballot, decision: Decision) -> Ballot:
    return replace(ballot, decision=decision)


def _objection(ballot: Ballot, vote: Vote, button: Button, now: datetime) -> str | None:
    """Return why nobody can decide on the event with this button."""
    if ballot.is_started:
        return "The event has already started."
    if is_late(ballot, now):
        return "It is too late: Azure starts the event by itself now."
    if button.digest != digest(ballot.event):
        return (
            "The event has changed since this message was posted: please use the newest"
            " message."
        )
    if not ballot.is_whole:
        return (
            "The event names more resources than fit into a message: please approve it"
            " with `sebridge approve`."
        )
    undoes = button.action == "approve" or ballot.votes
    if (decision := ballot.decision) and not (ballot.is_refused and undoes):
        done = "approved" if decision.action == "approve" else "refused"
        people = mentions(decision.by, decision.names, place_of(vote.user))
        return f"The event was already {done} by {people}."
    return None


def _no_vote(ballot: Ballot, vote: Vote, button: Button, rules: Rules) -> str | None:
    """Return why this person cannot vote."""
    if not rules.is_answerable(vote.user, ballot.names):
        return "You may not decide about any of the resources of this event."
    if vote.click in ballot.deleted:
        return "Your vote was deleted by a refusal."
    own = (each for each in ballot.votes if rules.is_same(each.user, vote.user))
    earlier = next(own, None)
    is_again = earlier is not None and earlier.click != vote.click
    if is_again and button.action == "approve":
        return "Your approval is already counted."
    return None


def _decided(
    ballot: Ballot, vote: Vote, button: Button, rules: Rules, now: datetime
) -> tuple[Ballot, Decided]:
    voters = ballot.votes if button.action == "approve" else (vote,)
    decision = Decision(
        action=button.action,
        by=tuple(each.person for each in voters),
        names=tuple(each.name for each in voters),
        reason=f"decided in {place_of(vote.user)}, rule: {rules.rule}",
        time=now.isoformat(),
        request_id=_request_id(button, vote),
        reply_to=button.reply_to,
        session=button.session,
        click=vote.click,
    )
    return _with(ballot, decision), Decided(decision=decision)


def _request_id(button: Button, vote: Vote) -> str:
    """Return an id that is the same for a repeated click."""
    text = json.dumps([button.event_id.upper(), button.digest, vote.click])
    return hashlib.sha256(text.encode()).hexdigest()[:32]
