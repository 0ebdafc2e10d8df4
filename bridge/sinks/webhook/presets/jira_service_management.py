"""Jira Service Management: alerts through the integration events API.

Source: https://developer.atlassian.com/cloud/jira/service-desk-ops/rest/v1/api-group-integration-events
        https://support.atlassian.com/jira-service-management-cloud/docs/understand-the-alert-fields/
"""

from datetime import datetime
from urllib.parse import quote

import orjson

from bridge.events.cloudevent import CloudEvent
from bridge.sinks.webhook.auth import AuthDefaults
from bridge.sinks.webhook.presets.alert import Alert, AlertAction, alert
from bridge.sinks.webhook.presets.fields import clipped, known
from bridge.sinks.webhook.presets.preset import JSON, Call, Preset, Talk, Verdict

_ACTIONS = {AlertAction.ACKNOWLEDGE: "acknowledge", AlertAction.RESOLVE: "close"}
_PRIORITIES = {"ERROR": "P2", "WARN": "P3", "INFO": "P5"}
_SOURCE = "scheduled-events-bridge"
_LONGEST_MESSAGE = 130
_LONGEST_NOTE = 25_000
_LONGEST_TEXT = 15_000
_LONGEST_TAG = 50
_LONGEST_ENTITY = 512


def talk(event: CloudEvent, verdict: Verdict, _: datetime) -> Talk:
    """Create, acknowledge or close the alert whose alias is the EventId."""
    found = alert(event)
    if found is None:
        return None
    path = ""
    body = _created(found)
    if found.action is not AlertAction.OPEN:
        alias = quote(found.key, safe="")
        path = f"{alias}/{_ACTIONS[found.action]}?identifierType=alias"
        body = {"source": _SOURCE, "note": found.body(_LONGEST_NOTE)}
    return verdict((yield Call(path=path, headers=JSON, body=orjson.dumps(body))))


def _created(found: Alert) -> dict[str, object]:
    return known(
        {
            "message": clipped(found.headline, _LONGEST_MESSAGE),
            "alias": found.key,
            "description": found.body(_LONGEST_TEXT),
            "entity": clipped(found.machines[0], _LONGEST_ENTITY),
            "source": _SOURCE,
            "priority": _PRIORITIES[found.severity],
            "tags": ["scheduled-event", clipped(found.kind, _LONGEST_TAG)],
            "details": {k: clipped(v, 500) for k, v in found.details.items()},
        }
    )


PRESET = Preset(
    gets="an alert: created, acknowledged on approval, closed",
    needs="`auth.token`, the key of an API integration",
    talk=talk,
    auth=AuthDefaults(type="bearer", scheme="GenieKey"),
)
