"""How a test reaches the webhook sink."""

import base64

from tests.sinks.ways.way import Options, Place, Servers, SinkWay
from tests.support.sink_fixtures import SECRET

_AUTH: dict[Place, Options] = {
    ("auth", "token"): {"type": "bearer"},
    ("auth", "password"): {"type": "basic", "username": "u"},
    ("auth", "value"): {"type": "header", "name": "x-other-key"},
}


def _more(_: Servers) -> Options:
    return {
        "headers": {"x-key": SECRET},
        "auth": {"type": "bearer", "token": SECRET},
    }


def _beside(place: Place, _: Servers) -> Options:
    return {"auth": dict(_AUTH[place])} if place[0] == "auth" else {}


def _signing_secret(core: str) -> str:
    return f"whsec_{base64.b64encode(core.encode()).decode()}"


WAY = SinkWay(
    over="http",
    least=lambda servers: {"url": f"{servers.http}/{SECRET}?key={SECRET}"},
    more=_more,
    address="url",
    secrets=(SECRET,),
    beside=_beside,
    shapes={("signature", "secrets", 0): _signing_secret},
)
