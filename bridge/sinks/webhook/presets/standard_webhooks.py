"""Standard Webhooks: ``type``, ``timestamp`` and ``data``; the id is in a header.

Source: https://github.com/standard-webhooks/standard-webhooks (payload structure)
"""

import orjson

from bridge.events.cloudevent import CloudEvent
from bridge.sinks.webhook.content_mode import Rendered


def render(event: CloudEvent) -> Rendered:
    """Return the payload that the spec recommends."""
    payload = {"type": event.type, "timestamp": event.time, "data": event.data}
    return {"Content-Type": "application/json"}, orjson.dumps(payload)
