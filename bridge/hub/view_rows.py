"""What a page or a program is shown: the types of its rows. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from bridge.hub.bridges import Liveness

PAGE = 200
UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """What rows depend on besides the store.

    Attributes:
        now: the present moment.
        listening: since when every source of bridges is connected and drained, by its
            name; None = it is not.
        absent_until: open events that were told of no later are not known any more:
            the hub was away for so long that messages were lost; None = it was not.
        forget_after: seconds.
        missing_after: seconds; None where Azure is not heard.
        expect: patterns of resource ids; () = machines of known bridges.
    """

    now: datetime
    listening: Mapping[str, datetime | None]
    absent_until: datetime | None = None
    forget_after: float = 7 * 86400.0
    missing_after: float | None = None
    expect: tuple[str, ...] = ()

    @property
    def drained(self) -> datetime | None:
        """Since when all sources of bridges are drained; None = not all are."""
        since = list(self.listening.values())
        known = [one for one in since if one is not None]
        return max(known) if known and len(known) == len(since) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Filters:
    """What of the events is wanted; None and () are no limit.

    Attributes:
        is_open: whether it is pending or running.
        text: the beginning of an EventId or of a machine's name.
        after: the version that comes before the first one.
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
    """Somebody who has voted."""

    person: str
    via: str
    time: datetime
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionRow:
    """A decision, and what became of it.

    Attributes:
        state: decided, sent, done, failed, void or refused.
        by: who decided.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class TrailRow:
    """One row of the record of all that was done about an event.

    Attributes:
        what: voted, decided, refused, sending, sent, done, failed, void.
        person: who did it; "" = the hub.
        decision: its id; "" of a vote that has decided nothing.
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
        key: what it is asked for by.
        version: grows with each change, over all events.
        status: scheduled, started, completed, cancelled, ended, other, or unknown.
        content: the fingerprint that a decision names.
        machines: their names.
        first_reported_by: a bridge, or Azure.
        is_unreported: Azure told of it, and no bridge did in time.
        bridges_say: the end that bridges told, where Azure said another.
        voters: who has approved the event as it is.
        decision: the last one; None = there is none.
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
    not_before: datetime | None
    opened: datetime
    ended: datetime | None
    told: datetime
    first_reported_by: Mapping[str, Any]
    is_unreported: bool
    bridges_say: str | None
    azure: Mapping[str, Any] | None
    lives: int
    event: Mapping[str, Any] | None
    voters: tuple[Voter, ...] = ()
    decision: DecisionRow | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageRow:
    """One message, as it came."""

    kind: str
    source: str
    id: str
    time: datetime
    heard: datetime
    vm_id: str
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class EventPage:
    """One event, with all that is known of it.

    Attributes:
        occurrences: its lives, the last one last, as JSON.
        outcomes: of requests, as JSON.
        messages: in the order of their times.
        decisions: the newest first.
        trail: what was done about it, in order.
    """

    row: EventRow
    occurrences: Sequence[Mapping[str, Any]]
    outcomes: Sequence[Mapping[str, Any]]
    addresses: Sequence[Mapping[str, Any]]
    messages: tuple[MessageRow, ...]
    decisions: tuple[DecisionRow, ...]
    trail: tuple[TrailRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BridgeRow:
    """One bridge, and how it fares.

    Attributes:
        origin: the hub's own name of the source that it speaks through.
        approvals: where it takes approvals, and by which rules; None where not known.
        was_silent: whether an alarm told that it is silent, and none that it is back.
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
