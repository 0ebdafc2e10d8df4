"""Grafana IRM and OnCall: a formatted webhook. One alert group for each EventId.

Source: https://grafana.com/docs/grafana-cloud/alerting-and-irm/irm/configure/
        (integrations, incoming webhooks: formatted webhook)
"""

from bridge.events.cloudevent import CloudEvent
from bridge.sinks.webhook.presets.alert import Alert, AlertAction, posting
from bridge.sinks.webhook.presets.fields import clipped
from bridge.sinks.webhook.presets.preset import Preset

_LONGEST_TITLE, _LONGEST_TEXT = 200, 4000


def body(_: CloudEvent, found: Alert) -> dict[str, object]:
    """Return the alert; an approved event stays "alerting" until it is over."""
    return {
        "alert_uid": found.key,
        "title": clipped(found.headline, _LONGEST_TITLE),
        "state": "ok" if found.action is AlertAction.RESOLVE else "alerting",
        "message": found.body(_LONGEST_TEXT),
        "severity": found.severity.lower(),
        "event_type": clipped(found.kind, _LONGEST_TITLE),
    }


PRESET = Preset(
    gets="an alert for an integration of the kind *Formatted webhook*",
    talk=posting(body),
    is_open=True,  # the URL contains the token
)
