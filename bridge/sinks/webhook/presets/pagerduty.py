"""PagerDuty: the Events API v2. One alert for each EventId.

Source: https://developer.pagerduty.com/docs/events-api-v2/trigger-events/
        https://github.com/PagerDuty/api-schema (reference/events-v2/openapiv3.json)
"""

from bridge.events.cloudevent import CloudEvent
from bridge.foundation.errors import DeliveryError, Reason, RefusedDeliveryError
from bridge.net.http_client import Answer
from bridge.sinks.webhook.auth import AuthDefaults
from bridge.sinks.webhook.presets.alert import Alert, AlertAction, posting
from bridge.sinks.webhook.presets.fields import clipped, known
from bridge.sinks.webhook.presets.preset import Preset, by_status

_ACTIONS = {
    AlertAction.OPEN: "trigger",
    AlertAction.ACKNOWLEDGE: "acknowledge",
    AlertAction.RESOLVE: "resolve",
}
_SEVERITIES = {"ERROR": "error", "WARN": "warning", "INFO": "info"}
_LONGEST_SUMMARY = 1024
_BAD = 400


def body(event: CloudEvent, found: Alert) -> dict[str, object]:
    """Trigger, acknowledge or resolve; the sink adds the routing key to the body."""
    is_open = found.action is AlertAction.OPEN
    return {
        "event_action": _ACTIONS[found.action],
        "dedup_key": found.key,
        "client": "scheduled-events-bridge",
        **({"payload": _payload(event, found)} if is_open else {}),
    }


def _payload(event: CloudEvent, found: Alert) -> dict[str, object]:
    return known(
        {
            "summary": clipped(found.headline, _LONGEST_SUMMARY),
            "timestamp": event.time,
            "severity": _SEVERITIES[found.severity],
            "source": clipped(found.machines[0], 255),
            "component": "scheduled-events",
            "group": found.group,
            "class": clipped(found.kind, 255),
            "custom_details": dict(found.details),
        }
    )


def judge(answer: Answer) -> DeliveryError | None:
    """Return what an answer means: with a wrong key, every event is refused."""
    if answer.status == _BAD and b"routing" in answer.body:
        what = f"{answer.target} answered {_BAD}: the integration key is wrong"
        return RefusedDeliveryError(what, Reason.UNAUTHORIZED)
    return by_status(answer)


PRESET = Preset(
    gets="an alert of the Events API v2: triggered, acknowledged on approval, resolved",
    needs="`auth.value`, the integration key",
    talk=posting(body),
    judge=judge,
    auth=AuthDefaults(type="body", name="routing_key"),
)
