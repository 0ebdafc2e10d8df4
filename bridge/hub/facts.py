"""The content of one message about one scheduled event, whoever sent it. Pure.

``bridge_messages`` parses the CloudEvents of bridges into facts, ``azure_messages`` the
events of Event Grid; ``fold`` derives the state of an event from all its facts.
"""

import hashlib
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Self
from urllib.parse import unquote

import msgspec
import orjson
from msgspec import Struct, field
from msgspec.structs import replace

from bridge.events.cloudevent import DEEPEST, clean, hash32
from bridge.events.document import ScheduledEvent, bare, is_deep
from bridge.events.vocabulary import GONE, PRESENT, EventStatus, TransitionKind
from bridge.foundation.errors import UnreadableMessageError

AZURE = "azure"  # in place of a vmId: the reporter of Event Grid's events
_GROUP = re.compile(
    r"/subscriptions/([^/]+)/resourcegroups/([^/]+)(?:/|$)", re.IGNORECASE
)
_INSTANCE = re.compile(
    r"(?:/virtualmachinescalesets/([^/]+))?/virtualmachines/([^/]+)/?$", re.IGNORECASE
)
LONGEST_ID = 1024
_LONGEST_TYPE = 64
MOST_NAMES = 2000
_AHEAD = timedelta(minutes=5)  # a clock further ahead of the broker's is not believed


class Kind(StrEnum):
    """What a message reports about an event."""

    SCHEDULED = TransitionKind.SCHEDULED.value
    STARTED = TransitionKind.STARTED.value
    UPDATED = TransitionKind.UPDATED.value
    COMPLETED = TransitionKind.COMPLETED.value
    CANCELLED = TransitionKind.CANCELLED.value
    ENDED = TransitionKind.ENDED.value
    OUTCOME = "outcome"
    OTHER = "other"  # a status of Azure that is not documented

    @property
    def is_end(self) -> bool:
        """Whether it reports the end of the event."""
        return self in GONE

    @property
    def is_appearance(self) -> bool:
        """Whether it reports that the event exists."""
        return self in PRESENT


class Trust(StrEnum):
    """Whether a reporter may let more through, or hide something; see ``pins``."""

    PINNED = "pinned"  # signed by the key that is pinned to the machine
    PLAIN = ""  # nobody expects a signature of this machine
    DOUBTFUL = "doubtful"  # a signature is expected, and there is none that counts


class Address(Struct, frozen=True, kw_only=True, order=True):
    """Where an approval of an event may be sent.

    Attributes:
        source: the name of the hub's source. It stands for the namespace, which ReplyTo
            does not contain.
        entity: the queue or topic.
        session: the session id; "" = the entity has no sessions.
        prefix: the prefix of the types of events there: a bridge accepts only approvals
            with its own.
    """

    source: str
    entity: str
    session: str = ""
    prefix: str = ""

    @property
    def place(self) -> tuple[str, str, str]:
        """Where messages go, in the form that is compared: entities in lower case."""
        return self.source, self.entity.strip("/").lower(), self.session

    @property
    def id(self) -> str:
        """The id by which a person chooses the address: 12 hex digits."""
        return hash32([*self.place, self.prefix])[:12]


class Machine(Struct, frozen=True, kw_only=True, order=True):
    """A virtual machine: subscription, resource group and name, in lower case."""

    subscription: str
    group: str
    name: str

    @classmethod
    def at(cls, place: tuple[str, str, str]) -> Self:
        """Return the machine of subscription, resource group and name."""
        return cls(subscription=place[0], group=place[1], name=place[2])


class Reporter(Struct, frozen=True, kw_only=True, order=True):
    """The VM whose bridge sent a message, or Azure.

    Attributes:
        vm_id: the vmId of the VM; "azure" for Event Grid; "" = not known.
        name: the name of the VM.
        resource_id: the resource id of the VM.
    """

    vm_id: str = ""
    name: str = ""
    resource_id: str = ""


class Outcome(Struct, frozen=True, kw_only=True):
    """The result of an approval for one EventId.

    Attributes:
        outcome: relayed, denied, expired and so on.
        message_id: the MessageId of the approval.
        reason: why, as a short code.
        body_hash: of the approval, where it must be signed; else "".
    """

    outcome: str
    message_id: str = ""
    reason: str = ""
    body_hash: str = ""


class Fact(Struct, frozen=True, kw_only=True):
    """The content of one message about one event.

    Attributes:
        source: the source of the CloudEvent; source and ``id`` identify the message.
        kind: what the message reports.
        time: when it happened, by the reporter's clock, as far as that is ``believed``.
        enqueued: when the broker enqueued the message, by the broker's clock.
        event_id: the EventId, as received.
        reporter: who sent the message.
        event: the IMDS object; None = an outcome without one.
        previous: the IMDS object before the change, if the reporter knew it.
        is_whole: False = the reporter has left out names of Resources.
        group: subscription and resource group, in lower case; "" = not known.
        outcome: the result of an approval; None for all other kinds.
        prefix: the prefix of the types of this bridge's events; "" for Azure.
        resource: the resource id of the event at ARM; "" for bridges.
        address: where an approval may be sent; None = the message has no ReplyTo.
        digest: the fingerprint of the message's body.
        place: the machine of the reporter, from its resource id: subscription, resource
            group and name; None = not known.
        link: the fingerprint of the IMDS object, in the form that is compared; "" =
            there is none.
        before: the same of ``previous``.
        content: the fingerprint of all that the message reports.
        names: the fingerprint of ``group`` and Resources; "" = no IMDS object.
        not_before: NotBefore of the IMDS object; None = it has none.
        event_type: EventType of the IMDS object, cut to 64 characters.
        is_started: whether it reports that the event has started.
        signed_by: the keys that have signed the message, as far as they were known.
        trust: what that is worth; a doubtful fact has no ``place``.
    """

    source: str
    id: str
    kind: Kind
    time: datetime
    enqueued: datetime
    event_id: str
    reporter: Reporter
    event: ScheduledEvent | None = None
    previous: ScheduledEvent | None = None
    is_whole: bool = True
    group: tuple[str, str] = ("", "")
    outcome: Outcome | None = None
    prefix: str = ""
    resource: str = ""
    address: Address | None = None
    digest: str = ""
    place: tuple[str, str, str] | None = None
    link: str = ""
    before: str = ""
    content: str = ""
    names: str = ""
    not_before: datetime | None = None
    event_type: str = ""
    is_started: bool = False
    signed_by: tuple[str, ...] = ()
    trust: Trust = Trust.PLAIN

    @property
    def light(self) -> "Fact":
        """A copy without the IMDS objects; what is compared of them is kept."""
        return replace(self, event=None, previous=None)

    @property
    def key(self) -> str:
        """The EventId in the form that is compared."""
        return key_of(self.event_id)

    @property
    def order(self) -> tuple[datetime, str, str, str, str]:
        """The sort key of facts; unique within a set of messages."""
        return self.time, self.id, self.source, self.reporter.vm_id, self.content

    @property
    def heard(self) -> tuple[bool, datetime, str, str, str, str]:
        """The sort key of facts by the broker's clock: the first one heard first.

        Doubtful ones come last: none of them opens an occurrence of others.
        """
        mark, who = self.trust is Trust.DOUBTFUL, self.reporter.vm_id
        return mark, self.enqueued, self.id, self.source, who, self.content

    @property
    def speaker(self) -> str:
        """The vmId of the reporter; another name for words in its name."""
        return f"{self.reporter.vm_id}{'?' if self.trust is Trust.DOUBTFUL else ''}"

    @property
    def report(self) -> tuple[str, str, str, str]:
        """What makes two messages one fact: source, id, vmId, and what they report.

        The reporters of one step share source and id. If one VM reports two things with
        one id, both are facts.
        """
        return self.source, self.id, self.reporter.vm_id, self.content

    def joined(self, other: "Fact") -> "Fact":
        """Merge with another delivery of the report: the smaller times are kept.

        A copy without the signature takes nothing away from the signed one.
        """
        if self.trust is not other.trust:
            return min(self, other, key=lambda one: list(Trust).index(one.trust))
        first = min(self, other, key=lambda one: (one.time, one.digest))
        where = [one.address for one in (self, other) if one.address is not None]
        return replace(
            first,
            enqueued=min(self.enqueued, other.enqueued),
            address=min(where, default=None),
        )

    @property
    def is_azures(self) -> bool:
        """Whether Azure itself sent the message."""
        return self.reporter.vm_id == AZURE


class NoteKind(StrEnum):
    """What a note tells of a machine."""

    HEALTH = "health"  # Resource Health: whether it is available
    ANNOTATION = "annotation"  # Resource Health: why
    WINDOW = "window"  # the work of a maintenance configuration
    SILENT = "silent"  # nothing was heard from its bridge
    STOPPED = "stopped"  # its bridge had reported that it stops
    PAUSED = "paused"  # it stood still, by the word of its bridge


class Note(Struct, frozen=True, kw_only=True):
    """What happened to a machine, beside the steps of its scheduled events.

    Attributes:
        id: the same for each delivery of the message.
        kind: what is told.
        time: when it happened, or began.
        until: when it ended; None = it has no length, or goes on.
        machine: subscription, resource group and name; without a name: all machines of
            the subscription.
        event_key: the scheduled event that it belongs to; "" = none, or not known.
        data: short texts, by their names.
        is_last: whether it replaces an earlier note with its id.
    """

    id: str
    kind: NoteKind
    time: datetime
    until: datetime | None = None
    machine: tuple[str, str, str]
    event_key: str = ""
    data: Mapping[str, str] = field(default_factory=dict)
    is_last: bool = False


def sealed(fact: Fact, body: bytes) -> Fact:
    """Return a fact with all that is derived from its IMDS objects, and from the body.

    Of more than 2,000 names in Resources the first ones are kept, and the fact is not
    whole.
    """
    event, previous = _with_fewer_names(fact.event), _with_fewer_names(fact.previous)
    raws = [one and one.raw for one in (event, previous)]
    is_status = event is not None and event.status == EventStatus.STARTED
    return replace(
        fact,
        event=event,
        previous=previous,
        is_whole=fact.is_whole and event is fact.event,
        digest=digest_of(body),
        place=place_in(fact.reporter.resource_id),
        link=_print([event.canonical]) if event else "",
        before=_print([previous.canonical]) if previous else "",
        content=_print([fact.kind, *raws, fact.outcome]),
        names=_print([*fact.group, *sorted({*event.resources})]) if event else "",
        not_before=event.not_before if event else None,
        event_type=(event.event_type or "")[:_LONGEST_TYPE] if event else "",
        is_started=fact.kind is Kind.STARTED or (fact.kind.is_appearance and is_status),
    )


def _with_fewer_names(event: ScheduledEvent | None) -> ScheduledEvent | None:
    names = event.raw.get("Resources") if event else None
    if event is None or not isinstance(names, list) or len(names) <= MOST_NAMES:
        return event
    raw = {**event.raw, "Resources": names[:MOST_NAMES]}
    return ScheduledEvent(event_id=event.event_id, raw=raw)


def _print(value: object) -> str:
    return digest_of(orjson.dumps(value, msgspec.to_builtins, orjson.OPT_SORT_KEYS))


def digest_of(body: bytes) -> str:
    """Return the fingerprint of bytes: 32 hex digits of SHA-256."""
    return hashlib.sha256(body).hexdigest()[:32]


def key_of(event_id: str) -> str:
    """Return an EventId as stored: ASCII in capitals, forbidden characters replaced.

    Other letters stay as they are: several of them become the same letters in capitals.
    """
    folded = clean(event_id).encode("utf-8", "surrogatepass").upper()
    return folded.decode("utf-8", "surrogatepass")


def group_of(resource_id: str) -> tuple[str, str]:
    """Return subscription and resource group of a resource id, in lower case.

    The ``source`` of a CloudEvent is a URI, so its letters beyond ASCII are
    percent-encoded, while those of a resource id are not.
    """
    found = _GROUP.match(resource_id)
    if found is None:
        return "", ""
    subscription, group = (clean(unquote(part)).lower() for part in found.groups())
    return subscription, group


def place_in(resource_id: str) -> tuple[str, str, str] | None:
    """Return subscription, group and name in a resource id; None = it has none.

    The name of an instance of a scale set (uniform) is that of the set, an underscore,
    and the number of the instance.

    Source: learn.microsoft.com/azure/virtual-machine-scale-sets
    /virtual-machine-scale-sets-instance-ids
    """
    subscription, group = group_of(resource_id)
    found = _INSTANCE.search(resource_id)
    if found is None or not group:
        return None
    name = f"{found[1]}_{found[2]}" if found[1] else found[2]
    return subscription, group, kept_name(name)


def machine_of(reporter: Reporter) -> Machine | None:
    """Return the machine in the resource id of a reporter; None = it has none."""
    place = place_in(reporter.resource_id)
    return None if place is None else Machine.at(place)


def kept_name(name: str) -> str:
    """Return the name of a machine in the form that is compared and stored."""
    return clean(bare(name))


def believed(time: datetime, enqueued: datetime) -> datetime:
    """Return the time of a message as far as it is believed.

    A time more than 5 minutes after the broker enqueued the message is that of a wrong
    clock: the broker's time is used instead.
    """
    return enqueued if time - enqueued > _AHEAD else time


def object_in(body: bytes) -> dict[str, object]:
    """Parse a body as a JSON object.

    Raises:
        UnreadableMessageError: the body is no JSON object, or is nested too deep.
    """
    try:
        found = orjson.loads(body.removeprefix(b"\xef\xbb\xbf"))
    except orjson.JSONDecodeError as error:
        raise UnreadableMessageError("the body is no JSON") from error
    if not isinstance(found, dict):
        raise UnreadableMessageError("the body is no JSON object")
    if body.count(b"[") + body.count(b"{") > DEEPEST and is_deep(found, DEEPEST):
        raise UnreadableMessageError("the body is nested too deep")
    return found


def table(value: object) -> Mapping[str, object]:
    """Return a value if it is a JSON object; otherwise an empty object."""
    return value if isinstance(value, dict) else {}


def text(value: object) -> str:
    """Return a string in a form that the store accepts; "" for any other value."""
    return clean(value) if isinstance(value, str) else ""


def required(value: object, what: str) -> str:
    """Return a string that must be present.

    Raises:
        UnreadableMessageError: the value is no string, is empty, or is too long.
    """
    if not isinstance(value, str) or not value or len(value) > LONGEST_ID:
        raise UnreadableMessageError(
            f"{what} is no text of 1 to {LONGEST_ID} characters"
        )
    return clean(value)


def moment(value: object) -> datetime:
    """Parse an RFC 3339 time; returns it in UTC.

    Raises:
        UnreadableMessageError: the value is no such time.
    """
    try:
        found = datetime.fromisoformat(str(value).upper())
        if found.tzinfo is None:
            raise UnreadableMessageError("a time has no offset")
        return found.astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise UnreadableMessageError("a time is not of RFC 3339") from error
