"""Event Grid's messages about scheduled events, in both of its schemas.

A publisher polls the events of a simulated VM, and sends a message for each change:
Scheduled, Started, and at the end Completed or Canceled, which IMDS never shows. As
Event Grid does, it can send each message several times, and messages about other
resources in between.

Source: learn.microsoft.com/azure/virtual-machines/scheduled-events-event-grid
"""

import asyncio
import uuid
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Literal, Protocol

import orjson
from msgspec import Struct, field

from bridge.simulator.clock import Clock, SystemClock
from bridge.simulator.errors import BadInputError
from bridge.simulator.foreign import load

Schema = Literal["cloudevents", "eventgrid"]

TYPE = "Microsoft.ResourceNotifications.MaintenanceResources.ScheduledEventEmitted"
_SUBSCRIPTION = "00001111-aaaa-2222-bbbb-3333cccc4444"
_GROUP = "simulated"
_POLL_SECONDS = 0.25

Json = Mapping[str, Any]


class Document(Protocol):
    """The events of one VM: an ``ImdsState``."""

    def peek(self) -> Any:
        """Return the document as ``body``; this does not count as a read."""
        ...


class Place(Struct, frozen=True, kw_only=True):
    """The VM of an event, and where it is in Azure."""

    vm_name: str
    subscription: str = _SUBSCRIPTION
    group: str = _GROUP
    location: str = "westeurope"

    @property
    def vm(self) -> str:
        """The resource id of the VM."""
        return (
            f"/subscriptions/{self.subscription}/resourceGroups/{self.group}/providers"
            f"/Microsoft.Compute/virtualMachines/{self.vm_name}"
        )

    def resource(self, event_id: str) -> str:
        """Return the resource id of an event in Azure Resource Manager."""
        return f"{self.vm}/providers/microsoft.maintenance/scheduledevents/{event_id}"


def message(event: Json, status: str, place: Place, at: float, schema: Schema) -> bytes:
    """Return Event Grid's message about an event.

    Args:
        event: the event's object in the IMDS document.
        status: Scheduled, Started, Completed or Canceled.
        place: the event's VM.
        at: seconds since the epoch.
        schema: CloudEvents 1.0, or Event Grid's own schema.
    """
    event_id = str(event["EventId"])
    resource = place.resource(event_id)
    when = datetime.fromtimestamp(at, UTC).isoformat().replace("+00:00", "Z")
    known = ("EventId", "EventType", "EventSource", "NotBefore", "Description")
    properties = {
        **{name: event.get(name) for name in known},
        "EventStatus": status,
        "DurationInSeconds": event.get("DurationInSeconds", -1),
        "Resources": event.get("Resources", []),
        "ResourceType": "VirtualMachine",
        "ScheduledEventApiVersion": "2020-07-01",
    }
    data = {
        "resourceInfo": {
            "id": resource,
            "name": event_id,
            "type": "microsoft.maintenance/scheduledEvents",
            "location": place.location,
            "properties": properties,
        },
        "operationalInfo": {"resourceEventTime": when},
        "apiVersion": "2024-07-01",
    }
    return _envelope(data, resource, place, when, schema)


def health(place: Place, at: float, properties: Json) -> bytes:
    """Return a message of Resource Health about the VM, as a CloudEvent.

    Args:
        place: the VM.
        at: seconds since the epoch.
        properties: with ``availabilityState``, or those of an annotation.

    Source: learn.microsoft.com/azure/event-grid/event-schema-health-resources
    """
    is_state = "availabilityState" in properties
    about = "availabilityStatuses" if is_state else "resourceAnnotations"
    what = "AvailabilityStatusChanged" if is_state else "ResourceAnnotated"
    when = datetime.fromtimestamp(at, UTC).isoformat().replace("+00:00", "Z")
    kind = f"Microsoft.ResourceHealth/{about}"
    given = {"targetResourceId": place.vm, "occurredTime": when, **properties}
    head = {
        "id": str(uuid.uuid4()),
        "source": f"/subscriptions/{place.subscription}",
        "specversion": "1.0",
        "type": f"Microsoft.ResourceNotifications.HealthResources.{what}",
        "subject": place.vm,
        "time": when,
    }
    info = {"id": f"{place.vm}/providers/{kind}/current", "name": "current"}
    data = {"resourceInfo": {**info, "type": kind, "properties": given}}
    return orjson.dumps({**head, "data": data})


def foreign(place: Place, at: float, schema: Schema) -> bytes:
    """Return a message of the same type about a Kubernetes cluster, not a VM."""
    when = datetime.fromtimestamp(at, UTC).isoformat().replace("+00:00", "Z")
    resource = (
        f"/subscriptions/{place.subscription}/resourceGroups/{place.group}/providers"
        "/Microsoft.ContainerService/managedClusters/aks"
    )
    data = {
        "resourceInfo": {
            "id": resource,
            "name": "aks",
            "type": "microsoft.containerservice/managedclusters",
            "properties": {"eventId": "aks-1", "resourceType": "ManagedCluster"},
        }
    }
    return _envelope(data, resource, place, when, schema)


def _envelope(
    data: Json, subject: str, place: Place, when: str, schema: Schema
) -> bytes:
    topic = f"/subscriptions/{place.subscription}"
    head: dict[str, Any] = {"id": str(uuid.uuid4()), "subject": subject}
    if schema == "cloudevents":
        head |= {"specversion": "1.0", "source": topic, "type": TYPE, "time": when}
    else:
        head |= {"topic": topic, "eventType": TYPE, "eventTime": when}
        head |= {"dataVersion": "3.0", "metadataVersion": "1"}
    return orjson.dumps({**head, "data": data})


class EventGrid(Struct):
    """Publishes a message for each change of the events of a VM.

    Attributes:
        document: the VM's events.
        place: the VM.
        publish: called with each message.
        schema: the schema of the messages.
        copies: how often each message is sent; the copies have the same id.
        with_foreign: whether messages about other resources are sent in between.
    """

    document: Document
    place: Place
    publish: Callable[[bytes], None]
    schema: Schema = "cloudevents"
    copies: int = 1
    with_foreign: bool = False
    clock: Clock = field(default_factory=SystemClock)
    _known: dict[str, Json] = field(default_factory=dict)

    async def run(self, stop: asyncio.Event) -> None:
        """Poll the events until ``stop`` is set."""
        while not stop.is_set():
            self.look()
            await self.clock.sleep(_POLL_SECONDS)

    def look(self) -> None:
        """Publish what has changed since the last look."""
        try:
            found: Any = load(self.document.peek().body)
            events = {str(one["EventId"]): one for one in found["Events"]}
        except (BadInputError, KeyError, TypeError):
            return  # a given document may be invalid: nothing to publish
        for event, status in self._changes(events):
            self._send(event, status)
        self._known = events

    def _changes(self, events: Mapping[str, Json]) -> Iterator[tuple[Json, str]]:
        for event_id, event in events.items():
            if event != self._known.get(event_id):
                yield event, str(event["EventStatus"])
        for event_id, event in self._known.items():
            if event_id not in events:
                was_started = event["EventStatus"] == "Started"
                yield event, "Completed" if was_started else "Canceled"

    def _send(self, event: Json, status: str) -> None:
        now = self.clock.now()
        if self.with_foreign:
            self.publish(foreign(self.place, now, self.schema))
        body = message(event, status, self.place, now, self.schema)
        for _ in range(self.copies):
            self.publish(body)
