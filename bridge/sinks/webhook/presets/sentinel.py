"""Microsoft Sentinel: the Logs Ingestion API, one flat record in an array.

The columns are those of ``infra/siem/sentinel/stream.preset.json``. ``id`` and ``type``
are reserved names there, so the columns of these two attributes have other names.

Source: https://learn.microsoft.com/azure/azure-monitor/logs/logs-ingestion-api-overview
"""

import orjson

from bridge.events.cloudevent import SIGNATURE, CloudEvent
from bridge.sinks.webhook.auth import AuthDefaults
from bridge.sinks.webhook.presets.fields import known
from bridge.sinks.webhook.presets.preset import Many, Preset, Rendered

SCOPE = "https://monitor.azure.com/.default"


def render(event: CloudEvent) -> Rendered:
    """Return an array of one record."""
    return _MANY.render(event)


def record(event: CloudEvent) -> dict[str, object]:
    """Return an event as a row of the table; columns without a value are left out.

    A signed event is in the row as a text, too: ``sebridge verify`` needs its bytes.
    """
    is_signed = SIGNATURE in event.extensions
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
        "CloudEvent": event.to_json().decode() if is_signed else None,
    }
    return known(row) | {"Data": event.data}


# A request with one bad record, or of more than 1 MB, is refused as a whole.
_MANY = Many(piece=lambda event: orjson.dumps(record(event)))

PRESET = Preset(
    gets="an array of one flat row for the Logs Ingestion API; `infra/siem/sentinel` "
    "has stream, table and KQL",
    needs="a managed identity",
    render=render,
    many=_MANY,
    auth=AuthDefaults(type="entra", scope=SCOPE, is_implied=True),
    takes_gzip=True,
)
