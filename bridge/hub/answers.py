"""The answers of the API, and what pages show of events and decisions. Pure.

Each is typed once: its JSON is its encoding, and ``openapi`` describes it from its type
and its docstring. All members are always there, unless they have a default.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType, field

from bridge.hub.bridges import Liveness
from bridge.hub.decisions import DecisionState
from bridge.hub.facts import Kind, Machine, key_of
from bridge.hub.view_rows import (
    PAGE,
    Bridge,
    Count,
    ReporterRow,
    Row,
    StoredOutcome,
    Time,
)

MESSAGES = 20  # of an event at once
NAMES = 100  # of an event in a list, or of a decision
UNKNOWN = "unknown"
LONGEST_WORD = 1024  # of a parameter, and of a reason
LONGEST_CURSOR = 256  # of decisions
LONGEST_ADDRESS = 64

STATUSES = (*(k for k in Kind if k not in {Kind.UPDATED, Kind.OUTCOME}), UNKNOWN)
Word = Annotated[str, Meta(max_length=LONGEST_WORD)]
_NEXT = Meta(description="The value of next in the previous answer.")
_TEXT = Meta(max_length=LONGEST_WORD, pattern=r"^[^\x00]*$")
Text = Annotated[str, _TEXT]  # of a parameter: not all databases take NUL
Status = Annotated[str, Meta(extra_json_schema={"enum": STATUSES})]
Via = Literal["bridge", "arm"]
Action = Literal["approve", "refuse", "set-aside", "drop-offer"]
Names = Annotated[tuple[str, ...], Meta(max_length=NAMES)]
Standing = Literal["counted", "not-asked", "rule", "elsewhere"]
Large = Annotated[int, Meta(ge=0, extra_json_schema={"format": "int64"})]


class SaidToBeOver(Row, frozen=True, kw_only=True):
    """An end by the word of others than machines in Resources: it does not count yet.

    Attributes:
        by: who said so first.
        counts_from: when it counts, unless somebody whose word counts agrees.
    """

    status: str
    by: ReporterRow
    counts_from: Time | None


class Vote(Row, frozen=True, kw_only=True):
    """A vote.

    Attributes:
        via: bridge or arm; of a vote on something else, such as set-aside, what it is
            and whom it is about.
        entry: the entry of approvers it counts by.
        why: why it does not count.
    """

    person: str
    via: str
    entry: str | None
    counts: bool
    why: str | None


class PersonsRow(Row, frozen=True, kw_only=True):
    """How many people must approve.

    Attributes:
        raised_by: whose word has raised the number.
    """

    wanted: Count
    rule: str
    raised_by: tuple[ReporterRow, ...]


class DecisionRow(Row, frozen=True, kw_only=True):
    """A decision and its outcome.

    Attributes:
        event_type: of the event at that time.
        machines: the first 100 names.
        by: who decided.
        address: where it was sent last.
        overridden: it was sent although a bridge would refuse it.
        about: the vmId that is set aside, or the offer that is dropped.
    """

    id: str
    event_id: str
    event_type: str | None
    machines: Names
    machine_count: Count
    action: Action = field(name="decision")
    via: Via
    state: DecisionState
    by: tuple[str, ...]
    rule: str
    reason: str | None
    time: Time
    outcome: str | None
    outcome_reason: str | None
    address: str | None
    overridden: bool
    about: str | None


class ApprovalState(Row, frozen=True, kw_only=True):
    """Votes and the latest decision of the present occurrence."""

    votes: tuple[Vote, ...]
    persons: PersonsRow
    decision: DecisionRow | None

    def voters(self, via: str) -> list[str]:
        """Return the people whose votes count, of one channel."""
        return [one.person for one in self.votes if one.via == via and one.counts]


class EventRow(Row, frozen=True, kw_only=True):
    """An event in a list.

    Attributes:
        version: the number of its last change, over all events.
        is_open: whether it is pending or running.
        machines: the first 100 names, as they were spelt.
        content: its fingerprint, which a vote must name; may be empty.
        last_told: when somebody last reported it.
        unreported: Azure has reported it, and no bridge did in time.
        bridges_say: the end by the bridges, if Azure says another one.
        two_reports_with_one_id: who has reported two things with one id.
        messages_not_kept: how many there were.
        azure_status: the EventStatus that Azure has reported.
        occurrence: how many times the event has appeared.
        event: the event as IMDS shows it; in a list, with the first 100 names of
            Resources.
    """

    event_id: str
    version: Large
    status: Status
    is_open: bool
    event_type: str | None
    event_source: str | None
    subscription: str | None
    resource_group: str | None
    machines: Names
    machine_count: Count
    content: str
    not_before: Time | None
    opened: Time
    ended: Time | None
    last_told: Time
    first_reported_by: ReporterRow
    unreported: bool
    bridges_say: str | None
    said_to_be_over: SaidToBeOver | None
    two_reports_with_one_id: tuple[ReporterRow, ...]
    messages_not_kept: Count
    azure_status: str | None
    occurrence: Count
    event: Mapping[str, Any] | None
    approval: ApprovalState

    @property
    def key(self) -> str:
        """The EventId in the form that is compared."""
        return key_of(self.event_id)


class AzureReport(Row, frozen=True, kw_only=True):
    """The last report of Azure.

    Attributes:
        status: the EventStatus.
    """

    status: str | None
    event: Mapping[str, Any]
    time: Time
    digest: str


class OccurrenceRow(Row, frozen=True, kw_only=True):
    """One appearance of the event, until its end.

    Attributes:
        event: the event as IMDS shows it.
        is_whole: whether its event was not truncated.
        machines: the machines in Resources.
        is_by_others: no machine in Resources has reported it.
        prefix: the prefix of the types of events; may be empty.
        source: the source of the events; may be empty.
        resource: the resource that Azure names; may be empty.
        digest: the fingerprint of the message with its event.
    """

    status: Status
    event: Mapping[str, Any] | None
    is_whole: bool
    opened: Time
    ended: Time | None
    first_reported_by: ReporterRow
    bridges_say: str | None
    azure: AzureReport | None
    machines: tuple[Machine, ...]
    is_by_others: bool
    prefix: str
    source: str
    resource: str
    digest: str


class OutcomeRow(StoredOutcome, frozen=True, kw_only=True):
    """What a bridge made of a StartRequest.

    Attributes:
        message_id: of the approval; empty: of a rule.
        standing: counted: for a decision of this hub; not-asked: by a bridge that the
            hub did not ask; rule: by a rule of a bridge; elsewhere: without this hub.
    """

    standing: Standing


class MessageRow(Row, frozen=True, kw_only=True):
    """A message as it came.

    Attributes:
        seq: its number: /events/{id}/messages/{seq} has its bytes.
        enqueued: when the broker enqueued it.
    """

    seq: Large
    id: str
    source: str
    kind: Kind
    time: Time
    enqueued: Time
    body: Mapping[str, Any]


class RecordEntry(Row, frozen=True, kw_only=True):
    """A vote, a decision or an attempt to send it.

    Attributes:
        what: voted, decided, refused, sending, not taken, sent, done, failed, void.
        person: null: the hub.
        decision: its id; null: a vote before there was one.
    """

    time: Time
    what: str
    via: str
    person: str | None
    detail: str | None
    decision: str | None


class EventPage(EventRow, frozen=True, kw_only=True):
    """An event with all that is known.

    Attributes:
        occurrences: the oldest first.
        outcomes: of all approvals that were reported.
        messages: 20, the oldest of them first.
        older_messages: the value of before; null: there are none.
        decisions: the last 20, the newest first.
        record: the oldest first, as far back as the messages.
        set_aside: the vmIds of reporters whose word does not count for the number of
            people in the present occurrence.
    """

    occurrences: tuple[OccurrenceRow, ...]
    outcomes: tuple[OutcomeRow, ...]
    messages: tuple[MessageRow, ...]
    older_messages: str | None
    decisions: tuple[DecisionRow, ...]
    record: tuple[RecordEntry, ...]
    set_aside: tuple[str, ...]


# -- lists and errors ------------------------------------------------------------------


class List(Row, frozen=True, kw_only=True):
    """A part of a list, and the cursor of the next answer."""

    next: Annotated[
        str | None, Meta(description="The cursor; null: this was the last.")
    ]


class EventList(List, frozen=True, kw_only=True):
    """Events, and the cursor of the next answer."""

    events: tuple[EventRow, ...]


class DecisionList(List, frozen=True, kw_only=True):
    """Decisions, and the cursor of the next answer."""

    decisions: tuple[DecisionRow, ...]


class BridgeList(List, frozen=True, kw_only=True):
    """Bridges, and the cursor of the next answer.

    Attributes:
        total: how many there are in every state, of names that begin so.
    """

    bridges: tuple[Bridge, ...]
    total: Count


class HubState(Row, frozen=True, kw_only=True):
    """What the hub cannot do now, and who asks.

    Attributes:
        store_fault: why nothing can be stored or received; null: it can.
        not_connected: why sources are not connected, by their names.
        drained: since when all messages that waited in the sources of bridges are read;
            null: they are not.
        unread: how many messages of the last day could not be read.
        without_heartbeat: how many bridges may run and send no heartbeats, so that
            their silence says nothing; 200: or more.
        person: the name of who asks.
        may_decide: whether this person is an approver.
    """

    store_fault: str | None
    not_connected: Mapping[str, str]
    drained: Time | None
    unread: Count
    without_heartbeat: Count
    person: str
    may_decide: bool


class Error(Row, frozen=True, kw_only=True):
    """Why a request was refused.

    Attributes:
        needs: of 409: what the request lacks. Left out if it lacks nothing.
        event: of 409: the event as it is now, if it has changed.
    """

    error: str
    needs: Literal["address", "override"] | UnsetType = UNSET
    event: EventRow | UnsetType | None = UNSET


# -- the parameters of requests --------------------------------------------------------


class Asked(Struct, frozen=True, kw_only=True, rename="camel"):
    """The parameters of a request; None and "" match all."""


class Listed(Asked, frozen=True, kw_only=True):
    """The parameters of a list."""

    limit: Annotated[int, Meta(ge=1, le=PAGE, description="How many at most.")] = PAGE
    cursor: Annotated[Text, _NEXT] = ""


class Filters(Listed, frozen=True, kw_only=True):
    """Which events are listed.

    Attributes:
        is_open: true: pending or running events; false: those that are over.
        status: only events of this status.
        event_type: only events of this EventType.
        event_source: only events of this EventSource.
        group: only events of machines of this resource group.
        text: the beginning of an EventId or of a machine's name.
        since: only events that were not over by then.
        until: only events that were known before. A day is included.
    """

    is_open: bool | None = field(default=None, name="open")
    status: Annotated[Text, Meta(extra_json_schema={"enum": STATUSES})] = ""
    event_type: Text = field(default="", name="type")
    event_source: Text = field(default="", name="source")
    group: Text = field(default="", name="resourceGroup")
    text: Text = field(default="", name="q")
    since: Time | None = None
    until: Time | None = None
    cursor: Annotated[str, Meta(max_length=18, pattern="^[0-9]*$"), _NEXT] = ""

    @property
    def after(self) -> int:
        """Only events with a larger version."""
        return int(self.cursor or 0)


class BridgesAsked(Listed, frozen=True, kw_only=True):
    """Which bridges are listed.

    Attributes:
        state: only bridges in this state.
        text: the beginning of the name of a bridge's machine.
    """

    state: Liveness | None = None
    text: Text = field(default="", name="q")


class MessagesAsked(Asked, frozen=True, kw_only=True):
    """Which messages of an event are shown.

    Attributes:
        before: the value of olderMessages: messages before it.
    """

    before: Text = ""
