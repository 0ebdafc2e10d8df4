"""Which sinks there are: the only list of them."""

from collections.abc import Mapping

from bridge.sinks.base import SinkConfig
from bridge.sinks.file import FileSinkConfig
from bridge.sinks.servicebus import ServiceBusSinkConfig
from bridge.sinks.slack import SlackSinkConfig
from bridge.sinks.syslog import SyslogSinkConfig
from bridge.sinks.webhook import WebhookSinkConfig

SINK_TYPES: Mapping[str, type[SinkConfig]] = {
    "file": FileSinkConfig,
    "servicebus": ServiceBusSinkConfig,
    "slack": SlackSinkConfig,
    "syslog": SyslogSinkConfig,
    "webhook": WebhookSinkConfig,
}
