"""How a test reaches the sink of a file."""

from tests.sinks.ways.way import SinkWay

WAY = SinkWay(
    over="machine",
    least=lambda servers: {"path": f"{servers.folder}/events.jsonl"},
    unreachable={"path": "/missing/events"},
)
