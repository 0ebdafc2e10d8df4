"""The typed rows that pages and API show. Pure."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from bridge.hub.access_config import AccessConfig
from bridge.hub.bridges import Liveness

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
        after: only events with a larger version.
    """

    is_open: bool | None = None
    event_type: str = ""
    event_source: str = ""
    group: str = ""
    status: str = ""
    text: str = ""
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
    """

    row: EventRow
    occurrences: Sequence[Mapping[str, Any]]
    outcomes: Sequence[Mapping[str, Any]]
    addresses: Sequence[Mapping[str, Any]]
    messages: tuple[MessageRow, ...]
    older: str
    decisions: tuple[DecisionRow, ...]
    trail: tuple[TrailRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BridgeRow:
    """One bridge, and whether it is alive.

    Attributes:
        origin: the name of the hub's source that its messages come from.
        approvals: where it takes approvals, and by which rules; None = not known.
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
    interval: float
    pending: int | None
    dead: int | None
    approvals: Mapping[str, Any] | None
    was_silent: bool = False
