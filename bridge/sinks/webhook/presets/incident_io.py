"""incident.io: an alert event for an HTTP alert source. One alert for each EventId.

Source: https://docs.incident.io/api-reference/alert-events-v2/createhttp
"""

from datetime import datetime

import orjson

from bridge.events.cloudevent import CloudEvent
from bridge.sinks.webhook.auth import AuthDefaults
from bridge.sinks.webhook.presets.alert import AlertAction, alert
from bridge.sinks.webhook.presets.fields import clipped
from bridge.sinks.webhook.presets.preset import Call, Preset, Talk, Verdict

_LONGEST_TITLE, _LONGEST_TEXT = 200, 4000
_MOST_MACHINES = 100
_FENCE = "`" * 3


def talk(event: CloudEvent, verdict: Verdict, _: datetime) -> Talk:
    """Post the alert; an approved event stays "firing" until it is over."""
    found = alert(event)
    if found is None:
        return None
    machines = found.machines[:_MOST_MACHINES]
    body = {
        "title": clipped(found.headline, _LONGEST_TITLE),
        "status": "resolved" if found.action is AlertAction.RESOLVE else "firing",
        "deduplication_key": found.key,
        "description": _block(found.body(_LONGEST_TEXT)),
        "metadata": {
            "severity": found.severity.lower(),
            "event_type": clipped(found.kind, _LONGEST_TITLE),
            "group": found.group,
            "machines": [clipped(name, _LONGEST_TITLE) for name in machines],
        },
    }
    headers = {"Content-Type": "application/json"}
    return verdict((yield Call(headers=headers, body=orjson.dumps(body))))


def _block(value: str) -> str:
    """Return a text as a code block: other text in a description is Markdown."""
    return f"{_FENCE}\n{value.replace('`', chr(0x2019))}\n{_FENCE}"


PRESET = Preset(
    gets="an alert event for an HTTP alert source",
    needs="`auth.token`, the token of the alert source",
    talk=talk,
    auth=AuthDefaults(type="bearer"),
)
