"""How a test reaches the syslog sink."""

from tests.sinks.ways.way import SinkWay

WAY = SinkWay(
    over="network",
    least=lambda servers: {"host": "127.0.0.1", "port": servers.logs},
    unreachable={"port": 9},
)
