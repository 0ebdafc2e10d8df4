"""What the outbox keeps and tells, as values."""

from dataclasses import dataclass
from typing import Any

import orjson

CHECKPOINT = "checkpoint"
TRAFFIC = "traffic"  # whether this VM is in rotation, and whether that was told
REPLIES = "$replies"  # the pseudo sink of replies: no name of a sink may hold a $


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """A reply on its way; ``body`` is what the reply room reads back."""

    key: str
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What became of one EventId of one approval message.

    Attributes:
        message: the hash that the message is known by.
        key: the EventId as it is compared.
        state: ``intent``, or the outcome.
        posted: whether a POST for it was begun.
        data: the outcome as it was told, JSON.
        rule: which rule asked for it; None where a message did.
    """

    message: str
    key: str
    event_id: str
    sequence: int | None
    state: str
    posted: bool = False
    data: bytes | None = None
    rule: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Success:
    """The last success of a command for an EventId, which nothing has voided yet.

    Attributes:
        sink: that ran the command.
        key: the EventId as it is compared.
        appearance: how often the EventId had gone before.
        content: the CloudEvent that it was run for.
        at: when it ended, in seconds since the epoch.
    """

    sink: str
    key: str
    appearance: int
    content: bytes
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandStanding:
    """How far a command has come for an EventId.

    Attributes:
        success: the last one that still counts.
        is_pending: whether a step waits for the command, or is run now.
        last: the state of the newest step that is settled; None = there is none.
    """

    success: Success | None = None
    is_pending: bool = False
    last: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """What is known of the document.

    Attributes:
        body: opaque; read back with ``load(CHECKPOINT)``.
        sightings: keys of the EventIds that are, or were just now, in it.
        again: keys of those that were to be told again, and are with this.
    """

    body: bytes
    sightings: frozenset[str] = frozenset()
    again: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """How a sink stands. ``oldest``: seconds since the epoch."""

    pending: int = 0
    dead: int = 0
    delivered: int = 0
    discarded: int = 0
    oldest: float | None = None
    last_error: str | None = None


def value_of(body: bytes) -> dict[str, Any] | None:
    """Return the JSON object that a body is; None where it is damaged."""
    found = json_of(body)
    return found if isinstance(found, dict) else None


def json_of(body: bytes) -> object:
    """Return the JSON that a body is; None where it is damaged."""
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
