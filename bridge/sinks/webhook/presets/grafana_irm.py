"""Grafana IRM and OnCall: a formatted webhook. One alert group for each EventId.

Source: https://grafana.com/docs/grafana-cloud/alerting-and-irm/irm/configure/
        (integrations, incoming webhooks: formatted webhook)
"""

from datetime import datetime

import orjson

from bridge.events.cloudevent import CloudEvent
from bridge.sinks.webhook.presets.alert import AlertAction, alert
from bridge.sinks.webhook.presets.fields import clipped
from bridge.sinks.webhook.presets.preset import Call, Preset, Talk, Verdict

_LONGEST_TITLE, _LONGEST_TEXT = 200, 4000


def talk(event: CloudEvent, verdict: Verdict, _: datetime) -> Talk:
    """Post the alert; an approved event stays "alerting" until it is over."""
    found = alert(event)
    if found is None:
        return None
    body = {
        "alert_uid": found.key,
        "title": clipped(found.headline, _LONGEST_TITLE),
        "state": "ok" if found.action is AlertAction.RESOLVE else "alerting",
        "message": found.body(_LONGEST_TEXT),
        "severity": found.severity.lower(),
        "event_type": clipped(found.kind, _LONGEST_TITLE),
    }
    headers = {"Content-Type": "application/json"}
    return verdict((yield Call(headers=headers, body=orjson.dumps(body))))


PRESET = Preset(
    gets="an alert for an integration of the kind *Formatted webhook*",
    talk=talk,
    is_open=True,  # the URL contains the token
)
