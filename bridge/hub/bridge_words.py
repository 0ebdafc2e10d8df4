"""Reads the CloudEvents of bridges. Pure.

scheduledevent.*, startrequest.*   a Fact of an event, and a sign of life
bridge.*                           a BridgeWord: the bridge's own life
hub.*, and what is not known       nothing
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from bridge.events.document import ScheduledEvent
from bridge.events.vocabulary import TRANSITIONS
from bridge.foundation.errors import UnreadableMessageError
from bridge.hub.facts import (
    AZURE,
    Address,
    Fact,
    Kind,
    Outcome,
    Teller,
    digest_of,
    group_of,
    key_of,
    moment,
    object_in,
    required,
    table,
    text,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BridgeWord:
    """What a message says of the bridge that sent it.

    Attributes:
        teller: the bridge.
        word: of ``bridge.*``: started, stopped, heartbeat and so on; "" of the rest.
        id: of the message.
        time: by the bridge's clock.
        heard: when the broker took it, by the broker's clock.
        version: of the bridge.
        location: the Azure region.
        data: of ``bridge.*``, verbatim.
    """

    teller: Teller
    word: str
    id: str
    time: datetime
    heard: datetime
    version: str = ""
    location: str = ""
    data: Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """What a message says.

    Attributes:
        fact: of a scheduled event; None where it tells of none.
        word: of the bridge that sent it; None where it does not say which.
    """

    fact: Fact | None = None
    word: BridgeWord | None = None


NOTHING = Read()


def read(
    body: bytes,
    *,
    heard: datetime,
    source: str,
    reply_to: str | None = None,
    session: str | None = None,
) -> Read:
    """Read the CloudEvent that a message holds.

    Args:
        body: structured JSON.
        heard: when the broker took the message.
        source: the hub's own name of where it came from.
        reply_to: the approval entity that the message names.
        session: of that entity.

    Raises:
        UnreadableMessageError: it is no CloudEvent, or not of the form that ours have.
    """
    cloud_event = object_in(body)
    if cloud_event.get("specversion") != "1.0":
        raise UnreadableMessageError("the body is no structured CloudEvent 1.0")
    prefix, family, what = _kind(required(cloud_event.get("type"), "type"))
    data = table(cloud_event.get("data"))
    if family not in {"scheduledevent", "startrequest", "bridge"}:
        return NOTHING
    if data.get("test") is True:
        return NOTHING  # of `sebridge send-test`: it is no news
    word = _word(cloud_event, data, what if family == "bridge" else "", heard)
    if family == "bridge":
        return Read(word=word)
    make = _step if family == "scheduledevent" else _outcome
    address = Address(source=source, entity=text(reply_to), session=text(session))
    fact = make(what, cloud_event, data, prefix, address if reply_to else None)
    return Read(fact=fact and replace(fact, digest=digest_of(body)), word=word)


def _kind(kind: str) -> tuple[str, str, str]:
    """Return prefix, family and last word of a type; "" where it is none of ours."""
    parts = kind.rsplit(".", 3)
    is_ours = len(parts) == 4 and parts[3] == "v1"
    return (parts[0], parts[1], parts[2]) if is_ours else ("", "", "")


def _word(
    cloud_event: Mapping[str, object],
    data: Mapping[str, object],
    word: str,
    heard: datetime,
) -> BridgeWord | None:
    reporter = table(data.get("reporter"))
    teller = _teller(reporter)
    if not teller.vm_id:
        return None
    return BridgeWord(
        teller=teller,
        word=word,
        id=required(cloud_event.get("id"), "id"),
        time=moment(cloud_event.get("time")),
        heard=heard,
        version=text(reporter.get("version")),
        location=text(reporter.get("location")),
        data=data if word else {},
    )


def _teller(reporter: Mapping[str, object]) -> Teller:
    vm_id = text(reporter.get("vmId")).lower()
    if vm_id == AZURE:  # its word comes by a source of its own, and overrules bridges
        raise UnreadableMessageError("data.reporter.vmId is no id of a VM")
    return Teller(
        vm_id=vm_id,
        name=text(reporter.get("vmName")),
        resource_id=text(reporter.get("resourceId")),
    )


def _step(
    what: str,
    cloud_event: Mapping[str, object],
    data: Mapping[str, object],
    prefix: str,
    address: Address | None,
) -> Fact | None:
    if what not in TRANSITIONS:
        return None
    event = _event(data.get("event"))
    if event is None:
        raise UnreadableMessageError("data.event is no scheduled event")
    truncated = data.get("truncated")
    source, teller = required(cloud_event.get("source"), "source"), _teller_of(data)
    return Fact(
        source=source,
        id=required(cloud_event.get("id"), "id"),
        kind=Kind(what),
        time=moment(cloud_event.get("time")),
        event_id=event.event_id,
        teller=teller,
        event=event,
        previous=_event(data.get("previous")),
        is_whole=not isinstance(truncated, list) or "Resources" not in truncated,
        group=_group(source, teller),
        prefix=prefix,
        address=address,
    )


def _outcome(
    what: str,
    cloud_event: Mapping[str, object],
    data: Mapping[str, object],
    prefix: str,
    _address: Address | None,
) -> Fact | None:
    event, event_id = _event(data.get("event")), data.get("eventId")
    if not isinstance(event_id, str) or not key_of(event_id):
        return None  # a request that named no event
    source, teller = required(cloud_event.get("source"), "source"), _teller_of(data)
    request = table(data.get("request"))
    return Fact(
        source=source,
        id=required(cloud_event.get("id"), "id"),
        kind=Kind.OUTCOME,
        time=moment(cloud_event.get("time")),
        event_id=required(event_id, "data.eventId"),
        teller=teller,
        event=event,
        group=_group(source, teller),
        prefix=prefix,
        outcome=Outcome(
            outcome=what,
            message_id=text(request.get("messageId")),
            reason=text(data.get("reason")),
        ),
    )


def _teller_of(data: Mapping[str, object]) -> Teller:
    return _teller(table(data.get("reporter")))


def _group(source: str, teller: Teller) -> tuple[str, str]:
    """Return where the machines of an event are: a makeshift source does not say."""
    found = group_of(source)
    return found if found[1] else group_of(teller.resource_id)


def _event(value: object) -> ScheduledEvent | None:
    """Return an IMDS object; None where it is none."""
    event_id = table(value).get("EventId")
    if not isinstance(event_id, str) or not event_id:
        return None
    return ScheduledEvent(event_id=required(event_id, "EventId"), raw=table(value))
