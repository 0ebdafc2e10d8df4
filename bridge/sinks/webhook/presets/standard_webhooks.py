"""Standard Webhooks: ``type``, ``timestamp`` and ``data``; the id is in a header.

Source: https://github.com/standard-webhooks/standard-webhooks (payload structure)
"""

import orjson

from bridge.events.cloudevent import CloudEvent
from bridge.sinks.webhook.presets.preset import CLOUDEVENTS, JSON, Preset, Rendered


def render(event: CloudEvent) -> Rendered:
    """Return the payload that the spec recommends."""
    payload = {"type": event.type, "timestamp": event.time, "data": event.data}
    return dict(JSON), orjson.dumps(payload)


PRESET = Preset(
    gets="`type`, `timestamp`, `data`, signed; also the CloudEvent",
    needs="`signature.secrets`",
    render=render,
    modes=CLOUDEVENTS,
    is_open=True,
    is_signed=True,
)
