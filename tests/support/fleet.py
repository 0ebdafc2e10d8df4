"""Messages of a fleet, as its bridges and Azure write them."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

import orjson

from bridge.events.build import (
    EventContext,
    Outcome,
    from_bridge,
    from_outcome,
    from_transition,
)
from bridge.events.document import ScheduledEvent
from bridge.events.identity import Identity
from bridge.events.transitions import Transition
from bridge.events.vocabulary import TransitionKind
from tests.support.builders import EVENT_ID, event_context_of, imds_event
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
    told: int = 0,
) -> bytes:
    """Return the CloudEvent of a step, as a bridge sends it."""
    raw = event() if raw is None else raw
    transition = Transition(
        kind=TransitionKind(kind),
        event=_event(raw),
        previous=None if previous is None else _event(previous),
        changes=(),
        announced=True,
        unobserved=0,
    )
    out = from_transition(
        context(who), transition, incarnation=1, observed_at=at(seconds), repeats=told
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
    """Return what a bridge tells of a request."""
    raw = event() if raw is None else raw
    found = Outcome(
        outcome=what,
        event_id=str(raw["EventId"]),
        event=_event(raw),
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
    """Return what a bridge tells of itself."""
    made = from_bridge(context(who), what, observed_at=at(seconds), more=more)
    return made.event.to_json()


def context(who: Identity | None) -> EventContext:
    return event_context_of(who or vm())


def _event(raw: Mapping[str, object]) -> ScheduledEvent:
    return ScheduledEvent(event_id=str(raw["EventId"]), raw=raw)


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
