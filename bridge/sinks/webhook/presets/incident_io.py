"""incident.io: an alert event for an HTTP alert source. One alert for each EventId.

Source: https://docs.incident.io/api-reference/alert-events-v2/createhttp
"""

from bridge.events.cloudevent import CloudEvent
from bridge.sinks.webhook.auth import AuthDefaults
from bridge.sinks.webhook.presets.alert import Alert, AlertAction, posting
from bridge.sinks.webhook.presets.fields import clipped
from bridge.sinks.webhook.presets.preset import Preset

_LONGEST_TITLE, _LONGEST_TEXT = 200, 4000
_MOST_MACHINES = 100
_FENCE = "`" * 3


def body(_: CloudEvent, found: Alert) -> dict[str, object]:
    """Return the alert; an approved event stays "firing" until it is over."""
    machines = found.machines[:_MOST_MACHINES]
    return {
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


def _block(value: str) -> str:
    """Return a text as a code block: other text in a description is Markdown."""
    return f"{_FENCE}\n{value.replace('`', chr(0x2019))}\n{_FENCE}"


PRESET = Preset(
    gets="an alert event for an HTTP alert source",
    needs="`auth.token`, the token of the alert source",
    talk=posting(body),
    auth=AuthDefaults(type="bearer"),
)
