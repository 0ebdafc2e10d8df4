"""What one message says of one scheduled event, whoever sent it. Pure.

Shared by the readers of bridges' CloudEvents (``bridge_words``) and of Event Grid's
events (``azure_words``), and folded by ``fold``.
"""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum

import orjson

from bridge.events.build import clean
from bridge.events.document import ScheduledEvent, is_deep
from bridge.events.vocabulary import GONE, PRESENT, TransitionKind
from bridge.foundation.errors import UnreadableMessageError

AZURE = "azure"  # the teller of Event Grid's events
_GROUP = re.compile(
    r"/subscriptions/([^/]+)/resourcegroups/([^/]+)(?:/|$)", re.IGNORECASE
)
_LONGEST_ID = 1024
_FEW_BRACKETS = 64  # no deeper than that: what is nested has brackets


class Kind(StrEnum):
    """What a message tells of an event."""

    SCHEDULED = TransitionKind.SCHEDULED.value
    STARTED = TransitionKind.STARTED.value
    UPDATED = TransitionKind.UPDATED.value
    COMPLETED = TransitionKind.COMPLETED.value
    CANCELLED = TransitionKind.CANCELLED.value
    ENDED = TransitionKind.ENDED.value
    OUTCOME = "outcome"
    OTHER = "other"  # a status of Azure's that is not documented

    @property
    def is_end(self) -> bool:
        """Whether the event is gone."""
        return self in GONE

    @property
    def is_appearance(self) -> bool:
        """Whether the event is there."""
        return self in PRESENT


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Address:
    """Where an approval of an event may be sent.

    Attributes:
        source: the hub's own name of the source: ReplyTo names no namespace.
        entity: the queue or topic.
        session: "" where the entity has none.
    """

    source: str
    entity: str
    session: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Teller:
    """Who sent it.

    Attributes:
        vm_id: of the VM whose bridge told it; "azure" for Event Grid; "" unknown.
        name: of the VM.
        resource_id: of the VM.
    """

    vm_id: str = ""
    name: str = ""
    resource_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of a request to start.

    Attributes:
        outcome: relayed, denied, expired and so on.
        message_id: of the request.
        reason: a word on why.
    """

    outcome: str
    message_id: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """What one message says of one event.

    Attributes:
        source: with ``id``, what makes the message unique.
        kind: what it tells.
        time: when it was so, by the clock of whoever tells it.
        event_id: as received.
        teller: who tells it.
        event: the IMDS object; None where an outcome has none.
        previous: the object before, where that was known.
        is_whole: False where names of Resources were left out.
        group: subscription and resource group, in lower case; "" where not known.
        outcome: of a request; None for all else.
        prefix: what the types of this bridge's events begin with; "" of Azure.
        resource: the id that ARM knows the event by; "" of a bridge.
        address: where an approval may be sent; None where nobody asks for one.
        digest: of the message's body.
    """

    source: str
    id: str
    kind: Kind
    time: datetime
    event_id: str
    teller: Teller
    event: ScheduledEvent | None = None
    previous: ScheduledEvent | None = None
    is_whole: bool = True
    group: tuple[str, str] = ("", "")
    outcome: Outcome | None = None
    prefix: str = ""
    resource: str = ""
    address: Address | None = None
    digest: str = ""

    @property
    def key(self) -> str:
        """The EventId as it is compared."""
        return key_of(self.event_id)

    @property
    def order(self) -> tuple[datetime, str, str]:
        """What facts are sorted by: never two alike in one set."""
        return self.time, self.id, self.source

    @property
    def precedence(self) -> tuple[datetime, str, str]:
        """What decides between two messages of one source and id: the lesser holds."""
        return self.time, self.teller.vm_id, self.digest

    @property
    def is_azures(self) -> bool:
        """Whether Azure itself tells it."""
        return self.teller.vm_id == AZURE


def digest_of(body: bytes) -> str:
    """Return the fingerprint of a message's body."""
    return hashlib.sha256(body).hexdigest()[:32]


def key_of(event_id: str) -> str:
    """Return an EventId as it is compared and kept: without case, nothing hidden."""
    return clean(event_id).upper()


def group_of(resource_id: str) -> tuple[str, str]:
    """Return subscription and resource group of an id, in lower case."""
    found = _GROUP.match(resource_id)
    return (clean(found[1]).lower(), clean(found[2]).lower()) if found else ("", "")


def object_in(body: bytes) -> dict[str, object]:
    """Read a JSON object.

    Raises:
        UnreadableMessageError: it is none.
    """
    try:
        found = orjson.loads(body.removeprefix(b"\xef\xbb\xbf"))
    except orjson.JSONDecodeError as error:
        raise UnreadableMessageError("the body is no JSON") from error
    if not isinstance(found, dict):
        raise UnreadableMessageError("the body is no JSON object")
    if body.count(b"[") + body.count(b"{") > _FEW_BRACKETS and is_deep(found):
        raise UnreadableMessageError("the body is nested too deep")
    return found


def table(value: object) -> Mapping[str, object]:
    """Return a JSON object; an empty one in place of anything else."""
    return value if isinstance(value, dict) else {}


def text(value: object) -> str:
    """Return a text as a store can keep it; "" in place of anything else."""
    return clean(value) if isinstance(value, str) else ""


def required(value: object, what: str) -> str:
    """Return a text.

    Raises:
        UnreadableMessageError: it is none, or an endless one.
    """
    if not isinstance(value, str) or not value or len(value) > _LONGEST_ID:
        raise UnreadableMessageError(f"{what} is no text of 1 to {_LONGEST_ID} signs")
    return clean(value)


def moment(value: object) -> datetime:
    """Return an RFC 3339 time in UTC.

    Raises:
        UnreadableMessageError: it is none.
    """
    try:
        found = datetime.fromisoformat(str(value).upper())
        if found.tzinfo is None:
            raise UnreadableMessageError("a time has no offset")
        return found.astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise UnreadableMessageError("a time is not of RFC 3339") from error
