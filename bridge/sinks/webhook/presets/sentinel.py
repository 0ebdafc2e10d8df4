"""Microsoft Sentinel: the Logs Ingestion API, one flat record in an array.

The columns are those of ``infra/siem/sentinel/stream.preset.json``. A CloudEvent's
own ``id`` and ``type`` are reserved names there, so that each has a name of its own.

Source: https://learn.microsoft.com/azure/azure-monitor/logs/logs-ingestion-api-overview
"""

import orjson

from bridge.events.cloudevent import CloudEvent
from bridge.sinks.webhook.content_mode import Rendered
from bridge.sinks.webhook.presets.fields import known

SCOPE = "https://monitor.azure.com/.default"


def render(event: CloudEvent) -> Rendered:
    """Return an array of one record."""
    body = orjson.dumps([record(event)])
    return {"Content-Type": "application/json"}, body


def record(event: CloudEvent) -> dict[str, object]:
    """Return an event as a row of the table; a column without a value is left out."""
    row = {
        "TimeGenerated": event.time,
        "CloudEventId": event.id,
        "CloudEventType": event.type,
        "CloudEventSource": event.source,
        "Subject": event.subject,
        "CorrelationId": event.text("correlationid"),
        "EventType": event.text("eventtype"),
        "EventSource": event.text("eventsource"),
        "EventStatus": event.text("eventstatus"),
        "SeverityText": event.text("severitytext"),
        "SeverityNumber": event.extensions.get("severitynumber"),
    }
    return known(row) | {"Data": event.data}
