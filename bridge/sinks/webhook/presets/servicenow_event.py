"""ServiceNow: events of Event Management. One alert for each EventId and machine.

Source: https://www.servicenow.com/docs (Event Management, event field format; web
        service API ``/api/global/em/jsonv2``)
"""

from collections.abc import Iterator
from datetime import UTC, datetime

import orjson

from bridge.events.cloudevent import CloudEvent, hash32
from bridge.events.document import resources_of
from bridge.events.wording import table
from bridge.sinks.webhook.auth import AuthDefaults
from bridge.sinks.webhook.presets.alert import Alert, AlertAction, posting
from bridge.sinks.webhook.presets.fields import clipped
from bridge.sinks.webhook.presets.preset import JSON, Preset

_SEVERITIES = {"ERROR": "2", "WARN": "4", "INFO": "5"}
_CLEAR = "0"
_LONGEST_NAME = 100
_LONGEST_TEXT = 4000
_MOST_MACHINES = 100


def body(event: CloudEvent, found: Alert) -> dict[str, object] | None:
    """Return one record for each machine: ServiceNow binds a record to one CI."""
    if found.action is AlertAction.ACKNOWLEDGE and not found.facts.raw:
        return None
    return {"records": list(_records(event, found))}


def _records(event: CloudEvent, found: Alert) -> Iterator[dict[str, object]]:
    is_over = found.action is AlertAction.RESOLVE
    severity = _CLEAR if is_over else _SEVERITIES[found.severity]
    now = found.machines[:_MOST_MACHINES]
    for machine in now:
        yield _record(event, found, machine, severity)
    # Machines that the event no longer names are not affected: clear their alerts.
    before = resources_of(table(event.data.get("previous")))
    for machine in dict.fromkeys(before[:_MOST_MACHINES]):
        if machine.strip() and machine not in now:
            yield _record(event, found, machine, _CLEAR)


def _record(
    event: CloudEvent, found: Alert, machine: str, severity: str
) -> dict[str, object]:
    return {
        "source": "scheduled-events-bridge",
        "event_class": clipped(found.group or event.source, _LONGEST_NAME),
        "node": clipped(machine, _LONGEST_NAME),
        "type": found.about,
        "metric_name": clipped(found.kind, _LONGEST_NAME),
        "message_key": f"{found.key}/{hash32(machine.upper())[:8]}",
        "severity": severity,
        "resolution_state": "Closing" if severity == _CLEAR else "New",
        "time_of_event": _gmt(event.time),
        "description": found.body(_LONGEST_TEXT),
        "additional_info": orjson.dumps(dict(found.details)).decode(),
    }


def _gmt(time: str) -> str:
    moment = datetime.fromisoformat(time).astimezone(UTC)
    return moment.strftime("%Y-%m-%d %H:%M:%S")


PRESET = Preset(
    gets="events of Event Management: one alert for each EventId and machine",
    needs='`auth.username`, `auth.password`; or `auth.type = "bearer"`',
    talk=posting(body, {**JSON, "Accept": "application/json"}),
    auth=AuthDefaults(type="basic"),
)
