"""The typed rows that pages and API show. Pure."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from bridge.hub.bridges import Liveness, Offer
from bridge.hub.config import AccessConfig
from bridge.hub.facts import Address, Reporter, kept_name
from bridge.hub.fold import Machine
from bridge.hub.voting import Persons

PAGE = 200
MESSAGES = 20  # of an event at once
UNKNOWN = "unknown"
# Unicode's categories Cc (but for tab and line feed), Cf, Zl, Zp, and fillers: they
# change the order of what is read, or cannot be seen
_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u034f\u0600-\u0605\u061c\u06dd\u070f\u0890"
    "\u0891\u08e2\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e"
    "\u2060-\u206f\u2800\u3164\ud800-\udfff\ufeff\uffa0\ufff0-\ufffb\U000110bd"
    "\U000110cd\U00013430-\U0001345f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    "\U000e0000-\U000e0fff]"
)


def visible(text: str) -> str:
    """Replace characters that cannot be seen by marks: U+202E becomes "[U+202E]".

    Otherwise a name could be read backwards, or look the same as another one.
    Source: unicode.org/reports/tr36, section 3 (bidirectional and invisible text)
    """
    return _UNSEEN.sub(lambda found: f"[U+{ord(found[0]):04X}]", text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """The time, and other values besides the store that rows depend on.

    Attributes:
        now: the present moment.
        listening: since when each source of bridges is connected and drained, by its
            name; None = it is not.
        clock_fault: what is wrong with the clock of this machine; None = nothing.
        absent_until: the end of the last absence that was long enough to lose messages.
            Open events without a later message are shown as unknown, and it is not part
            of the silence of a bridge. None = there was no such absence.
        forget_after: a bridge that was silent for so many seconds counts as gone.
        missing_after: an event of Azure that no bridge has reported after so many
            seconds counts as unreported; None = no source of Azure.
        expect: patterns for the resource ids whose events a bridge should report; () =
            machines of known bridges.
        store_fault: why the store cannot be used; None = it can.
        not_connected: the names of the sources that are not connected.
        access: who may decide; None = not known here, so every vote is shown as valid.
    """

    now: datetime
    listening: Mapping[str, datetime | None]
    clock_fault: str | None = None
    absent_until: datetime | None = None
    forget_after: float = 7 * 86400.0
    missing_after: float | None = None
    expect: tuple[str, ...] = ()
    store_fault: str | None = None
    not_connected: tuple[str, ...] = ()
    access: AccessConfig | None = None

    @property
    def drained(self) -> datetime | None:
        """Since when all sources of bridges are drained; None = not all are."""
        since = list(self.listening.values())
        known = [one for one in since if one is not None]
        return max(known) if known and len(known) == len(since) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Filters:
    """The filters of a list of events; None and "" match all.

    Attributes:
        is_open: whether the event is pending or running.
        text: the beginning of an EventId or of a machine's name.
        since: only events that had not ended by then.
        until: only events that were known before.
        after: only events with a larger version.
    """

    is_open: bool | None = None
    event_type: str = ""
    event_source: str = ""
    group: str = ""
    status: str = ""
    text: str = ""
    since: datetime | None = None
    until: datetime | None = None
    after: int = 0
    limit: int = PAGE


@dataclass(frozen=True, slots=True, kw_only=True)
class Voter:
    """A person who has voted.

    Attributes:
        entry: the entry of ``approvers`` that the vote counts by.
        lapse: why it does not count any more; "" = it counts.
    """

    person: str
    via: str
    time: datetime
    reason: str
    entry: str = ""
    lapse: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionRow:
    """A decision and its outcome.

    Attributes:
        state: decided, sent, done, failed, void or refused.
        by: who decided.
        address: where it was sent last; "" = nowhere yet, or through ARM.
        is_overridden: whether it was sent although a bridge would refuse it.
        about: the vmId that was set aside, or the offer that was dropped; else "".
        event_type: the type of the event at that time.
        machines: the names of its machines at that time.
    """

    id: str
    event_id: str
    action: str
    via: str
    state: str
    by: tuple[str, ...]
    rule: str
    reason: str
    time: datetime
    outcome: str
    outcome_reason: str
    address: str = ""
    is_overridden: bool = False
    about: str = ""
    event_type: str = ""
    machines: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TrailRow:
    """One entry of the record of an event: a vote, a decision or an attempt.

    Attributes:
        what: voted, decided, refused, sending, not taken, sent, done, failed, void.
        person: who did it; "" = the hub.
        decision: the id of the decision; "" = a vote, before there is a decision.
    """

    time: datetime
    what: str
    via: str
    person: str
    detail: str
    decision: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EventRow:
    """One event in a list.

    Attributes:
        key: the EventId in capitals.
        version: the number of its last change, counted over all events.
        status: scheduled, started, completed, cancelled, ended, other, or unknown.
        content: the fingerprint of the event, which a vote must name.
        machines: the first 100 names of the machines, as they were spelt.
        machine_count: how many machines it names.
        first_reported_by: the reporter of the first message: a bridge, or Azure.
        is_unreported: Azure has reported it, and no bridge did in time.
        bridges_say: the end that bridges reported, if Azure reported another one.
        said: the end by the word of others alone, which does not count yet; None =
            there is none.
        said_by: who said so first.
        said_until: when that end counts.
        doubled: the reporters that have reported two things with one id.
        dropped: how many of its messages are not kept.
        voters: who has approved the event in its present occurrence.
        decision: the latest decision on the present occurrence; None = there is none.
        persons: how many people must approve it; None = it is not known who may.
    """

    key: str
    event_id: str
    version: int
    status: str
    is_open: bool
    event_type: str
    event_source: str
    subscription: str
    group: str
    content: str
    machines: tuple[str, ...]
    machine_count: int
    not_before: datetime | None
    opened: datetime
    ended: datetime | None
    last_reported: datetime
    first_reported_by: Mapping[str, Any]
    is_unreported: bool
    bridges_say: str | None
    azure: Mapping[str, Any] | None
    lives: int
    event: Mapping[str, Any] | None
    voters: tuple[Voter, ...] = ()
    decision: DecisionRow | None = None
    persons: Persons | None = None
    said: str | None = None
    said_by: Mapping[str, Any] | None = None
    said_until: datetime | None = None
    doubled: Sequence[Mapping[str, Any]] = ()
    dropped: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageRow:
    """One message, as it was received; ``seq`` is its number in the store."""

    seq: int
    kind: str
    source: str
    id: str
    time: datetime
    heard: datetime
    vm_id: str
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class EventPage:
    """One event with its messages, outcomes, decisions and record.

    Attributes:
        occurrences: its occurrences as JSON, the oldest first.
        outcomes: the results of approvals, as JSON.
        messages: its newest messages, the oldest of them first.
        older: the cursor of older messages; "" = there are none.
        decisions: its latest decisions, the newest first.
        trail: the record of votes, decisions and attempts, the oldest first, as far
            back as the messages.
        aside: the vmIds of reporters whose word does not count for the number of people
            in the present occurrence.
    """

    row: EventRow
    occurrences: Sequence[Mapping[str, Any]]
    outcomes: Sequence[Mapping[str, Any]]
    addresses: Sequence[Mapping[str, Any]]
    messages: tuple[MessageRow, ...]
    older: str
    decisions: tuple[DecisionRow, ...]
    trail: tuple[TrailRow, ...]
    aside: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BridgeRow:
    """One bridge, and whether it is alive.

    Attributes:
        origin: the name of the hub's source that its messages come from.
        first_heard: when its first message was enqueued.
        stopped: when its last message that it stops was enqueued; None = never.
        approvals: where it takes approvals, and by which rules; None = not known.
        address: where it takes approvals, by its last offer; None = nowhere, or it has
            made no offer.
        offers: all known offers in its name, and in that of its machine.
        was_silent: whether there was an alarm that it is silent, and none since that it
            is back.
    """

    vm_id: str
    origin: str
    name: str
    resource_id: str
    subscription: str
    group: str
    version: str
    location: str
    liveness: Liveness
    heard: datetime
    first_heard: datetime
    stopped: datetime | None
    interval: float
    pending: int | None
    dead: int | None
    approvals: Mapping[str, Any] | None
    address: Address | None = None
    offers: tuple[Offer, ...] = ()
    was_silent: bool = False

    @property
    def machine(self) -> Machine:
        """The machine it runs on."""
        name = kept_name(self.name)
        return Machine(subscription=self.subscription, group=self.group, name=name)

    @property
    def reporter(self) -> Reporter:
        """The VM of the bridge."""
        return Reporter(vm_id=self.vm_id, name=self.name, resource_id=self.resource_id)

    def since(self, place: tuple[str, str, str]) -> datetime:
        """Return when it, or its machine, was first heard to offer an address.

        Args:
            place: ``Address.place`` of an address that it offers.
        """
        return min(
            one.first_heard
            for one in self.offers
            if one.address is not None and one.address.place == place
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AddressOption:
    """An address that an approval of an event could be sent to.

    Attributes:
        id: by which a person chooses it.
        machines: the names of the machines whose bridges take approvals there.
        answers: whether one of them is alive, or may be.
        is_in_resources: whether one of them is in Resources.
        is_older: whether only bridges that have never made an offer have named it.
        contested: why it is not known whose address it is; "" = it is.
        refusal: why a bridge there would refuse the approval; "" = none would.
        is_best: whether the hub would send to it, if no bridge refused.
    """

    id: str
    entity: str
    session: str
    prefix: str
    machines: tuple[str, ...]
    answers: bool
    is_in_resources: bool
    is_older: bool
    contested: str
    refusal: str
    is_best: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferOption:
    """An offer of the last day, in the name of a machine of an event.

    Attributes:
        id: by which a person drops it.
        answer: allows, waits, denies or unknown.
        why: the reason of the answer.
    """

    id: str
    machine: str
    vm_id: str
    first_heard: datetime
    heard: datetime
    answer: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The decisions that are possible for an event.

    Attributes:
        closed: why no decision is possible; "" = one is.
        bridge_why: why no bridge can be asked; "" = one can.
        is_contested: whether a bridge can be asked once a person chooses the address.
        is_refused: whether a bridge can be asked although it would refuse.
        addresses: where the approval could be sent, the best one first.
        arm_why: why the event cannot be approved through ARM; "" = it can.
        arm_more: how many people more that takes.
        offers: the offers that count for ARM.
    """

    closed: str = ""
    bridge_why: str = ""
    is_contested: bool = False
    is_refused: bool = False
    addresses: tuple[AddressOption, ...] = ()
    arm_why: str = ""
    arm_more: int = 0
    offers: tuple[OfferOption, ...] = ()
