"""Which sinks there are: the only list of them."""

from collections.abc import Mapping

from bridge.sinks.base import SinkConfig
from bridge.sinks.servicebus import ServiceBusSinkConfig
from bridge.sinks.slack import SlackSinkConfig
from bridge.sinks.webhook import WebhookSinkConfig

SINK_TYPES: Mapping[str, type[SinkConfig]] = {
    "servicebus": ServiceBusSinkConfig,
    "slack": SlackSinkConfig,
    "webhook": WebhookSinkConfig,
}
