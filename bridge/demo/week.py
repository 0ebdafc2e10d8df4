"""A week that is over, for the report and the time lines of the fleet demo. Pure."""

import json
import uuid
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from email.utils import formatdate
from typing import Any

from msgspec import Struct

from bridge.simulator.event_grid import Place, health, message

AZURE, _TOPIC = "azure-events", "scheduled-events"
# The same ids as in the messages of the simulated Event Grid.
RESOURCE = (
    "/subscriptions/00001111-aaaa-2222-bbbb-3333cccc4444/resourceGroups/simulated"
    "/providers/Microsoft.Compute/virtualMachines/{name}"
)


class Past(Struct, frozen=True, kw_only=True):
    """An outage of the week that is over.

    Attributes:
        days: how many days ago.
        kind: the EventType; "" = Azure announced nothing.
        down: for how many seconds the machine was not available.
        paused: for how many seconds it stood still.
        reason: the annotation and the category of Resource Health; () = none.
    """

    days: float
    name: str = "web-1"
    kind: str = ""
    source: str = "Platform"
    down: float = 0.0
    paused: float = 0.0
    reason: tuple[str, ...] = ()


WEEK = (
    Past(days=6.2, kind="Freeze", paused=9),
    Past(days=5.1, name="web-2", kind="Reboot", source="User", down=74),
    Past(
        days=3.4,
        down=252,
        reason=("VirtualMachineHostCrashed", "Unplanned", "Platform Initiated"),
    ),
    Past(days=2.3, name="db-1", kind="Redeploy", down=403),
    Past(days=1.2, kind="Freeze", paused=31),
)
_STARTS_AFTER = 300.0


def past_messages(past: Past, now: float) -> Iterator[tuple[str, bytes]]:
    """Yield what the bridge and Azure said of an outage, each with its entity.

    Args:
        past: the outage.
        now: seconds since the epoch.
    """
    place, begun = Place(vm_name=past.name), now - past.days * 86_400
    event_id = str(uuid.uuid5(uuid.NAMESPACE_OID, f"{past.name} {past.days}")).upper()
    event = {
        "EventId": event_id,
        "EventType": past.kind,
        "EventSource": past.source,
        "Resources": [past.name],
        "NotBefore": formatdate(begun + 900, usegmt=True),
    }
    ended = begun + _STARTS_AFTER + past.down + past.paused
    steps = {"Scheduled": begun, "Started": begun + _STARTS_AFTER, "Completed": ended}
    for status, at in steps.items() if past.kind else ():
        yield AZURE, message(event, status, place, at, "cloudevents")
    if past.paused:
        yield _TOPIC, _stood_still(past, event, ended)
    if past.down:
        for state, at in (("Unavailable", ended - past.down), ("Available", ended)):
            yield AZURE, health(place, at, {"availabilityState": state})
    if past.reason:
        named = zip(("annotationName", "category", "context"), past.reason, strict=True)
        yield AZURE, health(place, ended, dict(named))


def _stood_still(past: Past, event: Mapping[str, Any], at: float) -> bytes:
    """Return what the bridge of a VM told after a pause."""
    found = {
        "specversion": "1.0",
        "id": f"past-{event['EventId']}",
        "source": "urn:sebridge:demo",
        "type": "sebridge.scheduledevent.completed.v1",
        "time": datetime.fromtimestamp(at, UTC).isoformat(),
        "data": {
            "event": {**event, "EventStatus": "Started"},
            "pausedSeconds": past.paused,
            "reporter": {
                "vmName": past.name,
                "resourceId": RESOURCE.format(name=past.name),
            },
        },
    }
    return json.dumps(found).encode()
