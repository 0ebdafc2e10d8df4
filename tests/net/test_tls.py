"""Who cannot prove to be the receiver is told nothing."""

import ssl
from collections.abc import AsyncIterator

import pytest
import trustme
from aiohttp import web

from bridge.foundation.errors import TransientDeliveryError
from bridge.sinks.base import Resources
from tests.support.sink_fixtures import cloud_event, opened_sink


@pytest.fixture
async def impostor() -> AsyncIterator[tuple[str, list[str]]]:
    found: list[str] = []

    async def handle(request: web.BaseRequest) -> web.Response:
        found.append(request.path)
        return web.Response(text="ok")

    runner = web.ServerRunner(web.Server(handle))
    await runner.setup()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("127.0.0.1").configure_cert(context)  # whom nobody knows
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
    yield f"https://127.0.0.1:{runner.addresses[0][1]}/", found
    await runner.cleanup()


@pytest.mark.parametrize(
    ("kind", "key"), [("webhook", "url"), ("slack", "webhook_url")]
)
async def test_receiver_without_a_certificate_that_is_trusted_is_told_nothing(
    kind: str, key: str, resources: Resources, impostor: tuple[str, list[str]]
) -> None:
    url, found = impostor
    async with opened_sink(resources, {"type": kind, key: url}) as sink:
        with pytest.raises(TransientDeliveryError):
            await sink.deliver(cloud_event())

    assert found == []
    async with resources.http.get(url, ssl=False) as answer:  # it would have listened
        assert answer.status == 200
