"""Reads Event Grid's scheduled events, in both of its schemas. Pure.

Of three names of one type, and of whatever else comes the same way, only scheduled
events of virtual machines are read; the rest is left out. What is one, and cannot be
read, is a fault.

Source: learn.microsoft.com/azure/virtual-machines/scheduled-events-event-grid
"""

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime

from bridge.events.document import ScheduledEvent
from bridge.foundation.errors import UnreadableMessageError
from bridge.hub.facts import (
    AZURE,
    Fact,
    Kind,
    Reporter,
    digest_of,
    group_of,
    moment,
    object_in,
    required,
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


def read(body: bytes) -> Fact | None:
    """Read the event that a message holds; None: it is of something else.

    Raises:
        UnreadableMessageError: it is of a virtual machine, and says nothing.
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
    fact = _fact(envelope, data, info, properties)
    return replace(fact, digest=digest_of(body))


def _fact(
    envelope: Mapping[str, object],
    data: Mapping[str, object],
    info: Mapping[str, object],
    properties: Mapping[str, object],
) -> Fact:
    event_id = required(properties.get("EventId") or info.get("name"), "EventId")
    status = required(properties.get("EventStatus"), "EventStatus")
    resource = text(info.get("id")) or text(envelope.get("subject"))
    event = {**properties, "EventId": event_id}
    return Fact(
        source=_source(envelope),
        id=required(envelope.get("id"), "id"),
        kind=_KINDS.get(status.lower(), Kind.OTHER),
        time=_time(envelope, data),
        event_id=event_id,
        reporter=_REPORTER,
        event=ScheduledEvent(event_id=event_id, raw=event),
        group=group_of(resource),
        resource=resource,
    )


def _source(envelope: Mapping[str, object]) -> str:
    """Return what an id is unique in: ``source`` or ``topic``, as the schema has it."""
    return required(envelope.get("source") or envelope.get("topic"), "source").lower()


def _time(envelope: Mapping[str, object], data: Mapping[str, object]) -> datetime:
    """Return when it happened; when it was sent, where that is not told."""
    told = table(data.get("operationalInfo")).get("resourceEventTime")
    try:
        return moment(told)
    except UnreadableMessageError:
        return moment(envelope.get("time") or envelope.get("eventTime"))
