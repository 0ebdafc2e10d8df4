"""Who must approve an event, the states of a decision, and its message. Pure.

    decided ──▶ sending ──▶ sent ──▶ done
       │           └──────────┴────▶ failed      a bad outcome, or none in time
       └──▶ void      cancelled before it was sent: by a change, a rule or a refusal
    refused           one person has refused: nothing is sent

A decision in the state ``sending`` may have been sent or not. After a crash the same
bytes are sent again: the bridge recognizes the MessageId and repeats its answer.
"""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from msgspec import Struct, field

from bridge.approvals.message import parse
from bridge.events.cloudevent import CloudEvent, clean, rfc3339
from bridge.events.document import ScheduledEvent
from bridge.events.vocabulary import (
    NOTHING_TO_APPROVE,
    EventStatus,
    TransitionKind,
)
from bridge.foundation.errors import MalformedApprovalError
from bridge.hub.access import AccessConfig, known_type
from bridge.hub.facts import Address, Machine, Reporter
from bridge.hub.fold import Voice
from bridge.hub.view_rows import StoredOutcome
from bridge.hub.vote_rules import voids
from bridge.signing import approval
from bridge.signing.dsse import Signer

BRIDGE, ARM = "bridge", "arm"
APPROVE, REFUSE = "approve", "refuse"
SET_ASIDE, DROP_OFFER = "set-aside", "drop-offer"
ACTIONS = (APPROVE, REFUSE, SET_ASIDE, DROP_OFFER)
_MOST_NAMED = 3
_PREFIX = "sebridge"  # if the bridge's own prefix is not known
_LEAST = timedelta(minutes=1)
_NO_TIME = timedelta(hours=1)  # if NotBefore is not known
_MOST = timedelta(days=30)  # a TimeToLive can be 49 days; a date ends with year 9999
_MOST_BYTES = 56 * 1024  # leaves room for the names and reasons of more voters
_LONGEST_NAMES = 256
_LONGEST_REASON = 1024
SOURCE = "urn:sebridge:hub"

GOOD = NOTHING_TO_APPROVE | {"acknowledged"}  # the last is the answer of ARM


# -- How many people must approve an event, and whether it can be decided on -----------
#
# ``vote_rules`` has the rules that the Functions app uses as well. Here are
# ``[[hub.access.rules]]``, for the current state of an event.


class CurrentEvent(Struct, frozen=True, kw_only=True):
    """The current state of an event, with what a decision depends on.

    Attributes:
        key: the EventId in capitals.
        life: the number of its occurrence, from 1.
        content: the fingerprint of the event, see ``vote_rules.digest``.
        event: the IMDS object; None = no message contained one.
        is_whole: False = not all names in its Resources are known.
        since: the time of the latest message with its content. It may have had this
            content for longer.
        prefix: the prefix of the types of the bridges' events.
        source: the source of these events; a signed approval names it.
        resource: the resource id of the event at ARM; "" = Azure has not reported it.
        named: the machines whose word counts as that of one in Resources.
        voices: who has reported the occurrence.
        addresses: those in its messages, each with the vmId of its reporter.
        homes: the resource groups of the bridges of each name in Resources.
        aside: the vmIds of the reporters that people have set aside.
        is_by_others: whether the content is by the word of others alone: its changes
            make no vote void.
        is_pinned: whether only the words of pinned bridges count.
        azure: the latest IMDS object from Azure; None = Azure has not reported it.
        azure_seen: when the latest message of Azure was enqueued.
    """

    key: str
    event_id: str
    life: int
    is_open: bool
    status: str
    content: str
    event: Mapping[str, object] | None
    is_whole: bool
    since: datetime
    prefix: str
    source: str
    resource: str
    machines: tuple[Machine, ...]
    named: tuple[Machine, ...] = ()
    voices: tuple[Voice, ...] = ()
    addresses: tuple[tuple[Address, str], ...] = ()
    homes: Mapping[str, Collection[str]] = field(default_factory=dict)
    aside: frozenset[str] = frozenset()
    is_by_others: bool = False
    is_pinned: bool = False
    azure: Mapping[str, object] | None = None
    azure_seen: datetime | None = None

    @property
    def scheduled(self) -> ScheduledEvent:
        """The IMDS object as a ScheduledEvent; empty if it is not known."""
        return ScheduledEvent(event_id=self.event_id, raw=self.event or {})

    @property
    def spoken(self) -> list[Voice]:
        """The reporters whose words count for the number of people."""
        return [v for v in self.voices if v.reporter.vm_id not in self.aside]

    def voids(self, seen: Mapping[str, object], via: str) -> bool:
        """Whether a vote or a decision on the event as it was seen is void now.

        A change that others alone tell of makes nothing void: a bridge compares the
        approval with its own document, and for ARM the word of Azure counts.

        Args:
            seen: the IMDS object as it was seen.
            via: the channel of the vote.
        """
        if not self.is_by_others:
            return is_void(seen, self.event or {})
        return via == ARM and is_void(seen, self.azure or {})

    def lacks(self) -> str | None:
        """Return why nobody can decide on the event; None = people can."""
        if not self.is_open:
            return "the event is over"
        is_started = self.scheduled.status == EventStatus.STARTED
        if is_started or self.status == TransitionKind.STARTED:
            return "the event has started: nothing can be asked of it"
        if self.event is None:
            return "what the event is about is not known"
        return None


class Persons(Struct, frozen=True, kw_only=True):
    """How many people must approve an event, by which rule, and by whose word.

    Attributes:
        raised_by: the reporters by whose word it is more than for the event as it
            stands, in the groups of the bridges of its machines.
    """

    wanted: int
    rule: str
    raised_by: tuple[Reporter, ...] = ()

    @property
    def words(self) -> str:
        """The rule, and whose word raised the number."""
        names = ", ".join(dict.fromkeys(r.name or "a VM" for r in self.raised_by))
        return f"{self.rule}, by the word of {names}" if names else self.rule


def persons_for(access: AccessConfig, current: CurrentEvent) -> tuple[int, str]:
    """Return how many people must approve an event, and by which rule."""
    found = persons_of(
        access, current.scheduled.event_type or "", current.homes, current.spoken
    )
    return found.wanted, found.words


def persons_of(
    access: AccessConfig,
    event_type: str,
    homes: Mapping[str, Collection[str]],
    voices: Sequence[Voice],
) -> Persons:
    """Return how many people must approve an event.

    That is the largest number for any EventType and resource group that was told in
    this occurrence. So no message can make it smaller.

    Args:
        access: the rules.
        event_type: the EventType of the event as it stands.
        homes: the resource groups of the bridges of each name in Resources; empty = no
            bridge of that name is known.
        voices: who has reported the occurrence, without those who were set aside.
    """
    groups = {group for found in homes.values() for group in found or ("",)}
    base = access.wanted(event_type, groups)
    every = _largest(access, event_type, groups, voices)
    if every[0] == base[0]:
        return Persons(wanted=base[0], rule=base[1])
    alone = [v for v in voices if _largest(access, event_type, groups, [v]) > base]
    raised = alone or [v for v in voices if _differs(v, event_type, groups)]
    return Persons(
        wanted=every[0],
        rule=every[1],
        raised_by=tuple(v.reporter for v in raised[:_MOST_NAMED]),
    )


def _largest(
    access: AccessConfig, event_type: str, groups: set[str], voices: Sequence[Voice]
) -> tuple[int, str]:
    """Return the largest number for any type and group of the event or of voices."""
    types = {known_type(event_type)}
    types |= {known_type(kind) for voice in voices for kind in voice.event_types}
    told = {group for voice in voices for _, group in voice.groups if group}
    named = {name.lower() for rule in access.rules for name in rule.resource_groups}
    places = [groups, *({group} for group in groups | (told & named))]
    if told - named:
        places.append({next(iter(told - named))})
    return max(
        (access.wanted(kind, place) for kind in types for place in places),
        key=lambda found: (found[0], found[1]),
    )


def _differs(voice: Voice, event_type: str, groups: set[str]) -> bool:
    types = {kind.casefold() for kind in voice.event_types}
    told = {group for _, group in voice.groups if group}
    return not (types <= {event_type.casefold()} and told <= groups)


def is_void(seen: Mapping[str, object], event: Mapping[str, object]) -> bool:
    """Whether a vote for an event as it was seen is void for the event as it is now."""
    return voids(seen, event, is_earlier=is_earlier(seen, event))


def is_earlier(seen: Mapping[str, object], event: Mapping[str, object]) -> bool:
    """Whether the NotBefore of an event is earlier than it was, or not known now."""
    before = ScheduledEvent(event_id="", raw=seen).not_before
    after = ScheduledEvent(event_id="", raw=event).not_before
    return before is not None and (after is None or after < before)


# -- The states of a decision, and its message -----------------------------------------


class DecisionState(StrEnum):
    """The state of a decision."""

    DECIDED = "decided"
    SENDING = "sending"
    SENT = "sent"
    DONE = "done"
    FAILED = "failed"
    VOID = "void"
    REFUSED = "refused"


LIVE = (DecisionState.DECIDED, DecisionState.SENDING, DecisionState.SENT)
MAYBE_SENT = (DecisionState.SENDING, DecisionState.SENT)


class Vote(Struct, frozen=True, kw_only=True):
    """The approval of one person, with the IMDS object that the person saw.

    Attributes:
        entry: the entry of ``approvers`` that it counts by.
        time: when the person voted; their roles are those of then.
    """

    person: str
    reason: str
    seen: Mapping[str, object]
    entry: str
    time: datetime


def persons_json(votes: Sequence[Vote], current: CurrentEvent) -> dict[str, object]:
    """Return who has decided, by which entries and when, as JSON for the store."""
    return {
        "by": [vote.person for vote in votes],
        "entries": [[vote.entry, vote.time.isoformat()] for vote in votes],
        "seen": current.event,
    }


def persons_left(
    persons: Mapping[str, Any], access: AccessConfig, now: datetime
) -> list[str]:
    """Return those who have decided and whose votes still count.

    Args:
        persons: the JSON of ``persons_json``.
        access: who may decide now.
        now: the present moment.
    """
    return [
        person
        for person, (entry, time) in zip(persons["by"], persons["entries"], strict=True)
        if not access.lapse(entry, (now - datetime.fromisoformat(time)).total_seconds())
    ]


def expiry(
    current: CurrentEvent, now: datetime, *, is_signed: bool = False
) -> datetime:
    """Return when an approval expires: at NotBefore, but in 1 minute to 30 days.

    A signed one expires in 24 h at most.
    """
    if is_signed:
        return approval.expiry(current.scheduled.not_before, now)
    not_before = current.scheduled.not_before or now + _NO_TIME
    return min(max(not_before, now + _LEAST), now + _MOST)


def reason_of(votes: Sequence[Vote]) -> str:
    """Join the reasons of the voters into one text, without duplicates."""
    found = dict.fromkeys(vote.reason for vote in votes if vote.reason)
    return "; ".join(found)[:_LONGEST_REASON]


def message(  # noqa: PLR0913 - each is a part of the message
    decision: str,
    current: CurrentEvent,
    votes: Sequence[Vote],
    now: datetime,
    prefix: str | None = None,
    *,
    signers: Sequence[Signer] = (),
) -> bytes | None:
    """Return the approval message for a bridge; None = a bridge would not accept it.

    Args:
        decision: the id of the decision; it is also the MessageId.
        current: the event.
        votes: the approvals.
        now: the present moment.
        prefix: that of the events of the bridge; None = that of the event's.
        signers: the keys that sign it; () = it is not signed.
    """
    prefix = prefix or current.prefix or _PREFIX
    by = ", ".join(vote.person for vote in votes)[:_LONGEST_NAMES]
    data: dict[str, object] = {
        "StartRequests": [{"EventId": current.event_id}],
        "approvedBy": by,
        "expiresAt": rfc3339(expiry(current, now, is_signed=bool(signers))),
        "approvedEvent": current.event,
    }
    if signers:
        data["audience"] = current.source
    if reason := reason_of(votes):
        data["reason"] = reason
    event = CloudEvent(
        id=decision,
        source=SOURCE,
        type=f"{prefix}.startrequest.v1",
        subject=current.event_id,
        time=rfc3339(now),
        dataschema="urn:sebridge:schema:approval:v1",
        data=data,
    )
    body = event.to_json()
    return _checked(approval.signed(body, signers) if signers else body, prefix)


def _checked(body: bytes, prefix: str) -> bytes | None:
    """Return a message if a bridge can parse it; otherwise None."""
    try:
        parse(body, {}, prefix=prefix)
    except MalformedApprovalError:
        return None
    return body


def fits(current: CurrentEvent, vote: Vote, now: datetime) -> bool:
    """Whether a message can be sent, even if more voters add names and reasons."""
    body = message("0" * 32, current, [vote], now)
    return body is not None and len(body) <= _MOST_BYTES


class End(Struct, frozen=True, kw_only=True):
    """The end of a decision: its final state and its outcome."""

    state: DecisionState
    outcome: str
    reason: str


def end_of(outcomes: Sequence[StoredOutcome], decision: str) -> End | None:
    """Derive the end of a decision from outcomes of bridges; None = no outcome yet.

    A good outcome wins over bad ones. Of several good or bad ones the latest by time
    wins, so the order in which they arrive makes no difference.
    """
    mine = [one for one in outcomes if one.message_id == decision]
    if not mine:
        return None
    good = [one for one in mine if one.outcome in GOOD]
    last = max(good or mine, key=lambda one: (one.time, one.outcome))
    return End(
        state=DecisionState.DONE if good else DecisionState.FAILED,
        outcome=clean(last.outcome),
        reason=clean(last.reason or ""),
    )


# -- One attempt to send a decision: what is sent, and the result. Pure ----------------


WAIT = 5.0  # seconds until the next attempt


class Claimed(Struct, frozen=True, kw_only=True):
    """A decision that one hub has claimed, in order to send it now.

    Attributes:
        address: the address to send to; None for ARM.
        message: the stored bytes, the same for each attempt.
        attempt: the number of the attempt, from 1.
        until: when the claim expires, unless it is renewed.
    """

    id: str
    event_key: str
    event_id: str
    via: str
    address: Address | None
    message: bytes
    expires: datetime
    attempt: int
    until: datetime


class Result(Struct, frozen=True, kw_only=True):
    """The result of an attempt.

    Attributes:
        end: the end of the decision; None = not known yet.
        is_accepted: whether the receiver has accepted the message.
        fault: why it was not accepted.
        retry_after: seconds until the next attempt.
    """

    end: End | None = None
    is_accepted: bool = False
    fault: str = ""
    retry_after: float = WAIT
