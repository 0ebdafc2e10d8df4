"""What happened in a round, written down by the world and never by the forwarder."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Event = dict[str, Any]
SINKS = ("hook", "bus", "file")
REPLIES = "replies"  # the queue that approvers are answered on


@dataclass(frozen=True, slots=True)
class Request:
    """A request to scheduledevents, in the order of the forwarder's sending.

    Attributes:
        life: which start of the forwarder sent it: each has a port of its own.
        number: the incarnation of the document that a GET was answered with.
        events: of that document, by EventId in upper case.
        posted: the EventIds of a POST, as they were spelled; empty for a GET.
    """

    at: float
    life: int
    number: int = 0
    events: Mapping[str, Event] = field(default_factory=dict)
    posted: tuple[str, ...] = ()

    @property
    def is_read(self) -> bool:
        return not self.posted


@dataclass(frozen=True, slots=True)
class Taken:
    """A StartRequest that IMDS accepted."""

    at: float
    key: str


@dataclass(frozen=True, slots=True)
class Sent:
    """An approval message, noted just before it went out.

    Attributes:
        kind: good, expired, changed, unknown, invalid or undecodable.
        name: the MessageId; the same for what is sent several times over.
        keys: the EventIds it names, in upper case and in its order.
    """

    at: float
    kind: str
    name: str
    keys: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Got:
    """An event as a sink got it, repetitions included.

    Attributes:
        place: its place in the sink's own order.
        at: when; infinite where only the end is known, as of a file.
    """

    place: int
    at: float
    event: Event


@dataclass(frozen=True, slots=True)
class Replied:
    """An answer to an approval message, repetitions included.

    Attributes:
        number: its own MessageId.
        name: the MessageId of the approval.
        outcomes: what it says became of each EventId, as JSON.
    """

    number: str
    name: str
    outcomes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Life:
    """One start of the forwarder and its end.

    Attributes:
        how: what it was killed by or after.
        code: its exit code.
        was_asked: whether it got SIGTERM before it ended.
    """

    number: int
    began: float
    ended: float
    how: str
    code: int
    was_asked: bool = False


@dataclass(slots=True)
class History:
    """All of one round.

    Attributes:
        marked: keys for which a state file said, after a kill, that a POST was begun.
        flaws: what the world itself has found wrong.
        dead: MessageId and reason of each message in the dead-letter queue.
        left: messages that are not settled in the end.
        pending: deliveries that are not done in the end, and dead ones.
        had_imds_faults: whether IMDS refused or hung.
        degraded: lives that wrote to memory instead of the state file.
    """

    requests: list[Request] = field(default_factory=list)
    taken: list[Taken] = field(default_factory=list)
    sent: list[Sent] = field(default_factory=list)
    got: dict[str, list[Got]] = field(default_factory=lambda: {s: [] for s in SINKS})
    lives: list[Life] = field(default_factory=list)
    marked: set[str] = field(default_factory=set)
    flaws: list[str] = field(default_factory=list)
    dead: list[tuple[str, str]] = field(default_factory=list)
    replies: list[Replied] = field(default_factory=list)
    left: int = 0
    pending: int = 0
    had_imds_faults: bool = False
    degraded: int = 0

    @property
    def kills(self) -> int:
        """How many lives ended by SIGKILL."""
        return sum(life.code == -9 for life in self.lives)


def canonical_json(value: object) -> str:
    """Return the same text for the same JSON value."""
    return json.dumps(value, sort_keys=True)


def hashed(value: object) -> str:
    """Return the hash of config/events.md."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def kind_of(event: Event) -> str:
    """Return the transition or outcome that an event tells of."""
    return str(event["type"]).split(".")[-2]


def is_step(event: Event) -> bool:
    """Whether an event tells of a scheduled event."""
    return ".scheduledevent." in event["type"]
