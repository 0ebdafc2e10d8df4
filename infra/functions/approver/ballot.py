"""The votes on one event, as they are kept in a Service Bus session state. Pure.

    none ──announced──▶ open ──vote──▶ open ──last vote──▶ approved ──sent──▶ approved
                         ▲ └─refusal──▶ refused                │
                         └──── the event changed, or the approval failed

Gone events leave no state behind. What was announced last is kept with the votes: it
is the ``approvedEvent`` of the StartRequest. Everything here may happen twice: what
is redelivered changes nothing the second time.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Self

from approver.announcements import Announcement, Outcome, moment
from approver.buttons import Action, Button, digest
from approver.rules import Rules


@dataclass(frozen=True, slots=True, kw_only=True)
class Vote:
    """A person's approval.

    Attributes:
        user: the id of the person.
        click: what tells this click from others, so that it counts once.
    """

    user: str
    click: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What was decided on an event.

    Attributes:
        action: approve or refuse.
        by: who decided.
        reason: in words.
        time: when, RFC 3339.
        request_id: MessageId of the StartRequest.
        reply_to: the approval entity.
        session: of the approval entity.
        click: the one that decided; empty where it was none.
        is_sent: whether the StartRequest is on the queue.
    """

    action: Action
    by: tuple[str, ...]
    reason: str
    time: str
    request_id: str
    reply_to: str
    session: str | None
    click: str = ""
    is_sent: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Ballot:
    """What is known and decided of one event.

    Attributes:
        event: the IMDS object as announced last.
        time: of that announcement, RFC 3339.
        is_whole: False when not all its Resources are known.
        reply_to: the approval entity that was named last.
        session: of that entity.
        votes: approvals of the event as it is now.
        decision: None while it is open.
    """

    event: Mapping[str, object]
    time: str
    is_whole: bool = True
    reply_to: str | None = None
    session: str | None = None
    votes: tuple[Vote, ...] = ()
    decision: Decision | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The Resources."""
        found = self.event.get("Resources")
        return tuple(map(str, found)) if isinstance(found, list) else ()

    @property
    def is_started(self) -> bool:
        """Whether there is nothing left to approve."""
        return self.event.get("EventStatus") == "Started"

    @property
    def unsent(self) -> Decision | None:
        """The decision whose StartRequest is not known to be on the queue."""
        found = self.decision
        wanted = found is not None and found.action == "approve" and not found.is_sent
        return found if wanted else None

    def to_bytes(self) -> bytes:
        """Return it as a session state."""
        return json.dumps(asdict(self), separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, state: bytes | None) -> Self | None:
        """Return what a session state holds; None: nothing is known of the event."""
        if not state:
            return None
        members = json.loads(state)
        decision = members["decision"]
        votes = tuple(Vote(**each) for each in members["votes"])
        if decision is not None:
            decision = Decision(**{**decision, "by": tuple(decision["by"])})
        return cls(**{**members, "votes": votes, "decision": decision})


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """A click that counts for nothing; ``words`` are for whoever clicked."""

    words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """A vote that does not decide yet; ``missing`` says what is wanted."""

    voters: tuple[str, ...]
    missing: tuple[str, ...]


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
    if told.is_end:
        return None
    fresh = Ballot(
        event=told.event,
        time=told.time.isoformat(),
        is_whole=told.is_whole,
        reply_to=told.reply_to,
        session=told.session,
    )
    if ballot is None:
        return fresh
    if told.reply_to is None:
        fresh = replace(fresh, reply_to=ballot.reply_to, session=ballot.session)
    if digest(ballot.event) != digest(told.event) and not fresh.is_started:
        return fresh
    return replace(fresh, votes=ballot.votes, decision=ballot.decision)


def reopened(ballot: Ballot | None, outcome: Outcome) -> Ballot | None:
    """Return the ballot after the outcome of an approval: a failed one is void."""
    if ballot is None or ballot.decision is None or outcome.is_good:
        return ballot
    if ballot.decision.request_id != outcome.message_id:
        return ballot
    return replace(ballot, votes=(), decision=None)


def cast(
    ballot: Ballot | None, vote: Vote, button: Button, rules: Rules, now: datetime
) -> tuple[Ballot | None, Verdict]:
    """Count a click of somebody who may vote.

    Args:
        ballot: None where nothing is known of the event.
        vote: who clicked.
        button: what was clicked.
        rules: what decides.
        now: the time of the decision, if this is one.
    """
    if ballot is None:
        words = (
            "Nothing is known here of this event: it is over, or was just announced."
        )
        return None, Refused(words=words)
    if ballot.decision is not None and ballot.decision.click == vote.click:
        return ballot, Decided(decision=ballot.decision)
    if objection := _objection(ballot, button) or _no_vote(ballot, vote, button, rules):
        return ballot, Refused(words=objection)
    if button.action == "refuse":
        return _decided(ballot, vote, button, rules, now)
    others = tuple(each for each in ballot.votes if each.user != vote.user)
    open_ballot = replace(ballot, votes=(*others, vote))
    voters = tuple(each.user for each in open_ballot.votes)
    if missing := rules.missing(voters, ballot.names):
        return open_ballot, Counted(voters=voters, missing=tuple(missing))
    return _decided(open_ballot, vote, button, rules, now)


def sent(ballot: Ballot) -> Ballot:
    """Return a decided ballot whose StartRequest is on the queue."""
    decision = ballot.decision
    return (
        ballot if decision is None else _with(ballot, replace(decision, is_sent=True))
    )


def _with(ballot: Ballot, decision: Decision) -> Ballot:
    return replace(ballot, decision=decision)


def _objection(ballot: Ballot, button: Button) -> str | None:
    """Return why nobody can decide on the event by this button."""
    if ballot.is_started:
        return "The event has already started."
    if button.digest != digest(ballot.event):
        return (
            "The event is not what this message shows any more: please look at the"
            " newest message."
        )
    if not ballot.is_whole:
        return (
            "The event names more resources than a message holds: please approve it"
            " with `sebridge approve`."
        )
    if decision := ballot.decision:
        done = "approved" if decision.action == "approve" else "refused"
        return f"The event was already {done} by {mentions(decision.by)}."
    return None


def _no_vote(ballot: Ballot, vote: Vote, button: Button, rules: Rules) -> str | None:
    """Return why this person cannot."""
    if not rules.is_answerable(vote.user, ballot.names):
        return "None of the resources of this event is yours to decide on."
    earlier = next((each for each in ballot.votes if each.user == vote.user), None)
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
        by=tuple(f"slack:{each.user}" for each in voters),
        reason=f"decided in Slack, rule: {rules.rule}",
        time=now.isoformat(),
        request_id=_request_id(button, vote),
        reply_to=button.reply_to,
        session=button.session,
        click=vote.click,
    )
    return _with(ballot, decision), Decided(decision=decision)


def _request_id(button: Button, vote: Vote) -> str:
    """Return an id that a repeated click gives again."""
    text = json.dumps([button.event_id.upper(), button.digest, vote.click])
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def mentions(people: tuple[str, ...]) -> str:
    """Return people as Slack shows them; who is not of Slack stays as text."""
    return ", ".join(
        f"<@{each.removeprefix('slack:')}>" if each.startswith("slack:") else "a tool"
        for each in people
    )
