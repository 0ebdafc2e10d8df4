"""Values that the outbox stores and returns."""

from typing import Any

import orjson
from msgspec import Struct

CHECKPOINT = "checkpoint"
TRAFFIC = "traffic"  # whether this VM is in rotation, and whether that was published
REPLIES = "$replies"  # stands for a sink; no sink can have a $ in its name


class Reply(Struct, frozen=True, kw_only=True):
    """A reply to an approval.

    Attributes:
        key: the hash of the message that is replied to.
        body: read back by ``approvals.reply``.
    """

    key: str
    body: bytes


class Decision(Struct, frozen=True, kw_only=True):
    """What was decided on one EventId of one approval message.

    Attributes:
        message: the hash of the message's content.
        key: the EventId as it is compared.
        event_id: the EventId as the message has it.
        sequence: the message's sequence number.
        state: ``intent``, or the outcome.
        posted: whether a POST for it was begun.
        data: the outcome as it was published, JSON.
        rule: the rule that asked for it; None = a message did.
    """

    message: str
    key: str
    event_id: str
    sequence: int | None
    state: str
    posted: bool = False
    data: bytes | None = None
    rule: str | None = None


class Success(Struct, frozen=True, kw_only=True):
    """The last success of a command for an EventId.

    Attributes:
        sink: the sink that ran the command.
        key: the EventId as it is compared.
        appearance: how often the EventId had gone before.
        content: the CloudEvent for which it was run.
        at: when it ended, in seconds since the epoch.
    """

    sink: str
    key: str
    appearance: int
    content: bytes
    at: float


class CommandStanding(Struct, frozen=True, kw_only=True):
    """How far a command has come for an EventId.

    Attributes:
        success: the last one that still counts.
        is_pending: whether a step waits for the command, or runs now.
        last: the state of the newest settled step; None = no step is settled.
    """

    success: Success | None = None
    is_pending: bool = False
    last: str | None = None


class Checkpoint(Struct, frozen=True, kw_only=True):
    """What is known of the document.

    Attributes:
        body: opaque bytes; read back with ``load(CHECKPOINT)``.
        sightings: keys of the EventIds that are in it, or were a moment ago.
        again: keys of the EventIds whose damaged events are published again with it.
    """

    body: bytes
    sightings: frozenset[str] = frozenset()
    again: frozenset[str] = frozenset()


class Tally(Struct, frozen=True, kw_only=True):
    """How many deliveries of a sink are in which state.

    Attributes:
        oldest: when the oldest pending one was committed, in seconds since the epoch.
        last_error: of the oldest pending one, or else of the newest dead letter.
    """

    pending: int = 0
    dead: int = 0
    delivered: int = 0
    discarded: int = 0
    oldest: float | None = None
    last_error: str | None = None


def value_of(body: bytes) -> dict[str, Any] | None:
    """Return the JSON object of a body; None if it is damaged."""
    found = json_of(body)
    return found if isinstance(found, dict) else None


def json_of(body: bytes) -> object:
    """Return the JSON value of a body; None if it is damaged."""
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
