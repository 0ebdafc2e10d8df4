"""How a test reaches the sink of a command."""

from tests.sinks.ways.way import Options, Servers, SinkWay


def _least(servers: Servers) -> Options:
    given = f"{servers.folder}/given"
    return {"command": ["/bin/sh", "-c", f"cat >>{given} && echo >>{given}"]}


WAY = SinkWay(over="machine", least=_least, unreachable={"command": ["/missing/hook"]})
