"""What the outbox keeps and tells, as values."""

from dataclasses import dataclass

CHECKPOINT = "checkpoint"
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
class Checkpoint:
    """What is known of the document.

    Attributes:
        body: opaque; read back with ``load(CHECKPOINT)``.
        sightings: keys of the EventIds that are, or were just now, in it.
    """

    body: bytes
    sightings: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """How a sink stands. ``oldest``: seconds since the epoch."""

    pending: int = 0
    dead: int = 0
    delivered: int = 0
    discarded: int = 0
    oldest: float | None = None
    last_error: str | None = None
