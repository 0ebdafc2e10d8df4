"""How a test reaches the Slack sink."""

from tests.sinks.ways.way import Options, Place, Servers, SinkWay
from tests.support.sink_fixtures import SECRET


def _beside(place: Place, servers: Servers) -> Options:
    if place not in {("token",), ("button_secret",)}:
        return {}
    api = {"api_url": f"{servers.http}/", "channel": "C024BE91L"}
    is_button = place == ("button_secret",)
    bot = {"token": "xoxb-1", "buttons": True} if is_button else {}
    return {"webhook_url": None, **api, **bot}


WAY = SinkWay(
    over="http",
    least=lambda servers: {"webhook_url": f"{servers.http}/services/{SECRET}"},
    address="webhook_url",
    secrets=(SECRET,),
    beside=_beside,
    shapes={("token",): "xoxb-{}".format},
)
