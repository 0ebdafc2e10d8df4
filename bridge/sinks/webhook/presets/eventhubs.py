"""Event Hubs over HTTPS: the event in structured mode, kept in order by its EventId.

Source: https://learn.microsoft.com/rest/api/eventhub/send-event
"""

import orjson

from bridge.events.cloudevent import CloudEvent
from bridge.foundation.hashing import hash32

SCOPE = "https://eventhubs.azure.net/.default"
_LONGEST_KEY = 128


def partition(event: CloudEvent) -> dict[str, str]:
    """Return the header that keeps what concerns one EventId in one partition."""
    key = event.text("correlationid") or event.subject
    if not key:
        return {}
    if len(key) > _LONGEST_KEY or not key.isascii() or not key.isprintable():
        key = hash32(key)
    return {"BrokerProperties": orjson.dumps({"PartitionKey": key}).decode()}
