"""How a test reaches the email sink."""

from tests.sinks.ways.way import Options, Place, Servers, SinkWay


def _least(servers: Servers) -> Options:
    return {
        "host": "127.0.0.1",
        "port": servers.mail,
        "security": "none",
        "sender": f"sebridge@{servers.domain}",
        "recipients": ["ops@contoso.com"],
    }


def _beside(place: Place, _: Servers) -> Options:
    return {"username": "u"} if place == ("password",) else {}


WAY = SinkWay(
    over="network",
    least=_least,
    unreachable={"port": 9},
    beside=_beside,
)
