"""Render the requests of an event for display, without their secrets."""

from collections.abc import Iterator, Mapping
from datetime import datetime

from bridge.events.cloudevent import CloudEvent
from bridge.net.http_client import Answer
from bridge.sinks.webhook.body import Talker
from bridge.sinks.webhook.config import WebhookKeys
from bridge.sinks.webhook.presets.preset import Call, Preset, advanced

NOTHING = "nothing is sent: the service has no place for this event"
SECRET = "<secret>"  # noqa: S105 - shown in place of one  # nosec B105


def assumed(
    talk: Talker, known: Preset | None, event: CloudEvent, now: datetime
) -> Iterator[Call]:
    """Yield the requests for an event, if each gets the answer the preset assumes."""
    body = known.assumed if known else b""
    supposed = Answer(status=200, body=body, retry_after=None)
    requests = talk(event, lambda _: None, now)
    answer: Answer | None = None
    while isinstance(call := advanced(requests, answer), Call):
        yield call
        answer = supposed


def line(call: Call, target: str) -> str:
    """Return the line of a request; of the URL only ``target`` is shown."""
    return f"{call.method} {target}" + (f" {call.path}" if call.path else "")


def shown(config: WebhookKeys, expanded: Mapping[str, str]) -> dict[str, str]:
    """Return the headers of the configuration.

    Args:
        config: the keys of the sink.
        expanded: the literal headers, with placeholders filled in.
    """
    headers = {
        name: expanded[name]
        if value.is_literal and not value.holds_secret(name)
        else SECRET
        for name, value in config.headers.items()
    }
    if (auth := config.auth_meant) is not None and auth.type != "body":
        headers[auth.header] = auth.shown
    return headers
