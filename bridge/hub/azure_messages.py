"""Parses Event Grid's messages about machines, in both of its schemas. Pure.

scheduled events          a Fact
Resource Health,          a Note for each machine, or for a subscription
Maintenance Configurations

Azure's pages use three names for the type of scheduled events, and two forms: one
resource in ``data.resourceInfo``, or several in ``data.resources``. Only messages about
virtual machines are parsed, and other messages of the same queue are ignored. A message
of these types that cannot be parsed is a fault.

Source: learn.microsoft.com/azure/virtual-machines/scheduled-events-event-grid,
        learn.microsoft.com/azure/event-grid/event-schema-health-resources,
        .../event-schema-maintenance-configuration,
        learn.microsoft.com/azure/service-health/resource-health-vm-annotation
        github.com/Azure/azure-resource-manager-rpc (notifications: data.resources)
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from itertools import islice

import orjson

from bridge.events.cloudevent import hash32
from bridge.events.document import ScheduledEvent
from bridge.foundation.errors import UnreadableMessageError
from bridge.hub.facts import (
    AZURE,
    Fact,
    Kind,
    Note,
    NoteKind,
    Reporter,
    believed,
    group_of,
    moment,
    object_in,
    place_in,
    required,
    sealed,
    table,
    text,
)

_TYPES = {
    "microsoft.resourcenotifications.maintenanceresources.scheduledeventemitted",
    "microsoft.maintenance/scheduledevents/write",
    "microsoft.maintenance.scheduledevents",
}
_HEALTH = "microsoft.resourcenotifications.healthresources."
_STATUS_CHANGED, _ANNOTATED = "availabilitystatuschanged", "resourceannotated"
_PRE, _POST = (
    f"microsoft.maintenance.{when}maintenanceevent" for when in ("pre", "post")
)
_RESOURCE_TYPE = "microsoft.maintenance/scheduledevents"
_MACHINE = "virtualmachine"
_KINDS = {
    "scheduled": Kind.SCHEDULED,
    "started": Kind.STARTED,
    "completed": Kind.COMPLETED,
    "canceled": Kind.CANCELLED,
    "cancelled": Kind.CANCELLED,
}
_REPORTER = Reporter(vm_id=AZURE, name="Azure")
_MOST_PARTS = 2000  # of a message
_MOST_SUBSCRIPTIONS = 100
_LONGEST = 300
_ANNOTATION = ("annotationName", "reason", "summary", "context", "category")

Json = Mapping[str, object]


# -- several events in one message -----------------------------------------------------


def parts_of(body: bytes) -> Iterator[bytes]:
    """Yield a message for each event in a message; mostly that is the message itself.

    A body may be a list of events, and an event may be about several resources. Each
    gets the form of one event about one resource, with an id of its own.

    Raises:
        UnreadableMessageError: after 2,000 parts: there are more; or one is nested too
            deep.
    """
    found: object = None
    with suppress(orjson.JSONDecodeError):
        found = orjson.loads(body.removeprefix(b"\xef\xbb\xbf"))
    if isinstance(found, dict) and not _resources(found):
        yield body
    elif isinstance(found, list | dict):
        events = found if isinstance(found, list) else [found]
        parts = (part for event in events for part in _parts(event))
        yield from map(_dumped, islice(parts, _MOST_PARTS))
        if next(parts, None) is not None:
            raise UnreadableMessageError(f"it has more than {_MOST_PARTS} resources")
    else:
        yield body


def _dumped(part: object) -> bytes:
    try:
        return orjson.dumps(part)
    except orjson.JSONEncodeError as error:
        raise UnreadableMessageError("one of its events is nested too deep") from error


def _parts(event: object) -> Iterator[object]:
    resources = _resources(event)
    if not isinstance(event, dict) or not resources:
        yield event
        return
    data = {key: one for key, one in event["data"].items() if key != "resources"}
    for number, one in enumerate(resources):
        given = table(one)
        more = {
            "resourceInfo": given.get("armResource"),
            "operationalInfo": {"resourceEventTime": given.get("resourceEventTime")},
        }
        name = f"{event.get('id')}/{number}" if len(resources) > 1 else event.get("id")
        yield {**event, "id": name, "data": {**data, **more}}


def _resources(event: object) -> Sequence[object]:
    data = table(table(event).get("data"))
    found = data.get("resources")
    is_many = isinstance(found, list) and "resourceInfo" not in data
    return found if is_many and isinstance(found, list) else ()


# -- scheduled events ------------------------------------------------------------------


def read(body: bytes, *, heard: datetime) -> Fact | None:
    """Parse the scheduled event in a message; None = it is about something else.

    Args:
        body: an event of Event Grid, in either schema.
        heard: when the broker enqueued the message.

    Raises:
        UnreadableMessageError: it is a scheduled event, and it is not clear that it is
            about something else than a virtual machine; but a required field is missing
            or invalid.
    """
    envelope = object_in(body)
    if _type(envelope) not in _TYPES:
        return None
    data = table(envelope.get("data"))
    info = table(data.get("resourceInfo"))
    properties = table(info.get("properties"))
    about = required(info.get("type"), "the type of the resource").lower()
    if about != _RESOURCE_TYPE:
        return None
    kind = properties.get("ResourceType")
    if not required(kind, "ResourceType").lower().startswith(_MACHINE):
        return None
    return sealed(_fact(envelope, data, properties, heard), body)


def _type(envelope: Json) -> str:
    return (text(envelope.get("type")) or text(envelope.get("eventType"))).lower()


def _fact(envelope: Json, data: Json, properties: Json, heard: datetime) -> Fact:
    info = table(data.get("resourceInfo"))
    event_id = required(properties.get("EventId") or info.get("name"), "EventId")
    status = required(properties.get("EventStatus"), "EventStatus")
    resource = text(info.get("id")) or text(envelope.get("subject"))
    event = {**properties, "EventId": event_id}
    return Fact(
        source=_source(envelope),
        id=required(envelope.get("id"), "id"),
        kind=_KINDS.get(status.lower(), Kind.OTHER),
        time=believed(_time(envelope, data), heard),
        enqueued=heard,
        event_id=event_id,
        reporter=_REPORTER,
        event=ScheduledEvent(event_id=event_id, raw=event),
        group=group_of(resource),
        resource=resource,
    )


def _source(envelope: Json) -> str:
    """Return ``source`` or ``topic``, depending on the schema: ids are unique in it."""
    return required(envelope.get("source") or envelope.get("topic"), "source").lower()


def _time(envelope: Json, data: Json) -> datetime:
    """Return when it happened; without that time, when the message was sent."""
    happened = table(data.get("operationalInfo")).get("resourceEventTime")
    try:
        return moment(happened)
    except UnreadableMessageError:
        return moment(envelope.get("time") or envelope.get("eventTime"))


# -- what else Azure says of machines --------------------------------------------------


def notes_in(body: bytes, *, heard: datetime) -> tuple[Note, ...]:
    """Parse a message of Resource Health, or of Maintenance Configurations.

    Args:
        body: an event of Event Grid, in either schema.
        heard: when the broker enqueued the message.

    Returns:
        Nothing, if the message is about something else.

    Raises:
        UnreadableMessageError: a required field is missing or invalid.
    """
    envelope = object_in(body)
    kind, data = _type(envelope), table(envelope.get("data"))
    if kind in {_PRE, _POST}:
        return tuple(_windows(envelope, data, heard, is_over=kind == _POST))
    if kind.startswith(_HEALTH):
        found = _health(envelope, data, kind.removeprefix(_HEALTH), heard)
        return () if found is None else (found,)
    return ()


def _health(envelope: Json, data: Json, what: str, heard: datetime) -> Note | None:
    if what not in {_STATUS_CHANGED, _ANNOTATED}:
        return None
    info = table(data.get("resourceInfo"))
    properties = table(info.get("properties"))
    target = text(properties.get("targetResourceId")) or text(envelope.get("subject"))
    if (machine := place_in(target)) is None:
        return None  # a scale set, or no virtual machine
    said: dict[str, str]
    if what == _STATUS_CHANGED:
        state = required(properties.get("availabilityState"), "availabilityState")
        before = text(properties.get("previousAvailabilityState"))
        kind, said = NoteKind.HEALTH, {"state": state[:_LONGEST], "previous": before}
    else:
        required(properties.get("annotationName"), "annotationName")
        named = {key: text(properties.get(key))[:_LONGEST] for key in _ANNOTATION}
        kind, said = NoteKind.ANNOTATION, named
    try:
        time = moment(properties.get("occurredTime"))
    except UnreadableMessageError:
        time = _time(envelope, data)
    name = [kind, _source(envelope), required(envelope.get("id"), "id")]
    return Note(
        id=hash32(name),
        kind=kind,
        time=believed(time, heard),
        machine=machine,
        data={key: one[:_LONGEST] for key, one in said.items()},
    )


def _windows(
    envelope: Json, data: Json, heard: datetime, *, is_over: bool
) -> Iterator[Note]:
    """Yield the window of a maintenance configuration, for each subscription.

    The messages do not name the machines. The second one says when the work ended.
    """
    named = {key.lower(): one for key, one in data.items()}  # pages differ in case
    run = required(named.get("correlationid"), "correlationId")
    sent = moment(envelope.get("time") or envelope.get("eventTime"))
    given = named.get("resourcesubscriptionids")
    listed = given if isinstance(given, list) else []
    configuration = text(named.get("maintenanceconfigurationid")).rpartition("/")[2]
    status = text(named.get("status"))[:_LONGEST]
    for one in listed[:_MOST_SUBSCRIPTIONS]:
        subscription = required(one, "a subscription").lower()
        yield Note(
            id=hash32([NoteKind.WINDOW, run.lower(), subscription]),
            kind=NoteKind.WINDOW,
            time=moment(named.get("startdatetime")),
            until=believed(sent, heard)
            if is_over
            else moment(named.get("enddatetime")),
            machine=(subscription, "", ""),
            data={"configuration": configuration[:_LONGEST], "status": status},
            is_last=is_over,
        )
