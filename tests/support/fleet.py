"""Messages of a fleet, as its bridges and Azure write them."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

import orjson
from msgspec.structs import replace

from bridge.events.build import (
    EventContext,
    from_outcome,
)
from bridge.events.identity import Identity
from tests.support.builders import EVENT_ID, event_context_of, imds_event, own_event
from tests.support.example_events import outcome as outcome_of
from tests.support.example_events import published, seen, transition
from tests.support.fakes import START

SUBSCRIPTION = "8d10da13-8125-4ba9-a717-bf7490507b3d"
GROUP = "web"
TOPIC = f"/subscriptions/{SUBSCRIPTION}"


def vm(number: int = 0) -> Identity:
    """Return one VM of the fleet."""
    return Identity(
        vm_name=f"web-{number}",
        vm_id=f"00000000-0000-0000-0000-{number:012}",
        resource_id=(
            f"/subscriptions/{SUBSCRIPTION}/resourceGroups/Web/providers"
            f"/Microsoft.Compute/virtualMachines/web-{number}"
        ),
        location="westeurope",
    )


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def event(event_id: str = EVENT_ID, **fields: object) -> dict[str, object]:
    return imds_event(event_id, **{"Resources": ["web-0", "web-1"], **fields})


def step(  # noqa: PLR0913 - each is one thing a test varies
    kind: str,
    raw: Mapping[str, object] | None = None,
    *,
    previous: Mapping[str, object] | None = None,
    seconds: float = 0.0,
    who: Identity | None = None,
    repeats: int = 0,
) -> bytes:
    """Return the CloudEvent of a step, as a bridge sends it."""
    raw = event() if raw is None else raw
    found = transition(kind, raw, previous, unobserved=0)
    out = published(
        found, context=context(who), incarnation=1, at=at(seconds), repeats=repeats
    )
    return out.event.to_json()


def outcome(
    what: str,
    message_id: str,
    raw: Mapping[str, object] | None = None,
    *,
    seconds: float = 0.0,
    reason: str | None = None,
) -> bytes:
    """Return what a bridge says of a request."""
    raw = event() if raw is None else raw
    found = outcome_of(
        what,
        event_id=str(raw["EventId"]),
        event=seen(raw),
        imds_status=None,
        confirmed=None,
        reason=reason,
        request={"messageId": message_id},
        origin=("vm-approvals", message_id, 1),
    )
    return from_outcome(context(None), found, at(seconds)).event.to_json()


def life(
    what: str, *, who: Identity | None = None, seconds: float = 0.0, **more: object
) -> bytes:
    """Return what a bridge says of itself."""
    made = own_event(context(who), what, observed_at=at(seconds)).event
    return replace(made, data={**made.data, **more}).to_json()


def context(who: Identity | None) -> EventContext:
    return event_context_of(who or vm())


def azure(
    status: str,
    raw: Mapping[str, object] | None = None,
    *,
    seconds: float = 0.0,
    schema: str = "cloudevent",
    id_: str = "",
) -> bytes:
    """Return what Event Grid sends, in either of its schemas."""
    raw = event() if raw is None else raw
    event_id = raw["EventId"]
    resource = (
        f"{TOPIC}/resourceGroups/Web/providers/Microsoft.Compute/virtualMachines/web-0"
        f"/providers/microsoft.maintenance/scheduledevents/{event_id}"
    )
    when = at(seconds).isoformat().replace("+00:00", "Z")
    kind = "Microsoft.ResourceNotifications.MaintenanceResources.ScheduledEventEmitted"
    data = {
        "resourceInfo": {
            "id": resource,
            "name": event_id,
            "type": "microsoft.maintenance/scheduledEvents",
            "location": "westeurope",
            "properties": {**raw, "EventStatus": status},
        },
        "operationalInfo": {"resourceEventTime": when},
        "apiVersion": "2024-07-01",
    }
    head: dict[str, Any] = {"id": id_ or f"grid-{status}-{event_id}-{seconds}"}
    if schema == "cloudevent":
        head |= {"specversion": "1.0", "source": TOPIC, "type": kind, "time": when}
    else:
        head |= {
            "topic": TOPIC,
            "eventType": kind,
            "eventTime": when,
            "dataVersion": "3.0",
        }
    return orjson.dumps({**head, "subject": resource, "data": data})


def grid_event(kind: str, data: Mapping[str, Any], seconds: float, id_: str) -> bytes:
    """Return a CloudEvent of Event Grid."""
    when = at(seconds).isoformat().replace("+00:00", "Z")
    head = {"id": id_, "specversion": "1.0", "source": TOPIC, "type": kind}
    return orjson.dumps({**head, "time": when, "data": data})


def health(
    seconds: float = 0.0, *, name: str = "web-0", what: str = "", **properties: str
) -> bytes:
    """Return what Resource Health says of a machine, in the published form.

    Source: learn.microsoft.com/azure/event-grid/event-schema-health-resources
    """
    is_state = "availabilityState" in properties
    kind = "AvailabilityStatusChanged" if is_state else "ResourceAnnotated"
    about = "availabilityStatuses" if is_state else "resourceAnnotations"
    vm_id = (
        f"{TOPIC}/resourceGroups/Web/providers/Microsoft.Compute/virtualMachines/{name}"
    )
    when = at(seconds).isoformat().replace("+00:00", "Z")
    given = {
        "targetResourceId": vm_id,
        "targetResourceType": "Microsoft.Compute/virtualMachines",
        "occurredTime": when,
        **properties,
    }
    data = {
        "resourceInfo": {
            "id": f"{vm_id}/providers/Microsoft.ResourceHealth/{about}/current",
            "name": "current",
            "type": f"Microsoft.ResourceHealth/{about}",
            "properties": given,
        },
        "operationalInfo": {"resourceEventTime": when},
        "apiVersion": "2023-12-01",
    }
    prefix = "Microsoft.ResourceNotifications.HealthResources."
    return grid_event(
        f"{prefix}{what or kind}", data, seconds, f"health-{seconds}-{name}"
    )


def annotation(seconds: float, name: str, category: str, **more: str) -> bytes:
    """Return why a machine was down, as Resource Health says it."""
    given = {
        "annotationName": name,
        "reason": "Host reboot",
        "summary": "The Virtual Machine is undergoing a reboot.",
        "context": "Platform Initiated",
        "category": category,
        "impactType": "Downtime Reboot",
    }
    return health(seconds, **{**given, **more})


def window(seconds: float, *, is_over: bool, begin: float, end: float) -> bytes:
    """Return what a maintenance configuration says before and after its work.

    Source: learn.microsoft.com/azure/event-grid/event-schema-maintenance-configuration
    """
    name = f"{TOPIC}/resourceGroups/rg/providers/Microsoft.Maintenance"
    configuration = f"{name}/maintenanceConfigurations/patches"
    run = f"{configuration}/providers/microsoft.maintenance/applyupdates/20260302120000"
    begins, ends = (at(one).isoformat().replace("+00:00", "Z") for one in (begin, end))
    data = {
        "correlationId": run,
        "maintenanceConfigurationId": configuration,
        "startDateTime": begins,
        "endDateTime": ends,
        "resourceSubscriptionIds": [SUBSCRIPTION],
        **(
            {"status": "Succeeded"}
            if is_over
            else {"cancellationCutOffDateTime": begins}
        ),
    }
    when = "Post" if is_over else "Pre"
    return grid_event(
        f"Microsoft.Maintenance.{when}MaintenanceEvent", data, seconds, run
    )


def batch_of(*bodies: bytes) -> bytes:
    """Return scheduled events of Azure in one message: ``data.resources``."""
    events = [orjson.loads(body) for body in bodies]
    resources = [
        {
            "correlationId": "00000000-0000-0000-0000-000000000001",
            "resourceId": one["data"]["resourceInfo"]["id"],
            "apiVersion": "2024-07-01",
            "armResource": one["data"]["resourceInfo"],
            "resourceEventTime": one["data"]["operationalInfo"]["resourceEventTime"],
        }
        for one in events
    ]
    data = {
        "resourcesContainer": "Inline",
        "resourceLocation": "westeurope",
        "publisherInfo": "Microsoft.Maintenance",
        "resourcesBlobInfo": None,
        "resources": resources,
    }
    return orjson.dumps({**events[0], "data": data})
