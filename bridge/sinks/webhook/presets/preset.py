"""What a preset is: the body, the answers and the ways in of a known service."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from bridge.events.cloudevent import CloudEvent
from bridge.sinks.webhook.auth import AuthDefaults
from bridge.sinks.webhook.content_mode import Rendered
from bridge.sinks.webhook.response import Judge, by_status

PresetName = Literal[
    "splunk-hec",
    "elastic",
    "sentinel",
    "eventgrid",
    "eventhubs",
    "azure-function",
    "standard-webhooks",
    "teams",
]

NO_AUTH = AuthDefaults()
OWN_BODY = frozenset({"template"})
CLOUDEVENTS = frozenset({"structured", "binary", "batch", "array"}) | OWN_BODY


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """What a webhook sink does where its own keys say nothing else.

    Attributes:
        render: headers and body of an event.
        headers: what goes with a body, also with one that the user makes.
        judge: what an answer means for a delivery.
        modes: values of ``content_mode`` that may take the place of ``render``.
        auth: what is known of ``[sinks.auth]``.
        is_open: whether it may be reached without auth: it has none, or it stands in
            the URL.
        is_signed: whether ``[sinks.signature]`` is part of it.
        takes_gzip: whether it is known to take compressed bodies.
    """

    render: Callable[[CloudEvent], Rendered]
    headers: Callable[[CloudEvent], Mapping[str, str]] = lambda _: {}
    judge: Judge = by_status
    modes: frozenset[str] = OWN_BODY
    auth: AuthDefaults = NO_AUTH
    is_open: bool = False
    is_signed: bool = False
    takes_gzip: bool = False
