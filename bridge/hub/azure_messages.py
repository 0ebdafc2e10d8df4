"""Parses Event Grid's messages about scheduled events, in both of its schemas. Pure.

Azure's pages use three names for their type. Only scheduled events of virtual machines
are parsed, and other messages of the same queue are ignored. A message about a
scheduled event that cannot be parsed is a fault.

Source: learn.microsoft.com/azure/virtual-machines/scheduled-events-event-grid
"""

from collections.abc import Mapping
from datetime import datetime

from bridge.events.document import ScheduledEvent
from bridge.foundation.errors import UnreadableMessageError
from bridge.hub.facts import (
    AZURE,
    Fact,
    Kind,
    Reporter,
    believed,
    group_of,
    moment,
    object_in,
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


def read(body: bytes, *, heard: datetime) -> Fact | None:
    """Parse the event in a message; None = it is about something else.

    Args:
        body: an event of Event Grid, in either schema.
        heard: when the broker enqueued the message.

    Raises:
        UnreadableMessageError: it is a scheduled event of a virtual machine, but a
            required field is missing or invalid.
    """
    envelope = object_in(body)
    kind = text(envelope.get("type")) or text(envelope.get("eventType"))
    if kind.lower() not in _TYPES:
        return None
    data = table(envelope.get("data"))
    info = table(data.get("resourceInfo"))
    properties = table(info.get("properties"))
    if text(info.get("type")).lower() != _RESOURCE_TYPE:
        return None
    if text(properties.get("ResourceType")).lower() != _MACHINE:
        return None
    return sealed(_fact(envelope, data, properties, heard), body)


def _fact(
    envelope: Mapping[str, object],
    data: Mapping[str, object],
    properties: Mapping[str, object],
    heard: datetime,
) -> Fact:
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


def _source(envelope: Mapping[str, object]) -> str:
    """Return ``source`` or ``topic``, depending on the schema: ids are unique in it."""
    return required(envelope.get("source") or envelope.get("topic"), "source").lower()


def _time(envelope: Mapping[str, object], data: Mapping[str, object]) -> datetime:
    """Return when it happened; without that time, when the message was sent."""
    happened = table(data.get("operationalInfo")).get("resourceEventTime")
    try:
        return moment(happened)
    except UnreadableMessageError:
        return moment(envelope.get("time") or envelope.get("eventTime"))
