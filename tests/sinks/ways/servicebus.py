"""How a test reaches the Service Bus sink."""

from tests.sinks.ways.way import SinkWay

WAY = SinkWay(
    over="network",
    least=lambda servers: {
        "connection_string": servers.bus,
        "topic": servers.topic,
    },
    address="connection_string",
    secrets=("SAS_KEY_VALUE",),
)
