"""Parses the CloudEvents of bridges. Pure.

scheduledevent.*, startrequest.*   a Fact about an event, and a BridgeReport as a sign
                                   of life
bridge.*                           a BridgeReport about the bridge itself
hub.*, and unknown types           nothing
"""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from msgspec import Struct

from bridge.events.cloudevent import hash32
from bridge.events.document import ScheduledEvent
from bridge.events.vocabulary import TRANSITIONS
from bridge.foundation.errors import UnreadableMessageError
from bridge.hub.facts import (
    AZURE,
    LONGEST_ID,
    Address,
    Fact,
    Kind,
    Note,
    NoteKind,
    Outcome,
    Reporter,
    believed,
    group_of,
    key_of,
    moment,
    object_in,
    place_in,
    required,
    sealed,
    table,
    text,
)
from bridge.hub.pins import Mark

Values = dict[str, Any]  # of a Fact, by their names
_LONGEST_PAUSE = 7 * 86_400.0  # seconds
_FIRST_WEEK = datetime(1, 1, 8, tzinfo=UTC)  # before it there is no earlier time


class BridgeReport(Struct, frozen=True, kw_only=True):
    """The content of a message about the bridge that sent it.

    Attributes:
        reporter: the VM of the bridge.
        kind: of ``bridge.*``: started, stopped, heartbeat and so on; otherwise "".
        id: the id of the CloudEvent.
        time: when it happened, by the bridge's clock, as far as that is believed.
        heard: when the broker enqueued the message, by the broker's clock.
        version: the version of the bridge.
        location: the Azure region.
        data: the data of a ``bridge.*`` event, unchanged; otherwise empty.
        prefix: the prefix of the types of this bridge's events.
        mark: where it is among the messages of a pinned bridge; None = of another one.
        signed_by: the keys that have signed it.
    """

    reporter: Reporter
    kind: str
    id: str
    time: datetime
    heard: datetime
    version: str = ""
    location: str = ""
    data: Mapping[str, object]
    prefix: str = ""
    mark: Mark | None = None
    signed_by: tuple[str, ...] = ()


class Read(Struct, frozen=True, kw_only=True):
    """The content of a message.

    Attributes:
        fact: about a scheduled event; None = the message is about none.
        report: about the bridge that sent it; None = the message has no vmId.
        note: how long its VM stood still; None = it did not, or that is not known.
    """

    fact: Fact | None = None
    note: Note | None = None
    report: BridgeReport | None = None


NOTHING = Read()


def read(
    body: bytes,
    *,
    heard: datetime,
    source: str,
    reply_to: str | None = None,
    session: str | None = None,
) -> Read:
    """Parse the CloudEvent in a message.

    Args:
        body: a CloudEvent as structured JSON.
        heard: when the broker enqueued the message.
        source: the name of the hub's source.
        reply_to: the approval entity that the message names.
        session: the session id at that entity.

    Raises:
        UnreadableMessageError: the body is no CloudEvent, or has not the form of a
            bridge's events.
    """
    cloud_event = object_in(body)
    if cloud_event.get("specversion") != "1.0":
        raise UnreadableMessageError("the body is no structured CloudEvent 1.0")
    prefix, family, what = _kind(required(cloud_event.get("type"), "type"))
    data = table(cloud_event.get("data"))
    if family not in {"scheduledevent", "startrequest", "bridge"}:
        return NOTHING
    if data.get("test") is True:
        return NOTHING  # a test event of `sebridge send-test`
    own = what if family == "bridge" else ""
    report = _report(cloud_event, data, own, heard, prefix)
    if family == "bridge":
        return Read(report=report)
    is_step = family == "scheduledevent"
    about = _step(what, data) if is_step else _outcome(what, data)
    if about is None:
        return Read(report=report)
    address = Address(
        source=source, entity=text(reply_to), session=text(session), prefix=prefix
    )
    origin = required(cloud_event.get("source"), "source")
    reporter = _reporter(table(data.get("reporter")))
    fact = Fact(
        source=origin,
        id=required(cloud_event.get("id"), "id"),
        time=believed(moment(cloud_event.get("time")), heard),
        enqueued=heard,
        reporter=reporter,
        group=_group(origin, reporter),
        prefix=prefix,
        address=address if reply_to and is_step else None,
        **about,
    )
    sure = sealed(fact, body)
    return Read(fact=sure, report=report, note=_pause(sure, data))


def _pause(fact: Fact, data: Mapping[str, object]) -> Note | None:
    """Return how long the VM of the bridge stood still before a step."""
    seconds, machine = data.get("pausedSeconds"), place_in(fact.reporter.resource_id)
    is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if machine is None or not is_number or not 0 < seconds <= _LONGEST_PAUSE:  # type: ignore[operator]  # a number
        return None
    if fact.time < _FIRST_WEEK:
        return None
    return Note(
        id=hash32([NoteKind.PAUSED, *fact.report]),
        kind=NoteKind.PAUSED,
        time=fact.time - timedelta(seconds=seconds),  # type: ignore[arg-type]  # as above
        until=fact.time,
        machine=machine,
        event_key=fact.key,
    )


def _kind(kind: str) -> tuple[str, str, str]:
    """Split a type into prefix, family and kind; three "" if it is not a bridge's."""
    parts = kind.rsplit(".", 3)
    is_ours = len(parts) == 4 and parts[3] == "v1"
    return (parts[0], parts[1], parts[2]) if is_ours else ("", "", "")


def _report(
    cloud_event: Mapping[str, object],
    data: Mapping[str, object],
    kind: str,
    heard: datetime,
    prefix: str,
) -> BridgeReport | None:
    fields = table(data.get("reporter"))
    reporter = _reporter(fields)
    if not reporter.vm_id:
        return None
    return BridgeReport(
        reporter=reporter,
        kind=kind,
        id=required(cloud_event.get("id"), "id"),
        time=believed(moment(cloud_event.get("time")), heard),
        heard=heard,
        version=text(fields.get("version")),
        location=text(fields.get("location")),
        data=data if kind else {},
        prefix=prefix,
    )


def _reporter(fields: Mapping[str, object]) -> Reporter:
    vm_id = _short(fields.get("vmId")).lower()
    if vm_id == AZURE:  # reserved: facts of Azure override those of bridges
        raise UnreadableMessageError("data.reporter.vmId is no id of a VM")
    return Reporter(
        vm_id=vm_id,
        name=_short(fields.get("vmName")),
        resource_id=_short(fields.get("resourceId")),
    )


def _short(value: object) -> str:
    return text(value)[:LONGEST_ID]


def _step(what: str, data: Mapping[str, object]) -> Values | None:
    """Return what a step of an event is about; None = its type is not known."""
    if what not in TRANSITIONS:
        return None
    event = _event(data.get("event"))
    if event is None:
        raise UnreadableMessageError("data.event is no scheduled event")
    truncated = data.get("truncated")
    return {
        "kind": Kind(what),
        "event_id": event.event_id,
        "event": event,
        "previous": _event(data.get("previous")),
        "is_whole": not isinstance(truncated, list) or "Resources" not in truncated,
    }


def _outcome(what: str, data: Mapping[str, object]) -> Values | None:
    """Return what an outcome is about; None = an approval without an EventId."""
    event, event_id = _event(data.get("event")), data.get("eventId")
    if not isinstance(event_id, str) or not key_of(event_id):
        return None
    request = table(data.get("request"))
    return {
        "kind": Kind.OUTCOME,
        "event_id": required(event_id, "data.eventId"),
        "event": event,
        "outcome": Outcome(
            outcome=what,
            message_id=text(request.get("messageId")),
            reason=text(data.get("reason")),
            body_hash=text(request.get("bodyHash")),
        ),
    }


def _group(source: str, reporter: Reporter) -> tuple[str, str]:
    """Return subscription and resource group, from the source or from the reporter.

    A source without a resource id (a bridge that does not know its own) has none.
    """
    found = group_of(source)
    return found if found[1] else group_of(reporter.resource_id)


def _event(value: object) -> ScheduledEvent | None:
    """Return a value as an IMDS object; None if it has no EventId."""
    event_id = table(value).get("EventId")
    if not isinstance(event_id, str) or not event_id:
        return None
    return ScheduledEvent(event_id=required(event_id, "EventId"), raw=table(value))
