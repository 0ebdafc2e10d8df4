"""Values that the outbox stores and returns."""

from typing import Any, Final, Literal, NamedTuple, get_args

import msgspec
import orjson
from msgspec import Struct

CHECKPOINT = "checkpoint"
TRAFFIC = "traffic"  # whether this VM is in rotation, and if that was published
REPLIES = "$replies"  # used as the name of a sink; real names have no $
OWNER = "vm_id"  # of the VM that writes the file: a cloned disk has that of another
AGAIN = "again:"  # + the EventId: its events are to be published again
INTENT: Final = "intent"  # the state of a decision that has no outcome yet

# Literals and not StrEnums: a conversion of both words would make the reading of a
# delivery slower by 9 to 47 %, and SQL compares with the text in any case.
DeliveryKind = Literal["event", "reply"]
DeliveryState = Literal["pending", "dead", "delivered", "discarded", "skipped"]
STATES: tuple[DeliveryState, ...] = get_args(DeliveryState)


class Reply(Struct, frozen=True, kw_only=True):
    """A reply to an approval.

    Attributes:
        key: the hash of the message that this reply answers.
        body: the reply as ``approvals.reply`` encodes it.
    """

    key: str
    body: bytes


class Decision(Struct, frozen=True, kw_only=True):
    """The decision on one EventId of one approval message.

    Attributes:
        message: the hash of the message's content.
        key: the EventId as it is compared.
        event_id: the EventId as written in the message.
        sequence: the message's sequence number.
        state: ``INTENT``, or an ``OutcomeKind``. It is any text, because a newer or
            older program may have stored an outcome that this one does not know.
        posted: whether a POST for it has begun.
        data: the outcome as it was published, JSON.
        rule: the rule that made the request; None = a message made it.
    """

    message: str
    key: str
    event_id: str
    sequence: int | None
    state: str
    posted: bool = False
    data: bytes | None = None
    rule: str | None = None

    @property
    def is_intent(self) -> bool:
        """Whether there is no outcome yet."""
        return self.state == INTENT


def message_of(key: tuple[str, ...]) -> str:
    """Return the message of a decision stored as ``hash`` or ``hash#number``."""
    return key[0].split("#", 1)[0]


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
        success: the last success, if it still counts and is on the disk.
        is_pending: whether a step waits for the command, or runs now, or its success is
            not on the disk yet.
        last: the state of the newest settled step; None = no step is settled.
    """

    success: Success | None = None
    is_pending: bool = False
    last: DeliveryState | None = None


class Checkpoint(Struct, frozen=True, kw_only=True):
    """What is known of the document.

    Attributes:
        body: opaque bytes, which ``load(CHECKPOINT)`` returns.
        sightings: keys of the EventIds in this document or in the one before.
        again: keys of the EventIds whose damaged events this commit publishes again.
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

    def age(self, now: float) -> int | None:
        """Return the age of the oldest pending one in seconds; None = there is none."""
        return None if self.oldest is None else max(0, int(now - self.oldest))


def is_other(owner: str | None, vm_id: str | None) -> bool:
    """Whether two vmIds are known, and are of two VMs."""
    return bool(owner and vm_id) and str(owner).casefold() != str(vm_id).casefold()


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


# -- A delivery, as it is read from the state file -------------------------------------


UNREADABLE: Final = "unreadable"  # in place of a text that is damaged


class Delivery(msgspec.Struct, frozen=True, gc=False):
    """One item on its way to one sink.

    Attributes:
        id: the id of the row, from 1; 0 = it is not stored, see ``not_stored``.
        kind: ``event`` or ``reply``; of a damaged row ``UNREADABLE``, or any text.
        key: the EventId as it is compared; deliveries with the same key keep their
            order; None = no order.
        event_id: the EventId as received.
        body: the CloudEvent or the reply as JSON.
        attempts: how many attempts were made.
        due, created, not_before: seconds since the epoch.
        urgent_from, urgent_until: between these times it goes before all others.
        born: the running time of the sink when the delivery was inserted, in seconds.
        damage: what is wrong with the row, so that it must not be sent; None = nothing.
    """

    id: int
    sink: str
    kind: DeliveryKind | Literal["unreadable"]
    state: DeliveryState
    key: str | None
    event_id: str | None
    cloud_event_id: str | None
    type: str
    body: bytes
    attempts: int
    due: float
    created: float
    not_before: float | None
    urgent_from: float | None
    urgent_until: float | None
    last_error: str | None
    born: float = 0.0
    damage: str | None = None

    @property
    def is_stored(self) -> bool:
        """Whether the state file has the delivery."""
        return self.id > 0


def not_stored(
    sink: str, cloud_event_id: str, event_type: str, body: bytes, now: float
) -> Delivery:
    """Return a delivery of an event that is sent at most once, and never stored."""
    return Delivery(
        id=0,
        sink=sink,
        kind="event",
        state="pending",
        key=None,
        event_id=None,
        cloud_event_id=cloud_event_id,
        type=event_type,
        body=body,
        attempts=0,
        due=now,
        created=now,
        not_before=None,
        urgent_from=None,
        urgent_until=None,
        last_error=None,
    )


# -- What is sent ----------------------------------------------------------------------


class Item(NamedTuple):
    """What is sent: a row of ``items``. The checksum covers it up to the body.

    Attributes:
        kind: ``event`` or ``reply``.
        key: deliveries with the same key keep their order.
        event_id: the EventId as received.
        body: what is sent.
        created, not_before: seconds since the epoch.
        damage: what is wrong with the row, so that it must not be sent.
    """

    id: int
    kind: str
    key: str | None
    event_id: str | None
    cloud_event_id: str | None
    type: str
    body: bytes
    created: float = 0.0
    not_before: float | None = None
    damage: str | None = None

    @property
    def row(self) -> tuple[str | bytes | float | None, ...]:
        """The row as it is written."""
        return self[1:9]
