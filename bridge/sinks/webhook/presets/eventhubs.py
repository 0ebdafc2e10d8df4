"""Event Hubs over HTTPS: the event in structured mode, ordered by its EventId.

All events of one request go to one partition. So the partition key of a request with
several events is their source, which is the same for all VMs that see one event.

Source: https://learn.microsoft.com/rest/api/eventhub/send-event
        https://learn.microsoft.com/rest/api/eventhub/send-batch-events
"""

import orjson

from bridge.events.cloudevent import CloudEvent, hash32
from bridge.sinks.webhook.auth import AuthDefaults
from bridge.sinks.webhook.presets.preset import (
    OWN_BODY,
    Many,
    Preset,
    render_structured,
)

SCOPE = "https://eventhubs.azure.net/.default"
_LONGEST_KEY = 128


def partition(event: CloudEvent) -> dict[str, str]:
    """Return the header that keeps all events of one EventId in one partition."""
    key = event.text("correlationid") or event.subject
    return properties(key) if key else {}


def properties(key: str) -> dict[str, str]:
    """Return the header with a partition key; a key that is too long is hashed."""
    return {"BrokerProperties": orjson.dumps({"PartitionKey": _plain(key)}).decode()}


def entry(event: CloudEvent) -> bytes:
    """Return an event as one of several in a body; its header has the same key."""
    key = {"PartitionKey": _plain(event.source)}
    body = {"Body": event.to_json().decode(), "BrokerProperties": key}
    return orjson.dumps(body)


def _plain(key: str) -> str:
    if len(key) > _LONGEST_KEY or not key.isascii() or not key.isprintable():
        return hash32(key)
    return key


PRESET = Preset(
    gets="the CloudEvent, structured; one EventId in one partition",
    needs="a managed identity, or the header `authorization` with a SAS",
    render=render_structured,
    many=Many(
        piece=entry,
        headers={"Content-Type": "application/vnd.microsoft.servicebus.json"},
        group=lambda event: event.source,
        group_headers=properties,
    ),
    headers=partition,
    modes=OWN_BODY | {"structured"},
    auth=AuthDefaults(type="entra", scope=SCOPE, is_implied=True),
)
