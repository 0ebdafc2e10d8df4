"""Values that the outbox stores and returns."""

import logging
import zlib
from collections.abc import Sequence
from typing import Any, Final, Literal, NamedTuple

import msgspec
import orjson
from msgspec import Struct

CHECKPOINT = "checkpoint"
TRAFFIC = "traffic"  # whether this VM is in rotation, and if that was published
REPLIES = "$replies"  # used as the name of a sink; real names have no $
INTENT: Final = "intent"  # the state of a decision that has no outcome yet

# Literals and not StrEnums: a conversion of both words would make the reading of a
# delivery slower by 9 to 47 %, and SQL compares with the text in any case.
DeliveryKind = Literal["event", "reply"]
DeliveryState = Literal["pending", "dead", "delivered", "discarded", "skipped"]


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


# -- Checksums of rows: damaged content must not be sent with the id of an intact
#    event
#
# CRC-32 is enough, because it guards against a failing disk and not against an
# attacker: it detects every run of up to 32 wrong bits. Other damage escapes it in one
# of four billion cases. It is stored in the row as a number, and costs less than a
# microsecond per kilobyte.


log = logging.getLogger(__name__)

# The allowed pairs of index in Content and type. SQLite returns no subclasses.
_KINDS_READ = {
    *((place, str) for place in range(5)),
    *((place, type(None)) for place in (1, 2, 3)),
    (5, bytes),
}
_ENCODER = msgspec.json.Encoder()
BROKEN = -1  # never a valid checksum: a row with this value is never sent


class Content(NamedTuple):
    """The columns that the checksum covers, together with the id of the row.

    Attributes:
        kind: ``event`` or ``reply``.
        key: deliveries with the same key keep their order.
        event_id: the EventId as received.
        body: what is sent.
    """

    kind: str
    key: str | None
    event_id: str | None
    cloud_event_id: str | None
    type: str
    body: bytes


class Item(Struct, frozen=True, gc=False):
    """What is sent: a row of ``items``.

    Attributes:
        damage: what is wrong with the row, so that it must not be sent.
    """

    id: int
    content: Content
    created: float
    not_before: float | None = None
    damage: str | None = None

    @property
    def row(self) -> tuple[str | bytes | float | None, ...]:
        """The columns of its row."""
        return (*self.content, self.created, self.not_before)


def checksum_of(number: int, content: Content) -> int:
    """Return the checksum of ``content`` in the row with the id ``number``."""
    head = _ENCODER.encode((number, *content[:-1]))
    return zlib.crc32(content.body, zlib.crc32(head))


def checksum_of_value(name: str, value: bytes) -> int:
    """Return the checksum of a named value."""
    return zlib.crc32(value, zlib.crc32(name.encode()))


def intact_value(name: str, row: Sequence[object] | None) -> bytes | None:
    """Return the value of a row; if it is damaged, log that and return b"".

    Args:
        name: the name of the value.
        row: value and checksum, without checksum in an older file; None = no row.
    """
    if row is None or not isinstance(value := row[0], bytes):
        return None
    checksum = row[1] if len(row) > 1 else None
    if checksum is None or checksum == checksum_of_value(name, value):
        return value
    log_damage(name)
    return b""


def checksum_of_decision(*columns: object) -> int:
    """Return the checksum of a decision on an approval."""
    return zlib.crc32(repr(columns).encode("utf-8", "surrogatepass"))


def log_damage(what: str) -> None:
    """Log that a damaged value of the state file is ignored."""
    log.error("stored value is damaged: going on without it", extra={"what": what})


def damage_of(number: object, content: Content, checksum: object) -> str | None:
    """Return what is wrong with a row; None = nothing.

    Args:
        number: the id of the row; None = the row is missing.
        content: as it was read: any field may have a wrong type.
        checksum: as it was read; None = the row was written without one.
    """
    if not isinstance(number, int):
        return "the content of this delivery is missing in the state file"
    is_bytes = type(content.body) is bytes
    if is_bytes and checksum == checksum_of(number, content):
        return None  # the usual case: a wrong type would have another checksum
    if not _is_readable(*content):
        return "the content of this delivery cannot be read in the state file"
    if checksum is None:
        return None
    return "the content of this delivery is damaged in the state file"


def _is_readable(*content: object) -> bool:
    return _KINDS_READ.issuperset(enumerate(map(type, content)))
